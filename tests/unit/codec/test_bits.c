/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The BITS form of a block: every kernel gives the bytes of a naive model, over ranges that begin
 * and end anywhere; what is wrong with a block has its sentence, and applying or merging it all the
 * same stays inside; whoever else reads blocks reads these, too.
 *
 * Buffers are as long as they have to be, for the sanitizers to see.
 */
#include "codec/patch_block.h"
#include "codec/write_trl.h"
#include "tests/unit/codec/rice_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

enum { DIR = PATCH_HEAD };

/* Of the model, one block of which has the form. */
static struct patch written(const struct model *m, struct memory *mem)
{
	struct rng r = {7};
	uint64_t len = model_write(m, &r, mem, 0);
	struct why why = {0};
	struct patch p;

	if (patch_open(mem->bytes, len, &p, &why) < 0 || patch_check(&p, &why) < 0)
		fail_msg("%s", why.text);
	return p;
}

static void compare(struct patch *p, const uint8_t *base, const uint8_t *want, uint64_t off,
		    size_t len)
{
	for (size_t k = 0; k < ARRAY_LEN(kernel_names); k++) {
		uint8_t *got = malloc(MAX(len, (size_t)1));

		p->kernel = patch_kernel(kernel_names[k]);
		if (p->kernel == NULL) {
			free(got);
			continue;
		}
		assert_non_null(got);
		memcpy(got, base + off, len);
		patch_prefetch(p, off, len);
		assert_int_equal(patch_apply(p, off, got, len), 0);
		if (memcmp(got, want + off, len) != 0)
			fail_msg("%s, op %u, width %u, numel %llu, %llu of it changed: "
				 "[%llu, + %zu) differs",
				 kernel_names[k], p->op, p->width, (unsigned long long)p->numel,
				 (unsigned long long)p->changed, (unsigned long long)off, len);
		free(got);
	}
}

static void one_case(struct rng *r, enum patch_op op, unsigned width, uint64_t numel,
		     double density)
{
	struct model m = model_random(r, op, width, numel, density);
	size_t size = (size_t)numel * width;
	uint8_t *base = malloc(size), *want = malloc(size);
	struct memory mem = {0};
	struct patch p = written(&m, &mem);

	assert_true(base != NULL && want != NULL);
	if (density < .85 && numel > 4096)
		assert_int_equal(p.version, 2);
	rng_fill(r, base, size);
	memcpy(want, base, size);
	model_apply(&m, want);
	compare(&p, base, want, 0, size);
	assert_int_equal(patch_cost(&p, 0, size), 8 * (p.blocks + 1) + p.payload_len);
	for (int i = 0; i < 12; i++) {
		uint64_t off = rng_below(r, size), len = rng_below(r, size - off + 1);

		if (i % 2 == 0 || op == PATCH_ADD)
			off = off / width * width;
		if (i % 3 == 0) /* inside a word of the bitmap, or across two */
			len = MIN(len, rng_below(r, (uint64_t)100 * width));
		compare(&p, base, want, off, (size_t)len);
	}
	model_free(&m);
	free(base);
	free(want);
	free(mem.bytes);
}

static void test_kernels_agree(void **state)
{
	static const double densities[] = {.2, .5, .8, .97, 1};
	struct rng r = {11};

	for (size_t o = 0; o < ARRAY_LEN(ops); o++)
		for (size_t w = 0; w < ARRAY_LEN(widths); w++)
			for (size_t d = 0; d < ARRAY_LEN(densities); d++) {
				one_case(&r, ops[o], widths[w], 6000, densities[d]);
				if ((o + w + d) % 4 == 0) /* takes its time */
					one_case(&r, ops[o], widths[w], 65536 + 4097, densities[d]);
			}
}

/* Changes only in a part of the block: words of all ones, of none, and ranks that stand still. */
static void test_uneven(void **state)
{
	enum { NUMEL = PATCH_BLOCK };
	struct rng r = {12};

	for (uint64_t begin = 0; begin < NUMEL; begin += 24593) {
		struct model m = model_random(&r, PATCH_ADD, 2, NUMEL, 0);
		uint8_t *base = malloc((size_t)2 * NUMEL), *want = malloc((size_t)2 * NUMEL);
		struct memory mem = {0};
		struct patch p;

		for (uint64_t i = begin; i < MIN(begin + 15000, (uint64_t)NUMEL); i++)
			m.positions[m.count++] = i;
		m.values = realloc(m.values, m.count * 2);
		assert_true(m.values != NULL && base != NULL && want != NULL);
		rng_fill(&r, m.values, m.count * 2);
		rng_fill(&r, base, (size_t)2 * NUMEL);
		memcpy(want, base, (size_t)2 * NUMEL);
		model_apply(&m, want);
		p = written(&m, &mem);
		assert_int_equal(p.version, 2);
		for (uint64_t off = 0; off < NUMEL; off += 5003)
			compare(&p, base, want, 2 * off, (size_t)MIN(9001, 2 * (NUMEL - off)));
		model_free(&m);
		free(base);
		free(want);
		free(mem.bytes);
	}
}

/* ---- blocks that are not what they should be ---- */

enum { ELEMENTS = 3000, RANKS = DIR + 16, BITMAP = RANKS + PATCH_BITS_RANKS };

static const struct damage {
	const char *sentence;
	uint32_t at, bytes;
	uint64_t value;
} damages[] = {
	{"rank 1 is not the number", RANKS + 2, 2, 1},
	{"rank 0 is not the number", RANKS, 2, 9},
	{"rank 3 is not the number", RANKS + 6, 2, 1},
	{"rank 63 is not the number", RANKS + 126, 2, 65535},
	{"its bitmap has others", BITMAP + 46 * 8, 8, UINT64_MAX},
	{"its bitmap has others", BITMAP + 46 * 8, 8, 0},
	{"rank 1 is not the number", BITMAP, 8, UINT64_MAX},
	{"rank 1 is not the number", BITMAP, 8, 0},
	{"unknown form 3", 4, 1, 0},
	{"unknown form 2", DIR + 7, 1, 4},
	{"bytes of payload instead of", DIR + 5, 1, 1},
};

/* All that reads a blob, with every kernel; the results do not matter. */
static void survive(const uint8_t *blob, size_t len)
{
	for (size_t k = 0; k < ARRAY_LEN(kernel_names); k++) {
		static const size_t offsets[] = {0, 0, 7 * 64, 1000, 2 * ELEMENTS - 9, 2560};
		static const size_t lengths[] = {2 * ELEMENTS, 333, 4096, 64, 9, 2};
		struct memory mem = {0};
		struct sink sink = memory_sink(&mem);
		static uint64_t positions[ELEMENTS * 2];
		struct patch p;
		const struct patch *twice[] = {&p, &p};
		uint64_t merged;
		size_t count;

		if (patch_open(blob, len, &p, NULL) < 0 || patch_kernel(kernel_names[k]) == NULL)
			continue;
		p.kernel = patch_kernel(kernel_names[k]);
		for (size_t i = 0; i < ARRAY_LEN(offsets); i++) {
			uint8_t *dst = calloc(1, lengths[i]);

			assert_non_null(dst);
			patch_prefetch(&p, offsets[i], lengths[i]);
			patch_cost(&p, offsets[i], lengths[i]);
			assert_true(patch_apply(&p, offsets[i], dst, lengths[i]) <= 0);
			free(dst);
		}
		assert_true(patch_merge(twice, 2, &sink, 0, &merged, NULL, NULL) <= 0);
		assert_true(trl_positions(&p, 0, positions, &count) <= 0);
		free(mem.bytes);
	}
}

static void test_each_damage_has_its_sentence(void **state)
{
	for (size_t o = 0; o < ARRAY_LEN(ops); o++)
		for (size_t i = 0; i < ARRAY_LEN(damages); i++) {
			const struct damage *d = &damages[i];
			struct rng r = {13};
			struct model m = model_random(&r, ops[o], 2, ELEMENTS, .5);
			struct memory mem = {0};
			struct patch p = written(&m, &mem);
			uint8_t *blob = malloc(mem.len), value[8];
			struct why why = {0};

			assert_true(blob != NULL && p.version == 2);
			memcpy(blob, mem.bytes, mem.len);
			store_le64(value, d->value);
			memcpy(blob + d->at, value, d->bytes);
			assert_int_equal(patch_open(blob, mem.len, &p, &why), 0);
			assert_int_equal(patch_check(&p, &why), -EBADMSG);
			if (strstr(why.text, d->sentence) == NULL)
				fail_msg("damage %zu: \"%s\"", i, why.text);
			survive(blob, mem.len);
			free(blob);
			free(mem.bytes);
			model_free(&m);
		}
}

/* More ones than values are an error, and nothing behind the last value is read. */
static void test_too_many_ones(void **state)
{
	for (size_t w = 0; w < ARRAY_LEN(widths); w++) {
		struct rng r = {14};
		struct model m = model_random(&r, PATCH_XOR, widths[w], 4096, .5);
		struct memory mem = {0};
		struct patch p = written(&m, &mem);
		uint8_t *blob = malloc(mem.len), *dst = calloc(4096, widths[w]);

		assert_true(blob != NULL && dst != NULL && p.version == 2);
		memcpy(blob, mem.bytes, mem.len);
		memset(blob + BITMAP, 0xff, 4096 / 8);
		for (size_t k = 0; k < ARRAY_LEN(kernel_names); k++) {
			assert_int_equal(patch_open(blob, mem.len, &p, NULL), 0);
			p.kernel = patch_kernel(kernel_names[k]);
			if (p.kernel == NULL)
				continue;
			assert_int_equal(patch_apply(&p, 0, dst, (size_t)4096 * widths[w]),
					 -EBADMSG);
			assert_int_equal(patch_apply(&p, (uint64_t)4000 * widths[w], dst,
						     (size_t)60 * widths[w]),
					 -EBADMSG);
		}
		free(blob);
		free(dst);
		free(mem.bytes);
		model_free(&m);
	}
}

/* ---- others that read blocks ---- */

/* Into one patch with others, also where that is not of one operation. */
static void test_merges(void **state)
{
	enum { NUMEL = 65536 + 300, K = 3 };
	static const double densities[K] = {.3, .01, .4};
	struct rng r = {15};

	for (size_t n = 0; n < 16; n++) {
		const unsigned width = widths[n % 4];
		const bool mixed = n >= 12;
		const size_t size = (size_t)NUMEL * width;
		uint8_t *got = malloc(size), *want = malloc(size);
		struct memory mems[K] = {0}, out = {0};
		struct sink sink = memory_sink(&out);
		const struct patch *views[K];
		struct patch patches[K], merged;
		uint64_t len;
		struct why why = {0};

		assert_true(got != NULL && want != NULL);
		rng_fill(&r, got, size);
		memcpy(want, got, size);
		for (size_t i = 0; i < K; i++) {
			/* mixed: all elements are set before some are added to */
			enum patch_op op = mixed ? (i == 0 ? PATCH_SET : PATCH_ADD) : ops[n / 4];
			struct model m = model_random(&r, op, width, NUMEL,
						      mixed && i == 0 ? 1 : densities[i]);

			patches[i] = written(&m, &mems[i]);
			views[i] = &patches[i];
			model_apply(&m, want);
			model_free(&m);
		}
		if (patch_merge(views, K, &sink, 0, &len, NULL, &why) < 0)
			fail_msg("%s", why.text);
		assert_int_equal(patch_open(out.bytes, len, &merged, &why), 0);
		assert_int_equal(patch_check(&merged, &why), 0);
		assert_int_equal(patch_apply(&merged, 0, got, size), 0);
		assert_memory_equal(got, want, size);
		for (size_t i = 0; i < K; i++)
			free(mems[i].bytes);
		free(out.bytes);
		free(got);
		free(want);
	}
}

static void test_positions(void **state)
{
	static uint64_t positions[PATCH_BLOCK];
	struct rng r = {16};
	struct model m = model_random(&r, PATCH_SET, 2, PATCH_BLOCK + 70000, .4);
	struct memory mem = {0};
	struct patch p = written(&m, &mem);
	size_t at = 0, count;

	assert_int_equal(p.version, 2);
	for (uint64_t b = 0; b < p.blocks; b++, at += count) {
		assert_int_equal(trl_positions(&p, b, positions, &count), 0);
		assert_true(count <= m.count - at);
		assert_memory_equal(positions, m.positions + at, 8 * count);
	}
	assert_int_equal(at, m.count);
	model_free(&m);
	free(mem.bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kernels_agree),
		cmocka_unit_test(test_uneven),
		cmocka_unit_test(test_each_damage_has_its_sentence),
		cmocka_unit_test(test_too_many_ones),
		cmocka_unit_test(test_merges),
		cmocka_unit_test(test_positions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
