/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deltas into one: fetched whole into unlinked files, checked, merged tensor by tensor.
 *
 * A delta is taken only when it says of itself what weightfs.json says of it and its own hash is
 * right, so the result leads from the one state to the other as surely as they did.  Block hashes
 * are kept where all have them; the hash of a tensor's new bytes is the last one's that changes it.
 *
 * The header of a patch file says its metadata, which has a hash for each tensor in it, and stands
 * at its front; a tensor whose changes cancel out is left out.  So what is left is found by merging
 * into nothing first where a tensor has several patches.
 *
 * One thread; memory is a few MB and the page cache.
 */
#include "tools/compact_merge.h"

#include "cache/fileio.h"
#include "cache/mapping.h"
#include "codec/patch_file.h"
#include "fs/kernel.h"
#include "tools/scratch.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PIECE = 4 << 20, HASH_LEN = 32 };

struct input { /* one object */
	const struct manifest_entry *entry;
	struct mapping *mapping;
	struct patch_file *file;
	const char *hashes; /* of its tensors in file order, or NULL */
};

struct merge {
	struct input *inputs; /* oldest first */
	size_t count;
	const char **names; /* of all tensors; borrowed from the inputs; sorted */
	size_t name_count;
	const struct patch **patches; /* of one tensor; room for `count` */
	struct progress *progress;    /* NULL: none */
};

/* ---- which steps ---- */

static size_t first_after(const struct manifest *m, uint64_t base)
{
	size_t i = 0;

	while (i < m->step_count && m->steps[i].version <= base)
		i++;
	return i;
}

int compact_check(const struct manifest *m, uint64_t base, uint64_t version, struct why *why)
{
	uint64_t reached = base;

	if (manifest_state(m, base) == NULL || manifest_state(m, version) == NULL)
		return why_set(why, ENOENT, "version %" PRIu64 " is not in the run",
			       manifest_state(m, base) == NULL ? base : version);
	if (version <= base)
		return why_set(why, EINVAL, "nothing lies between version %" PRIu64 " and %" PRIu64,
			       base, version);
	for (size_t i = first_after(m, base); i < m->step_count && m->steps[i].version <= version;
	     i++) {
		const struct manifest_entry *e = &m->steps[i];

		if (e->kind != MANIFEST_DELTA)
			continue;
		if (e->base != reached)
			break;
		if (e->object_count > 0 && strcmp(e->encoding, "wfp1") != 0)
			return why_set(why, ENOTSUP,
				       "version %" PRIu64
				       " is in the encoding \"%s\"; only wfp1 deltas can be merged",
				       e->version, e->encoding);
		reached = e->version;
	}
	if (reached != version)
		return why_set(why, ENOENT,
			       "the version after %" PRIu64 " has no delta: nothing can be merged "
			       "across it",
			       reached);
	return 0;
}

/* Calls fn for each object of the deltas in order. */
static int each_object(const struct manifest *m, uint64_t base, uint64_t version,
		       int (*fn)(const struct manifest_entry *e, const struct manifest_object *o,
				 void *ctx),
		       void *ctx)
{
	int ret = 0;

	for (size_t i = first_after(m, base);
	     i < m->step_count && m->steps[i].version <= version && ret == 0; i++)
		for (size_t k = 0; k < m->steps[i].object_count && ret == 0; k++)
			if (m->steps[i].kind == MANIFEST_DELTA)
				ret = fn(&m->steps[i], &m->steps[i].objects[k], ctx);
	return ret;
}

static int add_size(const struct manifest_entry *e, const struct manifest_object *o, void *ctx)
{
	(void)e;
	*(uint64_t *)ctx += o->size;
	return 0;
}

uint64_t compact_bytes(const struct manifest *m, uint64_t base, uint64_t version)
{
	uint64_t sum = 0;

	each_object(m, base, version, add_size, &sum);
	return sum;
}

/* ---- getting them ---- */

static int copy_object(struct store *store, const struct object *o, int fd,
		       struct progress *progress, struct why *why)
{
	uint8_t *piece = malloc(PIECE);
	struct handle *h = NULL;
	int ret = piece == NULL ? why_set(why, ENOMEM, "out of memory")
				: store_open(store, o, &h, why);

	for (uint64_t at = 0; ret == 0 && at < o->size;) {
		size_t len = (size_t)MIN(o->size - at, (uint64_t)PIECE);

		ret = store_read(h, at, piece, len);
		if (ret == 0)
			ret = file_pwrite(fd, piece, len, at);
		if (ret < 0)
			why_set(why, -ret, "%s cannot be fetched: %s", SHOWN(o->key),
				strerrordesc_np(-ret));
		if (ret == 0 && progress != NULL)
			progress_add(progress, len);
		at += len;
	}
	store_close(h);
	free(piece);
	return ret;
}

static int expect(const struct input *in, const char *key, const char *want, struct why *why)
{
	const char *have = st_meta(in->file->header, key);

	if (have == NULL || strcmp(have, want) != 0)
		return why_set(why, EBADMSG, "says %s %s, and " MANIFEST_KEY " says %s", key,
			       have != NULL ? SHOWN(have) : "nothing", want);
	return 0;
}

static int check_input(const struct input *in, const struct manifest *m, struct why *why)
{
	const struct manifest_entry *e = in->entry;
	char version[24], base[24], state[33], base_state[33];
	int ret;

	snprintf(version, sizeof(version), "%" PRIu64, e->version);
	snprintf(base, sizeof(base), "%" PRIu64, e->base);
	manifest_hex(e->state, state);
	manifest_hex(manifest_state(m, e->base), base_state);
	ret = expect(in, "encoding", "wfp1", why);
	if (ret == 0)
		ret = expect(in, "lineage", m->lineage, why);
	if (ret == 0)
		ret = expect(in, "model_version", version, why);
	if (ret == 0)
		ret = expect(in, "base_version", base, why);
	if (ret == 0)
		ret = expect(in, "state", state, why);
	return ret == 0 ? expect(in, "base_state", base_state, why) : ret;
}

struct fetching {
	struct store *store;
	const struct manifest *m;
	struct listing *listing;
	struct merge *merge;
	struct why *why;
};

static int fetch_one(const struct manifest_entry *e, const struct manifest_object *named, void *ctx)
{
	struct fetching *f = ctx;
	struct input *in = &f->merge->inputs[f->merge->count];
	const struct object *o = listing_find(f->listing, named->key);
	int fd = -1, ret;

	if (o == NULL || o->size != named->size)
		return why_set(f->why, ENOENT, "%s is not there as " MANIFEST_KEY " says",
			       SHOWN(named->key));
	ret = scratch_file(&fd, f->why);
	if (ret < 0)
		return ret;
	ret = copy_object(f->store, o, fd, f->merge->progress, f->why);
	if (ret == 0) {
		ret = mapping_new(fd, o->size, &in->mapping);
		if (ret < 0)
			why_set(f->why, -ret, "out of memory");
	}
	close(fd);
	if (ret < 0)
		return ret;
	f->merge->count++;
	in->entry = e;
	ret = patch_file_open(in->mapping->bytes, in->mapping->size, true, &in->file, f->why);
	if (ret == 0) {
		patch_file_use(in->file, kernel_chosen());
		ret = check_input(in, f->m, f->why);
	}
	if (ret < 0)
		return why_prefix(f->why, "%s", SHOWN(named->key));
	in->hashes = st_meta(in->file->header, "hashes");
	if (in->hashes != NULL && strlen(in->hashes) != HASH_LEN * in->file->count)
		in->hashes = NULL;
	return 0;
}

static int count_one(const struct manifest_entry *e, const struct manifest_object *o, void *ctx)
{
	(void)e;
	(void)o;
	++*(size_t *)ctx;
	return 0;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int collect_names(struct merge *g, struct why *why)
{
	size_t n = 0, kept = 0;

	for (size_t i = 0; i < g->count; i++)
		n += g->inputs[i].file->count;
	g->names = calloc(n + 1, sizeof(*g->names));
	g->patches = calloc(g->count + 1, sizeof(*g->patches));
	if (g->names == NULL || g->patches == NULL)
		return why_set(why, ENOMEM, "out of memory");
	n = 0;
	for (size_t i = 0; i < g->count; i++)
		for (size_t k = 0; k < g->inputs[i].file->count; k++)
			g->names[n++] = g->inputs[i].file->header->tensors[k].name;
	qsort(g->names, n, sizeof(*g->names), compare_names);
	for (size_t i = 0; i < n; i++)
		if (kept == 0 || strcmp(g->names[kept - 1], g->names[i]) != 0)
			g->names[kept++] = g->names[i];
	g->name_count = kept;
	return 0;
}

static int fetch_all(struct store *store, const struct manifest *m, uint64_t base, uint64_t version,
		     struct merge *g, struct why *why)
{
	struct listing listing = {0};
	struct fetching f = {store, m, &listing, g, why};
	size_t n = 0;
	int ret;

	each_object(m, base, version, count_one, &n);
	g->inputs = calloc(n + 1, sizeof(*g->inputs));
	if (g->inputs == NULL)
		return why_set(why, ENOMEM, "out of memory");
	ret = store_list(store, "deltas/", &listing, why);
	if (ret == 0)
		ret = each_object(m, base, version, fetch_one, &f);
	listing_release(&listing);
	return ret == 0 ? collect_names(g, why) : ret;
}

static void merge_release(struct merge *g)
{
	for (size_t i = 0; i < g->count; i++) {
		patch_file_free(g->inputs[i].file);
		mapping_unref(g->inputs[i].mapping);
	}
	free(g->inputs);
	free(g->names);
	free(g->patches);
}

/* ---- merging ---- */

/* The patches of one tensor, oldest first; *out_hash: of its bytes after the last, or NULL. */
static size_t patches_of(struct merge *g, const char *name, const char **out_hash)
{
	size_t n = 0;

	*out_hash = NULL;
	for (size_t i = 0; i < g->count; i++) {
		const struct st_tensor *t = st_find(g->inputs[i].file->header, name);
		size_t at;

		if (t == NULL)
			continue;
		at = (size_t)(t - g->inputs[i].file->header->tensors);
		g->patches[n++] = &g->inputs[i].file->patches[at];
		*out_hash =
			g->inputs[i].hashes != NULL ? g->inputs[i].hashes + HASH_LEN * at : NULL;
	}
	return n;
}

/* A bar of its own for going through all tensors. */
static void show_pass(struct merge *g, const char *what)
{
	if (g->progress == NULL)
		return;
	progress_clear(g->progress);
	progress_begin_count(g->progress, what, "tensors", g->name_count);
}

static void tensor_done(struct merge *g)
{
	if (g->progress != NULL)
		progress_add(g->progress, 1);
}

static int to_nowhere(void *ctx, uint64_t off, const void *bytes, size_t len)
{
	(void)ctx;
	(void)off;
	(void)bytes;
	(void)len;
	return 0;
}

/* Keeps the names of tensors that change at all, and writes down their hashes; "" when one of them
 * has none. */
static int find_changed(struct merge *g, struct buf *hashes, struct why *why)
{
	const struct sink nowhere = {.write = to_nowhere};
	bool all = true;
	size_t kept = 0;

	show_pass(g, "compare");
	for (size_t i = 0; i < g->name_count; i++, tensor_done(g)) {
		const char *hash;
		size_t n = patches_of(g, g->names[i], &hash);
		uint64_t len = 1, changed;
		int ret = 0;

		if (n > 1)
			ret = patch_merge_as(PATCH_CODING_RAW, g->patches, n, &nowhere, 0, &len,
					     &changed, why);
		if (ret < 0)
			return why_prefix(why, "tensor \"%s\"", SHOWN(g->names[i]));
		if (len == 0)
			continue;
		g->names[kept++] = g->names[i];
		all = all && hash != NULL;
		if (all)
			buf_add(hashes, hash, HASH_LEN);
	}
	g->name_count = kept;
	if (!all)
		hashes->len = 0;
	return 0;
}

static int write_blobs(struct merge *g, struct patch_file_writer *w, struct why *why)
{
	show_pass(g, "merge");
	for (size_t i = 0; i < g->name_count; i++, tensor_done(g)) {
		const char *hash;
		size_t n = patches_of(g, g->names[i], &hash);
		uint64_t len = 0, changed;
		int ret =
			patch_merge_as(PATCH_CODING_RICE, g->patches, n, patch_file_writer_sink(w),
				       patch_file_writer_at(w), &len, &changed, why);

		if (ret == 0 && patch_file_writer_took(w, i, len) < 0)
			ret = why_set(why, EFBIG, "the merged delta is too large");
		if (ret < 0)
			return why_prefix(why, "tensor \"%s\"", SHOWN(g->names[i]));
	}
	return 0;
}

static int write_file(struct merge *g, const struct manifest *m, uint64_t base, uint64_t version,
		      int fd, uint64_t *out_size, struct why *why)
{
	char to[24], from[24], state[33], base_state[33];
	struct patch_file_writer *w = NULL;
	struct sink sink = sink_fd(&fd);
	struct buf hashes = {0};
	int ret = find_changed(g, &hashes, why);

	snprintf(to, sizeof(to), "%" PRIu64, version);
	snprintf(from, sizeof(from), "%" PRIu64, base);
	manifest_hex(manifest_state(m, version), state);
	manifest_hex(manifest_state(m, base), base_state);
	if (ret == 0 && hashes.failed)
		ret = why_set(why, ENOMEM, "out of memory");
	if (ret == 0)
		ret = patch_file_writer_new(g->names, g->name_count,
					    (const struct st_meta[]){
						    {"encoding", "wfp1"},
						    {"model_version", to},
						    {"base_version", from},
						    {"lineage", m->lineage},
						    {"state", state},
						    {"base_state", base_state},
						    {"hashes", buf_str(&hashes)},
					    },
					    hashes.len > 0 || g->name_count == 0 ? 7 : 6, &sink, &w,
					    why);
	if (ret == 0)
		ret = write_blobs(g, w, why);
	if (ret == 0)
		ret = patch_file_end(w, fd, out_size, why);
	if (ret == 0 && ftruncate(fd, (off_t)*out_size) < 0)
		ret = why_set(why, errno, "the merged delta cannot be written: %s",
			      strerrordesc_np(errno));
	patch_file_writer_free(w);
	buf_release(&hashes);
	return ret;
}

int compact_merge(struct store *store, const struct manifest *m, uint64_t base, uint64_t version,
		  struct progress *progress, int *out_fd, uint64_t *out_size, struct why *why)
{
	struct merge g = {.progress = progress};
	int fd = -1, ret = compact_check(m, base, version, why);

	if (ret == 0)
		ret = fetch_all(store, m, base, version, &g, why);
	if (ret == 0)
		ret = scratch_file(&fd, why);
	if (ret == 0)
		ret = write_file(&g, m, base, version, fd, out_size, why);
	if (ret < 0 && fd >= 0)
		close(fd);
	if (ret == 0)
		*out_fd = fd;
	merge_release(&g);
	return ret;
}
