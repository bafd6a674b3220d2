/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mutexes with ranks, so that a wrong order aborts in a debug build at once and not as a rare dead
 * lock. A thread may take a lock only of a lower rank than all it holds.  No lock is held over a
 * reply, I/O, codec work or a callback.
 */
#ifndef CACHE_LOCK_H
#define CACHE_LOCK_H

#include <pthread.h>
#include <stdint.h>

enum lock_rank {
	LOCK_LOG = 1,
	LOCK_QUEUE,   /* inboxes, small counters, poll handles */
	LOCK_SHARD,   /* shards of caches and tables */
	LOCK_INODE,   /* node table */
	LOCK_HISTORY, /* current pointer, versions kept, pins */
};

struct lock {
	pthread_mutex_t mutex;
	enum lock_rank rank;
};

struct condition {
	pthread_cond_t cond; /* on CLOCK_MONOTONIC */
};

void lock_init(struct lock *lock, enum lock_rank rank);
void lock_destroy(struct lock *lock);
void lock_take(struct lock *lock);
void lock_release(struct lock *lock);
void condition_init(struct condition *c);
void condition_destroy(struct condition *c);
/* Waits with `lock` released; until_mono_ns < 0 waits for ever (it is real time: clock_fake() has
 * no part in it).  Returns 0 or -ETIMEDOUT.  Spurious wake-ups happen. */
int condition_wait(struct condition *c, struct lock *lock, int64_t until_mono_ns);
void condition_broadcast(struct condition *c);

#endif
