/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls that a store has under way, so that it can end them all when it stops.
 */
#ifndef CACHE_REMOTE_LIVE_H
#define CACHE_REMOTE_LIVE_H

#include "cache/lock.h"
#include "cache/remote/http.h"

/* A call; embedded first in the store's own struct. */
struct live {
	struct http_call call;
	struct live *next, **link; /* private */
};

struct live_set {
	struct http *http; /* borrowed */
	struct lock lock;  /* LOCK_SHARD; guards the two below */
	struct live *first;
	bool stopping;
};

void live_init(struct live_set *s, struct http *http);
void live_destroy(struct live_set *s); /* nothing may be under way */
/* Submits.  The call's build() must end it with -ECANCELED when live_stopping().  False: stopping;
 * done() will not be called. */
bool live_submit(struct live_set *s, struct live *l) MUST_CHECK;
/* First thing in done(): after it the set knows nothing of the call. */
void live_ended(struct live_set *s, struct live *l);
/* Submits and waits: l->call.err.  -ECANCELED when stopping. */
int live_run(struct live_set *s, struct live *l) MUST_CHECK;
/* Cancels what is under way; later calls are not made. */
void live_stop(struct live_set *s);
bool live_stopping(struct live_set *s);

#endif
