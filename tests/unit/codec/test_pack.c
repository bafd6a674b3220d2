/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed weights: blocks of every width and kind of contents come back, damage is found, sizes that
 * a frame lies about are refused, and the original's header comes back to the last space.
 */
#include "codec/pack.h"
#include "tests/unit/codec/patch_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>
#include <xxhash.h>
#include <zstd.h>

/* Random; all the same; weights in bf16, more or less; a few kinds of bytes. */
static void fill(struct rng *r, uint8_t *bytes, size_t len, unsigned kind)
{
	for (size_t i = 0; i < len; i++)
		bytes[i] = kind == 0   ? (uint8_t)rng_next(r)
			   : kind == 1 ? 7
			   : kind == 2 ? (i % 2 ? (uint8_t)(60 - (rng_next(r) & 3))
						: (uint8_t)rng_next(r))
				       : (uint8_t)(rng_next(r) & 3);
}

static void test_blocks_come_back(void **state)
{
	static const uint32_t counts[] = {1, 2, 3, 100, 4097, PACK_BLOCK};
	struct packer *p = packer_new();
	struct rng r = {1};

	assert_non_null(p);
	for (size_t w = 0; w < ARRAY_LEN(widths); w++)
		for (size_t c = 0; c < ARRAY_LEN(counts) * 4; c++) {
			const uint32_t len = counts[c / 4] * widths[w];
			const uint32_t bound = pack_bound(len, widths[w]);
			uint8_t *bytes = malloc(len), *packed = malloc(bound);
			uint8_t *back = malloc(len), *scratch = malloc(len), *exact;
			uint64_t hash;
			size_t n;

			assert_true(bytes && packed && back && scratch);
			fill(&r, bytes, len, c % 4);
			n = packer_block(p, bytes, len, widths[w], packed, &hash);
			assert_true(n <= bound);
			assert_int_equal(hash, XXH3_64bits(bytes, len));
			exact = malloc(n);
			memcpy(exact, packed, n);
			assert_int_equal(pack_decode(exact, n, widths[w], hash, back, len, scratch),
					 0);
			assert_memory_equal(back, bytes, len);
			assert_int_equal(
				pack_decode(exact, n, widths[w], hash + 1, back, len, scratch),
				-EBADMSG);
			for (unsigned i = 0; i < 20 && n > 0; i++) {
				size_t at = (size_t)rng_below(&r, n);
				uint8_t old = exact[at];

				exact[at] ^= (uint8_t)(1 + rng_below(&r, 255));
				assert_int_equal(
					pack_decode(exact, n, widths[w], hash, back, len, scratch),
					-EBADMSG);
				exact[at] = old;
				assert_int_equal(pack_decode(exact, (size_t)rng_below(&r, n),
							     widths[w], hash, back, len, scratch),
						 -EBADMSG);
			}
			free(bytes);
			free(packed);
			free(back);
			free(scratch);
			free(exact);
		}
	packer_free(p);
}

/* A frame that holds a GB of zeros in a few KB, and says so, or does not say how much it holds. */
static void test_bombs(void **state)
{
	const size_t huge = 16 << 20;
	uint8_t *zeros = calloc(1, huge), dst[64], scratch[64];
	size_t cap = 1 << 20;
	uint8_t *block = malloc(cap);
	ZSTD_CCtx *c = ZSTD_createCCtx();

	assert_true(zeros && block && c);
	for (int say = 0; say < 2; say++) {
		size_t n;

		ZSTD_CCtx_setParameter(c, ZSTD_c_contentSizeFlag, say);
		n = ZSTD_compress2(c, block + 4, cap - 4, zeros, huge);
		assert_false(ZSTD_isError(n));
		store_le32(block, (uint32_t)n);
		assert_int_equal(pack_decode(block, 4 + n, 1, 0, dst, sizeof(dst), scratch),
				 -EBADMSG);
	}
	ZSTD_freeCCtx(c);
	free(zeros);
	free(block);
}

static void test_entries(void **state)
{
	uint8_t e[2 * PACK_ENTRY] = {0};
	uint64_t offset, hash;
	uint32_t len;

	store_le64(e, 77);
	store_le64(e + 8, 1000);
	store_le64(e + 24, 1000 + pack_bound(200, 2));
	assert_int_equal(pack_entry(e, 200, 2, &offset, &len, &hash), 0);
	assert_true(offset == 1000 && len == pack_bound(200, 2) && hash == 77);
	store_le64(e + 24, 1001 + pack_bound(200, 2));
	assert_int_equal(pack_entry(e, 200, 2, &offset, &len, &hash), -EBADMSG);
	store_le64(e + 24, 999);
	assert_int_equal(pack_entry(e, 200, 2, &offset, &len, &hash), -EBADMSG);
	store_le64(e + 8, UINT64_MAX - 10);
	store_le64(e + 24, UINT64_MAX);
	assert_int_equal(pack_entry(e, 200, 2, &offset, &len, &hash), -EBADMSG);
	assert_int_equal(pack_blocks(0, 2), 0);
	assert_int_equal(pack_blocks(PACK_BLOCK * UINT64_C(2) + 1, 2), 2);
	assert_int_equal(pack_block_bytes(PACK_BLOCK * UINT64_C(2) + 2, 2, 1), 2);
}

#define ORIGINAL                                                                                   \
	"{\"__metadata__\":{\"format\":\"pt\",\"note\":\"\\u00e4\\\\\"},\"b\":{\"dtype\":"         \
	"\"BF16\",\"shape\":[2],"                                                                  \
	"\"data_offsets\":[0,4]},\"none\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,"   \
	"4]},\"\\\"data_offsets\\\"\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[4,5]}}   "

static struct st_header *packed_of(const struct st_header *original, const uint64_t *sizes,
				   struct buf *text)
{
	struct st_header *packed = NULL;
	struct why why = {0};
	uint64_t end = 0;

	assert_int_equal(pack_compose(original, ORIGINAL, sizes, 0, text, &why), 0);
	for (size_t i = 0; i < original->count; i++)
		end += original->tensors[i].begin < original->tensors[i].end ? sizes[i] : 0;
	if (st_parse(text->data + 8, text->len - 8, text->len + end, &packed, &why) < 0)
		fail_msg("%s", why.text);
	return packed;
}

static void test_header_comes_back(void **state)
{
	struct st_header *original = NULL, *packed, *back = NULL;
	struct why why = {0};
	struct buf text = {0}, room = {0};
	char *json = NULL;

	assert_int_equal(
		st_parse(ORIGINAL, strlen(ORIGINAL), 8 + strlen(ORIGINAL) + 5, &original, &why), 0);
	packed = packed_of(original, (uint64_t[]){40, 1, 37}, &text);
	assert_true(pack_is(packed) && !pack_is(original));
	assert_int_equal(packed->count, 2);
	if (pack_header(packed, &back, &json, &why) < 0)
		fail_msg("%s", why.text);
	assert_string_equal(json, ORIGINAL);
	assert_int_equal(back->file_size, original->file_size);
	assert_int_equal(back->count, 3);
	assert_int_equal(pack_compose(original, ORIGINAL, NULL, 0, &room, &why), 0);
	assert_true(room.len >= text.len);
	st_free(back);
	free(json);
	st_free(packed);
	buf_release(&text);
	/* too small for its directory of one block */
	packed = packed_of(original, (uint64_t[]){31, 0, 37}, &text);
	assert_int_equal(pack_header(packed, &back, NULL, &why), -EBADMSG);
	st_free(packed);
	buf_release(&text);
	buf_release(&room);
	st_free(original);
}

static struct st_header *header_of(const struct st_meta *meta, size_t count, const char *name)
{
	const uint64_t shape[] = {40};
	const struct st_tensor t = {
		.name = name, .shape = shape, .end = 40, .dtype = ST_U8, .rank = 1};
	struct st_header *h = NULL;
	struct buf text = {0};

	assert_int_equal(st_compose(&t, 1, meta, count, 8, 0, &text, NULL), 0);
	assert_int_equal(st_parse(text.data + 8, text.len - 8, text.len + 40, &h, NULL), 0);
	buf_release(&text);
	return h;
}

static void test_bad_headers(void **state)
{
	static const char json[] =
		"{\"w\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]}}";
	static const struct {
		const char *version, *size, *json, *name;
		int err;
	} cases[] = {
		{"1", "66", json, "w", 0},
		{"2", "66", json, "w", -ENOTSUP},
		{"1", "67", json, "w", -EBADMSG},
		{"1", "", json, "w", -EBADMSG},
		{"1", "7x", json, "w", -EBADMSG},
		{"1", "99999999999999999999", json, "w", -EBADMSG},
		{"1", "66", "{", "w", -EBADMSG},
		{"1", "66", json, "v", -EBADMSG},
		{NULL, "66", json, "w", -EBADMSG},
		{"1", "10", "{}", "w", -EBADMSG},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct st_meta meta[] = {{"format", PACK_FORMAT},
					       {"original_size", cases[i].size},
					       {"header", cases[i].json},
					       {"packed_version", cases[i].version}};
		struct st_header *h =
			header_of(meta, cases[i].version != NULL ? 4 : 3, cases[i].name);
		struct st_header *original = NULL;
		struct why why = {0};
		char size[24];

		snprintf(size, sizeof(size), "%zu", 8 + strlen(json) + 5);
		assert_string_equal(size, "66");
		assert_int_equal(pack_header(h, &original, NULL, &why), cases[i].err);
		assert_true(cases[i].err == 0 || why.text[0] != '\0');
		st_free(original);
		st_free(h);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_blocks_come_back), cmocka_unit_test(test_bombs),
		cmocka_unit_test(test_entries),		 cmocka_unit_test(test_header_comes_back),
		cmocka_unit_test(test_bad_headers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
