/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many small allocations that live and die together.  Memory never moves and is freed all at once.
 * Zero-initialise (`struct arena a = {0}`) before use.  One thread.
 */
#ifndef CODEC_ARENA_H
#define CODEC_ARENA_H

#include "codec/base.h"

struct arena_chunk;

struct arena {
	struct arena_chunk *chunks; /* owned, newest first */
	size_t used, size;	    /* bytes of the newest chunk */
};

/* size bytes aligned for uint64_t and pointers, not cleared; NULL without memory.  Size 0 is fine.
 */
void *arena_alloc(struct arena *a, size_t size);
/* len bytes (no alignment), for text. */
char *arena_text(struct arena *a, size_t len);
void arena_release(struct arena *a);

#endif
