/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deltas of wfp1x: small on the way, and nothing without the bytes of the version they apply to.
 *
 * Such a delta is made into an ordinary patch file once, when it arrives.  Its base version is read
 * tensor by tensor for that, as far as it changes: the anchor's bytes with the patches that lie on
 * them, through the same functions as a mount's own reads, and where they are remote into the same
 * cache; a few threads, which end with it, share the tensors.  The patch file has the name that a
 * downloaded one would have, so a restart finds it and needs neither object nor base; the object
 * itself is not kept.
 *
 * What it costs is counted and shown in the status: deltas, bytes of the base, time.
 */
#include "fs/run_internal.h"

#include "cache/clock.h"
#include "cache/fileio.h"
#include "fs/counters.h"
#include "fs/kernel.h"
#include "fs/parallel.h"

#include <stdlib.h>
#include <unistd.h>

enum {
	AHEAD = 16 << 20, /* bytes of a tensor asked for before they are read */
	JOBS_MAX = 8,	  /* threads */
	ROUND = 4,	  /* tensors for each of them, decoded before they are written */
};

/* A tensor of the base version, as a source. */
struct reference {
	const struct state *state;
	uint32_t tensor;
	uint64_t size, wanted; /* wanted: what is behind has not been asked for */
};

static int reference_read(void *ctx, uint64_t off, void *dst, size_t len)
{
	struct reference *r = ctx;
	const struct sources *s = r->state->sources;
	const struct tensor_source *v = &s->v[r->tensor];

	if (!v->packed && off + len + AHEAD / 2 > r->wanted && r->wanted < r->size) {
		uint64_t from = MAX(r->wanted, off), to = MIN(off + len + AHEAD, r->size);
		const struct block_range range = {v->offset + from, to - from};

		blob_want(s->blobs[v->blob], &range, 1);
		r->wanted = to;
	}
	return state_read_stored(r->state, r->tensor, off, dst, len);
}

/* The state of the base version, as the delta's target has it stored. */
static int base_state(struct run *r, const struct delta *d, const struct target *target,
		      struct state **out, struct why *why)
{
	struct link **links = NULL;
	struct identity id = {0};
	uint32_t count = 0;
	int err;

	if (d->base_version < 0 || (uint64_t)d->base_version < target->anchor)
		return why_set(why, EBADMSG,
			       "needs the bytes of version %lld, which is below the anchor in use",
			       (long long)d->base_version);
	err = fold_below(r, (uint64_t)d->base_version, target, &links, &count, why);
	if (err < 0)
		return err;
	err = state_new((uint64_t)d->base_version, target->anchor, 0, target->layout,
			(struct sources *)(uintptr_t)target->now, links, count, &id, out);
	free(links);
	return err < 0 ? why_set(why, -err, "out of memory") : 0;
}

struct decoded { /* a tensor's patch */
	const struct state *base;
	const struct patchx *x;
	uint32_t tensor;
	size_t index; /* in the patch file */
	struct grown out;
	uint64_t len;
	int err;
	struct why why;
};

static void decode_one(void *ctx, size_t i)
{
	struct decoded *d = &((struct decoded *)ctx)[i];
	const struct tensor_source *v = &d->base->sources->v[d->tensor];
	const struct layout_tensor *t = &d->base->layout->tensors[d->tensor];
	struct reference ref = {
		.state = d->base,
		.tensor = d->tensor,
		.size = (t->numel * st_dtype_bits(v->dtype) + 7) / 8,
	};
	const struct source src = {.read = reference_read, .ctx = &ref, .size = ref.size};
	const struct sink sink = sink_grown(&d->out);
	uint64_t read = 0;

	if (v->version > d->base->version) {
		d->err = why_set(&d->why, EBADMSG, "\"%s\" was replaced in a later version",
				 SHOWN(t->name));
		return;
	}
	d->err = patchx_decode(d->x, &src, kernel_chosen(), PATCH_CODING_RICE, &sink, 0, &d->len,
			       &read, &d->why);
	COUNT(given_base_bytes, read);
	if (d->err < 0)
		why_prefix(&d->why, "\"%s\"", SHOWN(t->name));
}

/* Writes what was decoded, in order, and lets go of it. */
static int put_round(struct decoded *v, size_t count, struct patch_file_writer *w, struct why *why)
{
	int err = 0;

	for (size_t i = 0; i < count; i++) {
		struct decoded *d = &v[i];

		if (err == 0 && d->err < 0) {
			err = d->err;
			*why = d->why;
		}
		if (err == 0 && d->len > 0) {
			err = patch_file_writer_add(w, d->index, d->out.bytes, (size_t)d->len);
			if (err < 0)
				why_set(why, -err, "its patch cannot be written");
		}
		free(d->out.bytes);
	}
	return err;
}

/* Some tensors at a time, by several threads. */
static int decode_tensors(const struct patch_file *file, const uint32_t *to,
			  const struct state *base, struct patch_file_writer *w, struct why *why)
{
	const long cores = sysconf(_SC_NPROCESSORS_ONLN);
	const unsigned jobs = (unsigned)MIN(MAX(cores, 1L), (long)JOBS_MAX);
	struct decoded *v = calloc(JOBS_MAX * ROUND, sizeof(*v));
	size_t count = 0;
	int err = v == NULL ? why_set(why, ENOMEM, "out of memory") : 0;

	for (size_t i = 0; err == 0 && i < file->count; i++) {
		if (to[i] != LAYOUT_NONE)
			v[count++] = (struct decoded){
				.base = base, .x = &file->x[i], .tensor = to[i], .index = i};
		if (count == (size_t)jobs * ROUND || (i + 1 == file->count && count > 0)) {
			parallel_for(jobs, count, decode_one, v);
			err = put_round(v, count, w, why);
			count = 0;
		}
	}
	free(v);
	return err;
}

/* The tensors of `file`, in its order, under the layout's names; targets[] is in the order of the
 * file's names. */
static int decode_all(const struct patch_file *file, const uint32_t *targets,
		      const struct state *base, int fd, const char *name, uint64_t *out_size,
		      struct why *why)
{
	const struct st_meta meta[] = {{"name", name}};
	const char **names = calloc(file->count + 1, sizeof(*names));
	uint32_t *to = calloc(file->count + 1, sizeof(*to));
	struct patch_file_writer *w = NULL;
	struct sink sink = sink_fd(&fd);
	int err = names == NULL || to == NULL ? why_set(why, ENOMEM, "out of memory") : 0;

	for (size_t i = 0; err == 0 && i < file->count; i++) {
		const uint32_t at = file->header->by_name[i];

		to[at] = targets[i];
		names[at] = to[at] == LAYOUT_NONE ? file->header->tensors[at].name
						  : base->layout->tensors[to[at]].name;
	}
	if (err == 0)
		err = patch_file_writer_new(names, file->count, meta, ARRAY_LEN(meta), &sink, &w,
					    why);
	if (err == 0)
		err = decode_tensors(file, to, base, w, why);
	if (err == 0)
		err = patch_file_end(w, fd, out_size, why);
	patch_file_writer_free(w);
	free(names);
	free(to);
	return err;
}

/* The patch file that a downloaded one of wfp1x becomes. */
static int make_patches(struct run *r, const struct mapping *object, const uint32_t *targets,
			const struct state *base, const char *name, struct mapping **out,
			struct why *why)
{
	struct cachedir *cache = r->config.cache;
	struct patch_file *file = NULL;
	uint64_t size = 0;
	int fd = -1, err = patch_file_open_x(object->bytes, object->size, &file, why);

	if (err < 0)
		return err;
	err = cachedir_create(cache, &fd);
	if (err < 0) {
		why_set(why, -err, "no file for its patch can be made in the cache directory");
		goto out;
	}
	err = decode_all(file, targets, base, fd, name, &size, why);
	if (err < 0 && cachedir_spill(cache, fd, err)) {
		*why = (struct why){0};
		err = decode_all(file, targets, base, fd, name, &size, why);
	}
	if (err < 0) {
		cachedir_abort(cache, fd);
		goto out;
	}
	err = cachedir_commit(cache, fd, name, size, out);
	if (err < 0)
		why_set(why, -err, "its patch cannot be stored in the cache directory%s",
			err == -ENOSPC ? " (no space left)" : "");
out:
	patch_file_free(file);
	return err;
}

/* The object, mapped, in a file that has no name; *out_fd for cachedir_abort(). */
static int fetch(struct cachedir *cache, struct blob *blob, struct mapping **out, int *out_fd,
		 struct why *why)
{
	int fd, err = native_fetch(cache, blob, &fd, why);

	if (err < 0)
		return err;
	err = mapping_new(fd, blob->size, out);
	if (err < 0) {
		cachedir_abort(cache, fd);
		return why_set(why, -err, "it cannot be mapped");
	}
	*out_fd = fd;
	return 0;
}

int given_base_link(struct run *r, const struct delta *d, struct blob *blob, uint64_t number,
		    const struct target *target, const char *name, struct link **out,
		    struct why *why)
{
	struct mapping *mapping = NULL, *object = NULL;
	const int64_t begin = clock_mono_ns();
	struct state *base = NULL;
	uint32_t *targets = NULL;
	int fd = -1, err = native_targets(r, d, target->layout, &targets, why);

	if (err < 0)
		return err;
	if (cachedir_map(r->config.cache, name, &mapping) == 0) {
		err = native_open(number, mapping, name, target, NULL, out, NULL);
		if (err == 0)
			goto out;
		cachedir_remove(r->config.cache, name); /* damaged: make it again */
		mapping = NULL;
	}
	err = fetch(r->config.cache, blob, &object, &fd, why);
	if (err == 0)
		err = base_state(r, d, target, &base, why);
	if (err == 0)
		err = make_patches(r, object, targets, base, name, &mapping, why);
	mapping_unref(object);
	if (fd >= 0)
		cachedir_abort(r->config.cache, fd);
	if (err == 0)
		err = native_open(number, mapping, name, target, NULL, out, why);
	if (err == 0) {
		COUNT(given_base, 1);
		COUNT(given_base_ns, (uint64_t)(clock_mono_ns() - begin));
	}
out:
	state_unref(base);
	free(targets);
	return err;
}
