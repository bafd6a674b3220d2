/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pulling a whole object into the cache, in the background.
 *
 * A pull is a cursor and a count of fills in flight: four, or one while somebody waits for the
 * network.  Each fill that ends starts the next, so a pull needs no thread; it is under way exactly
 * while it holds its handle, and then at least one fill of its own is in flight.  What is there, or
 * being fetched by others, is passed over; a second pass looks for what of that got lost.
 *
 * It may push out what earlier runs left behind, but ends when open objects alone fill the cache:
 * it would only go round in circles.
 */
#include "cache/block_internal.h"

#include <assert.h>

enum { FLYING = 4, FAILURES_MAX = 5, PASSES_MAX = 3 };

static bool nowhere_locked(const struct block_object *o)
{
	return o->file == NULL || !disk_file_writable(o->file) || o->cache->write_off;
}

/* Whether open objects leave room for that much more. */
static bool room_locked(const struct blockcache *c, uint64_t more)
{
	uint64_t held = c->flying_bytes + more;

	for (const struct block_object *o = c->all; o != NULL; o = o->next)
		held += o->refs > 0 ? o->present : 0;
	return c->limit == 0 || held <= c->limit;
}

static void end_locked(struct pull *p, int err, struct block_handle **out_drop)
{
	*out_drop = p->handle;
	p->handle = NULL;
	p->err = err;
}

/* Skips what needs no pull; false at the end of the object. */
static bool seek_locked(struct block_object *o)
{
	struct pull *p = &o->pull;

	while (p->next < o->pieces && o->state[p->next] != PIECE_ABSENT)
		p->next++;
	return p->next < o->pieces;
}

/* At the end with nothing in flight: true to go once more through it. */
static bool again_locked(struct block_object *o)
{
	struct pull *p = &o->pull;

	p->next = 0;
	return ++p->passes < PASSES_MAX && seek_locked(o);
}

void pull_step_locked(struct block_object *o, struct fill **batch, struct block_handle **out_drop)
{
	struct blockcache *c = o->cache;
	struct pull *p = &o->pull;

	if (p->handle == NULL)
		return;
	while (p->flying < (c->demands > 0 ? 1 : FLYING)) {
		uint32_t n;
		int err = 0;

		if (p->handle->closed)
			err = -ECANCELED;
		else if (p->err < 0)
			err = p->err;
		else if (nowhere_locked(o))
			err = -ENOTSUP;
		if (err == 0 && !seek_locked(o) && (p->flying > 0 || again_locked(o) == false)) {
			if (p->flying == 0)
				end_locked(p, 0, out_drop);
			return;
		}
		n = err == 0 ? MIN(c->request, o->pieces - p->next) : 0;
		if (err == 0 && !room_locked(c, (uint64_t)n * PIECE_SIZE))
			err = -ENOSPC;
		if (err == 0) {
			struct fill *before = *batch;

			p->next += fill_plan_locked(p->handle, p->next, n, FILL_PULL, -1, batch);
			for (struct fill *f = *batch; f != before; f = f->batch)
				p->flying++;
			err = *batch == before ? -ENOMEM : 0;
		}
		if (err < 0) {
			p->err = err;
			if (p->flying == 0)
				end_locked(p, err, out_drop);
			return;
		}
	}
}

void pull_done_locked(struct block_object *o, const struct fill *f, bool stored)
{
	struct pull *p = &o->pull;

	assert(p->flying > 0);
	p->flying--;
	if (stored) {
		p->failures = 0;
		return;
	}
	if (f->err == 0)
		p->err = -ENOSPC; /* it came, but there was no place for it */
	else if (++p->failures >= FAILURES_MAX)
		p->err = f->err;
	p->next = MIN(p->next, f->first);
}

void block_pull(struct block_handle *h)
{
	struct block_object *o = h->object;
	struct blockcache *c = o->cache;
	struct block_handle *drop = NULL;
	struct fill *batch = NULL;

	lock_take(&c->lock);
	if (o->pull.handle == NULL && o->pull.flying == 0) {
		o->pull = (struct pull){.handle = h};
		h->refs++;
		pull_step_locked(o, &batch, &drop);
	}
	lock_release(&c->lock);
	fill_start(batch);
	block_handle_put(drop);
}

void block_progress(struct block_handle *h, struct block_progress *out)
{
	struct block_object *o = h->object;
	struct blockcache *c = o->cache;

	lock_take(&c->lock);
	*out = (struct block_progress){
		.size = o->size,
		.present = o->present,
		.pulling = o->pull.handle != NULL,
		.err = o->pull.handle != NULL ? 0 : o->pull.err,
	};
	lock_release(&c->lock);
}
