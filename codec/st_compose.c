/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing safetensors headers: a new one from tensors, and one changed in place.
 *
 * The text is compact JSON with the metadata first, as safetensors' own writer has it, so that a
 * reader which expects that order finds it.  Padding is spaces behind the closing brace, the only
 * padding that the format allows.
 *
 * Not here: any check that the tensors tile the data or that names are unique.  st_parse() has
 * those, and a caller that made its tensors itself knows.
 */
#include "codec/safetensors.h"

#include <inttypes.h>

static const char new_meta[] = "{\"format\":\"pt\"}";

static void add_meta(struct buf *out, const struct st_meta *meta, size_t count)
{
	buf_addstr(out, "\"__metadata__\":{");
	for (size_t i = 0; i < count; i++) {
		if (i > 0)
			buf_addstr(out, ",");
		buf_addjson(out, meta[i].key, strlen(meta[i].key));
		buf_addstr(out, ":");
		buf_addjson(out, meta[i].value, strlen(meta[i].value));
	}
	buf_addstr(out, "}");
}

static void add_tensor(struct buf *out, const struct st_tensor *t)
{
	buf_addjson(out, t->name, strlen(t->name));
	buf_addf(out, ":{\"dtype\":\"%s\",\"shape\":[", st_dtype_name(t->dtype));
	for (unsigned i = 0; i < t->rank; i++)
		buf_addf(out, "%s%" PRIu64, i > 0 ? "," : "", t->shape[i]);
	buf_addf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->begin, t->end);
}

int st_compose(const struct st_tensor *tensors, size_t count, const struct st_meta *meta,
	       size_t meta_count, size_t align, size_t min_size, struct buf *out, struct why *why)
{
	const size_t limit = 8 + (size_t)ST_HEADER_MAX;
	size_t start = out->len, total;

	if (align < 8 || (align & (align - 1)) != 0)
		return why_set(why, EINVAL, "a header cannot be aligned to %zu bytes", align);
	buf_fill(out, 0, 8); /* N, known at the end */
	buf_addstr(out, "{");
	if (meta_count > 0)
		add_meta(out, meta, meta_count);
	for (size_t i = 0; i < count && out->len - start <= limit; i++) {
		if (i > 0 || meta_count > 0)
			buf_addstr(out, ",");
		add_tensor(out, &tensors[i]);
	}
	buf_addstr(out, "}");
	if (out->failed)
		return why_set(why, ENOMEM, "no memory for a header of %zu tensors", count);
	total = MAX(out->len - start, min_size);
	if (total <= limit && align <= limit)
		total = ALIGN_UP(total, align);
	if (total > limit || align > limit) {
		out->len = start;
		return why_set(
			why, EMSGSIZE,
			"the header of %zu tensors would pass the limit of 100,000,000 bytes",
			count);
	}
	buf_fill(out, ' ', total - (out->len - start));
	if (out->failed)
		return why_set(why, ENOMEM, "no memory for a header of %zu tensors", count);
	store_le64(out->data + start, total - 8);
	return 0;
}

int st_rewrite_meta(char *json, uint64_t length, const struct st_header *header)
{
	uint64_t old_len = header->meta_end - header->meta_begin, new_len = sizeof(new_meta) - 1;
	uint64_t text = length; /* without the padding */
	char *at = json + header->meta_begin;

	if (header->meta_end == 0)
		return -ENOENT;
	if (length != header->length || header->meta_end > length)
		return -EINVAL;
	while (text > header->meta_end && json[text - 1] == ' ')
		text--;
	if (new_len > old_len && new_len - old_len > length - text)
		return -ENOSPC;
	memmove(at + new_len, at + old_len, text - header->meta_end);
	memcpy(at, new_meta, new_len);
	text = text - old_len + new_len;
	memset(json + text, ' ', length - text);
	return 0;
}
