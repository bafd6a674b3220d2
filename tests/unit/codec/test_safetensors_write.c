/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing safetensors headers: composed and rewritten ones, checked by parsing what was written.
 */
#include "codec/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "tests/unit/codec/st_cases.h"

static const char sample[] =
	"{\"__metadata__\":{\"format\":\"pt\",\"who\":\"a\"},\"a\":" E("F64", "", 0, 8) "}  ";

static void expect_same_tensors(const struct st_header *a, const struct st_header *b)
{
	assert_int_equal(a->count, b->count);
	for (size_t i = 0; i < a->count; i++) {
		const struct st_tensor *t = &a->tensors[i], *u = &b->tensors[i];

		assert_string_equal(t->name, u->name);
		assert_int_equal(t->dtype, u->dtype);
		assert_int_equal(t->rank, u->rank);
		assert_true(t->begin == u->begin && t->end == u->end && t->numel == u->numel);
		if (t->rank > 0)
			assert_memory_equal(t->shape, u->shape, t->rank * sizeof(*t->shape));
	}
}

/* Rewrites a copy of json; returns st_rewrite_meta()'s result, having checked what it left. */
static int rewrite(const char *json, uint64_t data, const char *want)
{
	size_t len = strlen(json);
	struct st_header *before = expect_good(json, len, data), *after;
	char *copy = strdup(json);
	int rc = st_rewrite_meta(copy, len, before);

	if (rc < 0) {
		assert_string_equal(copy, json);
	} else {
		assert_string_equal(copy, want);
		after = expect_good(copy, len, data);
		expect_same_tensors(before, after);
		assert_int_equal(after->meta_count, 1);
		assert_string_equal(st_meta(after, "format"), "pt");
		st_free(after);
	}
	st_free(before);
	free(copy);
	return rc;
}

static void test_rewrite(void **state)
{
	assert_int_equal(
		rewrite("{\"__metadata__\":{\"format\":\"np\"},\"a\":" E("U8", "", 0, 1) "}", 1,
			"{\"__metadata__\":{\"format\":\"pt\"},\"a\":" E("U8", "", 0, 1) "}"),
		0);
	assert_int_equal(
		rewrite("{\"a\":" E("U8", "", 0,
				    1) ",\"__metadata__\":{\"longer\":\"than pt is\"} }  ",
			1,
			"{\"a\":" E("U8", "", 0, 1) ",\"__metadata__\":{\"format\":\"pt\"} }"
						    "          "),
		0);
	assert_int_equal(
		rewrite("{\"__metadata__\":{},\"a\":" E("U8", "", 0, 1) "}              ", 1,
			"{\"__metadata__\":{\"format\":\"pt\"},\"a\":" E("U8", "", 0, 1) "} "),
		0);
	assert_int_equal(rewrite("{\"__metadata__\":{}}             ", 0,
				 "{\"__metadata__\":{\"format\":\"pt\"}}"),
			 0);
	assert_int_equal(rewrite("{\"__metadata__\":{}}            ", 0, NULL), -ENOSPC);
	assert_int_equal(rewrite("{\"__metadata__\":{}}", 0, NULL), -ENOSPC);
	assert_int_equal(rewrite("{}                        ", 0, NULL), -ENOENT);
}

static void test_rewrite_refuses_another_text(void **state)
{
	struct st_header *h = expect_good(sample, sizeof(sample) - 1, 8);
	char *copy = strdup(sample);

	assert_int_equal(st_rewrite_meta(copy, sizeof(sample) - 2, h), -EINVAL);
	assert_string_equal(copy, sample);
	free(copy);
	st_free(h);
}

static uint32_t next_random(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*seed >> 33);
}

/* count tensors of random dtype and shape that tile the data, listed in a random order. */
static struct st_tensor *random_tensors(uint64_t *seed, size_t count, uint64_t *out_size)
{
	static const char *const odd[] = {"", "\"", "\\", "\n\x01", "\xc3\xa9", "\xf0\x9f\x98\x80"};
	struct st_tensor *all = calloc(count + 1, sizeof(*all));
	uint64_t at = 0;

	for (size_t i = 0; i < count; i++) {
		struct st_tensor *t = &all[i];
		uint64_t *shape = calloc(5, sizeof(*shape));
		char *name;

		t->dtype = (uint8_t)(next_random(seed) % ST_DTYPES);
		t->rank = (uint8_t)(next_random(seed) % 5);
		t->numel = 1;
		for (unsigned k = 0; k < t->rank; k++) {
			shape[k] = next_random(seed) % 6;
			t->numel *= shape[k];
		}
		if (st_dtype_bits(t->dtype) < 8) { /* whole bytes whatever the rest of the shape */
			shape[t->rank++] = 4;
			t->numel *= 4;
		}
		t->shape = shape;
		t->begin = at;
		at += t->numel * st_dtype_bits(t->dtype) / 8;
		t->end = at;
		assert_true(asprintf(&name, "%s%u.%zu", odd[next_random(seed) % ARRAY_LEN(odd)],
				     next_random(seed) % 10, i) > 0);
		t->name = name;
		t->name_len = (uint32_t)strlen(name);
	}
	for (size_t i = count; i > 1; i--) {
		size_t k = next_random(seed) % i;
		struct st_tensor swap = all[k];

		all[k] = all[i - 1];
		all[i - 1] = swap;
	}
	*out_size = at;
	return all;
}

static void free_tensors(struct st_tensor *all, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		free((void *)(uintptr_t)all[i].name);
		free((void *)(uintptr_t)all[i].shape);
	}
	free(all);
}

static void test_compose_round_trip(void **state)
{
	static const struct st_meta meta[] = {{"format", "pt"}, {"k\"\x02", "v\\\xc3\xa9"}};
	uint64_t seed = 1;

	for (int round = 0; round < 200; round++) {
		size_t count = next_random(&seed) % 30,
		       align = (size_t)8 << next_random(&seed) % 10;
		size_t meta_count = (size_t)round % 3, min_size = next_random(&seed) % 9000;
		uint64_t size;
		struct st_tensor *all = random_tensors(&seed, count, &size);
		struct st_header *h;
		struct buf b = {0};

		buf_addstr(&b, "before");
		assert_int_equal(
			st_compose(all, count, meta, meta_count, align, min_size, &b, NULL), 0);
		assert_int_equal((b.len - 6) % align, 0);
		assert_true(b.len - 6 >= min_size);
		assert_true(load_le64(b.data + 6) == b.len - 6 - 8);
		assert_memory_equal(b.data, "before", 6);
		h = expect_good(b.data + 14, b.len - 14, size);
		assert_int_equal(h->count, count);
		for (size_t i = 0; i < count; i++) {
			const struct st_tensor *t = st_find(h, all[i].name);

			assert_non_null(t);
			assert_true(t->begin == all[i].begin && t->end == all[i].end);
			assert_true(t->dtype == all[i].dtype && t->rank == all[i].rank &&
				    t->numel == all[i].numel);
			for (unsigned k = 0; k < t->rank; k++)
				assert_true(t->shape[k] == all[i].shape[k]);
		}
		assert_int_equal(h->meta_count, meta_count);
		for (size_t i = 0; i < meta_count; i++)
			assert_string_equal(st_meta(h, meta[i].key), meta[i].value);
		st_free(h);
		free_tensors(all, count);
		buf_release(&b);
	}
}

static void test_compose_limits(void **state)
{
	struct buf b = {0};
	struct why why;

	assert_int_equal(st_compose(NULL, 0, NULL, 0, 8, 0, &b, &why), 0);
	assert_int_equal(b.len, 16);
	assert_memory_equal(b.data, "\x08\0\0\0\0\0\0\0{}      ", 16);
	buf_release(&b);
	buf_addstr(&b, "x");
	assert_int_equal(st_compose(NULL, 0, NULL, 0, 8, 100000009, &b, &why), -EMSGSIZE);
	assert_non_null(strstr(why.text, "pass the limit of 100,000,000 bytes"));
	assert_string_equal(buf_str(&b), "x");
	assert_int_equal(st_compose(NULL, 0, NULL, 0, 8, SIZE_MAX, &b, &why), -EMSGSIZE);
	assert_int_equal(st_compose(NULL, 0, NULL, 0, (size_t)1 << 30, 0, &b, &why), -EMSGSIZE);
	assert_int_equal(st_compose(NULL, 0, NULL, 0, 4, 0, &b, &why), -EINVAL);
	assert_int_equal(st_compose(NULL, 0, NULL, 0, 24, 0, &b, &why), -EINVAL);
	assert_int_equal(b.len, 1);
	buf_release(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rewrite),
		cmocka_unit_test(test_rewrite_refuses_another_text),
		cmocka_unit_test(test_compose_round_trip),
		cmocka_unit_test(test_compose_limits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
