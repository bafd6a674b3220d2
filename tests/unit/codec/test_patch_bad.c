/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Malformed blobs: each kind of damage has its sentence, each truncation is noticed, and applying
 * or merging whatever it is stays inside the buffers (which the address sanitizer checks, since
 * every buffer here has exactly its size).
 */
#include "tests/unit/codec/patch_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

static const uint64_t seed = 20240602;

/* What the damaged blobs are made of: 2^16 + 10 bf16 elements; 3 changed in block 0, all 10 in
 * block 1. */
enum {
	NUMEL = PATCH_BLOCK + 10,
	DIR = PATCH_HEAD,
	PAYLOAD = PATCH_HEAD + 3 * 8,
	RAW_BYTES = 3 * 4,
	DENSE_BYTES = 10 * 2,
	LENGTH = PAYLOAD + RAW_BYTES + DENSE_BYTES,
};

static uint8_t *good(enum patch_op op)
{
	static const uint64_t positions[] = {1,
					     500,
					     65535,
					     PATCH_BLOCK,
					     PATCH_BLOCK + 1,
					     PATCH_BLOCK + 2,
					     PATCH_BLOCK + 3,
					     PATCH_BLOCK + 4,
					     PATCH_BLOCK + 5,
					     PATCH_BLOCK + 6,
					     PATCH_BLOCK + 7,
					     PATCH_BLOCK + 8,
					     PATCH_BLOCK + 9};
	uint16_t values[13];
	struct memory mem = {0};
	struct sink sink = memory_sink(&mem);
	struct patch_writer *w = patch_writer_new(op, 2, NUMEL, &sink, 0);
	uint8_t *exact = malloc(LENGTH);
	uint64_t len;

	for (uint16_t i = 0; i < 13; i++)
		values[i] = (uint16_t)(i + 1);
	assert_true(w != NULL && exact != NULL);
	assert_int_equal(patch_writer_add(w, positions, values, 13, NULL), 0);
	assert_int_equal(patch_writer_end(w, &len, NULL, NULL), 0);
	assert_int_equal(len, LENGTH);
	patch_writer_free(w);
	memcpy(exact, mem.bytes, LENGTH);
	free(mem.bytes);
	return exact;
}

static uint64_t entry(uint64_t offset, uint64_t count, uint64_t form)
{
	return offset | count << 40 | form << 57;
}

static int open_and_check(const uint8_t *blob, uint64_t len, struct why *why)
{
	struct patch p;
	int ret = patch_open(blob, len, &p, why);

	return ret < 0 ? ret : patch_check(&p, why);
}

/* Reads all there is of a blob in all ways; results do not matter. */
static void survive(const uint8_t *blob, uint64_t len)
{
	static const size_t offsets[] = {0, 3, 131070, 131072, 131075, 998};
	static const size_t lengths[] = {SIZE_MAX, SIZE_MAX, 5, 20, 1, 7};
	struct memory mem = {0};
	struct sink sink = memory_sink(&mem);
	struct patch p;
	const struct patch *twice[] = {&p, &p};
	uint64_t merged;

	if (patch_open(blob, len, &p, NULL) < 0 || p.numel > 4 * PATCH_BLOCK)
		return;
	for (size_t i = 0; i < ARRAY_LEN(offsets); i++) {
		size_t size = (size_t)p.numel * p.width, off = MIN(offsets[i], size);
		size_t n = MIN(lengths[i], size - off);
		uint8_t *dst = calloc(1, MAX(n, (size_t)1));

		assert_non_null(dst);
		patch_prefetch(&p, off, n);
		patch_cost(&p, off, n);
		if (patch_apply(&p, off, dst, n) > 0)
			fail();
		free(dst);
	}
	if (patch_merge(twice, 2, &sink, 0, &merged, NULL, NULL) > 0)
		fail();
	free(mem.bytes);
}

struct damage {
	const char *sentence;
	uint32_t at;	/* where, in the blob */
	uint32_t bytes; /* how many to replace */
	uint64_t value;
	int error;
};

static const struct damage damages[] = {
	{"does not begin with \"WFP\"", 0, 1, 'X', -EBADMSG},
	{"form version 3", 4, 1, 3, -ENOTSUP},
	{"unknown operation 0", 5, 1, 0, -EBADMSG},
	{"unknown operation 4", 5, 1, 4, -EBADMSG},
	{"elements of 3 bytes", 6, 1, 3, -EBADMSG},
	{"elements of 0 bytes", 6, 1, 0, -EBADMSG},
	{"block shift 15", 7, 1, 15, -EBADMSG},
	{"reserved bytes", 24, 1, 1, -EBADMSG},
	{"reserved bytes", 31, 1, 1, -EBADMSG},
	{"too many", 8, 8, UINT64_MAX, -EBADMSG},
	{"does not fit", 8, 8, UINT64_C(1) << 62, -EBADMSG},
	{"does not fit", 8, 8, 100 * PATCH_BLOCK, -EBADMSG},
	{"last entry", DIR + 16, 8, 32 | UINT64_C(1) << 40, -EBADMSG},
	{"last entry", DIR + 16, 8, 32 | UINT64_C(1) << 57, -EBADMSG},
	{"payload should be", DIR + 16, 8, 33, -EBADMSG},
	{"payload should be", DIR + 16, 8, 24, -EBADMSG},
	{"19 bytes of payload instead of 20", DIR + 16, 8, 31, -EBADMSG},
	{"says that it changes 14", 16, 8, 14, -EBADMSG},
	{"first block begins at 2", DIR, 8, UINT64_C(2) | UINT64_C(3) << 40, -EBADMSG},
	{"block 0 of the patch has the unknown form 2", DIR, 8,
	 UINT64_C(3) << 40 | UINT64_C(2) << 57, -EBADMSG},
	{"unknown form 127", DIR, 8, UINT64_C(3) << 40 | UINT64_C(127) << 57, -EBADMSG},
	{"changes 65537 elements and has only 65536", DIR, 8, UINT64_C(65537) << 40, -EBADMSG},
	{"block 1 of the patch changes 11 elements and has only 10", DIR + 8, 8,
	 12 | UINT64_C(11) << 40, -EBADMSG},
	{"dense with 9 elements instead of 10", DIR + 8, 8,
	 12 | UINT64_C(9) << 40 | UINT64_C(1) << 57, -EBADMSG},
	{"block 0 of the patch ends at 33", DIR + 8, 8, 33 | UINT64_C(10) << 40, -EBADMSG},
	{"12 bytes of payload instead of 16", DIR, 8, UINT64_C(4) << 40, -EBADMSG},
	{"12 bytes of payload instead of 8", DIR, 8, UINT64_C(2) << 40, -EBADMSG},
	{"position 0 follows position 1", PAYLOAD + 2, 2, 0, -EBADMSG},
	{"position 1 follows position 1", PAYLOAD + 2, 2, 1, -EBADMSG},
	{"position 499 follows position 500", PAYLOAD + 4, 2, 499, -EBADMSG},
};

static void test_each_damage_has_its_sentence(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(damages); i++) {
		const struct damage *d = &damages[i];
		uint8_t *blob = good(PATCH_SET), value[8];
		struct why why = {0};
		int ret;

		store_le64(value, d->value);
		memcpy(blob + d->at, value, d->bytes);
		ret = open_and_check(blob, LENGTH, &why);
		if (ret != d->error || strstr(why.text, d->sentence) == NULL)
			fail_msg("damage %zu: %d \"%s\" instead of \"%s\"", i, ret, why.text,
				 d->sentence);
		survive(blob, LENGTH);
		free(blob);
	}
}

/* One RAW block of 5 elements of one byte, made by hand. */
static void test_short_block(void **state)
{
	uint8_t blob[PATCH_HEAD + 16 + 8] = "WFP";
	struct why why = {0};
	struct patch p;
	uint8_t dst[5] = {0};

	blob[5] = PATCH_SET;
	blob[6] = 1;
	blob[7] = PATCH_BLOCK_SHIFT;
	store_le64(blob + 8, 5);
	store_le64(blob + 16, 2);
	store_le64(blob + 32, entry(0, 2, PATCH_RAW));
	store_le64(blob + 40, entry(6, 0, 0));
	store_le16(blob + 48, 0);
	store_le16(blob + 50, 4);
	blob[52] = 7;
	blob[53] = 8;
	assert_int_equal(open_and_check(blob, sizeof(blob), &why), 0);
	assert_int_equal(patch_open(blob, sizeof(blob), &p, &why), 0);
	assert_int_equal(patch_apply(&p, 0, dst, 5), 0);
	assert_memory_equal(dst, "\7\0\0\0\10", 5);

	store_le16(blob + 50, 5);
	assert_int_equal(open_and_check(blob, sizeof(blob), &why), -EBADMSG);
	assert_non_null(strstr(why.text, "position 5 is beyond the block's 5 elements"));
	assert_int_equal(patch_apply(&p, 0, dst, 5), -EBADMSG);
	store_le16(blob + 50, 4);
	blob[55] = 1;
	assert_int_equal(open_and_check(blob, sizeof(blob), &why), -EBADMSG);
	assert_non_null(strstr(why.text, "padding"));
	blob[55] = 0;
	store_le64(blob + 32, entry(8, 2, PATCH_RAW));
	assert_int_equal(patch_apply(&p, 0, dst, 5), -EBADMSG);
	store_le64(blob + 32, entry(0, 2, PATCH_RAW));
	store_le64(blob + 40, entry(6, 0, 0));
	store_le64(blob + 8, 0);
	assert_int_equal(open_and_check(blob, sizeof(blob) - 8, &why), -EBADMSG);
}

static void test_offsets_that_descend(void **state)
{
	uint8_t *blob = good(PATCH_XOR);
	struct why why = {0};
	struct patch p;
	uint8_t dst[8];

	store_le64(blob + DIR, entry(0, 0, 0));
	store_le64(blob + DIR + 8, entry(0, 0, 0));
	assert_int_equal(open_and_check(blob, LENGTH, &why), -EBADMSG);
	assert_non_null(strstr(why.text, "block 1 of the patch has 32 bytes of payload"));
	free(blob);

	/* Three blocks, the second's end below its beginning. */
	blob = calloc(1, PATCH_HEAD + 4 * 8 + 16);
	assert_non_null(blob);
	memcpy(blob, "WFP\0\0\1\2\20", 8);
	store_le64(blob + 8, 3 * PATCH_BLOCK);
	store_le64(blob + 16, 4);
	store_le64(blob + DIR, entry(0, 2, 0));
	store_le64(blob + DIR + 8, entry(8, 2, 0));
	store_le64(blob + DIR + 16, entry(4, 0, 0));
	store_le64(blob + DIR + 24, entry(16, 0, 0));
	store_le16(blob + DIR + 34, 1);
	assert_int_equal(open_and_check(blob, PATCH_HEAD + 48, &why), -EBADMSG);
	assert_non_null(strstr(why.text, "block 1 of the patch ends at 4, before its beginning"));
	assert_int_equal(patch_open(blob, PATCH_HEAD + 48, &p, &why), 0);
	assert_int_equal(patch_apply(&p, 2 * PATCH_BLOCK, dst, 8), -EBADMSG);
	free(blob);
}

static void test_truncation(void **state)
{
	for (size_t len = 0; len < LENGTH; len++) {
		uint8_t *whole = good(PATCH_ADD), *blob = malloc(MAX(len, (size_t)1));
		struct why why = {0};

		assert_non_null(blob);
		memcpy(blob, whole, len);
		assert_int_equal(open_and_check(blob, len, &why), -EBADMSG);
		assert_true(why.text[0] != '\0');
		survive(blob, len);
		free(whole);
		free(blob);
	}
}

static void test_random_damage(void **state)
{
	struct rng r = {seed};

	for (int i = 0; i < 3000; i++) {
		uint8_t *blob = good(1 + (enum patch_op)(i % 3));
		size_t from = i % 2 ? DIR : 0;

		for (uint64_t n = 1 + rng_below(&r, 4); n > 0; n--)
			blob[from + rng_below(&r, LENGTH - from)] = (uint8_t)rng_next(&r);
		survive(blob, LENGTH);
		free(blob);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_damage_has_its_sentence),
		cmocka_unit_test(test_short_block),
		cmocka_unit_test(test_offsets_that_descend),
		cmocka_unit_test(test_truncation),
		cmocka_unit_test(test_random_damage),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
