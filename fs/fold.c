/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeping stacks short: groups of 8 consecutive steps after the anchor are merged into one patch
 * file, 8 such into one of 64, and so on, so that a read applies at most 7 patches of each size
 * however long the chain is (TRL's buckets without complete anchors grow without bound).
 *
 * A group depends on its own objects and the layout only, so it serves every version at or above
 * its end, and its file is named by a hash of them: a restart finds it again.  Where a tensor was
 * replaced as a whole inside a group, older patches of it are left out. Folding is done one group
 * at a time between scans, or at once while the stack is very long.
 */
#include "fs/run_internal.h"

#include "cache/fileio.h"
#include "cache/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

enum { FOLD = 8, FOLD_TIERS = 6 };

void folds_release(struct run *r, bool stale_only)
{
	size_t kept = 0;

	for (size_t i = 0; i < r->fold_count; i++) {
		bool stale = r->lineage.step_count == 0 ||
			     lineage_find(&r->lineage, r->folds[i].first) == NULL ||
			     lineage_find(&r->lineage, r->folds[i].last) == NULL;

		if (stale_only && !stale) {
			r->folds[kept++] = r->folds[i];
			continue;
		}
		link_unref(r->folds[i].link);
		layout_unref(r->folds[i].layout);
	}
	r->fold_count = kept;
}

/* Identity of the steps [first, first + n). */
static struct identity group_id(const struct run *r, size_t first, size_t n)
{
	XXH3_state_t *h = XXH3_createState();
	XXH128_canonical_t digest;
	struct identity id = {0};
	const struct object *o;

	if (h == NULL)
		return id;
	XXH3_128bits_reset(h);
	for (size_t i = first; i < first + n; i++)
		for (size_t k = 0; (o = step_objects(&r->lineage.steps[i], k)) != NULL; k++)
			XXH3_128bits_update(h, o->id.bytes, sizeof(o->id.bytes));
	XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(h));
	XXH3_freeState(h);
	memcpy(id.bytes, digest.digest, sizeof(id.bytes));
	return id;
}

static struct fold *fold_find(struct run *r, size_t first, size_t n, struct layout *layout)
{
	uint64_t lo = r->lineage.steps[first].number, hi = r->lineage.steps[first + n - 1].number;

	for (size_t i = 0; i < r->fold_count; i++) {
		struct fold *f = &r->folds[i];
		struct identity id;

		if (f->first != lo || f->last != hi || f->layout != layout)
			continue;
		id = group_id(r, first, n);
		if (identity_equal(&id, &f->id))
			return f;
	}
	return NULL;
}

/* Appends the links of one step. */
static void step_links(struct run *r, size_t i, struct link **out, uint32_t *n)
{
	const struct object *o;

	for (size_t k = 0; (o = step_objects(&r->lineage.steps[i], k)) != NULL; k++) {
		struct exam *e = exam_get(r, o);

		if (e != NULL && e->link != NULL)
			out[(*n)++] = e->link;
	}
}

int fold_stack(struct run *r, const struct plan *p, struct layout *layout, struct link ***out,
	       uint32_t *out_count)
{
	struct link **links = calloc(2 * (p->last - p->base) + 1, sizeof(struct link *));
	uint32_t n = 0;

	if (links == NULL)
		return -ENOMEM;
	for (size_t i = p->base + 1; i <= p->last;) {
		size_t size = 1, best = 1, place = i - p->base - 1;
		struct fold *fold = NULL;

		for (unsigned tier = 0; tier < FOLD_TIERS; tier++) {
			struct fold *f;

			size *= FOLD;
			if (place % size != 0 || i + size - 1 > p->last)
				break;
			f = fold_find(r, i, size, layout);
			if (f != NULL && !f->failed) {
				fold = f;
				best = size;
			}
		}
		if (fold == NULL)
			step_links(r, i, links, &n);
		else if (fold->link != NULL)
			links[n++] = fold->link;
		i += best;
	}
	*out = links;
	*out_count = n;
	return 0;
}

/* The version from which on patches count, per tensor: that of the last full tensor inside the
 * group, else 0. */
static uint64_t *last_fulls(struct run *r, size_t first, size_t n, const struct layout *layout)
{
	uint64_t *from = calloc(layout->tensor_count ? layout->tensor_count : 1, sizeof(*from));
	const struct object *o;

	for (size_t i = first; from != NULL && i < first + n; i++)
		for (size_t k = 0; (o = step_objects(&r->lineage.steps[i], k)) != NULL; k++) {
			struct exam *e = exam_get(r, o);

			for (size_t f = 0; e != NULL && f < e->full_count; f++)
				from[e->fulls[f].tensor] = r->lineage.steps[i].number;
		}
	return from;
}

/* The patches of tensor t among the links, oldest first. */
static size_t patches_of(struct link *const *links, uint32_t n, uint32_t t, uint64_t from,
			 const struct patch **out)
{
	size_t k = 0;

	for (uint32_t i = 0; i < n; i++)
		if (links[i]->slot != NULL && links[i]->slot[t] >= 0 && links[i]->last > from)
			out[k++] = &links[i]->file->patches[links[i]->slot[t]];
	return k;
}

static int merge_into(int fd, struct link *const *links, uint32_t n, const uint64_t *from,
		      const struct layout *layout, uint64_t *out_size, struct why *why)
{
	const char **names =
		calloc(layout->tensor_count ? layout->tensor_count : 1, sizeof(*names));
	uint32_t *tensors =
		calloc(layout->tensor_count ? layout->tensor_count : 1, sizeof(*tensors));
	const struct patch **patches = calloc(n ? n : 1, sizeof(*patches));
	struct patch_file_writer *w = NULL;
	struct sink sink = sink_fd(&fd);
	struct source readback;
	size_t count = 0;
	int err = names == NULL || tensors == NULL || patches == NULL ? -ENOMEM : 0;

	for (uint32_t t = 0; err == 0 && t < layout->tensor_count; t++)
		if (patches_of(links, n, t, from[t], patches) > 0) {
			tensors[count] = t;
			names[count++] = layout->tensors[t].name;
		}
	if (err == 0)
		err = patch_file_writer_new(names, count, NULL, 0, &sink, &w, why);
	for (size_t i = 0; err == 0 && i < count; i++) {
		size_t k = patches_of(links, n, tensors[i], from[tensors[i]], patches);
		uint64_t len = 0;

		err = patch_merge(patches, k, patch_file_writer_sink(w), patch_file_writer_at(w),
				  &len, NULL, why);
		if (err == 0)
			err = patch_file_writer_took(w, i, len);
	}
	if (err == 0)
		err = source_fd(fd, &readback);
	if (err == 0)
		err = patch_file_writer_end(w, &readback, out_size, why);
	patch_file_writer_free(w);
	free(names);
	free(tensors);
	free(patches);
	return err;
}

/* Makes (or finds) the merged link of the steps [first, first + n). */
static int fold_group(struct run *r, size_t first, size_t n, struct link *const *links,
		      uint32_t count, const struct identity *id, struct layout *layout,
		      struct link **out, struct why *why)
{
	uint64_t lo = r->lineage.steps[first].number, hi = r->lineage.steps[first + n - 1].number,
		 size;
	struct cachedir *cache = r->config.cache;
	struct mapping *mapping = NULL;
	char hex[33], name[48];
	uint64_t *from;
	int fd, err;

	identity_hex(id, hex);
	snprintf(name, sizeof(name), "%s.fold", hex);
	if (cachedir_map(cache, name, &mapping) == 0) {
		if (link_new(lo, hi, mapping, true, name, layout, out, NULL) == 0)
			return 0;
		cachedir_remove(cache, name);
	}
	from = last_fulls(r, first, n, layout);
	if (from == NULL)
		return -ENOMEM;
	err = cachedir_create(cache, &fd);
	if (err == 0) {
		err = merge_into(fd, links, count, from, layout, &size, why);
		if (err == 0)
			err = cachedir_commit(cache, fd, name, size, &mapping);
		else
			cachedir_abort(cache, fd);
	}
	free(from);
	return err < 0 ? err : link_new(lo, hi, mapping, false, name, layout, out, why);
}

/* Links of a group: the next smaller groups', or the steps' own. */
static int group_links(struct run *r, size_t first, size_t n, struct layout *layout,
		       struct link ***out, uint32_t *out_count)
{
	struct plan inside = {.base = first - 1, .last = first + n - 1};

	return fold_stack(r, &inside, layout, out, out_count);
}

static bool fold_one(struct run *r, size_t first, size_t n, struct layout *layout)
{
	struct fold *grown, f = {
				    .first = r->lineage.steps[first].number,
				    .last = r->lineage.steps[first + n - 1].number,
				    .id = group_id(r, first, n),
				    .layout = layout,
			    };
	struct link **links = NULL;
	struct why why = {0};
	uint32_t count = 0;
	int err = group_links(r, first, n, layout, &links, &count);

	if (err < 0)
		return false;
	if (count == 1)
		f.link = link_ref(links[0]);
	else if (count > 1)
		err = fold_group(r, first, n, links, count, &f.id, layout, &f.link, &why);
	free(links);
	if (err < 0) {
		f.failed = true;
		log_warning("versions %llu to %llu are not merged: %s", (unsigned long long)f.first,
			    (unsigned long long)f.last,
			    why.err ? why.text : "no memory or no space");
	}
	grown = realloc(r->folds, (r->fold_count + 1) * sizeof(*grown));
	if (grown == NULL) {
		link_unref(f.link);
		return false;
	}
	layout_ref(layout);
	r->folds = grown;
	r->folds[r->fold_count++] = f;
	return true;
}

bool fold_work(struct run *r, const struct plan *p, struct layout *layout)
{
	size_t size = 1, steps = p->last - p->base;

	for (unsigned tier = 0; tier < FOLD_TIERS; tier++) {
		size *= FOLD;
		/* Newest group first: it is what the next versions gain most from. */
		for (size_t g = steps / size; g-- > 0;) {
			size_t first = p->base + 1 + g * size;

			if (fold_find(r, first, size, layout) == NULL)
				return fold_one(r, first, size, layout);
		}
	}
	return false;
}
