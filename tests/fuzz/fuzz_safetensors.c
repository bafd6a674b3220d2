/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: arbitrary bytes as a whole safetensors file.
 *
 * Whatever the reader refuses must come with a sentence.  What it accepts must keep the header's
 * promises: tensors tile the data, the index is sorted and complete, composing gives the same
 * tensors back, and so does replacing the metadata.  abort() marks a broken promise.
 */
#include "codec/safetensors.h"
#include "tests/fuzz/require.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_header(const struct st_header *h, uint64_t size)
{
	uint64_t at = 0;

	REQUIRE(h->file_size == size && h->data == h->length + 8 && h->data <= size);
	for (size_t i = 0; i < h->count; i++) {
		const struct st_tensor *t = &h->tensors[i];
		uint64_t numel = 1;

		REQUIRE(t->begin == at && t->end >= at);
		at = t->end;
		REQUIRE(t->name_len > 0 && t->name_len <= ST_NAME_MAX);
		REQUIRE(strlen(t->name) == t->name_len);
		REQUIRE(t->rank <= ST_RANK_MAX && t->dtype < ST_DTYPES);
		for (unsigned k = 0; k < t->rank; k++)
			REQUIRE(!mul_overflows(numel, t->shape[k], &numel));
		REQUIRE(numel == t->numel);
		REQUIRE(numel * st_dtype_bits(t->dtype) == (t->end - t->begin) * 8);
		REQUIRE(st_find(h, t->name) == t);
		REQUIRE(h->by_name[i] < h->count);
		REQUIRE(i == 0 || strcmp(h->tensors[h->by_name[i - 1]].name,
					 h->tensors[h->by_name[i]].name) < 0);
	}
	REQUIRE(h->data + at == size);
	for (size_t i = 0; i < h->meta_count; i++)
		REQUIRE(st_meta(h, h->meta[i].key) == h->meta[i].value);
	REQUIRE(h->meta_count == 0 || h->meta_end >= h->meta_begin + 2);
	(void)st_misaligned(h);
}

static void check_same_tensors(const struct st_header *a, const struct st_header *b)
{
	REQUIRE(a->count == b->count);
	for (size_t i = 0; i < a->count; i++) {
		const struct st_tensor *t = &a->tensors[i], *u = &b->tensors[i];

		REQUIRE(strcmp(t->name, u->name) == 0 && t->name_len == u->name_len);
		REQUIRE(t->begin == u->begin && t->end == u->end && t->numel == u->numel);
		REQUIRE(t->dtype == u->dtype && t->rank == u->rank);
		for (unsigned k = 0; k < t->rank; k++)
			REQUIRE(t->shape[k] == u->shape[k]);
	}
}

static void check_compose(const struct st_header *h)
{
	struct st_header *again;
	struct buf b = {0};
	struct why why;

	REQUIRE(st_compose(h->tensors, h->count, h->meta, h->meta_count, 64, 0, &b, &why) == 0);
	REQUIRE(b.len % 64 == 0 && load_le64(b.data) == b.len - 8 && b.data[8] == '{');
	REQUIRE(st_parse(b.data + 8, b.len - 8, b.len + (h->file_size - h->data), &again, &why) ==
		0);
	check_same_tensors(h, again);
	REQUIRE(h->meta_count == again->meta_count);
	for (size_t i = 0; i < h->meta_count; i++)
		REQUIRE(strcmp(h->meta[i].key, again->meta[i].key) == 0 &&
			strcmp(h->meta[i].value, again->meta[i].value) == 0);
	st_free(again);
	buf_release(&b);
}

static void check_rewrite(const struct st_header *h, char *json)
{
	struct st_header *again;
	struct why why;
	int rc = st_rewrite_meta(json, h->length, h);

	REQUIRE(rc == (h->meta_end == 0 ? -ENOENT : 0) || rc == -ENOSPC);
	REQUIRE(st_parse(json, h->length, h->file_size, &again, &why) == 0);
	check_same_tensors(h, again);
	if (rc == 0) {
		REQUIRE(again->meta_count == 1);
		REQUIRE(strcmp(st_meta(again, "format"), "pt") == 0);
	} else {
		REQUIRE(again->meta_count == h->meta_count);
	}
	st_free(again);
}

static void check_refusal(int rc, const struct why *why)
{
	REQUIRE(rc == -EBADMSG && why->err == EBADMSG && why->text[0] != '\0');
}

static void whole_file(const uint8_t *data, size_t size)
{
	struct source src = source_memory(data, size);
	struct why why = {0};
	struct st_header *h;
	char *json;
	int rc;

	rc = st_read(&src, &h, &json, &why);
	if (rc < 0) {
		check_refusal(rc, &why);
		return;
	}
	check_header(h, size);
	check_compose(h);
	check_rewrite(h, json);
	free(json);
	st_free(h);
}

/* The same bytes with the length field read as the size of the data: a header whose text is changed
 * by a few bytes then still has a chance to fit its file. */
static void text_only(const uint8_t *data, size_t size)
{
	uint64_t length = size - 8, file_size;
	struct why why = {0};
	struct st_header *h;
	char *json;
	int rc;

	if (add_overflows(size, load_le64(data), &file_size))
		return;
	rc = st_parse((const char *)data + 8, length, file_size, &h, &why);
	if (rc < 0) {
		check_refusal(rc, &why);
		return;
	}
	json = malloc(length);
	REQUIRE(json != NULL);
	memcpy(json, data + 8, length);
	check_header(h, file_size);
	check_compose(h);
	check_rewrite(h, json);
	free(json);
	st_free(h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	whole_file(data, size);
	if (size >= 8)
		text_only(data, size);
	return 0;
}
