/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deltas of grail, unpacked: each version of the codec, index streams of each width, random round
 * trips over several windows, shapes of any rank; headers that lie about counts, sizes and places;
 * positions that are negative, repeat, descend or leave the shape.
 */
#include "tests/unit/codec/trl_file.h"

/* ---- objects, composed ---- */

static void open_text(struct opened *o, const char *json, const void *data, size_t len)
{
	const size_t head = strlen(json);

	memset(o, 0, sizeof(*o));
	o->bytes = malloc(4 + head + len + 1);
	assert_non_null(o->bytes);
	store_le32(o->bytes, (uint32_t)head);
	memcpy(o->bytes + 4, json, head);
	memcpy(o->bytes + 4 + head, data, len);
	o->src = source_memory(o->bytes, 4 + head + len);
	o->err = delta_open_as(&o->src, "grail", NULL, &o->delta, &o->why);
}

/* One tensor "t" of BF16: index streams of these bytes, then n values. */
struct streams {
	int version;
	const char *shape, *row_dtype, *col_dtype; /* dtypes NULL: int32, not said */
	struct buf rows, cols, values;
	size_t n;
};

static void put(struct buf *b, unsigned width, int64_t v)
{
	uint8_t bytes[8];

	store_le64(bytes, (uint64_t)v);
	buf_add(b, bytes, width);
}

static void open_streams(struct opened *o, struct streams *s)
{
	struct buf json = {0}, data = {0};

	buf_addf(&json,
		 "{\"version\":%d,\"tensors\":[{\"name\":\"t\",\"shape\":%s,\"num_nonzero\":%zu,"
		 "\"value_dtype\":\"bfloat16\",",
		 s->version, s->shape, s->n);
	if (s->row_dtype != NULL)
		buf_addf(&json, "\"row_dtype\":\"%s\",\"col_dtype\":\"%s\",", s->row_dtype,
			 s->col_dtype);
	if (s->version != 2)
		buf_addf(&json, "\"rows_size\":%zu,\"cols_size\":%zu,", s->rows.len, s->cols.len);
	buf_addf(&json,
		 "\"indices_offset\":0,\"indices_size\":%zu,\"values_offset\":%zu,"
		 "\"values_size\":%zu}]}",
		 s->rows.len + s->cols.len, s->rows.len + s->cols.len, s->values.len);
	buf_add(&data, s->rows.data, s->rows.len);
	buf_add(&data, s->cols.data, s->cols.len);
	buf_add(&data, s->values.data, s->values.len);
	open_text(o, buf_str(&json), data.data, data.len);
	buf_release(&json);
	buf_release(&data);
	buf_release(&s->rows);
	buf_release(&s->cols);
	buf_release(&s->values);
}

static unsigned width_of(const char *dtype)
{
	return dtype == NULL || strcmp(dtype, "int32") == 0 ? 4
	       : strcmp(dtype, "uint16") == 0		    ? 2
							    : 1;
}

/* `steps`: pairs of a row step and a column; version 2 takes the columns as differences.  Values
 * are 1, 2, ... */
static void open_steps(struct opened *o, int version, const char *shape, const char *row_dtype,
		       const char *col_dtype, const int64_t (*steps)[2], size_t n)
{
	struct streams s = {version, shape, row_dtype, col_dtype, {0}, {0}, {0}, n};

	for (size_t i = 0; i < n; i++) {
		if (version == 2) {
			put(&s.rows, 4, steps[i][1]);
		} else {
			put(&s.rows, width_of(row_dtype), steps[i][0]);
			put(&s.cols, width_of(col_dtype), steps[i][1]);
		}
		put(&s.values, 2, (int64_t)i + 1);
	}
	open_streams(o, &s);
}

#define STEPS(...) (const int64_t[][2]){__VA_ARGS__}, sizeof((int64_t[][2]){__VA_ARGS__}) / (2 * 8)

/* ---- what is right ---- */

static void test_flat(void **state)
{
	struct opened o;

	open_steps(&o, 2, "[2,4]", NULL, NULL, STEPS({0, 0}, {0, 3}, {0, 1}, {0, 3}));
	assert_int_equal(o.err, 0);
	assert_string_equal(o.delta->generation, "grail sparse codec 2");
	EXPECT8(&o, "t", 1, 9, 9, 2, 3, 9, 9, 4);
	close_file(&o);
}

static void test_coo(void **state)
{
	static const char *const rows[] = {NULL, "uint8", "uint16", "int32"};
	static const char *const cols[] = {NULL, "uint16", "uint8", "int32"};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct opened o;

		/* The column begins anew with each row, also at 0. */
		open_steps(&o, rows[i] != NULL ? 31 : 3, "[4,1,2]", rows[i], cols[i],
			   STEPS({0, 0}, {0, 1}, {1, 0}, {2, 0}, {0, 1}));
		if (o.err != 0)
			fail_msg("refused: %s", o.why.text);
		assert_string_equal(o.delta->generation,
				    i > 0 ? "grail sparse codec 3.1" : "grail sparse codec 3");
		EXPECT8(&o, "t", 1, 2, 3, 9, 9, 9, 4, 5);
		close_file(&o);
	}
}

static void test_shapes(void **state)
{
	struct opened o;

	open_steps(&o, 3, "[8]", NULL, NULL, STEPS({2, 0}, {5, 0}));
	EXPECT8(&o, "t", 9, 9, 1, 9, 9, 9, 9, 2);
	assert_int_equal(o.delta->parts[0].numel, 8);
	close_file(&o);
	open_steps(&o, 3, "[1,8]", NULL, NULL, STEPS({0, 2}, {0, 5}));
	EXPECT8(&o, "t", 9, 9, 1, 9, 9, 9, 9, 2);
	close_file(&o);
	open_steps(&o, 3, "[]", NULL, NULL, STEPS({0, 0}));
	assert_int_equal(o.err, 0);
	assert_int_equal(o.delta->parts[0].numel, 1);
	close_file(&o);
	open_text(&o, "{\"version\":31,\"tensors\":[]}", "", 0);
	assert_int_equal(o.err, 0);
	assert_int_equal(o.delta->count, 0);
	close_file(&o);
}

static uint64_t next_random(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

/* Several windows, of rows that are skipped, full and empty. */
static void round_trip(int version, uint32_t rows, uint32_t cols, unsigned per_1000)
{
	const size_t numel = (size_t)rows * cols;
	struct streams s = {version, NULL, "uint16", "int32", {0}, {0}, {0}, 0};
	uint16_t *want = malloc(numel * 2), *have = malloc(numel * 2);
	uint64_t seed = 2026 + per_1000, last = 0;
	char shape[40];
	struct opened o;

	assert_true(want != NULL && have != NULL);
	snprintf(shape, sizeof(shape), "[%u,%u]", rows, cols);
	s.shape = shape;
	if (version != 31)
		s.row_dtype = s.col_dtype = NULL;
	for (size_t i = 0; i < numel; i++) {
		const uint64_t row = i / cols, before = last / cols;

		want[i] = have[i] = 9;
		if (next_random(&seed) % 1000 >= per_1000)
			continue;
		want[i] = (uint16_t)next_random(&seed);
		put(&s.values, 2, want[i]);
		if (version == 2) {
			put(&s.rows, 4, (int64_t)(i - last));
		} else {
			put(&s.rows, width_of(s.row_dtype), (int64_t)(row - before));
			put(&s.cols, 4, (int64_t)(s.n > 0 && row == before ? i - last : i % cols));
		}
		last = i;
		s.n++;
	}
	open_streams(&o, &s);
	if (o.err != 0)
		fail_msg("refused: %s", o.why.text);
	apply16(&o, "t", numel, 0, have, numel);
	assert_memory_equal(have, want, numel * 2);
	close_file(&o);
	free(want);
	free(have);
}

static void test_round_trips(void **state)
{
	static const int versions[] = {2, 3, 31};

	for (size_t i = 0; i < ARRAY_LEN(versions); i++) {
		round_trip(versions[i], 300, 1000, 500);
		round_trip(versions[i], 70000, 3, 300);
		round_trip(versions[i], 2, 100000, 1000);
		round_trip(versions[i], 500, 500, 3);
	}
}

/* ---- what is wrong ---- */

static void test_bad_positions(void **state)
{
	static const struct {
		int version;
		const char *shape;
		int64_t steps[3][2];
		const char *says;
	} cases[] = {
		{2, "[8]", {{0, -1}}, "a difference that is not above 0 at place 0"},
		{2, "[8]", {{0, 3}, {0, 0}}, "a difference that is not above 0 at place 1"},
		{2, "[8]", {{0, 3}, {0, -2}}, "a difference that is not above 0 at place 1"},
		{2, "[8]", {{0, 3}, {0, 4}, {0, 1}}, "position 8 at place 2 is outside"},
		{2, "[8]", {{0, INT32_MAX}, {0, 1}}, "position 2147483647 at place 0 is outside"},
		{3, "[2,4]", {{-1, 0}}, "a row below the one before at place 0"},
		{3, "[2,4]", {{1, 0}, {-1, 2}}, "a row below the one before at place 1"},
		{3, "[2,4]", {{2, 0}}, "row 2 at place 0 is outside its shape, which has 2"},
		{3, "[2,4]", {{1, 4}}, "column 4 at place 0 is outside its shape, which has 4"},
		{3, "[2,4]", {{0, 3}, {0, 1}}, "column 4 at place 1 is outside"},
		{3, "[2,4]", {{0, 3}, {0, 0}}, "a column not above the one before at place 1"},
		{3, "[2,4]", {{0, 3}, {0, -1}}, "a column not above the one before at place 1"},
		{3, "[2,4]", {{0, 3}, {1, -1}}, "a column not above the one before at place 1"},
		{3, "[8]", {{0, 1}}, "column 1 at place 0 is outside its shape, which has 1"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct buf blob = {0};
		struct opened o;
		uint64_t len;
		size_t n = 3;

		while (n > 1 && cases[i].steps[n - 1][0] == 0 && cases[i].steps[n - 1][1] == 0 &&
		       strstr(cases[i].says, n == 3 ? "place 2" : "place 1") == NULL)
			n--;
		open_steps(&o, cases[i].version, cases[i].shape, NULL, NULL, cases[i].steps, n);
		assert_int_equal(o.err, 0);
		assert_int_equal(encode(&o, "t", ST_BF16, 8, &blob, &len), -EBADMSG);
		if (strstr(o.why.text, cases[i].says) == NULL)
			fail_msg("case %zu says: %s", i, o.why.text);
		buf_release(&blob);
		close_file(&o);
	}
}

static void test_other_base(void **state)
{
	struct buf blob = {0};
	struct opened o;
	uint64_t len;

	open_steps(&o, 3, "[2,4]", NULL, NULL, STEPS({0, 1}));
	assert_int_equal(encode(&o, "t", ST_BF16, 9, &blob, &len), -EBADMSG);
	assert_non_null(strstr(o.why.text, "has 8 elements in the delta and 9 in the model"));
	assert_int_equal(encode(&o, "t", ST_F32, 8, &blob, &len), -EBADMSG);
	assert_non_null(strstr(o.why.text, "its new values are BF16 but the tensor is F32"));
	buf_release(&blob);
	close_file(&o);
}

#define T2(name, shape, count, dtype, io, is, vo, vs)                                              \
	"{\"name\":\"" name "\",\"shape\":" shape ",\"num_nonzero\":" count                        \
	",\"value_dtype\":\"" dtype "\",\"indices_offset\":" io ",\"indices_size\":" is            \
	",\"values_offset\":" vo ",\"values_size\":" vs "}"
#define HEAD(version, tensors) "{\"version\":" version ",\"tensors\":[" tensors "]}"
#define T3(more)                                                                                   \
	"{\"name\":\"t\",\"shape\":[4],\"num_nonzero\":1,\"value_dtype\":\"float16\","             \
	"\"indices_offset\":0,\"values_offset\":8,\"values_size\":2," more "}"

static void test_bad_headers(void **state)
{
	static const struct {
		const char *json;
		size_t data;
		int err;
		const char *says;
	} cases[] = {
		{"", 0, -EBADMSG, "found its end"},
		{"[]", 0, -EBADMSG, "expected '{'"},
		{"{\"tensors\":[]}", 0, -EBADMSG, "does not begin with \"version\""},
		{"{\"version\":4,\"tensors\":[]}", 0, -ENOTSUP, "is of version 4"},
		{"{\"version\":-2,\"tensors\":[]}", 0, -EBADMSG, "is negative"},
		{"{\"version\":2}", 0, -EBADMSG, "expected ','"},
		{"{\"version\":2,\"x\":[]}", 0, -EBADMSG, "has no \"tensors\""},
		{"{\"version\":2,\"tensors\":[],\"x\":1}", 0, -EBADMSG, "expected '}'"},
		{"{\"version\":2,\"tensors\":[]} x", 0, -EBADMSG, "something behind its end"},
		{HEAD("2", ""), 1, -EBADMSG, "has 1 bytes of data, of which its tensors use 0"},
		{HEAD("2", "{}"), 0, -EBADMSG, "tensor \"\" has no name"},
		{HEAD("2", T2("", "[4]", "1", "bfloat16", "0", "4", "4", "2")), 6, -EBADMSG,
		 "a tensor's name is empty"},
		{HEAD("2", T2("a\\u0000", "[4]", "1", "bfloat16", "0", "4", "4", "2")), 6, -EBADMSG,
		 "has a NUL"},
		{HEAD("2", T2("t", "[4]", "1", "int8", "0", "4", "4", "2")), 6, -ENOTSUP,
		 "value_dtype is \"int8\", which is not known here"},
		{HEAD("2", T2("t", "[4]", "2", "bfloat16", "0", "4", "4", "4")), 8, -EBADMSG,
		 "indices_size is not that of num_nonzero"},
		{HEAD("2", T2("t", "[4]", "1", "bfloat16", "0", "4", "4", "4")), 8, -EBADMSG,
		 "values_size is not that of num_nonzero"},
		{HEAD("2", T2("t", "[1]", "2", "bfloat16", "0", "8", "8", "4")), 12, -EBADMSG,
		 "more elements change than its shape has"},
		{HEAD("2", T2("t", "[4294967296,4294967296]", "1", "bfloat16", "0", "4", "4", "2")),
		 6, -EBADMSG, "its shape overflows 64 bits"},
		{HEAD("2",
		      T2("t", "[0,4294967296,4294967296]", "0", "bfloat16", "0", "0", "0", "0")),
		 0, -EBADMSG, "its shape overflows 64 bits"},
		{HEAD("2", T2("t", "[9223372036854775807]", "4611686018427387904", "bfloat16", "0",
			      "0", "0", "9223372036854775807")),
		 0, -EBADMSG, "values_size is not that"},
		{HEAD("2", T2("t", "[4]", "1", "bfloat16", "0", "4", "5", "2")), 6, -EBADMSG,
		 "lies beyond the end of the data"},
		{HEAD("2", T2("t", "[4]", "1", "bfloat16", "9223372036854775807", "4", "4", "2")),
		 6, -EBADMSG, "lies beyond the end of the data"},
		{HEAD("2", T2("t", "[4]", "1", "bfloat16", "0", "4", "3", "2")), 6, -EBADMSG,
		 "its bytes from 3 on of the data overlap what lies before them"},
		{HEAD("2", T2("t", "[4]", "1", "bfloat16", "0", "4", "6", "2")), 8, -EBADMSG,
		 "its bytes from 6 on of the data leave a hole after what lies before them"},
		{HEAD("2", T2("t", "[4]", "1", "bfloat16", "0", "4", "4", "2")), 7, -EBADMSG,
		 "has 7 bytes of data, of which its tensors use 6"},
		{HEAD("2", T2("t", "[4]", "1", "bfloat16", "0", "4", "4",
			      "2") "," T2("t", "[4]", "1", "bfloat16", "6", "4", "10", "2")),
		 12, -EBADMSG, "tensor \"t\" is given twice"},
		{HEAD("2", T2("t", "[4]", "1", "bfloat16", "0", "4", "4",
			      "2") "," T2("u", "[4]", "1", "bfloat16", "0", "4", "4", "2")),
		 6, -EBADMSG, "overlap what lies before them"},
		{HEAD("2", T3("\"indices_size\":8,\"rows_size\":4,\"cols_size\":4")), 10, -EBADMSG,
		 "has rows and columns, which version 2 does not know"},
		{HEAD("3", T2("t", "[4]", "1", "bfloat16", "0", "8", "8", "2")), 10, -EBADMSG,
		 "tensor \"t\" has no rows_size"},
		{HEAD("3", T3("\"indices_size\":8,\"rows_size\":4,\"cols_size\":4,"
			      "\"row_dtype\":\"uint8\"")),
		 10, -EBADMSG, "which needs version 31"},
		{HEAD("3", T3("\"indices_size\":8,\"rows_size\":5,\"cols_size\":3")), 10, -EBADMSG,
		 "rows_size or cols_size is not that"},
		{HEAD("3", T3("\"indices_size\":9,\"rows_size\":4,\"cols_size\":4")), 10, -EBADMSG,
		 "indices_size is not rows_size and cols_size"},
		{HEAD("31", T3("\"indices_size\":8,\"rows_size\":4,\"cols_size\":4,"
			       "\"row_dtype\":\"int64\"")),
		 10, -ENOTSUP, "row_dtype is \"int64\""},
		{HEAD("3", T3("\"indices_size\":8,\"rows_size\":4,\"cols_size\":4,\"x\":1")), 10,
		 -ENOTSUP, "has the key \"x\", which is not known here"},
		{HEAD("3", T3("\"indices_size\":8,\"rows_size\":4,\"rows_size\":4")), 10, -EBADMSG,
		 "has the key \"rows_size\" twice"},
		{HEAD("3", T3("\"indices_size\":1e3")), 10, -EBADMSG, "is not a plain integer"},
		{HEAD("2",
		      "{\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
		      "1,1,1]}"),
		 0, -EBADMSG, "more than 32 dimensions"},
		{HEAD("2", "{\"shape\":[[1]]}"), 0, -EBADMSG, "expected a number"},
	};
	static const uint8_t zeros[64];

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct opened o;

		open_text(&o, cases[i].json, zeros, cases[i].data);
		if (o.err != cases[i].err || strstr(o.why.text, cases[i].says) == NULL)
			fail_msg("case %zu is %d and says: %s", i, o.err, o.why.text);
		close_file(&o);
	}
}

static void test_short(void **state)
{
	static const uint8_t bytes[] = {3, 0, 0, 0, '{', '}', 0xff, 0xff, 0xff, 0xff};
	struct delta *d = NULL;
	struct why why;
	struct source src = source_memory(bytes, 3);

	assert_int_equal(delta_open_as(&src, "grail", NULL, &d, &why), -EBADMSG);
	assert_non_null(strstr(why.text, "too short for a delta of grail"));
	src = source_memory(bytes, 6);
	assert_int_equal(delta_open_as(&src, "grail", NULL, &d, &why), -EBADMSG);
	assert_non_null(strstr(why.text, "passes the end of the object"));
	src = source_memory(bytes + 6, 4);
	assert_int_equal(delta_open_as(&src, "grail", NULL, &d, &why), -EBADMSG);
	assert_non_null(strstr(why.text, "passes the limit of 100,000,000"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_flat),	      cmocka_unit_test(test_coo),
		cmocka_unit_test(test_shapes),	      cmocka_unit_test(test_round_trips),
		cmocka_unit_test(test_bad_positions), cmocka_unit_test(test_other_base),
		cmocka_unit_test(test_bad_headers),   cmocka_unit_test(test_short),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
