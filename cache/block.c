/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block cache's front: making it, opening objects, reading.
 *
 * A read registers its pieces (so that eviction keeps off), plans fills for all that is missing of
 * them and for what prefetch advises, starts those with the lock released, and then walks through
 * its range, each step by the state of the piece it is at: copy from a fill, wait for one, read the
 * disk, or check what the disk has.  A piece that turns out bad becomes ABSENT and is planned
 * again; after a few of those the rest comes straight from the store, past a disk that seems
 * broken.
 *
 * States, locking and the structs: block_internal.h.
 */
#include "cache/block.h"

#include <assert.h>
#include <stdlib.h>

#include "cache/block_internal.h"
#include "cache/clock.h"
#include "cache/log.h"
#include "cache/table.h"

enum {
	SPAN = 64 << 20, /* of a longer read at a time, so that its buffers are bounded */
	BAD_MAX = 8,	 /* pieces found bad in one read, until it goes past the disk */
	AROUND = 128,	 /* pieces behind the range whose records a guest looks at, too */
};

/* ---- making and ending ---- */

static uint64_t or_default(uint64_t value, uint64_t otherwise)
{
	return value != 0 ? value : otherwise;
}

static uint64_t power_of_two(uint64_t max)
{
	uint64_t n = BLOCK_SIZE;

	while (2 * n <= max)
		n *= 2;
	return n;
}

static void set_limits(struct blockcache *c, const struct blockcache_config *config)
{
	uint64_t request = or_default(config->request, 8 << 20);
	uint64_t window = or_default(config->window, 64 << 20);

	c->limit = config->limit;
	c->memory = or_default(config->memory, 64 << 20);
	c->budget = or_default(config->budget, 128 << 20);
	/* What is fetched ahead must still be there when it is its turn. */
	if (c->limit > 0) {
		request = MIN(request, c->limit / 8);
		window = MIN(window, c->limit / 4);
		c->budget = MAX(MIN(c->budget, c->limit / 2), (uint64_t)BLOCK_SIZE);
	}
	c->request = (uint32_t)(power_of_two(MIN(request, UINT64_C(1) << 30)) / PIECE_SIZE);
	c->timeout_ns = config->timeout_ns > 0 ? config->timeout_ns : 60 * NSEC_PER_SEC;
	c->window = (struct prefetch_limits){
		.min = BLOCK_SIZE,
		.max = power_of_two(window),
		.step = (uint64_t)c->request * PIECE_SIZE,
		.align = BLOCK_SIZE,
	};
	c->small_window = c->window;
	c->small_window.max = MIN(c->window.max, power_of_two(c->memory / 4));
	c->floor = config->floor;
	if (c->disk != NULL && c->floor == 0)
		c->floor = MIN(UINT64_C(1) << 30, disk_capacity(c->disk) / 20);
	c->space_age = UINT64_MAX / 2; /* not asked yet */
}

int blockcache_new(const struct blockcache_config *config, struct blockcache **out, struct why *why)
{
	struct blockcache *c = calloc(1, sizeof(*c));
	int rc = 0;

	if (c == NULL)
		return why_set(why, ENOMEM, "out of memory");
	lock_init(&c->lock, LOCK_SHARD);
	condition_init(&c->changed);
	c->objects = table_new();
	if (c->objects == NULL)
		rc = -ENOMEM;
	if (rc == 0)
		rc = pool_new(config->threads > 0 ? config->threads : 2, &c->pool);
	if (rc < 0) {
		blockcache_free(c);
		return why_set(why, -rc, "the block cache cannot start: %s", strerrordesc_np(-rc));
	}
	if (config->dir == NULL)
		why_set(why, ENOENT, "there is no cache directory: blocks are kept in memory");
	else if (disk_open(config->dir, config->holder != NULL ? config->holder : "", &c->disk,
			   why) == 0 &&
		 disk_owned(c->disk))
		(void)room_list(c); /* without it, what is there merely cannot be evicted */
	set_limits(c, config);
	*out = c;
	return 0;
}

void blockcache_free(struct blockcache *c)
{
	struct block_object *next;

	if (c == NULL)
		return;
	lock_take(&c->lock);
	while (c->flying > 0)
		(void)condition_wait(&c->changed, &c->lock, -1);
	lock_release(&c->lock);
	pool_free(c->pool);
	for (struct block_object *o = c->all; o != NULL; o = next) {
		next = o->next;
		assert(o->refs == 0 && o->busy == 0 && o->fills == NULL);
		object_free(o);
	}
	evict_release(&c->evict);
	table_free(c->objects);
	free(c->cold);
	disk_close(c->disk);
	condition_destroy(&c->changed);
	lock_destroy(&c->lock);
	free(c);
}

void blockcache_stats(struct blockcache *c, struct blockcache_stats *out)
{
	lock_take(&c->lock);
	*out = c->stats;
	out->limit = c->limit;
	out->used = c->used;
	out->memory = c->ring_bytes;
	out->flying_bytes = c->flying_bytes;
	out->path = c->disk != NULL ? disk_path(c->disk) : NULL;
	out->writing = c->disk != NULL && disk_owned(c->disk) && !c->write_off;
	lock_release(&c->lock);
}

/* ---- opening ---- */

static int enter(struct blockcache *c, struct block_object **fresh, struct block_object **out,
		 bool *out_attach)
{
	struct block_object *o;
	int rc = 0;

	lock_take(&c->lock);
	while ((o = table_get_str(c->objects, (*fresh)->hex)) != NULL && o->moving)
		(void)condition_wait(&c->changed, &c->lock, -1);
	if (o == NULL) {
		o = *fresh;
		rc = table_put_str(c->objects, o->hex, o);
		if (rc == 0) {
			*fresh = NULL;
			object_insert_locked(o);
		}
	} else if (o->size != (*fresh)->size) {
		rc = -EBADMSG;
	}
	if (rc == 0) {
		*out_attach = o->refs == 0 && c->disk != NULL;
		o->moving = *out_attach;
		o->cold = false;
		o->refs++;
		*out = o;
	}
	lock_release(&c->lock);
	return rc;
}

int block_open(struct blockcache *c, const struct identity *id, uint64_t size, const char *key,
	       struct handle *handle, struct block_handle **out)
{
	struct block_handle *h = calloc(1, sizeof(*h));
	struct block_object *fresh = object_new(c, id, size, key), *o = NULL;
	bool attach = false;
	int rc = h == NULL || fresh == NULL ? -ENOMEM : 0;

	if (rc == 0)
		rc = enter(c, &fresh, &o, &attach);
	object_free(fresh);
	if (rc < 0) {
		free(h);
		store_close(handle);
		return rc;
	}
	if (attach)
		object_attach(o);
	h->object = o;
	h->handle = handle;
	h->refs = 1;
	*out = h;
	room_adopt(c);
	return 0;
}

void block_handle_put(struct block_handle *h)
{
	struct block_object *o;
	struct blockcache *c;
	struct disk_file *file = NULL;
	struct fill *gone = NULL;
	bool last;

	if (h == NULL)
		return;
	o = h->object;
	c = o->cache;
	lock_take(&c->lock);
	if (--h->refs > 0) {
		lock_release(&c->lock);
		return;
	}
	last = --o->refs == 0;
	if (last) {
		gone = ring_flush_locked(o);
		file = o->file;
		o->file = NULL;
		o->busy++;
	}
	lock_release(&c->lock);
	store_close(h->handle);
	free(h);
	if (!last)
		return;
	fill_release_list(gone);
	if (file != NULL)
		disk_file_touch(file);
	disk_file_unref(file);
	object_settle(o);
}

void block_close(struct block_handle *h)
{
	if (h == NULL)
		return;
	lock_take(&h->object->cache->lock);
	h->closed = true;
	h->object->pins -= h->pins; /* forgotten pins end with it */
	h->pins = 0;
	lock_release(&h->object->cache->lock);
	block_handle_put(h);
}

void block_pin(struct block_handle *h)
{
	lock_take(&h->object->cache->lock);
	h->object->pins++;
	h->pins++;
	lock_release(&h->object->cache->lock);
}

void block_unpin(struct block_handle *h)
{
	lock_take(&h->object->cache->lock);
	assert(h->pins > 0);
	h->object->pins--;
	h->pins--;
	lock_release(&h->object->cache->lock);
}

/* ---- reading: one step by state ---- */

struct read { /* of one span */
	struct reader me;
	struct block_handle *h;
	struct block_object *o;
	struct blockcache *c;
	uint64_t off;
	uint8_t *dst;
	size_t len;
	int64_t until,
		late; /* deadline of fetches; a little later, of waits: stores say it better */
	unsigned bad;
	uint8_t *scratch; /* a piece; NULL until needed */
};

static void advance(struct read *r, size_t n)
{
	r->off += n;
	r->dst += n;
	r->len -= n;
}

/* Bytes of the range that lie before the end of piece `last`. */
static size_t upto(const struct read *r, uint32_t last)
{
	uint64_t end = ((uint64_t)last + 1) * PIECE_SIZE;

	return (size_t)MIN((uint64_t)r->len, end - r->off);
}

/* All of these are called with the lock held and come back with it released. */

/* The error of a fetch of this piece that ended since the read began, or 0. */
static int failed_locked(const struct read *r, uint32_t piece)
{
	const struct reader *me = &r->me;

	return me->err < 0 && piece >= me->bad_first && piece - me->bad_first < me->bad_count
		       ? me->err
		       : 0;
}

static int take_fill(struct read *r, uint32_t piece)
{
	struct fill *f = fill_find_locked(r->o, piece);
	const size_t n = upto(r, f->first + f->count - 1);
	bool come;
	int rc;

	fill_ref(f);
	rc = fill_wait_locked(f, (size_t)(r->off - f->fetch.off) + n, r->late, &come);
	if (f->done)
		rc = failed_locked(r, piece);
	if (f->ringed)
		ring_touch_locked(f);
	lock_release(&r->c->lock);
	if (come) {
		memcpy(r->dst, (const uint8_t *)f->fetch.dst + (r->off - f->fetch.off), n);
		advance(r, n);
	}
	fill_unref(f);
	return come ? 0 : rc;
}

static void count_bad(struct read *r, bool damaged, int err)
{
	bool warn = false;

	r->bad++;
	r->c->stats.damaged += damaged;
	if (err != -EBADMSG && err != -ENODATA && err != -ENOENT) {
		warn = !r->c->warned_read;
		r->c->warned_read = true;
	}
	lock_release(&r->c->lock);
	if (warn)
		log_warning("the block cache %s cannot be read in places (%s): those are fetched "
			    "again",
			    disk_path(r->c->disk), strerrordesc_np(-err));
}

static int take_ready(struct read *r, uint32_t piece)
{
	uint32_t last = piece, end = (uint32_t)((r->off + r->len - 1) / PIECE_SIZE);
	struct disk_file *file = disk_file_ref(r->o->file);
	uint32_t whole;
	size_t n;
	int rc;

	while (last < end && r->o->state[last + 1] == PIECE_READY)
		last++;
	n = upto(r, last);
	r->c->stats.hit_bytes += n;
	lock_release(&r->c->lock);
	rc = disk_file_read(file, r->off, r->dst, n);
	whole = rc == -ENODATA ? (uint32_t)(disk_file_length(file) / PIECE_SIZE) : 0;
	disk_file_unref(file);
	if (rc == 0) {
		advance(r, n);
		return 0;
	}
	lock_take(&r->c->lock);
	r->c->stats.hit_bytes -= n;
	if (rc == -ENODATA) {
		/* Cut short by somebody: storing what comes next would make holes of the rest. */
		piece = MIN(piece, whole);
		last = r->o->pieces - 1;
	}
	for (uint32_t p = piece; p <= last; p++)
		if (r->o->state[p] == PIECE_READY)
			object_lost_locked(r->o, p, 1);
	r->o->troubled = true;
	count_bad(r, true, rc);
	return 0;
}

/* Reads a piece that nobody has checked yet: whole, if need be beside the range. */
static int take_stored(struct read *r, uint32_t piece)
{
	struct disk_file *file = disk_file_ref(r->o->file);
	uint64_t start = (uint64_t)piece * PIECE_SIZE;
	size_t n = upto(r, piece);
	bool direct = r->off == start && n == piece_len(r->o->size, piece);
	int rc = 0;

	lock_release(&r->c->lock);
	if (!direct && r->scratch == NULL)
		r->scratch = malloc(PIECE_SIZE);
	if (!direct && r->scratch == NULL)
		rc = -ENOMEM;
	if (rc == 0)
		rc = disk_file_check(file, piece, direct ? r->dst : r->scratch);
	if (rc == 0 && !direct)
		memcpy(r->dst, r->scratch + (r->off - start), n);
	lock_take(&r->c->lock);
	if (rc == 0) {
		/* A guest's stays STORED: the owner may take it away at any time. */
		if (r->o->state[piece] == PIECE_STORED && disk_file_writable(file))
			r->o->state[piece] = PIECE_READY;
		r->c->stats.hit_bytes += n;
		lock_release(&r->c->lock);
		advance(r, n);
	} else if (rc == -ENOMEM) {
		lock_release(&r->c->lock);
	} else {
		if (r->o->state[piece] == PIECE_STORED)
			object_lost_locked(r->o, piece, 1);
		count_bad(r, rc != -ENOENT, rc);
		rc = 0;
	}
	disk_file_unref(file);
	return rc;
}

static int take_absent(struct read *r, uint32_t piece)
{
	uint32_t end = (uint32_t)((r->off + r->len - 1) / PIECE_SIZE);
	struct fill *batch = NULL;
	int rc = failed_locked(r, piece);

	if (rc < 0 || r->bad > BAD_MAX) {
		lock_release(&r->c->lock);
		if (rc == 0)
			rc = store_read(r->h->handle, r->off, r->dst, r->len);
		if (rc == 0)
			advance(r, r->len);
		return rc;
	}
	fill_plan_locked(r->h, piece, end - piece + 1, FILL_DEMAND, r->until, &batch);
	lock_release(&r->c->lock);
	if (batch == NULL)
		return -ENOMEM;
	fill_start(batch);
	return 0;
}

static int step(struct read *r)
{
	uint32_t piece = (uint32_t)(r->off / PIECE_SIZE);
	int rc = 0;

	if (clock_mono_ns() > r->late)
		return -ETIMEDOUT;
	lock_take(&r->c->lock);
	switch ((enum piece_state)r->o->state[piece]) {
	case PIECE_FILLING: return take_fill(r, piece);
	case PIECE_READY: return take_ready(r, piece);
	case PIECE_STORED: return take_stored(r, piece);
	case PIECE_ABSENT: return take_absent(r, piece);
	case PIECE_LEAVING: rc = condition_wait(&r->c->changed, &r->c->lock, r->late); break;
	}
	lock_release(&r->c->lock);
	return rc;
}

/* ---- reading: a span ---- */

void block_plan_locked(struct block_handle *h, uint64_t off, size_t len, int64_t until,
		       struct fill **batch)
{
	struct block_object *o = h->object;
	struct blockcache *c = o->cache;
	const bool small = o->file == NULL || !disk_file_writable(o->file) || c->write_off;
	uint32_t first = (uint32_t)(off / PIECE_SIZE),
		 last = (uint32_t)((off + len - 1) / PIECE_SIZE);
	bool missed = memchr(o->state + first, PIECE_ABSENT, last - first + 1) != NULL;
	struct prefetch_advice advice;

	prefetch_read(&o->prefetch, small ? &c->small_window : &c->window, o->size, off, len,
		      missed, &advice);
	if (missed && advice.sequential) {
		first -= first % BLOCK_PIECES;
		last = MIN(last | (BLOCK_PIECES - 1), o->pieces - 1);
	}
	if (missed)
		fill_plan_locked(h, first, last - first + 1, FILL_DEMAND, until, batch);
	if (advice.len > 0) {
		uint32_t from = (uint32_t)(advice.off / PIECE_SIZE);
		uint32_t n = piece_count(advice.off + advice.len) - from, got;

		got = advice.down ? fill_plan_down_locked(h, from, n, FILL_AHEAD, -1, batch)
				  : fill_plan_locked(h, from, n, FILL_AHEAD, -1, batch);
		if (got < n)
			prefetch_trim(&o->prefetch, &advice,
				      MIN((uint64_t)got * PIECE_SIZE, advice.len));
	}
}

static int read_span(struct read *r)
{
	const uint32_t first = (uint32_t)(r->off / PIECE_SIZE);
	const uint32_t last = (uint32_t)((r->off + r->len - 1) / PIECE_SIZE);
	struct reader **at;
	struct fill *batch = NULL;
	int rc = 0;

	object_look(r->o, first, MIN(last + AROUND, r->o->pieces - 1));
	lock_take(&r->c->lock);
	r->me = (struct reader){
		.first = first, .last = last, .until = r->until, .next = r->o->readers};
	r->o->readers = &r->me;
	object_touch_locked(r->o, first, last);
	block_plan_locked(r->h, r->off, r->len, r->until, &batch);
	lock_release(&r->c->lock);
	fill_start(batch);
	while (r->len > 0 && rc == 0)
		rc = step(r);
	lock_take(&r->c->lock);
	for (at = &r->o->readers; *at != &r->me; at = &(*at)->next)
		;
	*at = r->me.next;
	lock_release(&r->c->lock);
	return rc;
}

int block_read(struct block_handle *h, uint64_t off, void *dst, size_t len)
{
	struct block_object *o = h->object;
	struct read r = {.h = h, .o = o, .c = o->cache};
	uint64_t end;
	size_t done = 0;
	int rc = 0;

	if (add_overflows(off, len, &end) || end > o->size)
		return -EBADMSG;
	while (done < len && rc == 0) {
		r.off = off + done;
		r.dst = (uint8_t *)dst + done;
		r.len = MIN(len - done, (size_t)SPAN - (size_t)(r.off % BLOCK_SIZE));
		done += r.len;
		/* The timeout is for standing still, not for a long way. */
		r.until = clock_mono_ns() + r.c->timeout_ns;
		r.late = r.until + MIN(2 * NSEC_PER_SEC, r.c->timeout_ns / 16);
		rc = read_span(&r);
	}
	free(r.scratch);
	return rc;
}

void block_want(struct block_handle *h, const struct block_range *ranges, size_t count)
{
	struct block_object *o = h->object;
	int64_t until = clock_mono_ns() + o->cache->timeout_ns;
	struct fill *batch = NULL;

	lock_take(&o->cache->lock);
	for (size_t i = 0; i < count; i++) {
		uint32_t first = (uint32_t)(ranges[i].off / PIECE_SIZE);

		if (ranges[i].len > 0)
			fill_plan_locked(h, first,
					 piece_count(ranges[i].off + ranges[i].len) - first,
					 FILL_DEMAND, until, &batch);
	}
	for (struct fill *f = batch; f != NULL; f = f->batch)
		f->early = true;
	lock_release(&o->cache->lock);
	fill_start(batch);
}
