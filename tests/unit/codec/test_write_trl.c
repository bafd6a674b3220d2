/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing TRL's objects: what is written, the reader of TRL's formats reads back as the same
 * changes, in each form, with gaps on both sides of 16 bits; the positions of a patch's blocks are
 * those that went in; and what the formats cannot say is refused with the remedy.
 */
#include "codec/format.h"
#include "codec/write_trl.h"
#include "tests/unit/codec/rice_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

static const uint64_t seed = 20261130;
static const struct trl_form *const forms[] = {&trl_form_v1, &trl_form_gaps, &trl_form_raw};

struct object {
	uint8_t *bytes;
	uint64_t size;
};

/* A delta of one BF16 tensor and one F32 tensor with the same changed positions. */
static struct object write_object(const struct trl_form *form, const uint64_t *positions, size_t n,
				  uint64_t numel)
{
	const uint64_t shape[2] = {numel, 1};
	struct trl_tensor t[2] = {
		{.name = "b", .shape = shape, .numel = numel, .dtype = ST_BF16, .rank = 2},
		{.name = "f", .shape = shape, .numel = numel, .dtype = ST_F32, .rank = 2},
	};
	struct object o = {0};
	struct trl_meta meta;
	struct buf header = {0};
	struct why why = {0};

	for (size_t i = 0; i < 2; i++)
		trl_count(&t[i], positions, n);
	trl_meta_make(&meta, form, 7, true, t, 2);
	if (trl_layout(form, t, 2, meta.pairs, meta.count, &header, &o.size, &why) < 0)
		fail_msg("%s", why.text);
	o.bytes = calloc(1, o.size);
	assert_non_null(o.bytes);
	memcpy(o.bytes, header.data, header.len);
	for (size_t i = 0; i < 2; i++) {
		const size_t width = st_dtype_width(t[i].dtype);
		const size_t index = st_dtype_width(trl_index_dtype(form, &t[i]));
		uint64_t next = 0;

		for (size_t k = 0; k < n; k++) { /* one by one: calls go on from each other */
			trl_index(form, &t[i], &positions[k], 1, &next,
				  o.bytes + t[i].index_at + k * index);
			store_le16(o.bytes + t[i].values_at + k * width, (uint16_t)(k + 1));
		}
	}
	trl_meta_release(&meta);
	buf_release(&header);
	return o;
}

static void check_part(const struct delta *d, const struct source *src, const char *name,
		       enum st_dtype dtype, const uint64_t *positions, size_t n, uint64_t numel)
{
	const struct part *part = delta_find(d, name);
	const unsigned width = st_dtype_width(dtype);
	struct memory mem = {0};
	struct sink sink = memory_sink(&mem);
	uint64_t len = 0;
	struct patch patch;
	struct why why = {0};

	assert_non_null(part);
	assert_int_equal(part->kind, PART_SPARSE);
	assert_int_equal(part->changed, n);
	if (delta_encode(d, part, src, dtype, numel, &sink, 0, &len, &why) < 0)
		fail_msg("%s", why.text);
	assert_int_equal(patch_open(mem.bytes, len, &patch, &why), 0);
	assert_int_equal(patch.changed, n);
	for (size_t k = 0; k < n; k++) {
		uint64_t value = 0;

		assert_int_equal(patch_apply(&patch, positions[k] * width, &value, width), 0);
		assert_int_equal(value, (uint16_t)(k + 1));
	}
	free(mem.bytes);
}

static void reads_back(void **state)
{
	const uint64_t numel = 400000;
	const uint64_t close[] = {0, 1, 2, 500, 65536, 100000, 131071, 131072, 399999};
	const uint64_t far[] = {65536, 70000, 399999};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(forms); i++)
		for (unsigned wide = 0; wide < 2; wide++) {
			const uint64_t *at = wide ? far : close;
			const size_t n = wide ? ARRAY_LEN(far) : ARRAY_LEN(close);
			struct object o = write_object(forms[i], at, n, numel);
			struct source src = source_memory(o.bytes, o.size);
			struct delta *d = NULL;
			struct why why = {0};

			if (delta_open(&src, &d, &why) < 0)
				fail_msg("%s", why.text);
			assert_int_equal(d->count, 2);
			assert_int_equal(d->model_version, 7);
			check_part(d, &src, "b", ST_BF16, at, n, numel);
			check_part(d, &src, "f", ST_F32, at, n, numel);
			delta_free(d);
			free(o.bytes);
		}
}

static void nothing_changed(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
		struct object o = write_object(forms[i], NULL, 0, 10);
		struct source src = source_memory(o.bytes, o.size);
		struct delta *d = NULL;
		struct why why = {0};

		if (delta_open(&src, &d, &why) < 0)
			fail_msg("%s", why.text);
		assert_int_equal(d->count, 0);
		delta_free(d);
		free(o.bytes);
	}
}

/* Blocks of every form: sparse, dense, inverted, and a cut one at the end. */
static void positions_of_patches(void **state)
{
	static const double densities[] = {0.0001, 0.01, 0.3, 0.9, 1};
	struct rng r = {seed};
	static uint64_t got[PATCH_BLOCK];

	(void)state;
	for (size_t i = 0; i < 2 * ARRAY_LEN(densities); i++) {
		const uint64_t numel = 2 * PATCH_BLOCK + 777;
		struct model m = model_random(&r, PATCH_ADD, 2, numel, densities[i / 2]);
		struct memory mem = {0};
		uint64_t len, seen = 0;
		struct patch patch;
		struct why why = {0};

		for (size_t k = 0; k < m.count; k++)
			m.values[2 * k] |= 1; /* a zero is no change */
		len = i % 2 ? model_write_rice(&m, &r, &mem, 0, NULL)
			    : model_write(&m, &r, &mem, 0);
		assert_int_equal(patch_open(mem.bytes, len, &patch, &why), 0);
		for (uint64_t b = 0; b < patch.blocks; b++) {
			size_t n = 0;

			assert_int_equal(trl_positions(&patch, b, got, &n), 0);
			for (size_t k = 0; k < n; k++)
				assert_int_equal(got[k], m.positions[seen + k]);
			seen += n;
		}
		assert_int_equal(seen, m.count);
		free(mem.bytes);
		model_free(&m);
	}
}

static void refused(const struct trl_tensor *t, size_t n, const char *says)
{
	struct trl_tensor copy[3];
	struct buf out = {0};
	struct why why = {0};
	uint64_t size;

	memcpy(copy, t, n * sizeof(*t));
	assert_true(trl_layout(&trl_form_gaps, copy, n, NULL, 0, &out, &size, &why) < 0);
	if (strstr(why.text, says) == NULL || strstr(why.text, "--encoding wfp1") == NULL)
		fail_msg("\"%s\" does not say \"%s\" and the remedy", why.text, says);
	buf_release(&out);
}

static void refusals(void **state)
{
	const uint64_t shape[1] = {3};
	struct trl_tensor big = {.name = "big", .numel = (UINT64_C(1) << 31) + 1, .dtype = ST_BF16};
	struct trl_tensor half = {.name = "half", .numel = 4, .dtype = ST_F4};
	struct trl_tensor pair[] = {
		{.name = "x.idx", .shape = shape, .numel = 3, .dtype = ST_I32, .rank = 1},
		{.name = "x.val", .shape = shape, .numel = 3, .dtype = ST_BF16, .rank = 1},
	};
	struct trl_tensor twice[] = {
		{.name = "x", .shape = shape, .numel = 3, .dtype = ST_BF16, .rank = 1},
		{.name = "x.val", .shape = shape, .numel = 3, .dtype = ST_BF16, .rank = 1},
	};
	const uint64_t one = 1;

	(void)state;
	trl_count(&big, &one, 1);
	refused(&big, 1, "2^31");
	big.numel--; /* the last position is the largest that I32 has */
	assert_int_equal(trl_check(&trl_form_v1, &big, NULL), 0);
	trl_count(&half, &one, 1);
	refused(&half, 1, "F4");
	pair[0].whole = pair[1].whole = true;
	refused(pair, 2, "taken for the index");
	trl_count(&twice[0], &one, 1);
	twice[1].whole = true;
	refused(twice, 2, "would be called \"x.val\"");
}

static void fractions(void **state)
{
	static const struct {
		double value;
		const char *text;
	} cases[] = {{0, "0.0"},   {1, "1.0"},	       {0.5, "0.5"},
		     {0.1, "0.1"}, {0.00001, "1e-05"}, {1.0 / 3, "0.3333333333333333"}};
	char text[32];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		trl_fraction(cases[i].value, text);
		assert_string_equal(text, cases[i].text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_back),
		cmocka_unit_test(nothing_changed),
		cmocka_unit_test(positions_of_patches),
		cmocka_unit_test(refusals),
		cmocka_unit_test(fractions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
