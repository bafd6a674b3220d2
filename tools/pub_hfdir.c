/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The encoding xor-zstd: a directory per version, as slime, miles and SGLang publish and pull them
 * (codec/write_hfdir.h).
 *
 *	weight_v000042/model-00000-of-00002.safetensors, ..., model.safetensors.index.json
 *
 * A delta's shards hold the XOR of the tensors that change; an anchor is the checkpoint itself, its
 * companions with it.  The index is the last object of either: whoever looks at the directory takes
 * the version for published when it is there.  Receivers count without holes, so a step without
 * changes has a directory too, and a delta is always one above its base.
 *
 * Shards are made at the same time, each by a thread of its own; bytes of tensors are read in order
 * and nothing is kept of them.
 */
#include "cache/fileio.h"
#include "cache/pool.h"
#include "codec/write_hfdir.h"
#include "tools/pub_encode.h"

#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { WINDOW = 8 << 20, TICK_MS = 50 };

static const char index_name[] = "model.safetensors.index.json";

/* A shard is at most so much of the state, since receivers hold a whole one in memory, and at least
 * so much where it is only for the sake of threads. */
static const uint64_t shard_max = UINT64_C(4) << 30, shard_min = UINT64_C(1) << 20;

struct shard {
	struct pool_job job;
	const struct pub_input *in;
	const size_t *tensors; /* count of them, indices into the input's */
	struct hfdir_entry *entries;
	size_t count;
	atomic_uint_fast64_t *bytes; /* of tensors, of all shards */
	atomic_size_t *done;	     /* shards that are */
	char name[64], *path;
	int fd, err;
	struct why why;
};

static int version_key(const struct pub_input *in, const char *name, char **out, struct why *why)
{
	if (asprintf(out, "weight_v%06" PRIu64 "/%s", in->version, name) < 0) {
		*out = NULL;
		return why_set(why, ENOMEM, "out of memory");
	}
	return 0;
}

/* Hands a work file over as an object of the version's directory. */
static int add_object(const struct pub_input *in, struct pub_objects *out, const char *name,
		      char *path, int fd, struct why *why)
{
	char *key;
	int err = version_key(in, name, &key, why);

	if (err < 0) {
		free(path);
		close(fd);
		return err;
	}
	err = pub_objects_add(out, key, name, path, fd, why);
	free(key);
	return err;
}

static int add_index(const struct pub_input *in, struct pub_objects *out, struct buf *text,
		     struct why *why)
{
	char *path = NULL;
	int fd, err;

	if (text->failed)
		return why_set(why, ENOMEM, "out of memory");
	err = pub_work_file(in, "index", &path, &fd, why);
	if (err < 0)
		return err;
	err = file_pwrite(fd, text->data, text->len, 0);
	if (err == 0)
		return add_object(in, out, index_name, path, fd, why);
	free(path);
	close(fd);
	return why_set(why, -err, "an index cannot be written in %s: %s", SHOWN(in->work_dir),
		       strerrordesc_np(-err));
}

/* ---- a delta ---- */

static int shard_write(struct shard *s)
{
	struct sink sink = sink_fd(&s->fd);
	struct hfdir_shard *w = NULL;
	uint64_t size;
	int err = hfdir_shard_new(s->entries, s->count, &sink, &w, &s->why);

	for (size_t i = 0; err == 0 && i < s->count; i++) {
		const struct pub_tensor *t = &s->in->tensors[s->tensors[i]];

		for (uint64_t off = 0; err == 0 && off < t->bytes; off += WINDOW) {
			const uint64_t len = MIN(t->bytes - off, (uint64_t)WINDOW);

			err = hfdir_shard_add(w, t->old + off, t->data + off, len, &s->why);
			pub_read_past(t->old + off, len);
			pub_read_past(t->data + off, len);
			atomic_fetch_add(s->bytes, len);
			if (err == 0)
				err = pub_stopped(s->in, &s->why);
		}
	}
	if (err == 0)
		err = hfdir_shard_end(w, &size, &s->why);
	hfdir_shard_free(w);
	return err;
}

static void shard_run(struct pool_job *job)
{
	struct shard *s = (struct shard *)job; /* its first member */

	s->err = shard_write(s);
	atomic_fetch_add(s->done, 1);
}

struct delta {
	const struct pub_input *in;
	size_t *tensors; /* changed of them */
	struct hfdir_entry *entries;
	size_t changed;
	uint64_t bytes; /* of these */
	struct shard *shards;
	size_t count;
	atomic_uint_fast64_t done_bytes;
	atomic_size_t done;
};

static int collect(struct delta *d, struct why *why)
{
	const struct pub_input *in = d->in;

	d->tensors = calloc(in->count + 1, sizeof(*d->tensors));
	d->entries = calloc(in->count + 1, sizeof(*d->entries));
	d->shards = calloc(in->count + 1, sizeof(*d->shards));
	if (d->tensors == NULL || d->entries == NULL || d->shards == NULL)
		return why_set(why, ENOMEM, "out of memory");
	for (size_t i = 0; i < in->count; i++) {
		const struct pub_tensor *t = &in->tensors[i];

		if (t->patch == NULL)
			continue;
		d->entries[d->changed] = (struct hfdir_entry){.name = t->name, .bytes = t->bytes};
		memcpy(d->entries[d->changed].checksum, t->hash.bytes, sizeof(t->hash.bytes));
		d->tensors[d->changed++] = i;
		d->bytes += t->bytes;
	}
	return 0;
}

/* Tensors that follow each other, about as many bytes in each shard. */
static void divide(struct delta *d)
{
	const uint64_t threads = MIN((uint64_t)MAX(d->in->jobs, 1U), d->bytes / shard_min);
	const uint64_t want = MAX(MAX(d->bytes / shard_max + 1, threads), UINT64_C(1));
	const uint64_t share = d->bytes / want + 1;
	uint64_t placed = 0;

	for (size_t i = 0; i < d->changed; i++) {
		if (placed >= d->count * share) {
			d->shards[d->count++] = (struct shard){
				.in = d->in,
				.tensors = &d->tensors[i],
				.entries = &d->entries[i],
				.bytes = &d->done_bytes,
				.done = &d->done,
				.fd = -1,
			};
		}
		d->shards[d->count - 1].count++;
		placed += d->entries[i].bytes;
	}
}

/* Until all shards are done; the bar is this thread's. */
static void watch_shards(struct delta *d)
{
	uint64_t shown = 0, now;

	while (atomic_load(&d->done) < d->count) {
		poll(NULL, 0, TICK_MS);
		now = atomic_load(&d->done_bytes);
		progress_add(d->in->progress, now - shown);
		shown = now;
	}
}

static int run_shards(struct delta *d, struct why *why)
{
	struct pool *pool = NULL;
	int err = 0;

	for (size_t i = 0; err == 0 && i < d->count; i++) {
		struct shard *s = &d->shards[i];

		snprintf(s->name, sizeof(s->name), "model-%05zu-of-%05zu.safetensors", i, d->count);
		err = pub_work_file(d->in, s->name, &s->path, &s->fd, why);
	}
	if (err == 0 && d->count > 0) {
		err = pool_new((unsigned)MIN((size_t)MAX(d->in->jobs, 1U), d->count), &pool);
		if (err < 0)
			why_set(why, -err, "no thread can be started: %s", strerrordesc_np(-err));
	}
	for (size_t i = 0; err == 0 && i < d->count; i++) {
		d->shards[i].job.run = shard_run;
		pool_submit(pool, &d->shards[i].job, POOL_SOON);
	}
	if (err == 0 && d->in->progress != NULL)
		watch_shards(d);
	pool_free(pool);
	for (size_t i = 0; err == 0 && i < d->count; i++) {
		err = d->shards[i].err;
		if (err < 0 && why != NULL)
			*why = d->shards[i].why;
	}
	return err;
}

static int finish(struct delta *d, struct pub_objects *out, struct why *why)
{
	struct buf index = {0};
	int err = 0;

	hfdir_index_begin(&index, true, d->in->version, d->in->base_version, 0);
	for (size_t i = 0; err == 0 && i < d->count; i++) {
		struct shard *s = &d->shards[i];

		for (size_t k = 0; k < s->count; k++)
			hfdir_index_add(&index, s->entries[k].name, s->name);
		err = add_object(d->in, out, s->name, s->path, s->fd, why);
		s->path = NULL; /* handed over */
	}
	hfdir_index_end(&index);
	if (err == 0)
		err = add_index(d->in, out, &index, why);
	buf_release(&index);
	return err;
}

static int hfdir_delta(const struct pub_input *in, struct pub_objects *out, struct why *why)
{
	struct delta d = {.in = in};
	int err;

	snprintf(out->encoding, sizeof(out->encoding), "xor-zstd");
	if (in->version != in->base_version + 1)
		return why_set(why, EINVAL,
			       "version %" PRIu64 " does not follow %" PRIu64
			       ", as receivers of xor-zstd need it; publish an anchor (--anchor)",
			       in->version, in->base_version);
	err = collect(&d, why);
	if (err == 0) {
		divide(&d);
		err = run_shards(&d, why);
	}
	if (err == 0)
		err = finish(&d, out, why);
	for (size_t i = 0; i < d.count; i++) {
		if (d.shards[i].path == NULL)
			continue;
		free(d.shards[i].path);
		close(d.shards[i].fd);
	}
	free(d.shards);
	free(d.entries);
	free(d.tensors);
	return err;
}

/* ---- an anchor: the checkpoint ---- */

/* A copy of what is open already: the list of objects closes its own. */
static int add_file(const struct pub_input *in, struct pub_objects *out, const struct pub_file *f,
		    const char *name, struct why *why)
{
	char *path = strdup(f->path);
	int fd = dup(f->fd);

	if (path != NULL && fd >= 0)
		return add_object(in, out, name, path, fd, why);
	free(path);
	if (fd >= 0)
		close(fd);
	return why_set(why, fd < 0 ? errno : ENOMEM, "%s cannot be prepared", SHOWN(f->name));
}

static int add_weights(const struct pub_input *in, struct pub_objects *out,
		       const struct pub_file *f, struct buf *index, struct why *why)
{
	/* Receivers know a lone file by this name only. */
	const char *name = in->file_count == 1 ? "model.safetensors" : f->name;
	struct st_header *header = NULL;
	struct source src;
	int err = source_fd(f->fd, &src);

	if (err < 0)
		return why_set(why, -err, "%s cannot be read: %s", SHOWN(f->path),
			       strerrordesc_np(-err));
	err = st_read(&src, &header, NULL, why);
	if (err < 0) {
		why_prefix(why, "%s", SHOWN(f->path));
		return err;
	}
	for (size_t i = 0; i < header->count; i++)
		hfdir_index_add(index, header->tensors[i].name, name);
	st_free(header);
	return add_file(in, out, f, name, why);
}

static int hfdir_anchor(const struct pub_input *in, struct pub_objects *out, struct why *why)
{
	struct buf index = {0};
	uint64_t total = 0;
	int err = 0;

	snprintf(out->encoding, sizeof(out->encoding), "xor-zstd");
	for (size_t i = 0; i < in->count; i++)
		total += in->tensors[i].bytes;
	hfdir_index_begin(&index, false, in->version, 0, total);
	for (size_t i = 0; err == 0 && i < in->companion_count; i++) {
		const struct pub_file *f = &in->companions[i];

		/* Receivers copy what is directly in it. */
		if (strcmp(f->name, index_name) != 0 && strchr(f->name, '/') == NULL)
			err = add_file(in, out, f, f->name, why);
	}
	for (size_t i = 0; err == 0 && i < in->file_count; i++)
		err = add_weights(in, out, &in->files[i], &index, why);
	hfdir_index_end(&index);
	if (err == 0)
		err = add_index(in, out, &index, why);
	buf_release(&index);
	return err;
}

const struct pub_encoding pub_hfdir = {
	.name = "xor-zstd",
	.help = "directories as slime and SGLang pull them: about 23 bits per changed element",
	.delta = hfdir_delta,
	.anchor = hfdir_anchor,
	.empty = true,
	.reads_old = true,
	.alone = true,
	.consecutive = true,
	.overwrites = true,
};
