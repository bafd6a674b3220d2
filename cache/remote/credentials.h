/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Credentials for AWS and what speaks like it, found in the documented order and kept fresh.
 *
 * Order: an option that forbids them (anonymous); --profile; environment; web identity; profile,
 * incl. credential_process; container; instance (IMDSv2).  The first that is configured is the
 * source for good; a failure of it is an error and not a reason to try the next.
 *
 * Temporary credentials are renewed by a thread of their own, 5 minutes before they expire.  Until
 * then, and as long as a renewal fails, the old ones are handed out; expired ones never are.
 */
#ifndef CACHE_REMOTE_CREDENTIALS_H
#define CACHE_REMOTE_CREDENTIALS_H

#include "cache/remote/http.h"

struct credential_set {
	char *access_key, *secret_key, *session_token; /* session_token NULL: none */
	bool anonymous;				       /* none at all: do not sign */
	int64_t expires_ns;			       /* since 1970; INT64_MAX: never */
	uint64_t generation; /* grows with each renewal that brought news */
	const char *from;    /* for people: "the environment", "profile 'x'"; the provider's */
	int refs;	     /* atomic */
};
struct credential_set *credential_set_ref(struct credential_set *s);
void credential_set_unref(struct credential_set *s); /* NULL is fine; wiped with the last one */

struct credentials_options {
	bool anonymous;
	const char *profile; /* NULL: AWS_PROFILE, else "default" */
	const char *region;  /* for STS; NULL: by environment and profile */
};

struct credentials; /* opaque */

/* Finds the source (files and environment; no network, no child process) and starts the thread.
 * -EINVAL, -EACCES, ... with a sentence. http is borrowed. */
int credentials_new(const struct credentials_options *options, struct http *http,
		    struct credentials **out, struct why *why) MUST_CHECK;
/* Ends the asks under way, and later ones at once, with -ECANCELED.  May be called again. */
void credentials_stop(struct credentials *c);
void credentials_free(struct credentials *c); /* stops; NULL is fine */
/* For messages: "the environment", "profile 'x'", ... */
const char *credentials_from(const struct credentials *c);

/* Zeroed before use; the caller's until ready() has been called, exactly once, from any thread,
 * perhaps before credentials_ask() returns, with no lock held.  ready() must not block. */
struct credential_ask {
	void (*ready)(struct credential_ask *ask);
	uint64_t newer_than; /* a generation that the server has refused; 0: any will do */
	/* Results: */
	int err; /* -EKEYEXPIRED: there are no newer ones; -EACCES, ... with a sentence */
	struct why why;
	struct credential_set *set; /* the caller's reference; NULL on error */
	/* private */
	struct credential_ask *next;
};
void credentials_ask(struct credentials *c, struct credential_ask *ask);
/* Waits. Not on the network thread. */
int credentials_get(struct credentials *c, uint64_t newer_than, struct credential_set **out,
		    struct why *why) MUST_CHECK;

#endif
