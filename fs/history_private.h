/* SPDX-License-Identifier: Apache-2.0 */
/* What fs/history.c and fs/history_load.c share. */
#ifndef FS_HISTORY_PRIVATE_H
#define FS_HISTORY_PRIVATE_H

#include "cache/lock.h"
#include "fs/guard.h"
#include "fs/history.h"

struct slot {
	struct slot *next; /* published earlier */
	struct generation *g;
	bool pinned;
	bool asked;    /* added by history_add_pinned(): not one of the last `keep` */
	bool replaced; /* a later publication has the same version, or it was taken out */
	bool ready;    /* prepared, or nothing waits for that */
};

struct history {
	struct lock lock;
	struct condition changed; /* with lock: current or newest moved */
	unsigned keep;
	/* guarded by lock */
	bool gated;	/* current follows what is ready only */
	uint64_t moves; /* of newest and current, and wake-ups */
	struct slot *slots;
	struct slot *current, *newest;
	int64_t held_until; /* monotonic; 0: not held */
	struct guard guard; /* its views are slots */
	bool split;	    /* read without the lock: a load keeps another slot than current */
	void (*fn)(void *ctx);
	void *fn_ctx;
};

struct generation *slot_ref(const struct slot *s); /* a reference; NULL for NULL */

/* Under the lock, after anything that may have changed what a load keeps. */
static inline void history_note_split(struct history *h)
{
	__atomic_store_n(&h->split, guard_split(&h->guard), __ATOMIC_RELAXED);
}

#endif
