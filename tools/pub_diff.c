/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pass over both states.
 *
 * A thread reads a window of each side into memory that stays in its cache (a read costs less than
 * the page faults of a map), and while it is there: adds the difference to the tensor's patch,
 * hashes both sides, and writes the new bytes to the copy.  A tensor belongs to one thread, since a
 * hash goes from its first byte to its last; the largest are taken first so that all threads end at
 * about the same time.
 *
 * A blob is gathered in memory and appended to one scratch file when it is complete, in whatever
 * order they come.  One that passes SPOOL_MAX gets the room that it may need at most, as a hole of
 * the scratch file, and goes there directly.  In the end the scratch file is mapped.
 *
 * Shared by the threads: `next` and `room` (atomic), and under the lock the first error, how many
 * threads run, and the sums.
 */
#include "tools/pub_diff.h"

#include "cache/clock.h"
#include "cache/fileio.h"
#include "cache/lock.h"
#include "cache/thread.h"
#include "codec/diff.h"
#include "fs/kernel.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#define SPOOL_MAX (UINT64_C(16) << 20)
#define DRAW_NS	  (100 * 1000 * 1000)

enum { WINDOW = 512 << 10, ROOM_ALIGN = 4096, JOBS_MAX = 256 };

struct team {
	struct pub_diff *d;
	const struct rice_kernel *kernel;
	size_t *order;	/* indices of tensors, the largest first */
	size_t next;	/* atomic: of order */
	uint64_t room;	/* atomic: end of what is taken of the scratch file */
	uint64_t bytes; /* atomic: of the new state, done */
	struct lock lock;
	struct condition changed;
	unsigned running; /* under the lock, as the rest */
	int err;
	struct why why;
};

/* ---- where a blob goes ---- */

struct spool {
	struct team *team;
	uint8_t *mem;
	size_t cap, end;
	uint64_t bound, off; /* off: in the scratch file, once `spilled` */
	bool spilled;
};

static uint64_t take_room(struct team *t, uint64_t len)
{
	len = ALIGN_UP(len, (uint64_t)ROOM_ALIGN);
	return __atomic_fetch_add(&t->room, len, __ATOMIC_RELAXED);
}

static int spool_grow(struct spool *s, size_t need)
{
	size_t cap = MAX(s->cap, (size_t)WINDOW);
	uint8_t *mem;

	while (cap < need)
		cap *= 2;
	if (cap == s->cap)
		return 0;
	mem = realloc(s->mem, cap);
	if (mem == NULL)
		return -ENOMEM;
	s->mem = mem;
	s->cap = cap;
	return 0;
}

static int spool_write(void *ctx, uint64_t off, const void *src, size_t len)
{
	struct spool *s = ctx;
	int fd = s->team->d->fd, ret;

	if (!s->spilled && off + len <= SPOOL_MAX) {
		ret = spool_grow(s, (size_t)off + len);
		if (ret < 0)
			return ret;
		memcpy(s->mem + off, src, len);
		s->end = MAX(s->end, (size_t)off + len);
		return 0;
	}
	if (!s->spilled) {
		s->off = take_room(s->team, s->bound);
		s->spilled = true;
		ret = file_pwrite(fd, s->mem, s->end, s->off);
		if (ret < 0)
			return ret;
	}
	return file_pwrite(fd, src, len, s->off + off);
}

/* ---- one tensor ---- */

struct worker {
	pthread_t thread;
	struct team *team;
	uint8_t *a, *b; /* WINDOW of old and new, and slack for the kernels */
	XXH3_state_t *old_hash, *new_hash;
	struct spool spool;
	struct why why;
};

static int cannot(struct worker *w, int err, const char *path, const char *what)
{
	return why_set(&w->why, err, "%s cannot be %s: %s", SHOWN(path), what,
		       err == ENODATA ? "it ends too early" : strerrordesc_np(err));
}

static void digest(XXH3_state_t *state, struct pub_hash *out)
{
	XXH128_canonical_t canonical;

	XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
	memcpy(out->bytes, canonical.digest, sizeof(out->bytes));
}

/* Bytes [at, at + len) of the new tensor, and of the old one where there is one. */
static int read_window(struct worker *w, size_t i, uint64_t at, size_t len)
{
	const struct pub_diff *d = w->team->d;
	const struct pub_place *p = &d->new->places[i];
	const struct pub_file *f = &d->new->files[p->file];
	int ret = file_pread(f->fd, w->b, len, p->off + at);

	if (ret < 0)
		return cannot(w, -ret, f->path, "read");
	XXH3_128bits_update(w->new_hash, w->b, len);
	if (d->copies != NULL && d->copies[p->file] >= 0) {
		ret = file_pwrite(d->copies[p->file], w->b, len, p->off + at);
		if (ret < 0)
			return cannot(w, -ret, "the copy of the state", "written");
	}
	if (d->old == NULL)
		return 0;
	p = &d->old->places[i];
	f = &d->old->files[p->file];
	ret = file_pread(f->fd, w->a, len, p->off + at);
	if (ret < 0)
		return cannot(w, -ret, f->path, "read");
	if (d->chain != NULL)
		ret = pub_chain_apply(d->chain, i, at, w->a, len);
	if (ret < 0)
		return why_set(&w->why, -ret, "a patch of the local state is damaged");
	XXH3_128bits_update(w->old_hash, w->a, len);
	return 0;
}

static int each_window(struct worker *w, size_t i, struct patch_writer *writer)
{
	struct team *t = w->team;
	const struct pub_tensor *tensor = &t->d->new->tensors[i];
	const unsigned width = st_dtype_width(tensor->dtype);
	int ret = 0;

	for (uint64_t at = 0; ret == 0 && at < tensor->bytes; at += WINDOW) {
		size_t len = (size_t)MIN(tensor->bytes - at, (uint64_t)WINDOW);

		if (*t->d->stop)
			return why_set(&w->why, EINTR, "interrupted; nothing was published");
		ret = read_window(w, i, at, len);
		if (ret == 0 && writer != NULL)
			ret = diff_add(writer, t->kernel, w->a, w->b, at / width, len / width,
				       &w->why);
		__atomic_fetch_add(&t->bytes, len, __ATOMIC_RELAXED);
	}
	return ret;
}

/* The finished blob into the scratch file; a tensor without changes has none. */
static int keep_blob(struct worker *w, struct pub_tensor *tensor, uint64_t len, uint64_t changed)
{
	struct spool *s = &w->spool;
	struct team *t = w->team;
	int ret = 0;

	if (changed == 0)
		return 0;
	if (!s->spilled) {
		s->off = take_room(t, len);
		ret = file_pwrite(t->d->fd, s->mem, (size_t)len, s->off);
	}
	if (ret < 0)
		return cannot(w, -ret, t->d->work_dir, "written to");
	tensor->blob = (const uint8_t *)(uintptr_t)s->off; /* an offset until all is mapped */
	tensor->blob_len = len;
	tensor->changed = changed;
	return 0;
}

static int with_patch(struct worker *w, size_t i)
{
	struct pub_tensor *tensor = &w->team->d->new->tensors[i];
	const unsigned width = st_dtype_width(tensor->dtype);
	const uint64_t numel = tensor->bytes / width;
	struct sink sink = {.write = spool_write, .ctx = &w->spool};
	uint64_t len = 0, changed = 0;
	struct patch_writer *writer;
	int ret;

	w->spool.end = 0;
	w->spool.spilled = false;
	w->spool.bound = patch_bound_rice(width, numel, numel);
	writer = patch_writer_new(PATCH_ADD, width, numel, &sink, 0);
	ret = writer != NULL ? patch_writer_rice(writer, w->team->kernel, true, &w->why)
			     : why_set(&w->why, ENOMEM, "out of memory");
	if (ret == 0)
		ret = each_window(w, i, writer);
	if (ret == 0)
		ret = patch_writer_end(writer, &len, &changed, &w->why);
	patch_writer_free(writer);
	return ret == 0 ? keep_blob(w, tensor, len, changed) : ret;
}

static int do_tensor(struct worker *w, size_t i)
{
	struct pub_diff *d = w->team->d;
	struct pub_tensor *tensor = &d->new->tensors[i];
	int ret;

	XXH3_128bits_reset(w->new_hash);
	XXH3_128bits_reset(w->old_hash);
	if (d->old != NULL && tensor->bytes > 0)
		ret = with_patch(w, i);
	else
		ret = each_window(w, i, NULL);
	if (ret < 0)
		return why_prefix(&w->why, "\"%s\"", SHOWN(tensor->name));
	digest(w->new_hash, &tensor->hash);
	if (d->old != NULL) {
		digest(w->old_hash, &d->old->tensors[i].hash);
		if (d->chain == NULL)
			tensor->old = d->old->tensors[i].data;
	}
	return 0;
}

/* ---- the threads ---- */

static int worker_init(struct worker *w, struct team *t)
{
	w->team = t;
	w->spool.team = t;
	w->a = aligned_alloc(4096, WINDOW + 4096);
	w->b = aligned_alloc(4096, WINDOW + 4096);
	w->old_hash = XXH3_createState();
	w->new_hash = XXH3_createState();
	return w->a != NULL && w->b != NULL && w->old_hash != NULL && w->new_hash != NULL ? 0
											  : -ENOMEM;
}

static void worker_release(struct worker *w)
{
	XXH3_freeState(w->old_hash);
	XXH3_freeState(w->new_hash);
	free(w->spool.mem);
	free(w->a);
	free(w->b);
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct team *t = w->team;
	int ret = 0;

	while (ret == 0) {
		size_t i = __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED);

		if (i >= t->d->new->count)
			break;
		ret = do_tensor(w, t->order[i]);
	}
	lock_take(&t->lock);
	if (ret < 0 && t->err == 0) {
		t->err = ret;
		t->why = w->why;
		__atomic_store_n(&t->next, t->d->new->count, __ATOMIC_RELAXED);
	}
	t->running--;
	condition_broadcast(&t->changed);
	lock_release(&t->lock);
	return NULL;
}

static int start(struct team *t, struct worker *workers, unsigned jobs, unsigned *out_started)
{
	int err = 0;

	while (*out_started < jobs && err == 0) {
		lock_take(&t->lock);
		t->running++;
		lock_release(&t->lock);
		err = thread_start(&workers[*out_started].thread, NULL, work,
				   &workers[*out_started]);
		if (err == 0)
			(*out_started)++;
	}
	if (err != 0) {
		lock_take(&t->lock);
		t->running--;
		lock_release(&t->lock);
	}
	return *out_started > 0 ? 0 : err;
}

static void wait_for_all(struct team *t)
{
	uint64_t shown = 0;

	lock_take(&t->lock);
	while (t->running > 0) {
		(void)condition_wait(&t->changed, &t->lock, clock_mono_ns() + DRAW_NS);
		lock_release(&t->lock);
		if (t->d->progress != NULL) {
			uint64_t now = __atomic_load_n(&t->bytes, __ATOMIC_RELAXED);

			progress_add(t->d->progress, now - shown);
			shown = now;
		}
		lock_take(&t->lock);
	}
	lock_release(&t->lock);
}

static int run_team(struct team *t, struct worker *workers, unsigned jobs, struct why *why)
{
	unsigned started = 0;
	int ret = 0;

	for (unsigned i = 0; ret == 0 && i < jobs; i++)
		ret = worker_init(&workers[i], t);
	if (ret == 0)
		ret = start(t, workers, jobs, &started);
	if (ret < 0)
		return why_set(why, -ret, "no thread can be started: %s", strerrordesc_np(-ret));
	wait_for_all(t);
	for (unsigned i = 0; i < started; i++)
		pthread_join(workers[i].thread, NULL);
	if (t->err < 0)
		*why = t->why;
	return t->err;
}

/* ---- around them ---- */

static int larger_first(const void *a, const void *b, void *ctx)
{
	const struct pub_tensor *tensors = ctx;
	uint64_t x = tensors[*(const size_t *)a].bytes, y = tensors[*(const size_t *)b].bytes;

	if (x != y)
		return x < y ? 1 : -1;
	return *(const size_t *)a < *(const size_t *)b ? -1 : 1;
}

static int copy_headers(struct pub_diff *d, struct why *why)
{
	for (size_t i = 0; d->copies != NULL && i < d->new->file_count; i++) {
		const struct pub_file *f = &d->new->files[i];
		int ret;

		if (d->copies[i] < 0)
			continue;
		ret = file_pwrite(d->copies[i], d->new->maps[i], (size_t)d->new->headers[i]->data,
				  0);
		if (ret < 0)
			return why_set(why, -ret, "the copy of %s cannot be written: %s",
				       SHOWN(f->name), strerrordesc_np(-ret));
	}
	return 0;
}

static int map_blobs(struct pub_diff *d, uint64_t size, struct why *why)
{
	void *map = MAP_FAILED;
	int ret = 0;

	d->views = calloc(d->new->count + 1, sizeof(*d->views));
	if (d->views == NULL)
		return why_set(why, ENOMEM, "out of memory");
	if (size == 0)
		return 0;
	if (ftruncate(d->fd, (off_t)size) == 0)
		map = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, d->fd, 0);
	if (map == MAP_FAILED)
		return why_set(why, errno, "%s cannot be mapped: %s", SHOWN(d->work_dir),
			       strerrordesc_np(errno));
	d->map = map;
	d->map_size = size;
	for (size_t i = 0; ret == 0 && i < d->new->count; i++) {
		struct pub_tensor *t = &d->new->tensors[i];

		if (t->changed == 0)
			continue;
		t->blob = d->map + (uintptr_t)t->blob;
		ret = patch_open(t->blob, t->blob_len, &d->views[i], why);
		if (ret == 0)
			d->views[i].kernel = kernel_chosen();
		t->patch = &d->views[i];
		d->changed += t->changed;
		d->encoded += t->blob_len;
	}
	return ret;
}

static int open_scratch(struct pub_diff *d, struct why *why)
{
	char *path = path_join(d->work_dir, "patches");

	if (path == NULL)
		return why_set(why, ENOMEM, "out of memory");
	d->fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (d->fd < 0)
		why_set(why, errno, "%s cannot be made: %s", SHOWN(path), strerrordesc_np(errno));
	else
		unlink(path);
	free(path);
	return d->fd < 0 ? -why->err : 0;
}

int pub_diff_run(struct pub_diff *d, struct why *why)
{
	struct team t = {.d = d, .kernel = kernel_chosen()};
	const unsigned jobs = (unsigned)MAX(
		MIN(MIN((size_t)d->jobs, d->new->count), (size_t)JOBS_MAX), (size_t)1);
	struct worker *workers = calloc(jobs, sizeof(*workers));
	int ret;

	lock_init(&t.lock, LOCK_QUEUE);
	condition_init(&t.changed);
	t.order = calloc(d->new->count + 1, sizeof(*t.order));
	ret = open_scratch(d, why);
	if (ret == 0 && (workers == NULL || t.order == NULL))
		ret = why_set(why, ENOMEM, "out of memory");
	if (ret == 0) {
		for (size_t i = 0; i < d->new->count; i++)
			t.order[i] = i;
		qsort_r(t.order, d->new->count, sizeof(*t.order), larger_first, d->new->tensors);
		ret = copy_headers(d, why);
	}
	if (ret == 0)
		ret = run_team(&t, workers, jobs, why);
	for (unsigned i = 0; workers != NULL && i < jobs; i++)
		worker_release(&workers[i]);
	if (ret == 0)
		ret = map_blobs(d, t.room, why);
	if (ret == 0 &&
	    (pub_state_hash(d->new->tensors, d->new->count, d->state) < 0 ||
	     (d->old != NULL && pub_state_hash(d->old->tensors, d->old->count, d->old_state) < 0)))
		ret = why_set(why, ENOMEM, "out of memory");
	free(workers);
	free(t.order);
	condition_destroy(&t.changed);
	lock_destroy(&t.lock);
	return ret;
}

void pub_diff_release(struct pub_diff *d)
{
	for (size_t i = 0; d->new != NULL &&i < d->new->count; i++) {
		d->new->tensors[i].patch = NULL;
		d->new->tensors[i].blob = NULL;
		d->new->tensors[i].old = NULL;
	}
	if (d->map != NULL)
		munmap(d->map, (size_t)d->map_size);
	if (d->fd >= 0)
		close(d->fd);
	free(d->views);
	d->map = NULL;
	d->views = NULL;
	d->fd = -1;
}
