/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The changed elements of an object become a patch file.
 *
 * Tensor by tensor, in the order in which they lie in the object, which is that in which a network
 * brings them.  Several threads take the next one each, decode it into memory and wait for its
 * bytes where they are on the way; what is done goes into the file in order, by whichever thread
 * finds it done.  So little is left to do when the last byte comes.
 *
 * Memory: what is decoded and not yet written is bounded (ROUND).  A tensor that may come to more
 * than LARGE, or of which nobody can say, goes into the file as it is decoded, by one thread.
 *
 * Errors: of a round everything is tried, and the first by name is told, so that it does not depend
 * on which thread came first; but a read or write that fails ends it.
 *
 * Locks: one of its own, over the counters; not held over any work.
 */
#include "fs/run_internal.h"

#include "cache/fileio.h"
#include "fs/parallel.h"

#include <stdlib.h>
#include <unistd.h>

enum {
	JOBS_LEAST = 4, /* also on few processors: most of them wait for the network */
	JOBS_MOST = 8,
	SMALL = 512 << 10, /* a round of no more than that is for one thread */
	LARGE = 16 << 20,
	ROUND = 48 << 20,
	ROUND_MOST = 4096, /* tensors */
};

struct item { /* a tensor's patch */
	const struct part *part;
	uint32_t target;
	struct grown out;
	uint64_t len;
	bool done, failed;
};

struct encode {
	const struct delta *d;
	const struct source *src;
	const struct target *target;
	struct patch_file_writer *w;
	struct item *items;  /* in the file's order */
	size_t first, count; /* of the round */
	struct lock lock;    /* guards the rest, and what has become of items */
	size_t put;	     /* the next one to be written */
	bool putting;	     /* somebody writes; w is that thread's */
	bool stop;
	const struct part *bad; /* the first by name that failed, and why */
	struct why why;
	int bad_err, put_err;
};

static int encode_one(const struct encode *e, struct item *item, const struct sink *sink,
		      uint64_t at, struct why *why)
{
	const struct layout_tensor *t = &e->target->layout->tensors[item->target];

	return delta_encode(e->d, item->part, e->src, e->target->now->v[item->target].dtype,
			    layout_patch_numel(t), sink, at, &item->len, why);
}

/* Writes what is done and next, unless somebody does. */
static void put_done(struct encode *e)
{
	lock_take(&e->lock);
	while (!e->putting && !e->stop && e->put < e->first + e->count && e->items[e->put].done &&
	       !e->items[e->put].failed) {
		struct item *item = &e->items[e->put];
		int err;

		e->putting = true;
		lock_release(&e->lock);
		err = patch_file_writer_add(e->w, e->put, item->out.bytes, (size_t)item->len);
		free(item->out.bytes);
		item->out = (struct grown){0};
		lock_take(&e->lock);
		e->putting = false;
		e->put++;
		if (err < 0) {
			e->put_err = err;
			e->stop = true;
		}
	}
	lock_release(&e->lock);
}

static bool is_stopped(struct encode *e)
{
	bool stop;

	lock_take(&e->lock);
	stop = e->stop;
	lock_release(&e->lock);
	return stop;
}

/* Is it the object that is wrong? */
static bool is_its_own(int err)
{
	return err == -EBADMSG || err == -ENOTSUP;
}

static void work(void *ctx, size_t i)
{
	struct encode *e = ctx;
	struct item *item = &e->items[e->first + i];
	const struct sink sink = sink_grown(&item->out);
	struct why why = {0};
	int err;

	if (is_stopped(e))
		return;
	err = encode_one(e, item, &sink, 0, &why);
	lock_take(&e->lock);
	item->done = true;
	item->failed = err < 0;
	if (err < 0 && (e->bad == NULL || item->part < e->bad)) {
		e->bad = item->part;
		e->bad_err = err;
		e->why = why;
	}
	e->stop |= err < 0 && !is_its_own(err);
	lock_release(&e->lock);
	put_done(e);
}

static int cannot_write(int err, struct why *why)
{
	return why_set(why, -err, "the patch cannot be written: %s", strerrordesc_np(-err));
}

static uint64_t bound(const struct encode *e, const struct item *item)
{
	const struct layout_tensor *t = &e->target->layout->tensors[item->target];

	return e->d->format->blind
		       ? UINT64_MAX
		       : patch_bound(st_dtype_width(e->target->now->v[item->target].dtype),
				     layout_patch_numel(t), item->part->changed);
}

static int encode_large(struct encode *e, size_t i, struct why *why)
{
	struct item *item = &e->items[i];
	int err =
		encode_one(e, item, patch_file_writer_sink(e->w), patch_file_writer_at(e->w), why);

	if (err < 0)
		return err;
	err = patch_file_writer_took(e->w, i, item->len);
	return err < 0 ? cannot_write(err, why) : 0;
}

static int encode_round(struct encode *e, uint64_t bytes, unsigned jobs, struct why *why)
{
	e->put = e->first;
	parallel_for(bytes > SMALL ? jobs : 1, e->count, work, e);
	put_done(e);
	for (size_t i = e->first; i < e->first + e->count; i++)
		free(e->items[i].out.bytes);
	if (e->bad == NULL)
		return e->put_err < 0 ? cannot_write(e->put_err, why) : 0;
	*why = e->why;
	return e->bad_err;
}

static int encode_all(struct encode *e, size_t n, unsigned jobs, struct why *why)
{
	int err = 0;

	for (size_t i = 0; err == 0 && i < n; i += MAX(e->count, (size_t)1)) {
		uint64_t bytes = 0;

		e->first = i;
		e->count = 0;
		while (i + e->count < n && e->count < ROUND_MOST) {
			const uint64_t more = bound(e, &e->items[i + e->count]);

			if (more > LARGE || bytes + more > ROUND)
				break;
			bytes += more;
			e->count++;
		}
		err = e->count == 0 ? encode_large(e, i, why) : encode_round(e, bytes, jobs, why);
	}
	return err;
}

/* Where the first of its bytes lie; formats that do not say have them in the order of names. */
static uint64_t place(const struct item *item)
{
	const struct st_tensor *t = item->part->index;

	return t != NULL ? t->begin : item->part->offset;
}

static int by_place(const void *a, const void *b)
{
	const struct item *x = a, *y = b;
	const uint64_t p = place(x), q = place(y);

	if (p != q)
		return p < q ? -1 : 1;
	return (x->part > y->part) - (x->part < y->part);
}

/* The parts that change something which is shown, in the object's order. */
static int collect(struct run *r, struct encode *e, size_t *out_count, struct why *why)
{
	const struct delta *d = e->d;
	size_t n = 0;

	for (size_t i = 0; i < d->count; i++) {
		uint32_t target;
		int err;

		if (d->parts[i].kind != PART_SPARSE || d->parts[i].changed == 0)
			continue;
		err = exam_target(r, e->target->layout, d, &d->parts[i], &target, why);
		if (err < 0)
			return err;
		if (target != LAYOUT_NONE)
			e->items[n++] = (struct item){.part = &d->parts[i], .target = target};
	}
	qsort(e->items, n, sizeof(*e->items), by_place);
	*out_count = n;
	return 0;
}

static unsigned jobs_for(bool alone)
{
	const long cores = sysconf(_SC_NPROCESSORS_ONLN);

	return alone ? (unsigned)MIN(MAX(cores, (long)JOBS_LEAST), (long)JOBS_MOST) : 1;
}

int exam_encode(struct run *r, const struct exam *exam, const struct delta *d,
		const struct source *src, const struct target *target, int fd, const char *name,
		bool alone, uint64_t *out_size, struct why *why)
{
	const struct st_meta meta[] = {{"object", exam->key}, {"name", name}};
	struct encode e = {.d = d, .src = src, .target = target};
	const char **names = calloc(d->sparse + 1, sizeof(char *));
	struct sink sink = sink_fd(&fd);
	size_t n = 0;
	int err;

	e.items = calloc(d->sparse + 1, sizeof(*e.items));
	lock_init(&e.lock, LOCK_QUEUE);
	err = names == NULL || e.items == NULL ? why_set(why, ENOMEM, "out of memory")
					       : collect(r, &e, &n, why);
	for (size_t i = 0; err == 0 && i < n; i++)
		names[i] = target->layout->tensors[e.items[i].target].name;
	if (err == 0)
		err = patch_file_writer_new(names, n, meta, ARRAY_LEN(meta), &sink, &e.w, why);
	if (err == 0)
		err = encode_all(&e, n, jobs_for(alone), why);
	if (err == 0)
		err = patch_file_end(e.w, fd, out_size, why);
	patch_file_writer_free(e.w);
	lock_destroy(&e.lock);
	free(e.items);
	free(names);
	return err;
}
