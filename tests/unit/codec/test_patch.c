/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The patch form against a naive model, for every operation and width, sparse to dense, over
 * ranges that begin and end anywhere; merging against applying one after the other; and the
 * writer's refusals.  Malformed blobs are in test_patch_bad.c.
 *
 * Everything random comes from the seed that is printed when a case fails.
 */
#include "tests/unit/codec/patch_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

static const uint64_t seed = 20240601;

static struct patch open_checked(const struct memory *mem, uint64_t at, uint64_t len)
{
	struct patch p;
	struct why why = {0};

	if (patch_open(mem->bytes + at, len, &p, &why) < 0 || patch_check(&p, &why) < 0)
		fail_msg("%s", why.text);
	return p;
}

/* Applies p to [off, off + len) of base in a buffer of exactly that size and compares. */
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
		      "op %u width %u numel %llu range %llu + %zu: %s", p->op, p->width,
		      (unsigned long long)p->numel, (unsigned long long)off, len,
		      ret == 0 ? "bytes differ" : "error");
	free(got);
}

static void one_case(struct rng *r, enum patch_op op, unsigned width, uint64_t numel,
		     double density)
{
	struct model model = model_random(r, op, width, numel, density);
	size_t size = (size_t)numel * width;
	uint8_t *base = malloc(size + 1), *want = malloc(size + 1);
	struct memory mem = {0};
	uint64_t at = 8 * rng_below(r, 3), len = model_write(&model, r, &mem, at);
	struct patch p = open_checked(&mem, at, len);

	assert_true(base != NULL && want != NULL);
	assert_int_equal(len, mem.len - at);
	assert_true(len % 8 == 0 && len <= patch_bound(width, numel, model.count));
	assert_true(p.numel == numel && p.changed >= model.count);
	rng_fill(r, base, size);
	memcpy(want, base, size);
	model_apply(&model, want);
	compare_range(&p, base, want, 0, size);
	assert_int_equal(patch_cost(&p, 0, size),
			 numel == 0 ? 0 : 8 * (p.blocks + 1) + p.payload_len);
	for (int i = 0; i < 24; i++) {
		uint64_t off = rng_below(r, size + 1), most = size - off;
		uint64_t block = (uint64_t)PATCH_BLOCK * width;

		if (i % 3 == 0 && size > block) /* near a block's boundary */
			off = MIN(block - 12 + rng_below(r, 24), size);
		if (i % 4 == 0)
			off = off / width * width;
		most = size - off;
		compare_range(&p, base, want, off,
			      (size_t)rng_below(r, MIN(most, i % 2 ? 20u : most) + 1));
	}
	model_free(&model);
	free(base);
	free(want);
	free(mem.bytes);
}

static void test_against_model(void **state)
{
	static const double densities[] = {0, -1, .0001, .01, .3, .7, 1};
	static const uint64_t numels[] = {0, 1, 7, 1000, 65536, 2 * 65536 + 777};
	struct rng r = {seed};

	for (size_t o = 0; o < ARRAY_LEN(ops); o++)
		for (size_t w = 0; w < ARRAY_LEN(widths); w++)
			for (size_t d = 0; d < ARRAY_LEN(densities); d++)
				for (size_t n = 0; n < ARRAY_LEN(numels); n++)
					one_case(&r, ops[o], widths[w], numels[n], densities[d]);
}

/* Every range of a small tensor whose ends cut elements. */
static void test_all_small_ranges(void **state)
{
	struct rng r = {seed + 1};

	for (size_t o = 0; o < ARRAY_LEN(ops); o++) {
		for (size_t w = 0; w < ARRAY_LEN(widths); w++) {
			struct model model = model_random(&r, ops[o], widths[w], 6, .6);
			size_t size = 6 * widths[w];
			uint8_t base[48], want[48];
			struct memory mem = {0};
			struct patch p;

			p = open_checked(&mem, 0, model_write(&model, &r, &mem, 0));
			rng_fill(&r, base, size);
			memcpy(want, base, size);
			model_apply(&model, want);
			for (size_t off = 0; off <= size; off++)
				for (size_t len = 0; len <= size - off; len++)
					compare_range(&p, base, want, off, len);
			model_free(&model);
			free(mem.bytes);
		}
	}
}

static void test_beyond_four_billion_elements(void **state)
{
	const uint64_t numel = (UINT64_C(1) << 33) + 5;
	const uint64_t positions[] = {3, UINT64_C(1) << 32, numel - 3, numel - 1};
	const uint16_t values[] = {1, 2, 3, 4};
	struct memory mem = {0};
	struct sink sink = memory_sink(&mem);
	struct patch_writer *w = patch_writer_new(PATCH_ADD, 2, numel, &sink, 0);
	uint16_t got[5] = {10, 10, 10, 10, 10};
	uint64_t len, changed;
	struct patch p;

	assert_non_null(w);
	assert_int_equal(patch_writer_add(w, positions, values, 4, NULL), 0);
	assert_int_equal(patch_writer_end(w, &len, &changed, NULL), 0);
	patch_writer_free(w);
	assert_int_equal(changed, 4);
	p = open_checked(&mem, 0, len);
	assert_int_equal(patch_apply(&p, (numel - 5) * 2, got, 10), 0);
	assert_memory_equal(got, ((uint16_t[]){10, 10, 13, 10, 14}), 10);
	assert_int_equal(patch_apply(&p, UINT64_C(1) << 33, got, 2), 0);
	assert_int_equal(got[0], 12);
	assert_int_equal(patch_apply(&p, (numel - 5) * 2, got, 11), -EBADMSG);
	assert_int_equal(patch_apply(&p, UINT64_MAX - 1, got, 2), -EBADMSG);
	free(mem.bytes);
}

static void test_writer_refuses(void **state)
{
	static const struct {
		uint64_t positions[3];
		const char *sentence;
	} cases[] = {
		{{0, 5, 5}, "position 5 follows position 5"},
		{{0, 5, 4}, "position 4 follows position 5"},
		{{0, 70000, 65000}, "position 65000 follows position 70000"},
		{{0, 1, 100000}, "position 100000 is beyond the tensor's 100000 elements"},
		{{0, 1, UINT64_MAX}, "beyond the tensor's"},
	};
	struct memory mem = {0};
	struct sink sink = memory_sink(&mem);

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		for (size_t first = 0; first < 3; first++) { /* in one call and in two */
			struct patch_writer *w = patch_writer_new(PATCH_SET, 1, 100000, &sink, 0);
			struct why why = {0};
			int ret;

			assert_non_null(w);
			ret = patch_writer_add(w, cases[i].positions, "abc", first, &why);
			assert_int_equal(ret, 0);
			ret = patch_writer_add(w, cases[i].positions + first, "abc", 3 - first,
					       &why);
			assert_int_equal(ret, -EBADMSG);
			assert_non_null(strstr(why.text, cases[i].sentence));
			patch_writer_free(w);
		}
	}
	free(mem.bytes);
}

static void test_sink_errors_are_passed_on(void **state)
{
	struct rng r = {seed + 2};
	struct model model = model_random(&r, PATCH_XOR, 8, 3 * 65536, 1);
	unsigned failures = 0;

	for (unsigned at = 1; at < 8; at++) {
		struct memory mem = {.fail_at = at, .error = ENOSPC};
		struct sink sink = memory_sink(&mem);
		struct patch_writer *w = patch_writer_new(PATCH_XOR, 8, model.numel, &sink, 0);
		struct why why = {0};
		uint64_t len = 77;
		int ret;

		assert_non_null(w);
		ret = patch_writer_add(w, model.positions, model.values, model.count, &why);
		if (ret == 0)
			ret = patch_writer_end(w, &len, NULL, &why);
		failures += ret != 0;
		assert_int_equal(ret, mem.writes >= at ? -ENOSPC : 0);
		if (ret != 0)
			assert_int_equal(len, 77);
		patch_writer_free(w);
		free(mem.bytes);
	}
	assert_true(failures >= 4);
	model_free(&model);
}

static void test_bound(void **state)
{
	assert_int_equal(patch_bound(2, 0, 0), 40);
	assert_int_equal(patch_bound(2, 65537, 1), 64);
	assert_int_equal(patch_bound(1, 10, 1000), 32 + 16 + 32);
	assert_int_equal(patch_bound(8, UINT64_MAX, UINT64_MAX), UINT64_MAX);
}

/* ---- merge ---- */

struct stack {
	struct model models[6];
	struct memory mems[6];
	struct patch patches[6];
	const struct patch *views[6];
	size_t k;
};

static void stack_push(struct stack *s, struct rng *r, struct model model)
{
	size_t i = s->k++;
	uint64_t len;

	s->models[i] = model;
	len = model_write(&model, r, &s->mems[i], 0);
	s->patches[i] = open_checked(&s->mems[i], 0, len);
	s->views[i] = &s->patches[i];
}

static void stack_free(struct stack *s)
{
	for (size_t i = 0; i < s->k; i++) {
		model_free(&s->models[i]);
		free(s->mems[i].bytes);
	}
}

/* Merges and compares with one after the other; returns what patch_merge() does. */
static int compare_merge(struct stack *s, struct rng *r)
{
	const struct patch *first = s->views[0];
	size_t size = (size_t)first->numel * first->width;
	uint8_t *got = malloc(size + 1), *want = malloc(size + 1);
	struct memory mem = {0};
	struct sink sink = memory_sink(&mem);
	uint64_t len = 1, changed = 1;
	struct why why = {0};
	int ret = patch_merge(s->views, s->k, &sink, 16, &len, &changed, &why);

	assert_true(got != NULL && want != NULL);
	rng_fill(r, got, size);
	memcpy(want, got, size);
	for (size_t i = 0; i < s->k; i++)
		assert_int_equal(patch_apply(s->views[i], 0, want, size), 0);
	if (ret == 0 && len > 0) {
		struct patch p = open_checked(&mem, 16, len);

		assert_int_equal(p.changed, changed);
		assert_true(changed > 0);
		assert_int_equal(patch_apply(&p, 0, got, size), 0);
	}
	if (ret == 0)
		CHECK(memcmp(got, want, size) == 0, "merge of %zu, width %u", s->k, first->width);
	if (ret == 0 && len == 0)
		assert_true(mem.writes == 0 && changed == 0);
	if (ret < 0)
		assert_true(why.text[0] != '\0' && why.err == -ret);
	free(got);
	free(want);
	free(mem.bytes);
	return ret;
}

static void test_merge_of_one_operation(void **state)
{
	static const double densities[] = {0, -1, .001, .05, .5, 1};
	struct rng r = {seed + 3};

	for (size_t o = 0; o < ARRAY_LEN(ops); o++) {
		for (size_t w = 0; w < ARRAY_LEN(widths); w++) {
			for (size_t d = 0; d < ARRAY_LEN(densities); d++) {
				struct stack s = {0};
				size_t k = 1 + (size_t)rng_below(&r, 5);

				while (s.k < k)
					stack_push(&s, &r,
						   model_random(&r, ops[o], widths[w], 65536 + 333,
								densities[(d + s.k) % 6]));
				assert_int_equal(compare_merge(&s, &r), 0);
				stack_free(&s);
			}
		}
	}
}

static void test_merge_of_any_operations(void **state)
{
	struct rng r = {seed + 4};
	unsigned merged = 0, refused = 0;

	for (int i = 0; i < 600; i++) {
		uint64_t numel = 1 + rng_below(&r, 4);
		size_t k = 2 + (size_t)rng_below(&r, 4);
		struct stack s = {0};
		int ret;

		while (s.k < k)
			stack_push(
				&s, &r,
				model_random(&r, ops[rng_below(&r, 3)], widths[i % 4], numel, .5));
		ret = compare_merge(&s, &r);
		assert_true(ret == 0 || ret == -ENOTSUP);
		merged += ret == 0;
		refused += ret != 0;
		stack_free(&s);
	}
	assert_true(merged > 50 && refused > 50);
}

static struct model model_of(enum patch_op op, size_t count, const uint64_t *positions,
			     const uint16_t *values)
{
	struct model m = {.op = op, .width = 2, .numel = 70000, .count = count};

	m.positions = malloc(8 * count);
	m.values = malloc(2 * count);
	assert_true(m.positions != NULL && m.values != NULL);
	memcpy(m.positions, positions, 8 * count);
	memcpy(m.values, values, 2 * count);
	return m;
}

static void test_merge_rules(void **state)
{
	static const struct {
		enum patch_op ops[3];
		uint64_t first[3], count[3]; /* which elements: first ... first+count-1 */
		int want;
	} cases[] = {
		{{PATCH_SET, PATCH_ADD, PATCH_XOR}, {0, 1, 0}, {4, 3, 2}, 0},
		{{PATCH_SET, PATCH_ADD, PATCH_SET}, {0, 1, 2}, {2, 3, 2}, 0},
		{{PATCH_SET, PATCH_ADD, PATCH_ADD}, {0, 1, 9}, {2, 1, 1}, -ENOTSUP},
		{{PATCH_ADD, PATCH_SET, PATCH_SET}, {0, 0, 1}, {2, 1, 1}, 0},
		{{PATCH_ADD, PATCH_SET, PATCH_SET}, {0, 0, 0}, {2, 1, 1}, -ENOTSUP},
		{{PATCH_ADD, PATCH_XOR, PATCH_XOR}, {0, 0, 0}, {1, 1, 1}, -ENOTSUP},
		{{PATCH_ADD, PATCH_XOR, PATCH_SET}, {0, 0, 0}, {2, 2, 2}, 0},
		{{PATCH_ADD, PATCH_XOR, PATCH_XOR}, {0, 1, 1}, {1, 1, 1}, 0}, /* the XORs cancel */
		{{PATCH_ADD, PATCH_SET, PATCH_ADD}, {0, 69998, 5}, {1, 2, 1}, -ENOTSUP},
		{{PATCH_XOR, PATCH_XOR, PATCH_XOR}, {0, 0, 5}, {2, 2, 1}, 0},
	};
	static const uint16_t values[] = {9, 9, 9, 9};
	struct rng r = {seed + 5};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct stack s = {0};

		for (size_t j = 0; j < 3; j++) {
			uint64_t first = cases[i].first[j];
			uint64_t positions[] = {first, first + 1, first + 2, first + 3};

			stack_push(&s, &r,
				   model_of(cases[i].ops[j], (size_t)cases[i].count[j], positions,
					    values));
		}
		CHECK(compare_merge(&s, &r) == cases[i].want, "case %zu", i);
		stack_free(&s);
	}
}

static void test_merge_to_nothing(void **state)
{
	static const uint16_t up[] = {5, 0x8000}, down[] = {0xfffb, 0x8000};
	static const uint64_t positions[] = {7, 69999};
	struct memory mem = {0};
	struct sink sink = memory_sink(&mem);
	struct rng r = {seed + 6};
	struct stack s = {0};
	uint64_t len = 1;

	stack_push(&s, &r, model_of(PATCH_ADD, 2, positions, up));
	stack_push(&s, &r, model_of(PATCH_ADD, 2, positions, down));
	assert_int_equal(patch_merge(s.views, 2, &sink, 0, &len, NULL, NULL), 0);
	assert_int_equal(len, 0);
	len = 1;
	assert_int_equal(patch_merge(s.views, 0, &sink, 0, &len, NULL, NULL), 0);
	assert_int_equal(len, 0);
	assert_int_equal(mem.writes, 0);
	stack_free(&s);
}

static void test_merge_refuses_other_tensors(void **state)
{
	struct rng r = {seed + 7};
	struct memory mem = {0};
	struct sink sink = memory_sink(&mem);
	struct stack s = {0};
	struct why why = {0};
	uint64_t len;

	stack_push(&s, &r, model_random(&r, PATCH_SET, 2, 100, .5));
	stack_push(&s, &r, model_random(&r, PATCH_SET, 2, 101, .5));
	stack_push(&s, &r, model_random(&r, PATCH_SET, 4, 100, .5));
	assert_int_equal(patch_merge(s.views, 2, &sink, 0, &len, NULL, &why), -EINVAL);
	assert_non_null(strstr(why.text, "different tensors"));
	s.views[1] = s.views[2];
	assert_int_equal(patch_merge(s.views, 2, &sink, 0, &len, NULL, &why), -EINVAL);
	stack_free(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_against_model),
		cmocka_unit_test(test_all_small_ranges),
		cmocka_unit_test(test_beyond_four_billion_elements),
		cmocka_unit_test(test_writer_refuses),
		cmocka_unit_test(test_sink_errors_are_passed_on),
		cmocka_unit_test(test_bound),
		cmocka_unit_test(test_merge_of_one_operation),
		cmocka_unit_test(test_merge_of_any_operations),
		cmocka_unit_test(test_merge_rules),
		cmocka_unit_test(test_merge_to_nothing),
		cmocka_unit_test(test_merge_refuses_other_tensors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
