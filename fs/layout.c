/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts: kept from a reference, or invented.
 *
 * A layout owns copies of all names and shapes it uses, so headers can go once it is made.  Tensors
 * are numbered in file order and, within a file, by offset; that number is the tensor's identity
 * everywhere above (sources, links, aliases).  A layout is never changed after its maker has set
 * the aliases, so readers need no lock.
 */
#include "fs/layout.h"

#include <stdio.h>
#include <stdlib.h>

enum { INVENTED_ALIGN = 4096 };

/* Copies one tensor's description; begin and end are relative to the data until the file's header
 * length is known. */
static int tensor_copy(struct layout_tensor *dst, const struct st_tensor *src, uint32_t index)
{
	uint64_t *shape = malloc((src->rank ? src->rank : 1) * sizeof(*shape));
	char *name = strdup(src->name);

	if (shape == NULL || name == NULL) {
		free(shape);
		free(name);
		return -ENOMEM;
	}
	if (src->rank > 0)
		memcpy(shape, src->shape, src->rank * sizeof(*shape));
	*dst = (struct layout_tensor){
		.name = name,
		.shape = shape,
		.numel = src->numel,
		.begin = src->begin,
		.end = src->end,
		.alias = index,
		.dtype = src->dtype,
		.rank = src->rank,
	};
	return 0;
}

static int compare_names(const void *a, const void *b, void *ctx)
{
	const struct layout_tensor *tensors = ctx;

	return strcmp(tensors[*(const uint32_t *)a].name, tensors[*(const uint32_t *)b].name);
}

static int sort_names(struct layout *l, struct why *why)
{
	bool sorted = true;

	l->by_name = malloc((l->tensor_count ? l->tensor_count : 1) * sizeof(*l->by_name));
	if (l->by_name == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < l->tensor_count; i++) {
		l->by_name[i] = i;
		sorted = sorted &&
			 (i == 0 || strcmp(l->tensors[i - 1].name, l->tensors[i].name) <= 0);
	}
	if (!sorted)
		qsort_r(l->by_name, l->tensor_count, sizeof(*l->by_name), compare_names,
			l->tensors);
	for (uint32_t i = 1; i < l->tensor_count; i++) {
		const struct layout_tensor *a = &l->tensors[l->by_name[i - 1]],
					   *b = &l->tensors[l->by_name[i]];
		char name[200];

		if (strcmp(a->name, b->name) == 0)
			return why_set(why, EBADMSG, "tensor \"%s\" is in both %s and %s",
				       printable(name, sizeof(name), a->name, strlen(a->name)),
				       l->files[a->file].name, l->files[b->file].name);
	}
	return 0;
}

static struct layout *layout_alloc(size_t files, uint64_t tensors)
{
	struct layout *l = calloc(1, sizeof(*l));

	if (l == NULL)
		return NULL;
	l->refs = 1;
	l->files = calloc(files ? files : 1, sizeof(*l->files));
	l->tensors = calloc(tensors ? tensors : 1, sizeof(*l->tensors));
	if (l->files == NULL || l->tensors == NULL) {
		layout_unref(l);
		return NULL;
	}
	return l;
}

static int count_tensors(const struct layout_input *in, size_t count, uint64_t *out,
			 struct why *why)
{
	uint64_t total = 0;

	for (size_t i = 0; i < count; i++)
		total += in[i].header->count;
	if (total >= LAYOUT_NONE / 2)
		return why_set(why, EFBIG, "%llu tensors are more than can be shown",
			       (unsigned long long)total);
	*out = total;
	return 0;
}

/* Metadata that a delta format puts into its files; transformers refuses a file whose "format" is
 * none it knows. */
static bool has_delta_keys(const struct st_header *h)
{
	const char *format = st_meta(h, "format");

	return (format != NULL && (strcmp(format, "sparse_weight_patch") == 0 ||
				   strcmp(format, "anchor_checkpoint") == 0)) ||
	       (st_meta(h, "sparse") != NULL && st_meta(h, "num_params") != NULL);
}

static int keep_file(struct layout *l, const struct layout_input *in, uint32_t file,
		     struct why *why)
{
	struct layout_file *f = &l->files[file];
	int err;

	f->name = strdup(in->name);
	f->head_len = in->header->data;
	f->head = malloc(f->head_len);
	f->size = in->header->file_size;
	f->first = l->tensor_count;
	f->count = (uint32_t)in->header->count;
	if (f->name == NULL || f->head == NULL)
		return -ENOMEM;
	store_le64(f->head, in->header->length);
	memcpy(f->head + 8, in->json, in->header->length);
	if (has_delta_keys(in->header)) {
		err = st_rewrite_meta(f->head + 8, in->header->length, in->header);
		if (err < 0)
			return why_set(why, -err,
				       "%s: its __metadata__ cannot be replaced by "
				       "{\"format\":\"pt\"} in the same length",
				       in->name);
	}
	for (uint32_t i = 0; i < f->count; i++) {
		struct layout_tensor *t = &l->tensors[l->tensor_count];

		err = tensor_copy(t, &in->header->tensors[i], l->tensor_count);
		if (err < 0)
			return err;
		l->tensor_count++;
		t->file = file;
		t->begin += f->head_len;
		t->end += f->head_len;
	}
	return 0;
}

int layout_keep(const struct layout_input *in, size_t count, struct layout **out, struct why *why)
{
	struct layout *l = NULL;
	uint64_t tensors = 0;
	int err = count_tensors(in, count, &tensors, why);

	if (err < 0)
		return err;
	l = layout_alloc(count, tensors);
	if (l == NULL)
		return why_set(why, ENOMEM, "out of memory");
	for (size_t i = 0; i < count && err == 0; i++) {
		l->file_count++;
		err = keep_file(l, &in[i], (uint32_t)i, why);
	}
	if (err == 0)
		err = sort_names(l, why);
	if (err < 0) {
		layout_unref(l);
		return err == -ENOMEM ? why_set(why, ENOMEM, "out of memory") : err;
	}
	*out = l;
	return 0;
}

/* ---- invented layouts ---- */

static int compare_for_shards(const void *a, const void *b)
{
	const struct st_tensor *x = *(const struct st_tensor *const *)a,
			       *y = *(const struct st_tensor *const *)b;
	unsigned bx = st_dtype_bits(x->dtype), by = st_dtype_bits(y->dtype);

	if (bx != by)
		return bx > by ? -1 : 1;
	return strcmp(x->name, y->name);
}

/* Makes shard `file` of the n tensors at src. */
static int shard_file(struct layout *l, uint32_t file, const struct st_tensor *const *src,
		      uint32_t n, struct why *why)
{
	static const struct st_meta pt = {"format", "pt"};
	struct layout_file *f = &l->files[file];
	struct st_tensor *entries = calloc(n ? n : 1, sizeof(*entries));
	struct buf head = {0};
	uint64_t at = 0, total = 0;
	size_t len;
	int err = 0;

	if (entries == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		entries[i] = *src[i];
		entries[i].begin = at;
		at += src[i]->end - src[i]->begin;
		entries[i].end = at;
	}
	total = at;
	err = st_compose(entries, n, &pt, 1, INVENTED_ALIGN, 0, &head, why);
	if (err == 0) {
		f->head = buf_detach(&head, &len);
		f->head_len = len;
		f->size = len + total;
		f->first = l->tensor_count;
		f->count = n;
	}
	for (uint32_t i = 0; i < n && err == 0; i++) {
		struct layout_tensor *t = &l->tensors[l->tensor_count];

		err = tensor_copy(t, &entries[i], l->tensor_count);
		if (err == 0) {
			l->tensor_count++;
			t->file = file;
			t->begin += f->head_len;
			t->end += f->head_len;
		}
	}
	buf_release(&head);
	free(entries);
	return err;
}

/* HF's index: total_size and which tensor is in which file. */
static int make_index(struct layout *l, uint64_t total)
{
	struct buf b = {0};

	buf_addf(&b, "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n  \"weight_map\": {\n",
		 (unsigned long long)total);
	for (uint32_t i = 0; i < l->tensor_count; i++) {
		const struct layout_tensor *t = &l->tensors[l->by_name[i]];

		buf_addstr(&b, "    ");
		buf_addjson(&b, t->name, strlen(t->name));
		buf_addstr(&b, ": ");
		buf_addjson(&b, l->files[t->file].name, strlen(l->files[t->file].name));
		buf_addstr(&b, i + 1 < l->tensor_count ? ",\n" : "\n");
	}
	buf_addstr(&b, "  }\n}\n");
	if (b.failed) {
		buf_release(&b);
		return -ENOMEM;
	}
	l->index = buf_detach(&b, &l->index_len);
	return 0;
}

static int name_shards(struct layout *l)
{
	for (uint32_t i = 0; i < l->file_count; i++) {
		int n = l->file_count == 1
				? asprintf(&l->files[i].name, "model.safetensors")
				: asprintf(&l->files[i].name, "model-%05u-of-%05u.safetensors",
					   i + 1, l->file_count);

		if (n < 0) {
			l->files[i].name = NULL;
			return -ENOMEM;
		}
	}
	return 0;
}

int layout_shard(const struct layout_input *in, size_t count, uint64_t shard_size,
		 struct layout **out, struct why *why)
{
	const struct st_tensor **order = NULL;
	struct layout *l = NULL;
	uint64_t tensors = 0, n = 0, total = 0;
	int err = count_tensors(in, count, &tensors, why);

	if (err < 0)
		return err;
	order = malloc((tensors ? tensors : 1) * sizeof(*order));
	l = layout_alloc(tensors ? tensors : 1, tensors);
	if (order == NULL || l == NULL) {
		err = -ENOMEM;
		goto out;
	}
	for (size_t i = 0; i < count; i++)
		for (size_t k = 0; k < in[i].header->count; k++)
			order[n++] = &in[i].header->tensors[k];
	qsort(order, n, sizeof(*order), compare_for_shards);
	for (uint64_t first = 0; err == 0 && (first < n || l->file_count == 0);) {
		uint64_t last = first, size = 0;

		while (last < n && (last == first ||
				    size + (order[last]->end - order[last]->begin) <= shard_size)) {
			size += order[last]->end - order[last]->begin;
			last++;
		}
		total += size;
		l->file_count++;
		err = shard_file(l, l->file_count - 1, order + first, (uint32_t)(last - first),
				 why);
		first = last;
	}
	if (err == 0)
		err = name_shards(l);
	if (err == 0)
		err = sort_names(l, why);
	if (err == 0 && l->file_count > 1)
		err = make_index(l, total);
out:
	free(order);
	if (err < 0) {
		layout_unref(l);
		return err == -ENOMEM ? why_set(why, ENOMEM, "out of memory") : err;
	}
	*out = l;
	return 0;
}

struct layout *layout_ref(struct layout *l)
{
	__atomic_fetch_add(&l->refs, 1, __ATOMIC_RELAXED);
	return l;
}

void layout_unref(struct layout *l)
{
	if (l == NULL || __atomic_sub_fetch(&l->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	for (uint32_t i = 0; i < l->file_count; i++) {
		free(l->files[i].name);
		free(l->files[i].head);
	}
	for (uint32_t i = 0; i < l->tensor_count; i++) {
		free((char *)l->tensors[i].name);
		free((uint64_t *)l->tensors[i].shape);
	}
	free(l->files);
	free(l->tensors);
	free(l->by_name);
	free(l->index);
	free(l);
}

/* The place of a name in by_name, within [lo, hi), or where it would be. */
static uint32_t place_of(const struct layout *l, const char *name, uint32_t lo, uint32_t hi,
			 bool *out_found)
{
	*out_found = false;
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		int c = strcmp(name, l->tensors[l->by_name[mid]].name);

		if (c == 0) {
			*out_found = true;
			return mid;
		}
		if (c < 0)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

uint32_t layout_find(const struct layout *l, const char *name)
{
	bool found;
	uint32_t at = place_of(l, name, 0, l->tensor_count, &found);

	return found ? l->by_name[at] : LAYOUT_NONE;
}

uint32_t layout_next(const struct layout *l, const char *name, uint32_t *at)
{
	uint32_t lo = *at, hi = lo, step = 1;
	bool found;

	while (hi < l->tensor_count && strcmp(l->tensors[l->by_name[hi]].name, name) < 0) {
		lo = hi + 1;
		hi += step;
		step *= 2;
	}
	*at = place_of(l, name, lo, MIN(hi + 1, l->tensor_count), &found);
	return found ? l->by_name[(*at)++] : LAYOUT_NONE;
}

static bool same_shape(unsigned rank_a, const uint64_t *a, unsigned rank_b, const uint64_t *b)
{
	return rank_a == rank_b && (rank_a == 0 || memcmp(a, b, rank_a * sizeof(*a)) == 0);
}

int layout_alias(struct layout *l, uint32_t t, uint32_t of)
{
	struct layout_tensor *a = &l->tensors[t], *b = &l->tensors[of];

	if (a->dtype != b->dtype || !same_shape(a->rank, a->shape, b->rank, b->shape))
		return -EINVAL;
	a->alias = of;
	return 0;
}

bool layout_same_tensors(const struct layout *l, const struct layout_input *in, size_t count)
{
	uint64_t n = 0;

	for (size_t i = 0; i < count; i++) {
		const struct st_header *header = in[i].header;

		n += header->count;
		for (size_t k = 0; k < header->count; k++) {
			const struct st_tensor *b = &header->tensors[k];
			uint32_t t = layout_find(l, b->name);
			const struct layout_tensor *a = t != LAYOUT_NONE ? &l->tensors[t] : NULL;

			if (a == NULL || a->dtype != b->dtype ||
			    !same_shape(a->rank, a->shape, b->rank, b->shape))
				return false;
		}
	}
	/* A name that two files have was counted twice, and is an error elsewhere. */
	return n == l->tensor_count;
}

int layout_make_index(struct layout *l)
{
	uint64_t total = 0;

	for (uint32_t i = 0; i < l->tensor_count; i++)
		total += l->tensors[i].end - l->tensors[i].begin;
	return make_index(l, total);
}

uint64_t layout_patch_numel(const struct layout_tensor *t)
{
	return st_dtype_bits(t->dtype) < 8 ? t->end - t->begin : t->numel;
}
