/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arena: a list of chunks, the newest of which is filled from its start.
 *
 * Chunks grow from 1 KiB to 1 MiB by doubling, so a header of three tensors costs little and one
 * of a hundred thousand costs few calls to malloc().  A request that does not fit opens a new
 * chunk; what was left in the old one is lost, at most the size of one request.
 */
#include "codec/arena.h"

#include <stdlib.h>

enum { CHUNK_MIN = 1 << 10, CHUNK_MAX = 1 << 20 };

struct arena_chunk {
	struct arena_chunk *next;
	uint64_t bytes[]; /* for the alignment */
};

static bool arena_grow(struct arena *a, size_t need)
{
	size_t size = MIN(MAX(a->size * 2, (size_t)CHUNK_MIN), (size_t)CHUNK_MAX);
	struct arena_chunk *chunk;

	size = MAX(size, need);
	if (size > SIZE_MAX / 2)
		return false;
	chunk = malloc(sizeof(*chunk) + size);
	if (chunk == NULL)
		return false;
	chunk->next = a->chunks;
	a->chunks = chunk;
	a->used = 0;
	a->size = size;
	return true;
}

char *arena_text(struct arena *a, size_t len)
{
	char *p;

	if ((a->chunks == NULL || len > a->size - a->used) && !arena_grow(a, len))
		return NULL;
	p = (char *)a->chunks->bytes + a->used;
	a->used += len;
	return p;
}

void *arena_alloc(struct arena *a, size_t size)
{
	size_t gap = -a->used & (sizeof(uint64_t) - 1);

	/* Without room for the gap the request does not fit either and opens an aligned chunk. */
	if (a->chunks != NULL)
		a->used += MIN(gap, a->size - a->used);
	return arena_text(a, MAX(size, (size_t)1));
}

void arena_release(struct arena *a)
{
	while (a->chunks != NULL) {
		struct arena_chunk *next = a->chunks->next;

		free(a->chunks);
		a->chunks = next;
	}
	*a = (struct arena){0};
}
