/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Patch files: what the writer makes is a safetensors file and reads back; tensors without a patch
 * are absent; damage to the header, the blobs or their hash is refused with its sentence.
 */
#include "codec/patch_file.h"

#include <xxhash.h>

#include "tests/unit/codec/patch_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

static const uint64_t seed = 20240603;
static const char *const names[] = {"model.embed", "layers.0.\"q\"", "layers.1.\xc3\xa9", "zz"};
static const struct st_meta meta[] = {{"source", "delta-7 \\ \"x\""}, {"version", "7"}};

/* A file with patches for the names in `mask`; frees nothing of mem. */
static uint64_t make_file(struct memory *mem, unsigned mask, struct rng *r)
{
	struct sink sink = memory_sink(mem);
	struct patch_file_writer *w = NULL;
	struct source back;
	struct why why = {0};
	uint64_t size = 0;

	if (patch_file_writer_new(names, ARRAY_LEN(names), meta, ARRAY_LEN(meta), &sink, &w, &why) <
	    0)
		fail_msg("%s", why.text);
	assert_ptr_equal(patch_file_writer_sink(w), &sink);
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		uint64_t at = patch_file_writer_at(w), len = 0;

		assert_int_equal(at % 8, 0);
		if (mask & 1U << i) {
			struct model m = model_random(r, PATCH_SET, 1U << i, 70000 + i, .02);

			len = model_write(&m, r, mem, at);
			assert_true(len > 0);
			model_free(&m);
		}
		assert_int_equal(patch_file_writer_took(w, i, len), 0);
	}
	back = source_memory(mem->bytes, mem->len);
	if (patch_file_writer_end(w, &back, &size, &why) < 0)
		fail_msg("%s", why.text);
	assert_int_equal(size, mem->len);
	patch_file_writer_free(w);
	return size;
}

/* Blobs that are handed over whole make the file that writing them in place makes, also between
 * such as are not. */
static void whole_blobs(void **state)
{
	for (unsigned added = 0; added < 1U << ARRAY_LEN(names); added++) {
		struct rng one = {7}, two = {7};
		struct memory in_place = {0}, mem = {0}, blob = {0};
		const unsigned mask = ~2U;
		struct sink sink = memory_sink(&mem);
		struct patch_file_writer *w = NULL;
		struct source back;
		struct why why = {0};
		uint64_t size = 0, len = make_file(&in_place, mask, &one);

		assert_int_equal(patch_file_writer_new(names, ARRAY_LEN(names), meta,
						       ARRAY_LEN(meta), &sink, &w, &why),
				 0);
		for (size_t i = 0; i < ARRAY_LEN(names); i++) {
			struct model m;
			uint64_t n;

			if ((mask & 1U << i) == 0)
				continue;
			m = model_random(&two, PATCH_SET, 1U << i, 70000 + i, .02);
			if (added & 1U << i) {
				blob.len = 0;
				n = model_write(&m, &two, &blob, 0);
				assert_int_equal(patch_file_writer_add(w, i, blob.bytes, n), 0);
			} else {
				n = model_write(&m, &two, &mem, patch_file_writer_at(w));
				assert_int_equal(patch_file_writer_took(w, i, n), 0);
			}
			model_free(&m);
		}
		back = source_memory(mem.bytes, mem.len);
		assert_int_equal(patch_file_writer_end(w, &back, &size, &why), 0);
		assert_int_equal(size, len);
		assert_memory_equal(mem.bytes, in_place.bytes, len);
		patch_file_writer_free(w);
		free(in_place.bytes);
		free(mem.bytes);
		free(blob.bytes);
	}
}

/* The file in a buffer of exactly its size. */
static uint8_t *exact(const struct memory *mem, size_t size)
{
	uint8_t *copy = malloc(MAX(size, (size_t)1));

	assert_non_null(copy);
	memcpy(copy, mem->bytes, size);
	return copy;
}

static void refuse(const uint8_t *bytes, uint64_t size, bool full, const char *sentence)
{
	struct patch_file *file = NULL;
	struct why why = {0};
	int ret = patch_file_open(bytes, size, full, &file, &why);

	assert_int_equal(ret, -EBADMSG);
	assert_null(file);
	if (strstr(why.text, sentence) == NULL)
		fail_msg("\"%s\" instead of \"%s\"", why.text, sentence);
}

static void test_round_trip(void **state)
{
	struct rng r = {seed};

	for (unsigned mask = 0; mask < 16; mask++) {
		struct memory mem = {0};
		uint64_t size = make_file(&mem, mask, &r);
		uint8_t *bytes = exact(&mem, size);
		struct patch_file *file = NULL;
		struct why why = {0};
		size_t at = 0;

		if (patch_file_open(bytes, size, true, &file, &why) < 0)
			fail_msg("mask %u: %s", mask, why.text);
		assert_int_equal(file->count, __builtin_popcount(mask));
		for (size_t i = 0; i < ARRAY_LEN(names); i++) {
			if (!(mask & 1U << i)) {
				assert_null(st_find(file->header, names[i]));
				continue;
			}
			assert_string_equal(file->header->tensors[at].name, names[i]);
			assert_int_equal(file->patches[at].numel, 70000 + i);
			assert_int_equal(file->patches[at].width, 1 << i);
			at++;
		}
		assert_string_equal(st_meta(file->header, "format"), "weightfs-patch");
		assert_string_equal(st_meta(file->header, "source"), meta[0].value);
		patch_file_free(file);
		free(bytes);
		free(mem.bytes);
	}
}

/* What follows the header, then the header with zeros where the hash stands. */
static void test_hash_covers_data_and_header(void **state)
{
	struct memory mem = {0};
	struct rng r = {seed};
	struct patch_file *file = NULL;
	uint64_t size = make_file(&mem, 5, &r), data;
	XXH128_canonical_t want;
	char hash[33], text[33];
	uint8_t *copy, *at;

	assert_int_equal(patch_file_open(mem.bytes, size, true, &file, NULL), 0);
	snprintf(hash, sizeof(hash), "%s", st_meta(file->header, "xxh3"));
	data = file->header->data;
	patch_file_free(file);
	copy = malloc(size);
	assert_non_null(copy);
	memcpy(copy, mem.bytes + data, size - data);
	memcpy(copy + (size - data), mem.bytes, data);
	at = memmem(copy + (size - data), data, hash, 32);
	assert_non_null(at);
	memset(at, '0', 32);
	XXH128_canonicalFromHash(&want, XXH3_128bits(copy, size));
	for (size_t i = 0; i < sizeof(want.digest); i++)
		snprintf(text + 2 * i, 3, "%02x", want.digest[i]);
	assert_string_equal(text, hash);
	free(copy);
	free(mem.bytes);
}

/* One bit of a tensor's name puts its patch on another tensor: well-formed, and wrong. */
static void test_damaged_name(void **state)
{
	struct memory mem = {0};
	struct rng r = {seed};
	struct patch_file *file = NULL;
	uint64_t size = make_file(&mem, 15, &r);
	uint8_t *at = memmem(mem.bytes, size, names[0], strlen(names[0]));

	assert_non_null(at);
	at[0] ^= 1;
	assert_int_equal(patch_file_open(mem.bytes, size, false, &file, NULL), 0);
	patch_file_free(file);
	refuse(mem.bytes, size, true, "do not have the hash");
	free(mem.bytes);
}

static void test_damage_anywhere_is_noticed(void **state)
{
	struct memory mem = {0};
	struct rng r = {seed + 1};
	uint64_t size = make_file(&mem, 15, &r);
	uint8_t *bytes = exact(&mem, size);
	uint64_t data = 8 + load_le64(bytes);

	for (int i = 0; i < 300; i++) {
		uint64_t at = i < 8 ? size - 1 - (uint64_t)i : data + rng_below(&r, size - data);
		uint8_t bit = (uint8_t)(1U << rng_below(&r, 8));

		bytes[at] ^= bit;
		refuse(bytes, size, true, "the hash");
		bytes[at] ^= bit;
	}
	free(bytes);
	free(mem.bytes);
}

static void test_truncation(void **state)
{
	struct memory mem = {0};
	struct rng r = {seed + 2};
	uint64_t size = make_file(&mem, 2, &r);

	for (uint64_t len = 0; len < size; len += len < 600 ? 1 : 97) {
		uint8_t *bytes = exact(&mem, len);

		refuse(bytes, len, false, "");
		free(bytes);
	}
	free(mem.bytes);
}

/* Files made by hand, with one thing wrong. */
static void compose(const struct st_tensor *t, const struct st_meta *m, size_t meta_count,
		    size_t data, bool full, const char *sentence)
{
	struct buf out = {0};

	assert_int_equal(st_compose(t, t != NULL, m, meta_count, 8, 0, &out, NULL), 0);
	buf_fill(&out, 0, data);
	refuse((const uint8_t *)out.data, out.len, full, sentence);
	buf_release(&out);
}

static void test_what_is_not_a_patch_file(void **state)
{
	static const struct st_meta ok[] = {{"format", "weightfs-patch"},
					    {"xxh3", "99aa06d3014798d86001c324468d497f"}};
	static const struct st_meta pt[] = {{"format", "pt"}};
	static const struct st_meta no_hash[] = {{"format", "weightfs-patch"}};
	static const struct st_meta short_hash[] = {{"format", "weightfs-patch"}, {"xxh3", "99aa"}};
	static const struct st_meta odd_hash[] = {{"format", "weightfs-patch"},
						  {"xxh3", "99AA06d3014798d86001c324468d497f"}};
	static const uint64_t shape[] = {40, 1}, half[] = {20};
	struct st_tensor t = {.name = "t", .shape = shape, .end = 40, .dtype = ST_U8, .rank = 1};

	compose(NULL, NULL, 0, 0, false, "has no format");
	compose(NULL, pt, 1, 0, false, "its format is \"pt\"");
	compose(NULL, no_hash, 1, 0, false, "no xxh3");
	compose(NULL, short_hash, 2, 0, false, "no xxh3");
	compose(NULL, odd_hash, 2, 0, false, "no xxh3");
	compose(&t, ok, 2, 40, true, "the hash");
	compose(&t, ok, 2, 40, false, "\"t\": the patch does not begin with");
	t.rank = 2;
	compose(&t, ok, 2, 40, false, "\"t\" in a patch file has to be a U8 tensor");
	t.rank = 1;
	t.dtype = ST_BF16;
	t.shape = half;
	compose(&t, ok, 2, 40, false, "\"t\" in a patch file has to be a U8 tensor");
}

static void test_misaligned_blob(void **state)
{
	static const char json[] = "{\"__metadata__\":{\"format\":\"weightfs-patch\",\"xxh3\":"
				   "\"99aa06d3014798d86001c324468d497f\"},\"t\":{\"dtype\":\"U8\","
				   "\"shape\":[40],\"data_offsets\":[0,40]}}";
	uint64_t n = sizeof(json) - 1;
	uint8_t *bytes = calloc(1, 8 + n + 8 + 40);

	assert_non_null(bytes);
	memcpy(bytes + 8, json, n);
	if (n % 8 == 0)
		bytes[8 + n++] = ' ';
	store_le64(bytes, n);
	refuse(bytes, 8 + n + 40, false, "not at a multiple of 8");
	free(bytes);
}

static void test_writer_refuses(void **state)
{
	static const struct st_meta own[] = {{"xxh3", "0"}};
	struct memory mem = {0};
	struct sink sink = memory_sink(&mem);
	struct patch_file_writer *w = NULL;
	struct source empty = source_memory("", 0);
	struct why why = {0};
	uint64_t size = 5;

	assert_int_equal(patch_file_writer_new(names, 4, own, 1, &sink, &w, &why), -EINVAL);
	assert_non_null(strstr(why.text, "\"xxh3\" is its own"));
	assert_null(w);
	assert_int_equal(patch_file_writer_new(names, 4, NULL, 0, &sink, &w, &why), 0);
	assert_int_equal(patch_file_writer_took(w, 4, 8), -EINVAL);
	assert_int_equal(patch_file_writer_took(w, 0, 12), -EINVAL);
	assert_int_equal(patch_file_writer_took(w, 0, UINT64_C(1) << 50), -EFBIG);
	assert_int_equal(patch_file_writer_took(w, 2, 8), 0);
	assert_int_equal(patch_file_writer_took(w, 2, 8), -EINVAL);
	assert_int_equal(patch_file_writer_took(w, 1, 8), -EINVAL);
	assert_int_equal(patch_file_writer_took(w, 1, 0), 0);
	assert_int_equal(patch_file_writer_took(w, 3, 8), 0);
	assert_int_equal(patch_file_writer_took(w, 3, 8), -EINVAL);
	assert_int_equal(patch_file_writer_end(w, &empty, &size, &why), -EBADMSG);
	assert_non_null(strstr(why.text, "read back"));
	assert_int_equal(size, 5);
	patch_file_writer_free(w);
	patch_file_writer_free(NULL);
	patch_file_free(NULL);
	free(mem.bytes);
}

/* A block of which so much changes that it is a bitmap, in a file of a cache and in a delta that
 * somebody published. */
static void test_caches_own_form(void **state)
{
	static const struct st_meta said[] = {{"encoding", "wfp1"}};

	for (size_t published = 0; published < 2; published++) {
		struct rng r = {seed};
		struct model m = model_random(&r, PATCH_ADD, 2, 70000, .4);
		struct memory mem = {0};
		struct sink sink = memory_sink(&mem);
		struct patch_file_writer *w = NULL;
		struct patch_file *file = NULL;
		struct source back;
		struct why why = {0};
		uint64_t size = 0, len;

		assert_int_equal(patch_file_writer_new(names, 1, said, published, &sink, &w, &why),
				 0);
		len = model_write(&m, &r, &mem, patch_file_writer_at(w));
		assert_int_equal(patch_file_writer_took(w, 0, len), 0);
		back = source_memory(mem.bytes, mem.len);
		assert_int_equal(patch_file_writer_end(w, &back, &size, &why), 0);
		if (published) {
			refuse(mem.bytes, size, false, "form version 2, which is for caches");
		} else {
			assert_int_equal(patch_file_open(mem.bytes, size, true, &file, &why), 0);
			assert_int_equal(file->patches[0].version, 2);
		}
		patch_file_free(file);
		patch_file_writer_free(w);
		model_free(&m);
		free(mem.bytes);
	}
}

static void test_sink_error(void **state)
{
	struct memory mem = {.fail_at = 1, .error = EDQUOT};
	struct sink sink = memory_sink(&mem);
	struct patch_file_writer *w = NULL;
	struct source empty = source_memory("", 0);
	struct why why = {0};
	uint64_t size;

	assert_int_equal(patch_file_writer_new(names, 4, NULL, 0, &sink, &w, &why), 0);
	assert_int_equal(patch_file_writer_end(w, &empty, &size, &why), -EDQUOT);
	patch_file_writer_free(w);
	free(mem.bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_hash_covers_data_and_header),
		cmocka_unit_test(test_damaged_name),
		cmocka_unit_test(test_damage_anywhere_is_noticed),
		cmocka_unit_test(test_truncation),
		cmocka_unit_test(test_what_is_not_a_patch_file),
		cmocka_unit_test(test_misaligned_blob),
		cmocka_unit_test(test_writer_refuses),
		cmocka_unit_test(test_caches_own_form),
		cmocka_unit_test(whole_blobs),
		cmocka_unit_test(test_sink_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
