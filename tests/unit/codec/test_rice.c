/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Rice form against the naive model: every kernel this CPU has, every operation and width, from
 * no element to all of them, ranges that begin and end anywhere.  Kernels have to give the same
 * bytes.  Merging, hashes and the sizes that the form promises.  Malformed blobs are in
 * test_rice_bad.c, diff in test_diff.c.
 */
#include "codec/patch.h"
#include "codec/rice.h"
#include "tests/unit/codec/rice_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>
#include <xxhash.h>

static const uint64_t seed = 20250301;

static struct patch open_checked(const struct memory *mem, uint64_t at, uint64_t len)
{
	struct patch p;
	struct why why = {0};

	if (patch_open(mem->bytes + at, len, &p, &why) < 0 || patch_check(&p, &why) < 0)
		fail_msg("%s", why.text);
	assert_int_equal(p.version, 1);
	return p;
}

static void compare_range(const struct patch *p, const uint8_t *base, const uint8_t *want,
			  uint64_t off, size_t len)
{
	uint8_t *got = malloc(MAX(len, (size_t)1));
	int ret;

	assert_non_null(got);
	memcpy(got, base + off, len);
	patch_prefetch(p, off, len);
	ret = patch_apply(p, off, got, len);
	if (p->op == PATCH_ADD && off % p->width != 0)
		CHECK(ret == -EINVAL, "ADD at offset %llu gave %d", (unsigned long long)off, ret);
	else
		CHECK(ret == 0 && memcmp(got, want + off, len) == 0,
		      "%s: op %u width %u numel %llu range %llu + %zu: %s",
		      patch_kernel_name(p->kernel), p->op, p->width, (unsigned long long)p->numel,
		      (unsigned long long)off, len, ret == 0 ? "bytes differ" : "error");
	free(got);
}

static void compare_ranges(struct rng *r, const struct patch *p, const uint8_t *base,
			   const uint8_t *want)
{
	const size_t size = (size_t)(p->numel * p->width);
	const uint64_t block = (uint64_t)PATCH_BLOCK * p->width;

	compare_range(p, base, want, 0, size);
	for (int i = 0; i < 8; i++) {
		uint64_t off = rng_below(r, size + 1), most;

		if (i % 3 == 0 && size > block) /* near a block's boundary */
			off = MIN(block - 12 + rng_below(r, 24), size);
		if (i % 4 == 0)
			off = off / p->width * p->width;
		most = size - off;
		compare_range(p, base, want, off,
			      (size_t)rng_below(r, MIN(most, i % 2 ? 20u : most) + 1));
	}
}

static void one_case(struct rng *r, enum patch_op op, unsigned width, uint64_t numel,
		     double density, enum values kind)
{
	struct model model = model_of_kind(r, op, width, numel, density, kind);
	size_t size = (size_t)numel * width;
	uint8_t *base = malloc(size + 1), *want = malloc(size + 1);
	struct memory first = {0};
	uint64_t first_len = 0;

	assert_true(base != NULL && want != NULL);
	rng_fill(r, base, size);
	memcpy(want, base, size);
	model_apply(&model, want);
	for (size_t k = 0; k < ARRAY_LEN(kernel_names); k++) {
		const struct rice_kernel *kernel = patch_kernel(kernel_names[k]);
		uint64_t at = 8 * rng_below(r, 3), len;
		struct memory mem = {0};
		struct patch p;

		if (kernel == NULL)
			continue;
		len = model_write_rice(&model, r, &mem, at, kernel);
		assert_int_equal(len, mem.len - at);
		assert_true(len % 8 == 0 && len <= patch_bound_rice(width, numel, model.count));
		if (first.bytes == NULL) {
			assert_int_equal(memory_write(&first, 0, mem.bytes + at, (size_t)len), 0);
			first_len = len;
		}
		CHECK(len == first_len && memcmp(first.bytes, mem.bytes + at, (size_t)len) == 0,
		      "%s gives other bytes: op %u width %u numel %llu density %f", kernel_names[k],
		      op, width, (unsigned long long)numel, density);
		p = open_checked(&mem, at, len);
		p.kernel = kernel;
		assert_true(p.numel == numel && p.changed >= model.count);
		compare_ranges(r, &p, base, want);
		assert_true(patch_cost(&p, 0, size) <= len + 64 * 4 * (p.blocks + 1));
		assert_true(model.count == 0 || patch_cost(&p, 0, size) > 0);
		free(mem.bytes);
	}
	model_free(&model);
	free(base);
	free(want);
	free(first.bytes);
}

static void test_against_model(void **state)
{
	static const double densities[] = {0, -1, .0001, .01, .2, .49, .51, .9, .999, 1};
	static const uint64_t numels[] = {0, 1, 7, 100, 2047, 2049, 65536, 65536 + 777};
	struct rng r = {seed};
	unsigned n = 0;

	for (size_t o = 0; o < ARRAY_LEN(ops); o++)
		for (size_t w = 0; w < ARRAY_LEN(widths); w++)
			for (size_t d = 0; d < ARRAY_LEN(densities); d++)
				for (size_t i = 0; i < ARRAY_LEN(numels); i++)
					one_case(&r, ops[o], widths[w], numels[i], densities[d],
						 (enum values)(n++ % VALUES_KINDS));
}

/* Gaps that are all alike, or one huge one, or all in a corner: parameters from 0 to 15. */
static void test_odd_gaps(void **state)
{
	static const uint32_t strides[] = {1, 2, 3, 64, 1000, 9000, 30000, 65535};
	struct rng r = {seed + 1};

	for (size_t s = 0; s < ARRAY_LEN(strides); s++) {
		for (uint32_t first = 0; first < 65536; first += 65535) {
			struct model m = model_random(&r, PATCH_ADD, 2, 65536, 0);
			uint8_t *base = calloc(2, 65536), *want = calloc(2, 65536);

			assert_true(base != NULL && want != NULL);
			for (uint64_t at = first; at < 65536 && m.count < 5000; at += strides[s])
				m.positions[m.count++] = at;
			model_values(&r, &m, VALUES_STEPS);
			model_apply(&m, want);
			for (size_t k = 0; k < ARRAY_LEN(kernel_names); k++) {
				struct memory mem = {0};
				const struct rice_kernel *kernel = patch_kernel(kernel_names[k]);
				struct patch p;

				if (kernel == NULL)
					continue;
				p = open_checked(&mem, 0,
						 model_write_rice(&m, &r, &mem, 0, kernel));
				p.kernel = kernel;
				compare_ranges(&r, &p, base, want);
				free(mem.bytes);
			}
			free(base);
			free(want);
			model_free(&m);
		}
	}
}

/* A block alone through rice.h, every parameter by way of the number of elements, and the payload
 * at the very end of its buffer. */
static void test_payload_at_the_end(void **state)
{
	static uint8_t positions[2 * (PATCH_BLOCK + RICE_SLACK)];
	static uint8_t values[2 * (PATCH_BLOCK + RICE_SLACK)];
	struct rng r = {seed + 2};

	for (uint32_t count = 1; count < 4000; count += 1 + count / 3) {
		const uint32_t elements = 65536;
		uint32_t step = elements / count;

		for (uint32_t i = 0; i < count; i++) {
			store_le16(positions + 2 * i, (uint16_t)(i * step + rng_below(&r, step)));
			store_le16(values + 2 * i, (uint16_t)(rng_below(&r, 41) - 20));
		}
		for (size_t k = 0; k < ARRAY_LEN(kernel_names); k++) {
			const struct rice_kernel *kernel = patch_kernel(kernel_names[k]);
			struct rice_encoder *e;
			struct rice_reader reader;
			uint8_t *code, *exact;
			uint32_t seen = 0;
			size_t len;
			int n;

			if (kernel == NULL)
				continue;
			e = rice_encoder_new(kernel);
			assert_non_null(e);
			len = rice_plan(e, PATCH_ADD, 2, positions, values, count, elements);
			code = malloc(len + 8);
			exact = malloc(len);
			assert_true(code != NULL && exact != NULL);
			rice_write(e, code);
			memcpy(exact, code, len);
			assert_int_equal(
				rice_check(kernel, exact, len, PATCH_ADD, 2, count, elements, NULL),
				0);
			assert_int_equal(rice_open(&reader, kernel, exact, len, PATCH_ADD, 2, count,
						   elements),
					 0);
			while ((n = rice_next(&reader)) > 0) {
				assert_memory_equal(reader.positions, positions + 2 * seen,
						    2 * (size_t)n);
				assert_memory_equal(reader.values, values + 2 * seen,
						    2 * (size_t)n);
				seen += (uint32_t)n;
			}
			assert_int_equal(n, 0);
			assert_int_equal(seen, count);
			rice_encoder_free(e);
			free(code);
			free(exact);
		}
	}
}

/* ---- what it promises ---- */

static uint64_t length_of(struct rng *r, uint64_t numel, double density, enum values kind,
			  size_t *out_count)
{
	struct model m = model_of_kind(r, PATCH_ADD, 2, numel, density, kind);
	struct memory mem = {0};
	uint64_t len = model_write_rice(&m, r, &mem, 0, NULL);

	assert_true(len > 0);
	*out_count = m.count;
	model_free(&m);
	free(mem.bytes);
	return len;
}

/* The entropy of positions at that density and of VALUES_STEPS (1.9 bits and 0.3 for its tail), and
 * about a twentieth more. */
static void test_sizes(void **state)
{
	static const struct {
		double density, bits; /* at most that many for each changed element */
	} cases[] = {{.0005, 17.5}, {.002, 14}, {.01, 10.8}, {.02, 9.8}, {.3, 5.4}, {.9, 3.2}};
	struct rng r = {seed + 3};
	size_t count;

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		double bits = 8.0 * (double)length_of(&r, 40 * 65536, cases[i].density,
						      VALUES_STEPS, &count);

		CHECK(bits / (double)count <= cases[i].bits, "%f bits at %f", bits / (double)count,
		      cases[i].density);
	}
	/* nothing at all, and one element in a thousand blocks: two bits for each */
	assert_int_equal(length_of(&r, 65536 * 1024, 0, VALUES_STEPS, &count), 32 + 16 * 16);
	assert_true(length_of(&r, 65536 * 1024, -1, VALUES_STEPS, &count) <= 32 + 16 * 16 + 24);
}

static void test_each_form_is_used(void **state)
{
	struct rng r = {seed + 4};
	struct model m = model_random(&r, PATCH_ADD, 8, 4 * 65536, 0);
	struct memory mem = {0};
	struct patch p;
	bool seen[3] = {false};

	/* block 0 sparse and small, block 1 every one and random, block 2 nothing, block 3 dense
	 * and small */
	for (uint64_t i = 0; i < 4 * 65536; i++) {
		bool in = i >> 16 == 0 ? i % 97 == 0 : i >> 16 == 1 || (i >> 16 == 3 && i % 9 != 0);

		if (in) {
			store_le64(m.values + 8 * m.count, i >> 16 == 1 ? rng_next(&r) : 1);
			m.positions[m.count++] = i;
		}
	}
	p = open_checked(&mem, 0, model_write_rice(&m, &r, &mem, 0, NULL));
	assert_int_equal(p.listed, 3);
	assert_int_equal(p.length_size, 4);
	for (uint64_t b = 0; b < 4; b++) {
		static const unsigned forms[] = {PATCH_RICE, PATCH_DENSE, PATCH_RAW, PATCH_RICE};
		uint8_t head;

		if (b == 2)
			continue;
		/* the lengths say where each begins */
		head = p.payload[b == 0	  ? 0
				 : b == 1 ? load_le32(p.lengths)
					  : load_le32(p.lengths) + load_le32(p.lengths + 4)];
		seen[head & 3] = true;
		assert_true((head & 3) == forms[b] || (b == 1 && (head & 3) == PATCH_RICE));
	}
	assert_true(seen[PATCH_RICE]);
	model_free(&m);
	free(mem.bytes);
}

static void test_writer_lifetimes(void **state)
{
	struct memory mem = {0};
	struct sink sink = memory_sink(&mem);
	struct patch_writer *w = patch_writer_new(PATCH_XOR, 4, 70000, &sink, 0);
	uint64_t len, changed;

	assert_non_null(w);
	assert_int_equal(patch_writer_rice(w, NULL, false, NULL), 0);
	patch_writer_free(w); /* abandoned */
	assert_int_equal(mem.writes, 0);

	w = patch_writer_new(PATCH_XOR, 4, 70000, &sink, 0);
	assert_non_null(w);
	assert_int_equal(patch_writer_rice(w, patch_kernel("portable"), false, NULL), 0);
	assert_int_equal(patch_writer_rice(w, patch_kernel(NULL), false, NULL), 0);
	assert_int_equal(patch_writer_end(w, &len, &changed, NULL), 0);
	assert_int_equal(len, 32 + 16);
	assert_int_equal(changed, 0);
	patch_writer_free(w);
	free(mem.bytes);
}

static void test_kernels_by_name(void **state)
{
	assert_non_null(patch_kernel(NULL));
	assert_non_null(patch_kernel("portable"));
	assert_null(patch_kernel("fastest"));
	assert_null(patch_kernel(""));
	for (size_t k = 0; k < ARRAY_LEN(kernel_names); k++) {
		const struct rice_kernel *kernel = patch_kernel(kernel_names[k]);

		if (kernel != NULL)
			assert_string_equal(patch_kernel_name(kernel), kernel_names[k]);
	}
}

/* ---- hashes ---- */

static void test_hashes(void **state)
{
	enum { NUMEL = 3 * 65536 + 100 };
	struct rng r = {seed + 5};
	struct memory mem = {0};
	struct sink sink = memory_sink(&mem);
	uint8_t *tensor = calloc(2, NUMEL);
	struct patch_writer *w = patch_writer_new(PATCH_ADD, 2, NUMEL, &sink, 0);
	const uint64_t positions[] = {5, 65536 * 3 + 99};
	const uint16_t values[] = {1, 0xffff};
	struct why why = {0};
	struct patch p;
	uint64_t len;

	assert_true(tensor != NULL && w != NULL);
	rng_fill(&r, tensor, 2 * NUMEL);
	assert_int_equal(patch_writer_rice(w, NULL, true, NULL), 0);
	for (int i = 0; i < 2; i++) {
		uint64_t block = positions[i] >> 16;
		uint8_t *at = tensor + 2 * positions[i];

		store_le16(at, (uint16_t)(load_le16(at) + values[i]));
		assert_int_equal(patch_writer_add(w, &positions[i], &values[i], 1, NULL), 0);
		patch_writer_hash(w, block,
				  XXH3_64bits(tensor + 2 * 65536 * block, i ? 200 : 2 * 65536));
	}
	assert_int_equal(patch_writer_end(w, &len, NULL, NULL), 0);
	patch_writer_free(w);
	p = open_checked(&mem, 0, len);
	assert_non_null(p.hashes);
	assert_int_equal(patch_check_result(&p, 0, tensor, &why), 0);
	assert_int_equal(patch_check_result(&p, 3, tensor + 6 * 65536, &why), 0);
	assert_int_equal(patch_check_result(&p, 1, tensor, &why), -ENODATA);
	assert_int_equal(patch_check_result(&p, 77, tensor, &why), -ENODATA);
	tensor[100] ^= 1;
	assert_int_equal(patch_check_result(&p, 0, tensor, &why), -EBADMSG);
	assert_non_null(strstr(why.text, "block 0 of the tensor does not have the hash"));
	free(mem.bytes);
	memset(&mem, 0, sizeof(mem));

	/* a block without one */
	w = patch_writer_new(PATCH_ADD, 2, NUMEL, &sink, 0);
	assert_non_null(w);
	assert_int_equal(patch_writer_rice(w, NULL, true, NULL), 0);
	patch_writer_hash(w, 1, 7);
	assert_int_equal(patch_writer_add(w, positions, values, 1, NULL), 0);
	assert_int_equal(patch_writer_end(w, &len, NULL, &why), -EINVAL);
	assert_non_null(strstr(why.text, "no hash for its block 0"));
	patch_writer_free(w);
	free(mem.bytes);
	free(tensor);
}

/* ---- merge ---- */

static void test_merge_of_any_coding(void **state)
{
	enum { K = 5, NUMEL = 65536 + 3000 };
	static const double densities[] = {.01, -1, .6, .05, 0};
	struct rng r = {seed + 6};

	for (size_t n = 0; n < ARRAY_LEN(ops) * ARRAY_LEN(widths) * 2; n++) {
		const unsigned width = widths[n % 4];
		const size_t size = (size_t)NUMEL * width;
		struct memory mems[K] = {0}, out = {0};
		struct sink sink = memory_sink(&out);
		uint8_t *got = malloc(size), *want = malloc(size);
		struct patch patches[K], merged;
		const struct patch *views[K];
		uint64_t len, changed;
		struct why why = {0};

		assert_true(got != NULL && want != NULL);
		rng_fill(&r, got, size);
		memcpy(want, got, size);
		for (size_t i = 0; i < K; i++) {
			struct model m = model_of_kind(&r, ops[n / 4 % 3], width, NUMEL,
						       densities[(i + n) % K],
						       (enum values)(i % VALUES_KINDS));

			if (i % 2) /* some of them in version 0 */
				len = model_write(&m, &r, &mems[i], 0);
			else
				len = model_write_rice(&m, &r, &mems[i], 0,
						       patch_kernel("portable"));
			assert_int_equal(patch_open(mems[i].bytes, len, &patches[i], &why), 0);
			model_apply(&m, want);
			model_free(&m);
			views[i] = &patches[i];
		}
		assert_int_equal(patch_merge_as(n % 2 ? PATCH_CODING_RICE : PATCH_CODING_RAW, views,
						K, &sink, 8, &len, &changed, &why),
				 0);
		assert_int_equal(patch_open(out.bytes + 8, len, &merged, &why), 0);
		assert_int_equal(patch_check(&merged, &why), 0);
		assert_int_equal(merged.version == 1, n % 2);
		assert_int_equal(merged.changed, changed);
		assert_int_equal(patch_apply(&merged, 0, got, size), 0);
		CHECK(memcmp(got, want, size) == 0, "merge, case %zu", n);
		for (size_t i = 0; i < K; i++)
			free(mems[i].bytes);
		free(out.bytes);
		free(got);
		free(want);
	}
}

static void test_merge_keeps_hashes(void **state)
{
	static const uint64_t positions[2][2] = {{1, 65536}, {2, 200000}};
	static const uint8_t values[] = {1, 1};
	struct memory mems[2] = {0}, out = {0};
	struct sink sinks[2] = {memory_sink(&mems[0]), memory_sink(&mems[1])};
	struct sink sink = memory_sink(&out);
	struct patch patches[2], merged;
	const struct patch *views[] = {&patches[0], &patches[1]};
	uint8_t *tensor = calloc(1, 4 * 65536);
	uint64_t len;

	assert_non_null(tensor);
	for (int i = 0; i < 2; i++) {
		struct patch_writer *w = patch_writer_new(PATCH_ADD, 1, 4 * 65536, &sinks[i], 0);

		assert_non_null(w);
		assert_int_equal(patch_writer_rice(w, NULL, true, NULL), 0);
		for (int j = 0; j < 2; j++) {
			uint64_t block = positions[i][j] >> 16;

			tensor[positions[i][j]]++;
			assert_int_equal(patch_writer_add(w, &positions[i][j], values, 1, NULL), 0);
			patch_writer_hash(w, block, XXH3_64bits(tensor + 65536 * block, 65536));
		}
		assert_int_equal(patch_writer_end(w, &len, NULL, NULL), 0);
		patch_writer_free(w);
		patches[i] = open_checked(&mems[i], 0, len);
	}
	assert_int_equal(patch_merge_as(PATCH_CODING_RICE, views, 2, &sink, 0, &len, NULL, NULL),
			 0);
	merged = open_checked(&out, 0, len);
	assert_non_null(merged.hashes);
	for (uint64_t b = 0; b < 4; b++)
		assert_int_equal(patch_check_result(&merged, b, tensor + 65536 * b, NULL),
				 b == 2 ? -ENODATA : 0);
	for (int i = 0; i < 2; i++)
		free(mems[i].bytes);
	free(out.bytes);
	free(tensor);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_against_model),
		cmocka_unit_test(test_odd_gaps),
		cmocka_unit_test(test_payload_at_the_end),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_each_form_is_used),
		cmocka_unit_test(test_writer_lifetimes),
		cmocka_unit_test(test_kernels_by_name),
		cmocka_unit_test(test_hashes),
		cmocka_unit_test(test_merge_of_any_coding),
		cmocka_unit_test(test_merge_keeps_hashes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
