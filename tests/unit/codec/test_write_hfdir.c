/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing HF-directory deltas: a shard is a valid safetensors file whose frames give back the XOR
 * of old and new, of tensors of no bytes to several windows; names that need escapes; the index's
 * text; a sink that fails and an entry too few are errors.
 */
#include "codec/write_hfdir.h"
#include "tests/unit/codec/patch_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include <zstd.h>

static const uint64_t seed = 20261130;
static const struct hfdir_entry entries[] = {
	{"model.embed_tokens.weight", 700001, {0x00, 0x12, 0xff}},
	{"quote\"and\\slash", 1, {0xab}},
	{"\xc3\xa9", 262144, {1}},
	{"nothing", 0, {0}},
};

static int write_shard(uint8_t *const *old, uint8_t *const *new, size_t adds, struct memory *mem,
		       uint64_t *out_size, struct why *why)
{
	struct sink sink = memory_sink(mem);
	struct hfdir_shard *s = NULL;
	int err = hfdir_shard_new(entries, ARRAY_LEN(entries), &sink, &s, why);

	for (size_t i = 0; err == 0 && i < adds; i++) {
		const uint64_t first = entries[i].bytes / 3; /* in two calls */

		if (first > 0)
			err = hfdir_shard_add(s, old[i], new[i], first, why);
		if (err == 0)
			err = hfdir_shard_add(s, old[i] + first, new[i] + first,
					      entries[i].bytes - first, why);
	}
	if (err == 0 && adds == ARRAY_LEN(entries))
		assert_int_equal(hfdir_shard_add(s, old[0], new[0], 1, NULL), -EINVAL);
	if (err == 0)
		err = hfdir_shard_end(s, out_size, why);
	hfdir_shard_free(s);
	return err;
}

static void make_states(uint8_t **old, uint8_t **new)
{
	struct rng r = {seed};

	for (size_t i = 0; i < ARRAY_LEN(entries); i++) {
		old[i] = malloc(entries[i].bytes + 1);
		new[i] = malloc(entries[i].bytes + 1);
		assert_true(old[i] != NULL && new[i] != NULL);
		rng_fill(&r, old[i], entries[i].bytes);
		memcpy(new[i], old[i], entries[i].bytes);
		for (uint64_t k = 0; k < entries[i].bytes; k += 1 + rng_below(&r, 200))
			new[i][k] ^= (uint8_t)(1 + rng_below(&r, 3));
	}
}

static void free_states(uint8_t **old, uint8_t **new)
{
	for (size_t i = 0; i < ARRAY_LEN(entries); i++) {
		free(old[i]);
		free(new[i]);
	}
}

static void check_frame(const struct memory *mem, const struct st_header *h, size_t i,
			const uint8_t *old, const uint8_t *new)
{
	const struct st_tensor *t = st_find(h, entries[i].name);
	const uint64_t bytes = entries[i].bytes;
	uint8_t *got = malloc(bytes + 1);

	assert_non_null(t);
	assert_non_null(got);
	assert_int_equal(t->dtype, ST_U8);
	assert_int_equal(t->rank, 1);
	assert_int_equal(
		ZSTD_getFrameContentSize(mem->bytes + h->data + t->begin, t->end - t->begin),
		bytes);
	assert_int_equal(
		ZSTD_decompress(got, bytes, mem->bytes + h->data + t->begin, t->end - t->begin),
		bytes);
	for (uint64_t k = 0; k < bytes; k++)
		got[k] ^= old[k];
	assert_memory_equal(got, new, bytes);
	free(got);
}

static void shard(void **state)
{
	uint8_t *old[ARRAY_LEN(entries)], *new[ARRAY_LEN(entries)];
	struct st_header *h = NULL;
	struct memory mem = {0};
	struct source src;
	struct why why = {0};
	uint64_t size = 0;

	(void)state;
	make_states(old, new);
	if (write_shard(old, new, ARRAY_LEN(entries), &mem, &size, &why) < 0)
		fail_msg("%s", why.text);
	assert_int_equal(size, mem.len);
	assert_true(size < 200000); /* a quarter of a byte of 960,000 changes little */
	src = source_memory(mem.bytes, size);
	if (st_read(&src, &h, NULL, &why) < 0)
		fail_msg("%s", why.text);
	assert_int_equal(h->count, ARRAY_LEN(entries));
	assert_int_equal(h->meta_count, ARRAY_LEN(entries));
	assert_string_equal(st_meta(h, entries[0].name), "0012ff00000000000000000000000000");
	for (size_t i = 0; i < ARRAY_LEN(entries); i++)
		check_frame(&mem, h, i, old[i], new[i]);
	st_free(h);
	free(mem.bytes);
	free_states(old, new);
}

static void failures(void **state)
{
	uint8_t *old[ARRAY_LEN(entries)], *new[ARRAY_LEN(entries)];
	struct memory mem = {.fail_at = 2, .error = ENOSPC};
	struct why why = {0};
	uint64_t size = 0;

	(void)state;
	make_states(old, new);
	assert_int_equal(write_shard(old, new, ARRAY_LEN(entries), &mem, &size, &why), -ENOSPC);
	assert_true(why.text[0] != '\0');
	free(mem.bytes);
	mem = (struct memory){0};
	assert_int_equal(write_shard(old, new, 2, &mem, &size, &why), -EINVAL);
	free(mem.bytes);
	free_states(old, new);
}

static void index_text(void **state)
{
	struct buf b = {0};

	(void)state;
	hfdir_index_begin(&b, true, 42, 41, 0);
	hfdir_index_add(&b, "a", "model-00000-of-00001.safetensors");
	hfdir_index_add(&b, "b\"", "model-00000-of-00001.safetensors");
	hfdir_index_end(&b);
	assert_string_equal(
		buf_str(&b),
		"{\"metadata\": {\"version\": \"000042\", \"base_version\": \"000041\", "
		"\"delta_encoding\": \"xor\", \"compression_format\": \"zstd\", "
		"\"checksum_format\": \"xxh3-128\"},\n \"weight_map\": {"
		"\n  \"a\": \"model-00000-of-00001.safetensors\","
		"\n  \"b\\\"\": \"model-00000-of-00001.safetensors\"}}\n");
	buf_release(&b);
	hfdir_index_begin(&b, true, 1, 0, 0);
	hfdir_index_end(&b);
	assert_non_null(strstr(buf_str(&b), "\"weight_map\": {}}"));
	buf_release(&b);
	hfdir_index_begin(&b, false, 1, 0, 12);
	hfdir_index_end(&b);
	assert_non_null(strstr(buf_str(&b), "\"total_size\": 12}"));
	assert_null(strstr(buf_str(&b), "delta_encoding"));
	buf_release(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(shard),
		cmocka_unit_test(failures),
		cmocka_unit_test(index_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
