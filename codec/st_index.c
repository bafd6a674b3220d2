/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A header as a whole: order, duplicates, tiling, and look-ups in the finished thing.
 *
 * Sorting is how duplicates and holes are found, in O(n log n) whatever the input.  Writers
 * usually list tensors in the order of their data and often in that of their names, so each sort
 * first looks whether there is anything to do.
 */
#include "codec/safetensors.h"
#include "codec/st_box.h"

#include <inttypes.h>
#include <stdlib.h>

/* By place; of those at the same place the empty ones first, in the order of the text. */
static int by_begin(const void *a, const void *b, void *ctx)
{
	const struct st_tensor *all = ctx;
	uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;

	if (all[i].begin != all[j].begin)
		return all[i].begin < all[j].begin ? -1 : 1;
	if (all[i].end != all[j].end)
		return all[i].end < all[j].end ? -1 : 1;
	return i < j ? -1 : i > j;
}

static int by_name(const void *a, const void *b, void *ctx)
{
	const struct st_tensor *all = ctx;

	return strcmp(all[*(const uint32_t *)a].name, all[*(const uint32_t *)b].name);
}

static int by_key(const void *a, const void *b, void *ctx)
{
	const struct st_meta *all = ctx;

	return strcmp(all[*(const uint32_t *)a].key, all[*(const uint32_t *)b].key);
}

/* The numbers 0 ... count - 1, sorted; *out_moved (may be NULL) tells whether any moved. */
static uint32_t *sorted_index(size_t count, int (*compare)(const void *, const void *, void *),
			      void *ctx, bool *out_moved)
{
	uint32_t *index = reallocarray(NULL, MAX(count, (size_t)1), sizeof(*index));
	bool moved = false;

	if (index == NULL)
		return NULL;
	for (size_t i = 0; i < count; i++) {
		index[i] = (uint32_t)i;
		moved = moved || (i > 0 && compare(&index[i - 1], &index[i], ctx) > 0);
	}
	if (moved)
		qsort_r(index, count, sizeof(*index), compare, ctx);
	if (out_moved != NULL)
		*out_moved = moved;
	return index;
}

static int sort_tensors(struct st_header *h)
{
	struct st_tensor *sorted;
	uint32_t *index;
	bool moved;

	index = sorted_index(h->count, by_begin, h->tensors, &moved);
	if (index == NULL)
		return -ENOMEM;
	if (moved) {
		sorted = reallocarray(NULL, h->count, sizeof(*sorted));
		if (sorted == NULL) {
			free(index);
			return -ENOMEM;
		}
		for (size_t i = 0; i < h->count; i++)
			sorted[i] = h->tensors[index[i]];
		free(h->tensors);
		h->tensors = sorted;
	}
	free(index);
	return 0;
}

static int index_names(struct st_box *box, struct why *why)
{
	struct st_header *h = &box->h;
	char shown[ST_SHOWN];

	box->by_name = sorted_index(h->count, by_name, h->tensors, NULL);
	if (box->by_name == NULL)
		return -ENOMEM;
	h->by_name = box->by_name;
	for (size_t i = 1; i < h->count; i++) {
		const struct st_tensor *t = &h->tensors[h->by_name[i]];

		if (strcmp(h->tensors[h->by_name[i - 1]].name, t->name) == 0)
			return why_set(why, EBADMSG, "tensor \"%s\": given twice",
				       printable(shown, sizeof(shown), t->name, t->name_len));
	}
	return 0;
}

static int index_meta(struct st_box *box, struct why *why)
{
	struct st_header *h = &box->h;
	char shown[ST_SHOWN];

	box->meta_by_key = sorted_index(h->meta_count, by_key, h->meta, NULL);
	if (box->meta_by_key == NULL)
		return -ENOMEM;
	for (size_t i = 1; i < h->meta_count; i++) {
		const char *key = h->meta[box->meta_by_key[i]].key;

		if (strcmp(h->meta[box->meta_by_key[i - 1]].key, key) == 0)
			return why_set(why, EBADMSG, "__metadata__: key \"%s\" given twice",
				       printable(shown, sizeof(shown), key, strlen(key)));
	}
	return 0;
}

/* Explains why t does not begin where prev (NULL before the first tensor) ends. */
static int bad_begin(const struct st_tensor *t, const struct st_tensor *prev, struct why *why)
{
	char name[ST_SHOWN], before[ST_SHOWN];

	printable(name, sizeof(name), t->name, t->name_len);
	if (prev == NULL)
		return why_set(why, EBADMSG,
			       "tensor \"%s\": data_offsets [%" PRIu64 ", %" PRIu64
			       "] leave a hole of %" PRIu64 " bytes before the first tensor",
			       name, t->begin, t->end, t->begin);
	printable(before, sizeof(before), prev->name, prev->name_len);
	if (t->begin > prev->end)
		return why_set(why, EBADMSG,
			       "tensor \"%s\": data_offsets [%" PRIu64 ", %" PRIu64
			       "] leave a hole of %" PRIu64 " bytes after \"%s\"",
			       name, t->begin, t->end, t->begin - prev->end, before);
	if (t->begin == t->end)
		return why_set(why, EBADMSG,
			       "tensor \"%s\": data_offsets [%" PRIu64 ", %" PRIu64
			       "] lie inside \"%s\" [%" PRIu64 ", %" PRIu64 "]",
			       name, t->begin, t->end, before, prev->begin, prev->end);
	return why_set(why, EBADMSG,
		       "tensor \"%s\": data_offsets [%" PRIu64 ", %" PRIu64
		       "] overlap \"%s\" [%" PRIu64 ", %" PRIu64 "] by %" PRIu64 " bytes",
		       name, t->begin, t->end, before, prev->begin, prev->end,
		       MIN(t->end, prev->end) - t->begin);
}

static int check_tiling(const struct st_header *h, struct why *why)
{
	const struct st_tensor *last = NULL;
	uint64_t size = h->file_size - h->data;
	char name[ST_SHOWN];

	for (size_t i = 0; i < h->count; i++) {
		const struct st_tensor *t = &h->tensors[i];

		if (t->begin != (last != NULL ? last->end : 0))
			return bad_begin(t, last, why);
		last = t;
	}
	if (last == NULL && size != 0)
		return why_set(why, EBADMSG,
			       "the file has %" PRIu64
			       " bytes of data but its header has no tensors",
			       size);
	if (last == NULL || last->end == size)
		return 0;
	printable(name, sizeof(name), last->name, last->name_len);
	if (last->end > size)
		return why_set(why, EBADMSG,
			       "tensor \"%s\": data_offsets [%" PRIu64 ", %" PRIu64
			       "] pass the end of the data of %" PRIu64 " bytes (is the file cut?)",
			       name, last->begin, last->end, size);
	return why_set(why, EBADMSG,
		       "the file has %" PRIu64
		       " bytes after its last tensor \"%s\", which ends at %" PRIu64 " of %" PRIu64
		       " bytes of data",
		       size - last->end, name, last->end, size);
}

int st_box_index(struct st_box *box, struct why *why)
{
	int rc;

	rc = sort_tensors(&box->h);
	if (rc == 0)
		rc = index_names(box, why);
	if (rc == 0)
		rc = index_meta(box, why);
	if (rc == 0)
		rc = check_tiling(&box->h, why);
	if (rc == -ENOMEM)
		return why_set(why, ENOMEM, "no memory for the index of %zu tensors", box->h.count);
	return rc;
}

const struct st_tensor *st_find(const struct st_header *header, const char *name)
{
	size_t low = 0, high = header->count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;
		const struct st_tensor *t = &header->tensors[header->by_name[mid]];
		int order = strcmp(name, t->name);

		if (order == 0)
			return t;
		if (order < 0)
			high = mid;
		else
			low = mid + 1;
	}
	return NULL;
}

const char *st_meta(const struct st_header *header, const char *key)
{
	const struct st_box *box = (const struct st_box *)header;
	size_t low = 0, high = header->meta_count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;
		const struct st_meta *meta = &header->meta[box->meta_by_key[mid]];
		int order = strcmp(key, meta->key);

		if (order == 0)
			return meta->value;
		if (order < 0)
			high = mid;
		else
			low = mid + 1;
	}
	return NULL;
}

const struct st_tensor *st_misaligned(const struct st_header *header)
{
	for (size_t i = 0; i < header->count; i++) {
		const struct st_tensor *t = &header->tensors[i];

		if ((header->data + t->begin) % st_dtype_width(t->dtype) != 0)
			return t;
	}
	return NULL;
}
