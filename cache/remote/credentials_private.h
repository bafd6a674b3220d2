/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the credentials share: credentials.c keeps and hands out, credentials_find.c
 * chooses the source, credentials_process.c and credentials_remote.c ask it.
 */
#ifndef CACHE_REMOTE_CREDENTIALS_PRIVATE_H
#define CACHE_REMOTE_CREDENTIALS_PRIVATE_H

#include "cache/lock.h"
#include "cache/remote/credentials.h"

enum credential_kind {
	CREDENTIALS_ANONYMOUS,
	CREDENTIALS_ENVIRONMENT,
	CREDENTIALS_WEB_IDENTITY,
	CREDENTIALS_PROFILE,
	CREDENTIALS_PROCESS,
	CREDENTIALS_CONTAINER,
	CREDENTIALS_INSTANCE,
};

/* Constant once found. */
struct credential_source {
	enum credential_kind kind;
	char *profile;
	char *from;
	char *url;	  /* of the service to ask */
	char *token_file; /* web identity, container */
	char *role_arn, *session_name;
	char *command;
};

struct credentials {
	struct credential_source source;
	struct http *http;
	int stop_fd; /* an eventfd: readable once it is to end */
	pthread_t thread;
	bool joined;

	struct lock lock; /* LOCK_SHARD; guards what follows */
	struct condition changed;
	struct credential_set *set; /* the newest; NULL: none yet */
	uint64_t generation;
	struct credential_ask *asks;
	bool wanted; /* a renewal */
	bool stopping;
	int64_t next_try_ns;	/* monotonic: no renewal ahead of time before that */
	struct http_call *call; /* under way */
};

/* credentials_find.c */
int credentials_find(const struct credentials_options *options, struct credential_source *out,
		     struct why *why) MUST_CHECK;
void credential_source_release(struct credential_source *s);
/* http to anything but this machine and the link-local services of ECS and EKS is refused. -EINVAL
 * with a sentence. */
int credentials_check_container_url(const char *url, struct why *why) MUST_CHECK;

/* Each fills *out (zeroed) or returns -errno with a sentence; block. */
int credentials_read_environment(struct credential_set *out, struct why *why) MUST_CHECK;
int credentials_read_profile(const struct credential_source *s, struct credential_set *out,
			     struct why *why) MUST_CHECK;
/* credentials_process.c */
int credentials_run_process(struct credentials *c, struct credential_set *out,
			    struct why *why) MUST_CHECK;
/* credentials_remote.c */
int credentials_ask_sts(struct credentials *c, struct credential_set *out,
			struct why *why) MUST_CHECK;
int credentials_ask_container(struct credentials *c, struct credential_set *out,
			      struct why *why) MUST_CHECK;
int credentials_ask_instance(struct credentials *c, struct credential_set *out,
			     struct why *why) MUST_CHECK;
/* {"AccessKeyId", "SecretAccessKey", token, "Expiration"}; `who` for sentences.  -EPROTO. */
int credentials_parse_json(const char *text, size_t len, const char *token, const char *who,
			   struct credential_set *out, struct why *why) MUST_CHECK;

/* credentials.c */
int credential_set_fill(struct credential_set *s, const char *access, const char *secret,
			const char *token, struct why *why) MUST_CHECK;
/* http_run(), ended by credentials_stop(). */
int credentials_call(struct credentials *c, struct http_call *call) MUST_CHECK;

#endif
