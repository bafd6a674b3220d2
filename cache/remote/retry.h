/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When to try again: pure policy without clock, I/O or state.
 *
 * Exponential back-off with full jitter; a server's own wish (Retry-After, RateLimit t=) is a lower
 * bound, up to a limit; never beyond the budget.  Also how far parallelism goes down and comes back
 * when a server says that it is too much.
 */
#ifndef CACHE_REMOTE_RETRY_H
#define CACHE_REMOTE_RETRY_H

#include "codec/base.h"

struct retry_policy {
	unsigned attempts; /* without progress, at most; 0: 6 */
	int64_t base_ms;   /* first back-off, at most; 0: 250 */
	int64_t cap_ms;	   /* longest back-off; 0: 10 000 */
	int64_t server_ms; /* longest wait that a server may ask for; beyond it the call fails at
			      once; 0: 300 000 */
};

struct retry_event {
	unsigned attempt;	/* attempts made since there was progress, 1 for the first */
	unsigned unanswered;	/* so many of them count only for the back-off */
	int status;		/* HTTP status, or 0: */
	int err;		/* positive errno of a transport or protocol error */
	bool repeatable;	/* sending it twice does no harm */
	bool unsent;		/* the server cannot have seen it (no connection) */
	bool redirected;	/* the answer came from a redirect's target on another origin */
	bool slow_down;		/* the body says SlowDown or the like */
	int64_t retry_after_ms; /* -1: none */
	int64_t rate_reset_ms;	/* RateLimit t=; looked at for 429 only; -1: none */
	int64_t rate_remaining; /* RateLimit r=; -1: none */
	int64_t budget_ms;	/* time left for the whole call; < 0: no limit */
	uint32_t random;	/* uniform */
};

struct retry_decision {
	bool again;
	bool fewer;	 /* the server is overloaded: fewer calls at a time */
	int64_t wait_ms; /* when again */
};

struct retry_decision retry_decide(const struct retry_policy *policy, const struct retry_event *e);
/* Would the event be worth another attempt, time and attempts permitting? */
bool retry_is_transient(const struct retry_event *e);

/* Calls in flight: halves when told that it is too much (once for what was in flight then), grows
 * by one after each `limit` good answers. */
struct parallelism {
	unsigned max, limit, good;
	uint64_t epoch; /* grows with each halving */
};
void parallelism_init(struct parallelism *p, unsigned max);
void parallelism_good(struct parallelism *p);
/* epoch: that of *p when the call was started, so that a burst of refusals halves once. */
void parallelism_fewer(struct parallelism *p, uint64_t epoch);

#endif
