/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoding TRL's sparse tensors: positions beyond 2^31, random round trips over many windows and
 * batches, values of every width, errors of the source and of the sink, and every bad position with
 * its sentence.
 */
#include "tests/unit/codec/trl_file.h"

/* ---- beyond 2^31 ---- */

static void test_raw_unsigned(void **state)
{
	struct file f = {0};
	struct opened o;
	uint16_t have[2] = {9, 9};
	struct buf blob = {0};
	uint64_t len;

	trl(&f, "True");
	meta(&f, "encoding", "raw");
	I32(&f, "a.idx", 5, 0x7fffffff, 0x80000000, 0xffffffff);
	BF(&f, "a.val", 1, 2, 3, 4);
	open_good(&o, &f);
	apply16(&o, "a", 1ULL << 32, 0x7fffffff, have, 2);
	assert_int_equal(have[0], 2);
	assert_int_equal(have[1], 3);
	have[0] = have[1] = 9;
	apply16(&o, "a", 1ULL << 32, 0xfffffffe, have, 2);
	assert_int_equal(have[0], 9);
	assert_int_equal(have[1], 4);
	/* Of more elements, a position may have been cut to 32 bits. */
	assert_int_equal(encode(&o, "a", ST_BF16, (1ULL << 32) + 1, &blob, &len), -ENOTSUP);
	assert_non_null(strstr(o.why.text, "32 bits for a position"));
	buf_release(&blob);
	close_file(&o);
}

static void test_gap_past_2_32(void **state)
{
	struct file f = {0};
	struct opened o;
	uint16_t have[3] = {9, 9, 9};
	const uint64_t last = 0xfffffffeULL + 1 + 0xffffffffULL;

	trl(&f, "True");
	meta(&f, "encoding", "gap_delta");
	U32(&f, "a.idx", 0xfffffffe, 0xffffffff, 0);
	BF(&f, "a.val", 1, 2, 3);
	open_good(&o, &f);
	apply16(&o, "a", 1ULL << 33, last - 1, have, 3);
	assert_int_equal(have[0], 9);
	assert_int_equal(have[1], 2);
	assert_int_equal(have[2], 3);
	/* The last element of exactly that many, and one fewer. */
	have[0] = have[1] = have[2] = 9;
	apply16(&o, "a", last + 2, last, have, 2);
	assert_int_equal(have[1], 3);
	{
		struct buf blob = {0};
		uint64_t len;

		assert_int_equal(encode(&o, "a", ST_BF16, last + 1, &blob, &len), -EBADMSG);
		assert_non_null(strstr(o.why.text, "index 8589934591 at place 2 is outside"));
		buf_release(&blob);
	}
	close_file(&o);
}

/* ---- random round trips, over several windows and batches ---- */

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void round_trip(uint64_t seed, size_t numel, unsigned per_1000, bool gaps, const char *dtype)
{
	uint16_t *want = malloc(numel * 2), *have = malloc(numel * 2);
	uint64_t *index = malloc(numel * 8), *values = malloc(numel * 8);
	unsigned width = strcmp(dtype, "U16") == 0 ? 2 : 4;
	struct file f = {0};
	struct opened o;
	size_t n = 0, after = 0;

	for (size_t i = 0; i < numel; i++) {
		have[i] = want[i] = (uint16_t)next_random(&seed);
		if (next_random(&seed) % 1000 >= per_1000 && i + 1 < numel)
			continue;
		index[n] = gaps ? i - after : i;
		after = i + 1;
		want[i] = (uint16_t)next_random(&seed);
		values[n++] = want[i];
	}
	trl(&f, "True");
	meta(&f, "encoding", gaps ? "gap_delta" : "raw");
	list(&f, "w.idx", dtype, width, index, n);
	list(&f, "w.val", "BF16", 2, values, n);
	open_good(&o, &f);
	apply16(&o, "w", numel, 0, have, numel);
	assert_memory_equal(have, want, numel * 2);
	close_file(&o);
	free(want);
	free(have);
	free(index);
	free(values);
}

static void test_round_trips(void **state)
{
	round_trip(1, 1, 1000, true, "U16");
	round_trip(2, 65536, 1000, true, "U16");
	round_trip(3, 65537, 10, true, "U16");
	round_trip(4, 300000, 900, true, "U32");
	round_trip(5, 300000, 900, false, "I32");
	round_trip(6, 1000003, 300, true, "U16");
	round_trip(7, 1000003, 1, true, "U16");
	round_trip(8, 40000, 0, false, "I32");
}

/* Values of other widths; F64 has the smallest window in elements. */
static void test_widths(void **state)
{
	static const struct {
		const char *name;
		enum st_dtype dtype;
		unsigned width;
	} cases[] = {{"F8_E4M3", ST_F8_E4M3, 1}, {"F32", ST_F32, 4}, {"F64", ST_F64, 8}};

	for (size_t c = 0; c < ARRAY_LEN(cases); c++) {
		enum { COUNT = 70000 };
		uint64_t *gap = calloc(COUNT, 8), *values = calloc(COUNT, 8);
		uint8_t *have = calloc(2 * COUNT, cases[c].width);
		struct buf blob = {0};
		struct file f = {0};
		struct opened o;
		struct patch patch;
		uint64_t len;

		for (size_t i = 0; i < COUNT; i++) {
			gap[i] = 1;
			values[i] = (i + 1) * 0x9e3779b97f4a7c15ULL;
		}
		trl(&f, "True");
		list(&f, "w.idx", "U16", 2, gap, COUNT);
		list(&f, "w.val", cases[c].name, cases[c].width, values, COUNT);
		open_good(&o, &f);
		assert_int_equal(encode(&o, "w", cases[c].dtype, 2 * COUNT, &blob, &len), 0);
		assert_int_equal(patch_open(blob.data, len, &patch, NULL), 0);
		assert_int_equal(patch_apply(&patch, 0, have, 2 * COUNT * cases[c].width), 0);
		for (size_t i = 0; i < COUNT; i++) {
			uint8_t want[16] = {0};

			for (unsigned k = 0; k < cases[c].width; k++)
				want[cases[c].width + k] = (uint8_t)(values[i] >> (8 * k));
			assert_memory_equal(have + 2 * i * cases[c].width, want,
					    2 * cases[c].width);
		}
		close_file(&o);
		buf_release(&blob);
		free(gap);
		free(values);
		free(have);
	}
}

/* ---- reads: in windows, errors passed on ---- */

struct watched {
	struct source inner;
	size_t biggest;
	uint64_t fail_at;
};

static int watched_read(void *ctx, uint64_t off, void *dst, size_t len)
{
	struct watched *w = ctx;

	w->biggest = MAX(w->biggest, len);
	if (w->fail_at >= off && w->fail_at < off + len)
		return -EIO;
	return w->inner.read(w->inner.ctx, off, dst, len);
}

static void test_windows(void **state)
{
	enum { COUNT = 400000 };
	uint64_t *zeros = calloc(COUNT, 8);
	struct watched w = {.fail_at = UINT64_MAX};
	struct buf blob = {0};
	struct file f = {0};
	struct opened o;
	uint64_t len;

	trl(&f, "True");
	list(&f, "w.idx", "U16", 2, zeros, COUNT);
	list(&f, "w.val", "BF16", 2, zeros, COUNT);
	open_good(&o, &f);
	w.inner = o.src;
	o.src.read = watched_read;
	o.src.ctx = &w;
	assert_int_equal(encode(&o, "w", ST_BF16, COUNT, &blob, &len), 0);
	assert_in_range(w.biggest, 1, 256 * 1024);
	w.fail_at = o.src.size - 1;
	assert_int_equal(encode(&o, "w", ST_BF16, COUNT, &blob, &len), -EIO);
	assert_non_null(strstr(o.why.text, "tensor \"w\": cannot read its new values"));
	assert_int_equal(len, 999);
	w.fail_at = o.delta->header->data;
	assert_int_equal(encode(&o, "w", ST_BF16, COUNT, &blob, &len), -EIO);
	assert_non_null(strstr(o.why.text, "tensor \"w\": cannot read its index"));
	/* The object shrank after it was opened. */
	w.fail_at = UINT64_MAX;
	o.src.size -= 1;
	assert_int_equal(encode(&o, "w", ST_BF16, COUNT, &blob, &len), -EBADMSG);
	close_file(&o);
	buf_release(&blob);
	free(zeros);
}

static int full_sink(void *ctx, uint64_t off, const void *src, size_t len)
{
	return -ENOSPC;
}

static void test_sink_error(void **state)
{
	const struct sink sink = {full_sink, NULL};
	struct file f = {0};
	struct opened o;
	uint64_t len = 7;

	trl(&f, "True");
	U16(&f, "a.idx", 1);
	BF(&f, "a.val", 1);
	open_good(&o, &f);
	assert_int_equal(delta_encode(o.delta, &o.delta->parts[0], &o.src, ST_BF16, 8, &sink, 0,
				      &len, &o.why),
			 -ENOSPC);
	assert_int_equal(len, 7);
	close_file(&o);
}

/* ---- refusals at encode ---- */

static void test_bad_positions(void **state)
{
	static const struct {
		bool raw;
		uint64_t index[3];
		const char *text;
	} cases[] = {
		{true, {0, 9, 7}, "tensor \"a\": index 7 at place 2 is not above 9 before it"},
		{true, {0, 7, 7}, "tensor \"a\": index 7 at place 2 repeats the one before it"},
		{true, {7, 7, 8}, "tensor \"a\": index 7 at place 1 repeats"},
		{true,
		 {0, 1, 4096},
		 "index 4096 at place 2 is outside the tensor of 4096 elements"},
		{true, {0xffffffff, 1, 2}, "index 4294967295 at place 0 is outside the tensor"},
		{false,
		 {0, 0, 4094},
		 "index 4096 at place 2 is outside the tensor of 4096 elements"},
		{false,
		 {4096, 0, 0},
		 "index 4096 at place 0 is outside the tensor of 4096 elements"},
		{false,
		 {4095, 0, 0},
		 "index 4096 at place 1 is outside the tensor of 4096 elements"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct buf blob = {0};
		struct file f = {0};
		struct opened o;
		uint64_t len;

		trl(&f, "True");
		list(&f, "a.idx", cases[i].raw ? "I32" : "U32", 4, cases[i].index, 3);
		BF(&f, "a.val", 1, 2, 3);
		open_good(&o, &f);
		assert_int_equal(encode(&o, "a", ST_BF16, 4096, &blob, &len), -EBADMSG);
		if (strstr(o.why.text, cases[i].text) == NULL)
			fail_msg("\"%s\", not \"%s\"", o.why.text, cases[i].text);
		assert_int_equal(len, 999);
		close_file(&o);
		buf_release(&blob);
	}
}

/* The place counts from the start of the tensor, not of a batch. */
static void test_bad_place_far_in(void **state)
{
	enum { COUNT = 200000 };
	uint64_t *index = malloc(COUNT * 8), *values = calloc(COUNT, 8);
	struct buf blob = {0};
	struct file f = {0};
	struct opened o;
	uint64_t len;

	for (size_t i = 0; i < COUNT; i++)
		index[i] = i;
	index[150000] = 149999;
	trl(&f, "True");
	list(&f, "a.indices", "I32", 4, index, COUNT);
	list(&f, "a.values", "BF16", 2, values, COUNT);
	open_good(&o, &f);
	assert_int_equal(encode(&o, "a", ST_BF16, COUNT, &blob, &len), -EBADMSG);
	assert_non_null(strstr(o.why.text, "index 149999 at place 150000 repeats"));
	close_file(&o);
	buf_release(&blob);
	free(index);
	free(values);
}

static void test_bad_target(void **state)
{
	struct buf blob = {0};
	struct file f = {0};
	struct opened o;
	uint64_t len;

	trl(&f, "True");
	U16(&f, "norm.idx", 1);
	BF(&f, "norm.val", 1);
	BF(&f, "whole", 1);
	open_good(&o, &f);
	assert_int_equal(encode(&o, "norm", ST_F32, 8, &blob, &len), -EBADMSG);
	assert_non_null(strstr(o.why.text,
			       "tensor \"norm\": its new values are BF16 but the tensor "
			       "is F32; start from a checkpoint or anchor"));
	/* The same width is not enough. */
	assert_int_equal(encode(&o, "norm", ST_F16, 8, &blob, &len), -EBADMSG);
	assert_int_equal(encode(&o, "whole", ST_BF16, 1, &blob, &len), -EINVAL);
	assert_int_equal(encode(&o, "norm", ST_BF16, 0, &blob, &len), -EBADMSG);
	assert_int_equal(blob.len, 0);
	close_file(&o);
	buf_release(&blob);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_raw_unsigned),  cmocka_unit_test(test_gap_past_2_32),
		cmocka_unit_test(test_round_trips),   cmocka_unit_test(test_widths),
		cmocka_unit_test(test_windows),	      cmocka_unit_test(test_sink_error),
		cmocka_unit_test(test_bad_positions), cmocka_unit_test(test_bad_place_far_in),
		cmocka_unit_test(test_bad_target),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
