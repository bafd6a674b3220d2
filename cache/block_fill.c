/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fills: the fetches of the block cache, from the moment pieces are found missing.
 *
 *	planned (lock held, pieces FILLING) -> started (store_fetch) -> done (on the store's thread:
 *	readers wake and copy from the buffer) -> job (on the pool: hash, write; pieces READY, or
 *the fill goes into the ring) -> released by the last reader
 *
 * An error makes the pieces ABSENT again at once, so that the next read tries anew, and is handed
 *to all who wait.  Buffers live from start to the end of the job; what may be in flight is bounded
 *by the readers (demand), the budget (ahead) and the pull's own count.  While any is, a few of the
 * large ones that are done with are kept for the next.
 *
 * The ring: fills whose bytes could not be written stay in memory, the latest 64 MiB of them.
 *
 * Threads: done() runs on the store's and does nothing but change states and submit the job.
 */
#include <assert.h>
#include <stdlib.h>

#include "cache/block_internal.h"
#include "cache/clock.h"
#include "cache/log.h"

static void store_job(struct pool_job *job);
static void fill_done(struct fetch *fetch, int err);
static void fill_more(struct fetch *fetch, size_t got);

/* ---- planning ---- */

static struct fill *fill_new_locked(struct block_handle *h, uint32_t first, uint32_t count,
				    enum fill_kind kind, int64_t deadline_ns)
{
	struct fill *f = calloc(1, sizeof(*f));
	struct block_object *o = h->object;
	struct blockcache *c = o->cache;

	if (f == NULL)
		return NULL;
	f->job.run = store_job;
	f->fetch = (struct fetch){
		.handle = h->handle,
		.off = (uint64_t)first * PIECE_SIZE,
		.deadline_mono_ns = deadline_ns,
		.done = fill_done,
		.more = fill_more,
		.ctx = f,
		.background = kind != FILL_DEMAND,
	};
	f->fetch.len = (size_t)MIN((uint64_t)count * PIECE_SIZE, o->size - f->fetch.off);
	f->cache = c;
	f->object = o;
	f->handle = h;
	h->refs++;
	f->kind = kind;
	f->first = first;
	f->count = count;
	f->refs = 1;
	condition_init(&f->cond);
	f->next = o->fills;
	if (f->next != NULL)
		f->next->prev = f;
	o->fills = f;
	memset(o->state + first, PIECE_FILLING, count);
	c->flying++;
	c->flying_bytes += f->fetch.len;
	c->demands += kind == FILL_DEMAND;
	if (kind == FILL_AHEAD)
		c->ahead += f->fetch.len;
	c->stats.requests++;
	return f;
}

uint32_t fill_plan_locked(struct block_handle *h, uint32_t first, uint32_t count,
			  enum fill_kind kind, int64_t deadline_ns, struct fill **batch)
{
	struct block_object *o = h->object;
	struct blockcache *c = o->cache;
	uint32_t p = first, end = first + count;

	while (p < end) {
		uint32_t n = 1;
		struct fill *f;

		if (o->state[p] != PIECE_ABSENT) {
			p++;
			continue;
		}
		while (p + n < end && n < c->request && o->state[p + n] == PIECE_ABSENT)
			n++;
		if (kind == FILL_AHEAD && c->ahead + (uint64_t)n * PIECE_SIZE > c->budget)
			break;
		f = fill_new_locked(h, p, n, kind, deadline_ns);
		if (f == NULL)
			break;
		f->batch = *batch;
		*batch = f;
		p += n;
	}
	return p - first;
}

uint32_t fill_plan_down_locked(struct block_handle *h, uint32_t first, uint32_t count,
			       enum fill_kind kind, int64_t deadline_ns, struct fill **batch)
{
	const uint32_t request = h->object->cache->request;
	uint32_t done = 0;

	while (done < count) {
		uint32_t end = first + count - done, n = MIN(count - done, request);
		uint32_t start = ALIGN_UP(end - n, (uint32_t)BLOCK_PIECES);

		if (start >= end)
			start = end - n;
		if (fill_plan_locked(h, start, end - start, kind, deadline_ns, batch) < end - start)
			break;
		done += end - start;
	}
	return done;
}

/* ---- buffers: fresh ones of this size cost a page fault for each 4 KiB ---- */

static bool is_whole(const struct blockcache *c, size_t len)
{
	return len == (size_t)c->request * PIECE_SIZE;
}

static void *buffer_take(struct blockcache *c, size_t len)
{
	void *bytes = NULL;

	if (!is_whole(c, len))
		return malloc(len);
	lock_take(&c->lock);
	if (c->spares > 0)
		bytes = c->spare[--c->spares];
	lock_release(&c->lock);
	return bytes != NULL ? bytes : malloc(len);
}

static void buffer_give(struct blockcache *c, void *bytes, size_t len)
{
	if (bytes != NULL && is_whole(c, len)) {
		lock_take(&c->lock);
		if (c->flying > 0 && c->spares < SPARES) {
			c->spare[c->spares++] = bytes;
			bytes = NULL;
		}
		lock_release(&c->lock);
	}
	free(bytes);
}

/* The last fill is over; the caller frees what it gets. */
static unsigned spares_leave_locked(struct blockcache *c, void *out[SPARES])
{
	unsigned n = c->spares;

	memcpy(out, c->spare, n * sizeof(*out));
	c->spares = 0;
	return n;
}

void fill_start(struct fill *batch)
{
	struct fill *sorted = NULL;

	/* The batch is a stack: the one planned first is the one that is needed first. */
	while (batch != NULL) {
		struct fill *f = batch;

		batch = f->batch;
		f->batch = sorted;
		sorted = f;
	}
	while (sorted != NULL) {
		struct fill *f = sorted;

		sorted = f->batch; /* afterwards f may be gone */
		f->fetch.dst = buffer_take(f->cache, f->fetch.len);
		if (f->fetch.dst == NULL)
			fill_done(&f->fetch, -ENOMEM);
		else
			store_fetch(&f->fetch);
	}
}

/* ---- references ---- */

struct fill *fill_find_locked(struct block_object *o, uint32_t piece)
{
	struct fill *f = o->fills;

	while (f != NULL && (piece < f->first || piece - f->first >= f->count))
		f = f->next;
	assert(f != NULL);
	return f;
}

void fill_ref(struct fill *f)
{
	__atomic_add_fetch(&f->refs, 1, __ATOMIC_RELAXED);
}

void fill_unref(struct fill *f)
{
	if (__atomic_sub_fetch(&f->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	condition_destroy(&f->cond);
	buffer_give(f->cache, f->fetch.dst, f->fetch.len);
	free(f);
}

void fill_release_list(struct fill *list)
{
	while (list != NULL) {
		struct fill *f = list;

		list = f->batch;
		fill_unref(f);
	}
}

/* Its pieces are FILLING because of it no more; the caller has said what they are now. */
static void detach_locked(struct fill *f)
{
	if (f->prev != NULL)
		f->prev->next = f->next;
	else
		f->object->fills = f->next;
	if (f->next != NULL)
		f->next->prev = f->prev;
	f->prev = f->next = NULL;
}

/* ---- the ring ---- */

static void ring_unlink_locked(struct fill *f)
{
	struct blockcache *c = f->object->cache;

	if (f->older != NULL)
		f->older->newer = f->newer;
	else
		c->ring_oldest = f->newer;
	if (f->newer != NULL)
		f->newer->older = f->older;
	else
		c->ring_newest = f->older;
	f->older = f->newer = NULL;
	f->ringed = false;
	c->ring_bytes -= f->fetch.len;
}

static void ring_link_locked(struct fill *f)
{
	struct blockcache *c = f->object->cache;

	f->ringed = true;
	f->older = c->ring_newest;
	if (f->older != NULL)
		f->older->newer = f;
	else
		c->ring_oldest = f;
	c->ring_newest = f;
	c->ring_bytes += f->fetch.len;
}

void ring_touch_locked(struct fill *f)
{
	ring_unlink_locked(f);
	ring_link_locked(f);
}

static void ring_remove_locked(struct fill *f, struct fill **list)
{
	ring_unlink_locked(f);
	memset(f->object->state + f->first, PIECE_ABSENT, f->count);
	detach_locked(f);
	f->batch = *list;
	*list = f;
}

/* Takes over a reference; *list gets what has to go for it. */
static void ring_add_locked(struct fill *f, struct fill **list)
{
	struct blockcache *c = f->object->cache;

	ring_link_locked(f);
	while (c->ring_bytes > c->memory && c->ring_oldest != f)
		ring_remove_locked(c->ring_oldest, list);
}

struct fill *ring_flush_locked(struct block_object *o)
{
	struct fill *list = NULL, *next;

	for (struct fill *f = o->fills; f != NULL; f = next) {
		next = f->next;
		if (f->ringed)
			ring_remove_locked(f, &list);
	}
	return list;
}

/* ---- the end of a fetch ---- */

/* Tells the readers under it: the pieces alone would not say why they are ABSENT.  Not of what was
 * fetched ahead, nor that another one's time is up: those try for themselves. */
static void tell_readers_locked(const struct fill *f)
{
	int64_t now = clock_mono_ns();

	for (struct reader *r = f->object->readers; r != NULL; r = r->next) {
		if (r->first >= f->first + f->count || r->last < f->first ||
		    f->kind != FILL_DEMAND || (f->err == -ETIMEDOUT && now < r->until))
			continue;
		r->err = f->err;
		r->bad_first = f->first;
		r->bad_count = f->count;
	}
}

/* On the store's thread. */
static void fill_done(struct fetch *fetch, int err)
{
	struct fill *f = fetch->ctx;
	struct block_object *o = f->object;
	struct blockcache *c = o->cache;

	lock_take(&c->lock);
	f->done = true;
	f->err = err;
	if (err == 0) {
		c->stats.fetched_bytes += fetch->len;
		o->lost = false;
	} else {
		c->stats.failed++;
		o->lost = o->lost || err == -ENOENT || err == -ESTALE;
		memset(o->state + f->first, PIECE_ABSENT, f->count);
		detach_locked(f);
		tell_readers_locked(f);
	}
	condition_broadcast(&f->cond);
	lock_release(&c->lock);
	pool_submit(c->pool, &f->job, f->kind == FILL_DEMAND ? POOL_SOON : POOL_LATER);
}

/* On the store's thread, many times. */
static void fill_more(struct fetch *fetch, size_t got)
{
	struct fill *f = fetch->ctx;
	struct blockcache *c = f->cache;
	size_t wanted;

	/* In this order, as fill_wait_locked() has them the other way round. */
	__atomic_store_n(&f->come, got, __ATOMIC_SEQ_CST);
	wanted = __atomic_load_n(&f->wanted, __ATOMIC_SEQ_CST);
	if (wanted == 0 || got < wanted)
		return;
	lock_take(&c->lock);
	__atomic_store_n(&f->wanted, 0, __ATOMIC_SEQ_CST);
	condition_broadcast(&f->cond);
	lock_release(&c->lock);
}

int fill_wait_locked(struct fill *f, size_t upto, int64_t until_mono_ns, bool *out_come)
{
	int rc = 0;

	for (;;) {
		size_t wanted = __atomic_load_n(&f->wanted, __ATOMIC_RELAXED);

		*out_come =
			f->done ? f->err == 0
				: f->early && __atomic_load_n(&f->come, __ATOMIC_SEQ_CST) >= upto;
		if (*out_come || f->done || rc < 0)
			return *out_come ? 0 : rc;
		/* Being woken often costs a fast reader more than it gains. */
		if (f->early && (wanted == 0 || upto < wanted)) {
			__atomic_store_n(&f->wanted, upto, __ATOMIC_SEQ_CST);
			/* It may have come just before. */
			if (__atomic_load_n(&f->come, __ATOMIC_SEQ_CST) >= upto)
				continue;
		}
		rc = condition_wait(&f->cond, &f->cache->lock, until_mono_ns);
	}
}

static bool is_full(int err)
{
	return err == -ENOSPC || err == -EDQUOT || err == -EFBIG;
}

static void warn_full(struct blockcache *c, bool *warned, int err)
{
	bool first;

	lock_take(&c->lock);
	first = !*warned;
	*warned = true;
	lock_release(&c->lock);
	if (first)
		log_warning("the block cache %s is full (%s) and nothing can be evicted: blocks "
			    "are kept in memory for now",
			    disk_path(c->disk), strerrordesc_np(-err));
}

static void write_failed(struct fill *f, struct disk_file *file, int err)
{
	struct block_object *o = f->object;
	struct blockcache *c = o->cache;
	bool troubled, off = false;

	lock_take(&c->lock);
	c->used -= MIN(c->used, f->fetch.len);
	troubled = o->troubled;
	if (!is_full(err)) {
		off = !c->write_off;
		c->write_off = true;
	}
	lock_release(&c->lock);
	if (!troubled && disk_file_drop(file, f->first, f->count) < 0)
		log_debug("the block cache cannot give back the space of a failed write");
	if (is_full(err))
		warn_full(c, &c->warned_full, err);
	else if (off)
		log_warning("the block cache %s cannot be written (%s): new blocks are kept in "
			    "memory only",
			    disk_path(c->disk), strerrordesc_np(-err));
}

/* True when the pieces are on disk. */
static bool write_fill(struct fill *f)
{
	struct block_object *o = f->object;
	struct blockcache *c = o->cache;
	struct disk_file *file = NULL;
	int rc;

	lock_take(&c->lock);
	if (o->file != NULL && disk_file_writable(o->file) && !c->write_off)
		file = disk_file_ref(o->file);
	lock_release(&c->lock);
	if (file == NULL)
		return false;
	rc = room_make(c, f->fetch.len);
	if (rc < 0) {
		warn_full(c, &c->warned_full, rc);
	} else {
		rc = disk_file_store(file, f->first, f->fetch.dst, f->fetch.len);
		if (is_full(rc) && room_evict(c, MAX(f->fetch.len, 8 * (uint64_t)BLOCK_SIZE)))
			rc = disk_file_store(file, f->first, f->fetch.dst, f->fetch.len);
		if (rc < 0)
			write_failed(f, file, rc);
	}
	disk_file_unref(file);
	return rc == 0;
}

/* On the pool: the bytes are here and readers have them; now for the disk. */
static void store_job(struct pool_job *job)
{
	struct fill *f = (struct fill *)((char *)job - offsetof(struct fill, job));
	struct block_object *o = f->object;
	struct blockcache *c = o->cache;
	struct block_handle *h = f->handle, *drop = NULL;
	struct fill *batch = NULL, *gone = NULL;
	bool stored = f->err == 0 && write_fill(f);
	void *spare[SPARES];
	unsigned spares = 0;

	lock_take(&c->lock);
	c->flying_bytes -= f->fetch.len;
	c->demands -= f->kind == FILL_DEMAND;
	if (f->kind == FILL_AHEAD)
		c->ahead -= f->fetch.len;
	if (stored) {
		c->stats.stored_bytes += f->fetch.len;
		detach_locked(f);
		object_stored_locked(o, f->first, f->count);
	} else if (f->err == 0) {
		fill_ref(f);
		ring_add_locked(f, &gone);
	}
	if (f->kind == FILL_PULL)
		pull_done_locked(o, f, stored);
	pull_step_locked(o, &batch, &drop);
	f->handle = NULL;
	lock_release(&c->lock);
	fill_start(batch);
	fill_release_list(gone);
	fill_unref(f);
	block_handle_put(h);
	block_handle_put(drop);
	room_adopt(c);
	lock_take(&c->lock);
	c->flying--;
	if (c->flying == 0) {
		spares = spares_leave_locked(c, spare);
		condition_broadcast(&c->changed);
	}
	lock_release(&c->lock);
	while (spares > 0) /* c may be gone */
		free(spare[--spares]);
}
