/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Diff: applying the difference of two arrays to the old one gives the new one bit for bit, for
 * every kernel and width, from nothing changed to everything, with the bit patterns that numbers do
 * not survive (-0, infinities, NaNs with payloads); all kernels give the same blob; and arguments
 * that do not fit are refused.
 */
#include "codec/diff.h"
#include "tests/unit/codec/rice_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

static const uint64_t seed = 20250302;

/* The blob of new - old, in pieces of whole blocks. */
static uint64_t write_diff(const struct rice_kernel *kernel, bool rice, unsigned width,
			   uint64_t numel, const uint8_t *old, const uint8_t *new, uint64_t piece,
			   struct memory *mem)
{
	struct sink sink = memory_sink(mem);
	struct patch_writer *w = patch_writer_new(PATCH_ADD, width, numel, &sink, 0);
	struct why why = {0};
	uint64_t len = 0;
	int ret = w == NULL ? -ENOMEM : 0;

	if (ret == 0 && rice)
		ret = patch_writer_rice(w, kernel, true, &why);
	for (uint64_t at = 0; ret == 0 && at < numel; at += piece)
		ret = diff_add(w, kernel, old + at * width, new + at *width, at,
			       MIN(piece, numel - at), &why);
	if (ret == 0)
		ret = patch_writer_end(w, &len, NULL, &why);
	if (ret < 0)
		fail_msg("%s", why.text);
	patch_writer_free(w);
	return len;
}

static void one_case(struct rng *r, unsigned width, uint64_t numel, double density,
		     enum values kind)
{
	const size_t size = (size_t)numel * width;
	struct model m = model_of_kind(r, PATCH_SET, width, numel, density, kind);
	uint8_t *old = malloc(size + 1), *new = malloc(size + 1), *got = malloc(size + 1);
	struct memory first = {0};
	uint64_t first_len = 0, differ = 0;

	assert_true(old != NULL && new != NULL &&got != NULL);
	rng_fill(r, old, size);
	memcpy(new, old, size);
	model_apply(&m, new);
	for (size_t i = 0; i < size; i += width)
		differ += memcmp(old + i, new + i, width) != 0;
	for (size_t k = 0; k < 2 * ARRAY_LEN(kernel_names); k++) {
		const struct rice_kernel *kernel = patch_kernel(kernel_names[k / 2]);
		const bool rice = k % 2;
		struct memory mem = {0};
		struct why why = {0};
		struct patch p;
		uint64_t len;

		if (kernel == NULL)
			continue;
		assert_int_equal(diff_count(kernel, width, old, new, numel), differ);
		len = write_diff(kernel, rice, width, numel, old, new,
				 PATCH_BLOCK * (1 + rng_below(r, 3)), &mem);
		if (patch_open(mem.bytes, len, &p, &why) < 0 || patch_check(&p, &why) < 0)
			fail_msg("%s", why.text);
		assert_true(p.changed >= differ);
		memcpy(got, old, size);
		assert_int_equal(patch_apply(&p, 0, got, size), 0);
		assert_memory_equal(got, new, size);
		for (uint64_t b = 0; rice && b < p.blocks; b++) {
			size_t at = (size_t)(b << PATCH_BLOCK_SHIFT) * width;
			bool same = memcmp(old + at, new + at,
					   MIN(size - at, (size_t)PATCH_BLOCK * width)) == 0;

			assert_int_equal(patch_check_result(&p, b, got + at, &why),
					 same ? -ENODATA : 0);
		}
		if (rice && first.bytes == NULL) {
			first = mem;
			first_len = len;
			continue;
		}
		if (rice)
			assert_true(len == first_len &&
				    memcmp(first.bytes, mem.bytes, (size_t)len) == 0);
		free(mem.bytes);
	}
	free(first.bytes);
	free(old);
	free(new);
	free(got);
	model_free(&m);
}

static void test_gives_the_new_array(void **state)
{
	static const double densities[] = {0, -1, .001, .02, .3, .8, 1};
	static const uint64_t numels[] = {0, 1, 63, 1001, 65536, 2 * 65536 + 31};
	struct rng r = {seed};

	for (size_t w = 0; w < ARRAY_LEN(widths); w++)
		for (size_t d = 0; d < ARRAY_LEN(densities); d++)
			for (size_t n = 0; n < ARRAY_LEN(numels); n++)
				one_case(&r, widths[w], numels[n], densities[d],
					 (enum values)((w + d + n) % VALUES_KINDS));
}

/* bf16 numbers that compare equal, or are not numbers, and yet are different bits. */
static void test_bit_patterns(void **state)
{
	static const uint16_t from[] = {0x0000, 0x8000, 0x7f80, 0xff80,
					0x7fc0, 0x7fc1, 0xffff, 0x0001};
	static const uint16_t to[] = {0x8000, 0x0000, 0xff80, 0x7f80,
				      0x7fc1, 0xffc0, 0x7f81, 0x8001};
	uint8_t old[16], new[16];

	for (size_t i = 0; i < 8; i++) {
		store_le16(old + 2 * i, from[i]);
		store_le16(new + 2 * i, to[i]);
	}
	for (size_t k = 0; k < ARRAY_LEN(kernel_names); k++) {
		const struct rice_kernel *kernel = patch_kernel(kernel_names[k]);
		struct memory mem = {0};
		uint8_t got[16];
		struct patch p;

		if (kernel == NULL)
			continue;
		assert_true(write_diff(kernel, true, 2, 8, old, new, 65536, &mem) == mem.len);
		assert_int_equal(patch_open(mem.bytes, mem.len, &p, NULL), 0);
		p.kernel = kernel;
		assert_int_equal(p.changed, 8);
		memcpy(got, old, sizeof(got));
		assert_int_equal(patch_apply(&p, 0, got, sizeof(got)), 0);
		assert_memory_equal(got, new, sizeof(got));
		free(mem.bytes);
	}
}

static void test_refuses(void **state)
{
	static const struct {
		uint64_t first, n;
		const char *sentence;
	} cases[] = {
		{1, 65536, "does not fit"},	{0, 100, "does not fit"},
		{65536, 65537, "does not fit"}, {131072, 1, "does not fit"},
		{0, 200000, "does not fit"},	{UINT64_MAX - 65535, 65536, "does not fit"},
		{65536, 65536, "comes after"},
	};
	static uint8_t old[2 * 65536], new[2 * 65536];
	const struct rice_kernel *kernel = patch_kernel(NULL);

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct memory mem = {0};
		struct sink sink = memory_sink(&mem);
		struct patch_writer *w = patch_writer_new(PATCH_ADD, 1, 131072, &sink, 0);
		struct why why = {0};

		assert_non_null(w);
		if (i == 6) /* the same part twice */
			assert_int_equal(diff_add(w, kernel, old, new, 65536, 65536, &why), 0);
		assert_int_equal(diff_add(w, kernel, old, new, cases[i].first, cases[i].n, &why),
				 -EINVAL);
		assert_non_null(strstr(why.text, cases[i].sentence));
		patch_writer_free(w);
		free(mem.bytes);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_gives_the_new_array),
		cmocka_unit_test(test_bit_patterns),
		cmocka_unit_test(test_refuses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
