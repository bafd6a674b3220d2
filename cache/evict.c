/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of blocks by last use.
 *
 * A doubly linked list whose links are slot numbers, in chunks that never move, so that it grows
 * without one large reallocation.  Inside, a slot is named by its number plus one, so that zeroed
 * memory is an empty list; outside by its number, EVICT_NONE being none.
 *
 * Not here: how large a block is, whether it may go, and everything about files.
 */
#include "cache/evict.h"

#include <assert.h>
#include <stdlib.h>

enum { CHUNK = 1024 };

static struct evict_entry *entry(const struct evict *e, uint32_t slot)
{
	return &e->chunks[slot / CHUNK][slot % CHUNK];
}

void evict_release(struct evict *e)
{
	for (uint32_t i = 0; i < e->chunk_count; i++)
		free(e->chunks[i]);
	free(e->chunks);
	*e = (struct evict){0};
}

static int add_chunk(struct evict *e)
{
	if (e->chunk_count == UINT32_MAX / CHUNK)
		return -ENOMEM;
	if (e->chunk_count == e->chunk_cap) {
		uint32_t cap = e->chunk_cap > 0 ? 2 * e->chunk_cap : 16;
		struct evict_entry **grown = reallocarray(e->chunks, cap, sizeof(*grown));

		if (grown == NULL)
			return -ENOMEM;
		e->chunks = grown;
		e->chunk_cap = cap;
	}
	e->chunks[e->chunk_count] = calloc(CHUNK, sizeof(**e->chunks));
	if (e->chunks[e->chunk_count] == NULL)
		return -ENOMEM;
	e->chunk_count++;
	return 0;
}

static void link_newest(struct evict *e, uint32_t slot)
{
	struct evict_entry *n = entry(e, slot);

	n->newer = 0;
	n->older = e->newest;
	if (e->newest != 0)
		entry(e, e->newest - 1)->newer = slot + 1;
	else
		e->oldest = slot + 1;
	e->newest = slot + 1;
}

static void link_oldest(struct evict *e, uint32_t slot)
{
	struct evict_entry *n = entry(e, slot);

	n->older = 0;
	n->newer = e->oldest;
	if (e->oldest != 0)
		entry(e, e->oldest - 1)->older = slot + 1;
	else
		e->newest = slot + 1;
	e->oldest = slot + 1;
}

static void unlink_slot(struct evict *e, uint32_t slot)
{
	struct evict_entry *n = entry(e, slot);

	if (n->older != 0)
		entry(e, n->older - 1)->newer = n->newer;
	else
		e->oldest = n->newer;
	if (n->newer != 0)
		entry(e, n->newer - 1)->older = n->older;
	else
		e->newest = n->older;
}

int evict_add(struct evict *e, void *owner, uint32_t block, bool old, uint32_t *out)
{
	struct evict_entry *n;
	uint32_t slot;

	assert(owner != NULL);
	if (e->free != 0) {
		slot = e->free - 1;
		e->free = entry(e, slot)->newer;
	} else {
		if (e->used == e->chunk_count * CHUNK && add_chunk(e) < 0)
			return -ENOMEM;
		slot = e->used++;
	}
	n = entry(e, slot);
	n->owner = owner;
	n->block = block;
	if (old)
		link_oldest(e, slot);
	else
		link_newest(e, slot);
	e->count++;
	*out = slot;
	return 0;
}

void evict_touch(struct evict *e, uint32_t slot)
{
	assert(entry(e, slot)->owner != NULL);
	if (e->newest == slot + 1)
		return;
	unlink_slot(e, slot);
	link_newest(e, slot);
}

void evict_remove(struct evict *e, uint32_t slot)
{
	struct evict_entry *n = entry(e, slot);

	assert(n->owner != NULL);
	unlink_slot(e, slot);
	n->owner = NULL;
	n->newer = e->free;
	e->free = slot + 1;
	e->count--;
}

uint32_t evict_next(const struct evict *e, uint32_t slot)
{
	uint32_t next = slot == EVICT_NONE ? e->oldest : entry(e, slot)->newer;

	return next != 0 ? next - 1 : EVICT_NONE;
}

const struct evict_entry *evict_get(const struct evict *e, uint32_t slot)
{
	return entry(e, slot);
}
