/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block cache lends: bytes straight from the cache file's pages.
 *
 * Only pieces that are READY, so checked since the file was opened, and only of a file that is
 * ours: a guest checks what it reads at every read.  A loan is a reader on the object's list until
 * it ends, as a read is: the evictor punches no hole there, and what becomes ABSENT meanwhile keeps
 * its bytes in place.  Like a read it tells prefetch where the stream is.
 *
 * Threads: any, one lock, block_internal.h.
 */
#include <stdlib.h>

#include "cache/block_internal.h"
#include "cache/clock.h"

static void leave(struct block_object *o, struct reader *me)
{
	struct reader **at;

	lock_take(&o->cache->lock);
	for (at = &o->readers; *at != me; at = &(*at)->next)
		;
	*at = me->next;
	lock_release(&o->cache->lock);
	free(me);
}

static void give_back(struct loan *l)
{
	leave(l->owner, l->note);
}

/* Becomes a reader of the range, if all of it may be lent; the file, or NULL. */
static struct disk_file *enter(struct block_object *o, struct reader *me)
{
	struct disk_file *file = NULL;
	uint32_t p = me->first;

	lock_take(&o->cache->lock);
	if (o->file != NULL && disk_file_writable(o->file)) {
		while (p <= me->last && o->state[p] == PIECE_READY)
			p++;
		if (p > me->last) {
			file = disk_file_ref(o->file);
			me->next = o->readers;
			o->readers = me;
		}
	}
	lock_release(&o->cache->lock);
	return file;
}

int block_lend(struct block_handle *h, uint64_t off, size_t len, struct loan *out)
{
	struct block_object *o = h->object;
	struct blockcache *c = o->cache;
	struct disk_file *file;
	struct fill *batch = NULL;
	struct reader *me;
	uint64_t end;
	int rc;

	if (len < LOAN_MIN || add_overflows(off, len, &end) || end > o->size)
		return -EAGAIN;
	me = calloc(1, sizeof(*me));
	if (me == NULL)
		return -ENOMEM;
	me->first = (uint32_t)(off / PIECE_SIZE);
	me->last = (uint32_t)((end - 1) / PIECE_SIZE);
	me->until = clock_mono_ns() + c->timeout_ns;
	file = enter(o, me);
	if (file == NULL) {
		free(me);
		return -EAGAIN;
	}
	rc = disk_file_lend(file, off, len, out);
	disk_file_unref(file); /* the mapping holds on to what it maps */
	if (rc < 0) {
		leave(o, me);
		return rc;
	}
	out->give_back = give_back;
	out->owner = o;
	out->note = me;
	lock_take(&c->lock);
	c->stats.hit_bytes += len;
	object_touch_locked(o, me->first, me->last);
	block_plan_locked(h, off, len, me->until, &batch);
	lock_release(&c->lock);
	fill_start(batch);
	return 0;
}
