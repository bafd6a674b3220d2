/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool of a few worker threads for what may block or compute: hashing, writing, opening files.
 *
 * A job is a field of the struct it works on, so submitting never allocates, never blocks and never
 * fails, and a network thread may do it.  The queue needs no bound of its own: it cannot be longer
 * than the number of those structs, and their owner bounds that (fills: by bytes in flight).
 */
#ifndef CACHE_POOL_H
#define CACHE_POOL_H

#include "codec/base.h"

struct pool; /* opaque */

enum pool_priority {
	POOL_SOON,  /* somebody waits */
	POOL_LATER, /* after those; but one in eight goes first, so that it does not starve */
};

/* Zeroed before its first use.  Belongs to the pool from submit until run() begins or cancel says
 * true; run() may free it or submit it again. */
struct pool_job {
	void (*run)(struct pool_job *job); /* on a worker, with no lock held; may block */
	struct pool_job *next;		   /* private */
	bool queued;			   /* private */
};

/* The threads have all signals blocked.  -errno when not one could be started. */
int pool_new(unsigned threads, struct pool **out) MUST_CHECK;
void pool_free(struct pool *p); /* runs what is queued, then ends; NULL is fine */
void pool_submit(struct pool *p, struct pool_job *job, enum pool_priority priority);
/* True: the job was waiting and will not run.  False: it runs, has run, or was never submitted. */
bool pool_cancel(struct pool *p, struct pool_job *job);
/* Waits until nothing is queued and nothing runs, also what jobs submit meanwhile.  Not from a job.
 */
void pool_drain(struct pool *p);

#endif
