/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which block goes first: least recently used over (owner, block), as a pure data structure.  No
 * lock, no I/O; the owner's lock guards it.  The owner keeps the slot of each of its blocks, so
 * every operation but the search for a victim takes constant time.  24 bytes per block.
 */
#ifndef CACHE_EVICT_H
#define CACHE_EVICT_H

#include "codec/base.h"

#define EVICT_NONE UINT32_MAX

struct evict_entry {
	void *owner; /* borrowed; NULL: the slot is free */
	uint32_t block;
	uint32_t older, newer; /* private */
};

struct evict { /* zeroed is empty */
	struct evict_entry **chunks;
	uint32_t chunk_count, chunk_cap;
	uint32_t used; /* slots ever given out */
	uint32_t free; /* 1 + a free slot, chained by `newer`; 0: none */
	uint32_t count;
	uint32_t oldest, newest; /* 1 + slot; 0: none */
};

void evict_release(struct evict *e);
/* Adds as the most recently used, or with `old` as the least.  -ENOMEM. */
int evict_add(struct evict *e, void *owner, uint32_t block, bool old, uint32_t *out) MUST_CHECK;
void evict_touch(struct evict *e, uint32_t slot); /* it is the most recently used now */
void evict_remove(struct evict *e, uint32_t slot);
/* The oldest slot (after EVICT_NONE), then younger ones; EVICT_NONE at the end. */
uint32_t evict_next(const struct evict *e, uint32_t slot);
const struct evict_entry *evict_get(const struct evict *e, uint32_t slot);

#endif
