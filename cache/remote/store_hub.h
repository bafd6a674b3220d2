/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Hugging Face Hub as a store: buckets, and model, dataset and Space repositories; the forms of
 * their names are in hub_url.h.
 *
 * Identity: a bucket's file has that of its Xet hash, a repository's that of its SHA-256 (or git
 * blob id), so the same content under two names is one object.  A repository is read at a commit;
 * with a branch, each listing asks which commit that is now, and handles stay at the one they were
 * opened at.
 *
 * Listing again is cheap while nothing changed: a bucket's change feed, or a call that says when it
 * last changed, no more often than the quota allows.  Then the listing is the one before.
 */
#ifndef CACHE_REMOTE_STORE_HUB_H
#define CACHE_REMOTE_STORE_HUB_H

#include "cache/remote/http.h"
#include "cache/store.h"

struct store_hub_options {
	const char *token_file; /* NULL: the usual places (hub_token.h) */
};

/* Does the text name a place on the Hub (also as a pasted URL)? */
bool store_hub_is(const char *place);
/* Asks the network for nothing.  http is borrowed; shut it down before store_free().  -EINVAL and
 * others with a sentence. */
int store_hub_new(const char *place, const struct store_hub_options *options, struct http *http,
		  struct store **out, struct why *why) MUST_CHECK;

#endif
