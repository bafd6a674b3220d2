/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading safetensors headers: every rule of the validator with its sentence, truncation
 * everywhere, all dtypes, look-ups.
 *
 * A case is a header's text and the bytes of data that the file has; file_of() makes the file.
 */
#include "codec/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "tests/unit/codec/st_cases.h"

struct bad {
	const char *json;
	uint64_t data;
	const char *sentence; /* part of it */
};

static void expect_bad(const char *json, size_t len, uint64_t data, const char *sentence)
{
	struct st_header *h = NULL;
	struct why why = {0};
	int rc = st_parse(json, len, 8 + len + data, &h, &why);

	if (rc != -EBADMSG || why.err != EBADMSG || strstr(why.text, sentence) == NULL)
		fail_msg("%.60s: rc %d, \"%s\" instead of \"%s\"", json, rc, why.text, sentence);
	assert_null(h);
	assert_int_equal(st_parse(json, len, 8 + len + data, &h, NULL), -EBADMSG);
}

static void run_bad(const struct bad *cases, size_t count)
{
	for (size_t i = 0; i < count; i++)
		expect_bad(cases[i].json, strlen(cases[i].json), cases[i].data, cases[i].sentence);
}

static const struct bad text_rules[] = {
	{" {}", 0, "does not start with '{' but with byte 0x20"},
	{"[]", 0, "does not start with '{' but with byte 0x5b"},
	{"\xef\xbb\xbf{}", 0, "does not start with '{' but with byte 0xef"},
	{"{} x", 0,
	 "byte 3 of the header: only spaces may follow its closing '}', found byte 0x78"},
	{"{}\n", 0, "only spaces may follow its closing '}', found byte 0x0a"},
	{"{}{}", 0, "only spaces may follow its closing '}', found byte 0x7b"},
	{"{ ", 0, "byte 2 of the header: expected a string, found its end"},
	{"{,}", 0, "byte 1 of the header: expected a string, found ','"},
	{"{\"a\"}", 0, "byte 4 of the header: expected ':', found '}'"},
	{"{a:1}", 0, "expected a string, found 'a'"},
	{"{\"a\":" E("U8", "1", 0, 1) ",}", 1, "expected a string, found '}'"},
	{"{\"a\":" E("U8", "1", 0, 1) " \"b\"}", 1, "expected ',' or '}', found '\\x22'"},
	{"{\"a\":1}", 0, "tensor \"a\": byte 5 of the header: expected '{', found '1'"},
	{"{\"a\":null}", 0, "tensor \"a\": byte 5 of the header: expected '{', found 'n'"},
	{"{\"a\":{\"dtype\":8}}", 0,
	 "tensor \"a\": dtype: byte 14 of the header: expected a string"},
	{"{\"a\xff\":1}", 0, "byte 3 of the header: not valid UTF-8"},
	{"{\"\xc0\x80\":1}", 0, "not valid UTF-8"},
	{"{\"\xe0\x80\x80\":1}", 0, "not valid UTF-8"},
	{"{\"\xed\xa0\x80\":1}", 0, "not valid UTF-8"},
	{"{\"\xf0\x80\x80\x80\":1}", 0, "not valid UTF-8"},
	{"{\"\xf4\x90\x80\x80\":1}", 0, "not valid UTF-8"},
	{"{\"\xf5\x80\x80\x80\":1}", 0, "not valid UTF-8"},
	{"{\"\xc3", 0, "not valid UTF-8"},
	{"{\"\xc3(\":1}", 0, "not valid UTF-8"},
	{"{\"\xe2\x82(\":1}", 0, "not valid UTF-8"},
	{"{\"a\x01\":1}", 0, "a control character inside a string must be escaped"},
	{"{\"a\nb\":1}", 0, "a control character inside a string must be escaped"},
	{"{\"a", 0, "byte 1 of the header: the string does not end"},
	{"{\"a\\", 0, "the string does not end"},
	{"{\"a\\\"", 0, "the string does not end"},
	{"{\"a\\x\":1}", 0, "byte 3 of the header: not an escape that JSON has"},
	{"{\"\\u12g4\":1}", 0, "\\u needs four hexadecimal digits"},
	{"{\"\\u12", 0, "\\u needs four hexadecimal digits"},
	{"{\"\\udc00\":1}", 0, "a lone low surrogate is not a character"},
	{"{\"\\ud800\":1}", 0, "a lone high surrogate is not a character"},
	{"{\"\\ud800\\u0041\":1}", 0, "a lone high surrogate is not a character"},
	{"{\"\\ud800", 0, "a lone high surrogate is not a character"},
};

static const struct bad key_rules[] = {
	{"{\"\":" E("U8", "1", 0, 1) "}", 1, "a tensor has an empty name"},
	{"{\"a\\u0000b\":" E("U8", "1", 0, 1) "}", 1, "tensor \"a\\x00b\": its name has a NUL"},
	{"{\"a\":" E("U8", "1", 0, 1) ",\"a\":" E("U8", "1", 1, 2) "}", 2,
	 "tensor \"a\": given twice"},
	{"{\"a\":" E("U8", "0", 0, 0) ",\"b\":" E("U8", "0", 0, 0) ",\"\\u0061\":" E("U8", "0", 0,
										     0) "}",
	 0, "tensor \"a\": given twice"},
	{"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1,
	 "tensor \"a\": duplicate key \"dtype\""},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"shape\":[],\"data_offsets\":[0,1]}}", 1,
	 "tensor \"a\": duplicate key \"shape\""},
	{"{\"a\":{\"data_offsets\":[0,1],\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1,
	 "tensor \"a\": duplicate key \"data_offsets\""},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1],\"x\":1}}", 1,
	 "tensor \"a\": unknown key \"x\" (expected dtype, shape and data_offsets)"},
	{"{\"a\":{\"shape\":[],\"data_offsets\":[0,1]}}", 1, "tensor \"a\": has no dtype"},
	{"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "tensor \"a\": has no shape"},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[]}}", 1, "tensor \"a\": has no data_offsets"},
	{"{\"a\":{}}", 0, "tensor \"a\": has no dtype"},
	{"{\"a\":" E("F12", "", 0, 1) "}", 1, "tensor \"a\": unknown dtype \"F12\""},
	{"{\"a\":" E("bf16", "", 0, 2) "}", 2, "tensor \"a\": unknown dtype \"bf16\""},
	{"{\"a\":" E("", "", 0, 2) "}", 2, "tensor \"a\": unknown dtype \"\""},
	{"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__: given twice"},
	{"{\"__metadata__\":{},\"__metadat\\u0061__\":{}}", 0, "__metadata__: given twice"},
	{"{\"__metadata__\":{\"k\":\"1\",\"j\":\"\",\"k\":\"1\"}}", 0,
	 "__metadata__: key \"k\" given twice"},
	{"{\"__metadata__\":{\"k\":1}}", 0,
	 "__metadata__: key \"k\": byte 21 of the header: expected a string, found '1'"},
	{"{\"__metadata__\":{\"k\":null}}", 0, "__metadata__: key \"k\": byte 21"},
	{"{\"__metadata__\":{\"k\":{}}}", 0, "__metadata__: key \"k\": byte 21"},
	{"{\"__metadata__\":{\"k\":\"a\\u0000\"}}", 0,
	 "__metadata__: key \"k\": value \"a\\x00\" has a NUL"},
	{"{\"__metadata__\":{\"k\\u0000\":\"a\"}}", 0, "__metadata__: key \"k\\x00\" has a NUL"},
	{"{\"__metadata__\":null}", 0,
	 "__metadata__: byte 16 of the header: expected '{', found 'n'"},
	{"{\"__metadata__\":[]}", 0,
	 "__metadata__: byte 16 of the header: expected '{', found '['"},
};

static const struct bad number_rules[] = {
	{"{\"a\":" E("U8", "-1", 0, 1) "}", 1,
	 "tensor \"a\": shape: byte 28 of the header: number -1 is negative"},
	{"{\"a\":" E("U8", "-0", 0, 0) "}", 0, "number -0 is negative"},
	{"{\"a\":" E("U8", "1.0", 0, 1) "}", 1,
	 "shape: byte 28 of the header: number 1.0 is not a plain integer"},
	{"{\"a\":" E("U8", "1e0", 0, 1) "}", 1, "number 1e0 is not a plain integer"},
	{"{\"a\":" E("U8", "1E0", 0, 1) "}", 1, "number 1E0 is not a plain integer"},
	{"{\"a\":" E("U8", "01", 0, 1) "}", 1, "number 01 has a leading zero"},
	{"{\"a\":" E("U8", "00", 0, 0) "}", 0, "number 00 has a leading zero"},
	{"{\"a\":" E("U8", "+1", 0, 1) "}", 1, "expected a number, found '+'"},
	{"{\"a\":" E("U8", "\"1\"", 0, 1) "}", 1, "expected a number, found '\\x22'"},
	{"{\"a\":" E("U8", "true", 0, 1) "}", 1, "expected a number, found 't'"},
	{"{\"a\":" E("U8", "1,", 0, 1) "}", 1,
	 "shape: byte 30 of the header: expected a number, found ']'"},
	{"{\"a\":" E("U8", "1 1", 0, 1) "}", 1,
	 "shape: byte 30 of the header: expected ',' or ']', found '1'"},
	{"{\"a\":" E("U8", "9223372036854775808", 0, 1) "}", 1,
	 "number 9223372036854775808 is not below 2^63"},
	{"{\"a\":" E("U8", "18446744073709551617", 0, 1) "}", 1, "is not below 2^63"},
	{"{\"a\":" E("U8", "99999999999999999999999", 0, 1) "}", 1, "is not below 2^63"},
	{"{\"a\":" E("U8", "", 0, 9223372036854775808) "}", 1,
	 "tensor \"a\": data_offsets: byte 48 of the header: number 9223372036854775808 is not "
	 "below 2^63"},
	{"{\"a\":" E("U8", "4294967296,4294967296", 0, 0) "}", 0,
	 "tensor \"a\": shape [4294967296, 4294967296] of U8 overflows 64 bits"},
	{"{\"a\":" E("F64", "4294967296,1073741824", 0, 0) "}", 0,
	 "tensor \"a\": shape [4294967296, 1073741824] of F64 overflows 64 bits"},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}}", 1,
	 "tensor \"a\": shape: byte 27 of the header: expected '[', found '1'"},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0]}}", 1,
	 "tensor \"a\": data_offsets: byte 47 of the header: expected ',', found ']'"},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[]}}", 1,
	 "tensor \"a\": data_offsets: byte 46 of the header: expected a number, found ']'"},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1,2]}}", 1,
	 "tensor \"a\": data_offsets: byte 49 of the header: expected ']', found ','"},
};

static const struct bad layout_rules[] = {
	{"{\"a\":" E("U8", "0", 2, 1) "}", 2,
	 "tensor \"a\": data_offsets [2, 1] end before they begin"},
	{"{\"a\":" E("F32", "2,3", 0, 8) "}", 8,
	 "tensor \"a\": shape [2, 3] of F32 needs 24 bytes but data_offsets [0, 8] hold 8"},
	{"{\"a\":" E("F32", "", 0, 0) "}", 0,
	 "tensor \"a\": shape [] of F32 needs 4 bytes but data_offsets [0, 0] hold 0"},
	{"{\"a\":" E("F4", "3", 0, 1) "}", 1,
	 "tensor \"a\": shape [3] of F4 does not fill whole bytes"},
	{"{\"a\":" E("F6_E2M3", "2", 0, 1) "}", 1,
	 "shape [2] of F6_E2M3 does not fill whole bytes"},
	{"{\"a\":" E("U8", "1", 8, 9) "}", 9,
	 "tensor \"a\": data_offsets [8, 9] leave a hole of 8 bytes before the first tensor"},
	{"{\"a.b\":" E("U8", "16", 16, 32) ",\"a.a\":" E("U8", "8", 0, 8) "}", 32,
	 "tensor \"a.b\": data_offsets [16, 32] leave a hole of 8 bytes after \"a.a\""},
	{"{\"a\":" E("U8", "8", 0, 8) ",\"b\":" E("U8", "8", 4, 12) "}", 12,
	 "tensor \"b\": data_offsets [4, 12] overlap \"a\" [0, 8] by 4 bytes"},
	{"{\"a\":" E("U8", "8", 0, 8) ",\"b\":" E("U8", "8", 0, 8) "}", 8,
	 "tensor \"b\": data_offsets [0, 8] overlap \"a\" [0, 8] by 8 bytes"},
	{"{\"a\":" E("U8", "8", 0, 8) ",\"b\":" E("U8", "2", 2, 4) "}", 8,
	 "tensor \"b\": data_offsets [2, 4] overlap \"a\" [0, 8] by 2 bytes"},
	{"{\"a\":" E("U8", "8", 0, 8) ",\"b\":" E("U8", "0", 4, 4) "}", 8,
	 "tensor \"b\": data_offsets [4, 4] lie inside \"a\" [0, 8]"},
	{"{\"a\":" E("U8", "8", 0, 8) "}", 9,
	 "the file has 1 bytes after its last tensor \"a\", which ends at 8 of 9 bytes of data"},
	{"{\"a\":" E("U8", "8", 0, 8) "}", 7,
	 "tensor \"a\": data_offsets [0, 8] pass the end of the data of 7 bytes"},
	{"{}", 3, "the file has 3 bytes of data but its header has no tensors"},
	{"{\"__metadata__\":{}}", 1, "the file has 1 bytes of data but its header has no tensors"},
};

static void test_text_rules(void **state)
{
	run_bad(text_rules, ARRAY_LEN(text_rules));
}

static void test_key_rules(void **state)
{
	run_bad(key_rules, ARRAY_LEN(key_rules));
}

static void test_number_rules(void **state)
{
	run_bad(number_rules, ARRAY_LEN(number_rules));
}

static void test_layout_rules(void **state)
{
	run_bad(layout_rules, ARRAY_LEN(layout_rules));
}

static void test_nul_bytes(void **state)
{
	expect_bad("{}\0", 3, 0, "only spaces may follow its closing '}', found byte 0x00");
	expect_bad("{\0}", 3, 0, "expected a string, found '\\x00'");
	expect_bad("{\"\0\":1}", 7, 0, "a control character inside a string must be escaped");
	expect_bad("{\"\\\0\":1}", 8, 0, "not an escape that JSON has");
}

/* Name, rank and sentences at their limits and one past them. */
static void test_limits(void **state)
{
	for (int over = 0; over < 2; over++) {
		struct st_header *h;
		struct buf b = {0};

		buf_addstr(&b, "{\"");
		buf_fill(&b, 'n', (size_t)ST_NAME_MAX + (size_t)over);
		buf_addstr(&b, "\":" E("U8", "1", 0, 1) "}");
		if (over) {
			expect_bad(b.data, b.len, 1,
				   "its name of 2049 bytes passes the limit of 2048");
		} else {
			h = expect_good(b.data, b.len, 1);
			assert_int_equal(h->tensors[0].name_len, ST_NAME_MAX);
			st_free(h);
		}
		buf_release(&b);
		buf_addstr(&b, "{\"a\":{\"shape\":[1");
		for (int i = 1; i < ST_RANK_MAX + over; i++)
			buf_addstr(&b, ",1");
		buf_addstr(&b, "],\"dtype\":\"U8\",\"data_offsets\":[0,1]}}");
		if (over) {
			expect_bad(b.data, b.len, 1,
				   "tensor \"a\": shape has more than 32 dimensions");
		} else {
			h = expect_good(b.data, b.len, 1);
			assert_int_equal(h->tensors[0].rank, ST_RANK_MAX);
			st_free(h);
		}
		buf_release(&b);
	}
	/* A long name and a long shape are cut, and the sentence still ends as it should. */
	{
		struct buf b = {0};

		buf_addstr(&b, "{\"");
		buf_fill(&b, 'n', 2000);
		buf_addstr(&b, "\":{\"shape\":[1");
		for (int i = 1; i < ST_RANK_MAX; i++)
			buf_addstr(&b, ",1000000000000000000");
		buf_addstr(&b, "],\"dtype\":\"U8\",\"data_offsets\":[0,1]}}");
		expect_bad(b.data, b.len, 1, "nnn...\": shape [1, 1000000000000000000, ");
		expect_bad(b.data, b.len, 1, "...] of U8 overflows 64 bits");
		buf_release(&b);
	}
}

static void expect_unreadable(const void *file, size_t len, const char *sentence)
{
	struct source src = source_memory(file, len);
	struct st_header *h = NULL;
	char *json = NULL;
	struct why why = {0};
	int rc = st_read(&src, &h, &json, &why);

	if (rc != -EBADMSG || strstr(why.text, sentence) == NULL)
		fail_msg("rc %d, \"%s\" instead of \"%s\"", rc, why.text, sentence);
	assert_null(h);
	assert_null(json);
}

/* A file with that header and `data` bytes after it. */
static struct buf file_of(const char *json, size_t data)
{
	struct buf b = {0};

	buf_fill(&b, 0, 8);
	store_le64(b.data, strlen(json));
	buf_addstr(&b, json);
	buf_fill(&b, 7, data);
	return b;
}

static void test_read_length_rules(void **state)
{
	struct buf b = file_of("{\"a\":" E("U8", "3", 0, 3) "}", 3);
	struct source src = source_memory(b.data, b.len);
	struct st_header *h;
	struct why why;
	char *json;

	assert_int_equal(st_read(&src, &h, &json, &why), 0);
	assert_int_equal(h->length, b.len - 11);
	assert_int_equal(h->data, b.len - 3);
	assert_int_equal(h->file_size, b.len);
	assert_memory_equal(json, b.data + 8, h->length);
	free(json);
	st_free(h);
	assert_int_equal(st_read(&src, &h, NULL, NULL), 0);
	st_free(h);

	expect_unreadable("", 0, "file of 0 bytes is too short");
	expect_unreadable(b.data, 7, "file of 7 bytes is too short");
	expect_unreadable(b.data, 8, "passes the end of the file of 8 bytes");
	store_le64(b.data, 0);
	expect_unreadable(b.data, b.len, "header of 0 bytes is too short");
	store_le64(b.data, 1);
	expect_unreadable(b.data, b.len, "header of 1 bytes is too short");
	store_le64(b.data, b.len - 7);
	expect_unreadable(b.data, b.len, "passes the end of the file");
	store_le64(b.data, ST_HEADER_MAX);
	expect_unreadable(b.data, b.len, "header of 100000000 bytes passes the end of the file");
	store_le64(b.data, ST_HEADER_MAX + 1);
	expect_unreadable(b.data, b.len,
			  "header of 100000001 bytes passes the limit of 100,000,000");
	store_le64(b.data, UINT64_MAX);
	expect_unreadable(b.data, b.len, "passes the limit of 100,000,000");
	buf_release(&b);
}

static int fail_read(void *ctx, uint64_t off, void *dst, size_t len)
{
	if (off >= *(uint64_t *)ctx)
		return -EIO;
	memset(dst, 0, len);
	store_le64(dst, 100);
	return 0;
}

static void test_read_passes_errors_on(void **state)
{
	uint64_t fail_from = 0;
	struct source src = {.read = fail_read, .ctx = &fail_from, .size = 1000};
	struct st_header *h = NULL;
	struct why why;

	assert_int_equal(st_read(&src, &h, NULL, &why), -EIO);
	assert_string_equal(why.text, "cannot read the header's length");
	fail_from = 8;
	assert_int_equal(st_read(&src, &h, NULL, &why), -EIO);
	assert_string_equal(why.text, "cannot read the header of 100 bytes");
	assert_null(h);
}

static const char sample[] =
	"{\"__metadata__\":{\"format\":\"pt\",\"who\":\"a\\u00e9\\ud83d\\ude00\\n\\/\"},"
	"\"model.b\":" E("F32", "2,3", 8, 32) ",\"model.a\\\"\\\\\":" E(
		"BF16", "4", 0, 8) ","
				   "\"z2\":" E("I8", "0,5", 8, 8) ",\"z1\":" E(
					   "I8", "0", 8, 8) ",\"s\":" E("F64", "", 32, 40) "}  ";

/* No prefix of a header is a header, except for the padding. */
static void test_truncation(void **state)
{
	size_t len = sizeof(sample) - 1;

	for (size_t n = 0; n < len - 2; n++) {
		struct st_header *h = NULL;
		struct why why = {0};
		char *cut = malloc(MAX(n, (size_t)1));

		/* A copy of exactly n bytes, so that a read past the end is seen. */
		memcpy(cut, sample, n);
		assert_int_equal(st_parse(cut, n, 8 + n + 40, &h, &why), -EBADMSG);
		assert_true(strlen(why.text) > 10);
		free(cut);
	}
	for (size_t n = len - 2; n <= len; n++)
		st_free(expect_good(sample, n, 40));
}

static void test_sample(void **state)
{
	struct st_header *h = expect_good(sample, sizeof(sample) - 1, 40);
	static const char *const order[] = {"model.a\"\\", "z2", "z1", "model.b", "s"};
	const struct st_tensor *t;

	assert_int_equal(h->count, 5);
	for (size_t i = 0; i < 5; i++) {
		assert_string_equal(h->tensors[i].name, order[i]);
		assert_int_equal(h->tensors[i].name_len, strlen(order[i]));
		assert_ptr_equal(st_find(h, order[i]), &h->tensors[i]);
		assert_true(i == 0 || strcmp(h->tensors[h->by_name[i - 1]].name,
					     h->tensors[h->by_name[i]].name) < 0);
	}
	t = st_find(h, "model.b");
	assert_int_equal(t->dtype, ST_F32);
	assert_int_equal(t->rank, 2);
	assert_int_equal(t->shape[0], 2);
	assert_int_equal(t->shape[1], 3);
	assert_int_equal(t->numel, 6);
	assert_int_equal(t->begin, 8);
	assert_int_equal(t->end, 32);
	assert_int_equal(st_find(h, "s")->numel, 1);
	assert_int_equal(st_find(h, "z2")->numel, 0);
	assert_null(st_find(h, "model"));
	assert_null(st_find(h, ""));
	assert_null(st_find(h, "zz"));
	assert_int_equal(h->meta_count, 2);
	assert_string_equal(h->meta[0].key, "format");
	assert_string_equal(st_meta(h, "format"), "pt");
	assert_string_equal(st_meta(h, "who"), "a\xc3\xa9\xf0\x9f\x98\x80\n/");
	assert_null(st_meta(h, "whom"));
	assert_int_equal(h->meta_begin, 16);
	assert_int_equal(sample[h->meta_begin], '{');
	assert_int_equal(sample[h->meta_end - 1], '}');
	assert_int_equal(sample[h->meta_end], ',');
	st_free(h);
	st_free(NULL);
}

static void test_accepts(void **state)
{
	static const struct bad good[] = {
		{"{}", 0, ""},
		{"{}      ", 0, ""},
		{"{ \n\t\r}", 0, ""},
		{"{\"__metadata__\":{}}", 0, ""},
		{"{\"__metadata__\" : { \"\" : \"\" } , \"a\" : { \"dtype\" :\n\"U8\" , \"shape\" "
		 ": [ 1 , 2 ] , "
		 "\"data_offsets\" : [ 0 , 2 ] } }",
		 2, ""},
		{"{\"a\":{\"data_offsets\":[0,1],\"shape\":[],\"dt\\u0079pe\":\"\\u00558\"}}", 1,
		 ""},
		{"{\"dtype\":" E("U8", "", 0, 1) ",\"__metadata__\":{\"a\":\"b\"}}", 1, ""},
		{"{\"\xf4\x8f\xbf\xbf\xe2\x82\xac\xed\x9f\xbf\":" E("U8", "", 0, 1) "}", 1, ""},
		{"{\"a\":" E("F32", "0,9223372036854775807", 0, 0) "}", 0, ""},
	};

	for (size_t i = 0; i < ARRAY_LEN(good); i++)
		st_free(expect_good(good[i].json, strlen(good[i].json), good[i].data));
}

static void test_dtypes(void **state)
{
	static const struct {
		const char *name;
		unsigned bits, width;
		bool is_float;
	} want[ST_DTYPES] = {
		{"BOOL", 8, 1, false},	     {"F4", 4, 1, true},	  {"F6_E2M3", 6, 1, true},
		{"F6_E3M2", 6, 1, true},     {"U8", 8, 1, false},	  {"I8", 8, 1, false},
		{"F8_E5M2", 8, 1, true},     {"F8_E4M3", 8, 1, true},	  {"F8_E8M0", 8, 1, true},
		{"F8_E4M3FNUZ", 8, 1, true}, {"F8_E5M2FNUZ", 8, 1, true}, {"I16", 16, 2, false},
		{"U16", 16, 2, false},	     {"F16", 16, 2, true},	  {"BF16", 16, 2, true},
		{"I32", 32, 4, false},	     {"U32", 32, 4, false},	  {"F32", 32, 4, true},
		{"C64", 64, 8, true},	     {"F64", 64, 8, true},	  {"I64", 64, 8, false},
		{"U64", 64, 8, false},
	};

	for (int d = 0; d < ST_DTYPES; d++) {
		struct st_header *h;
		struct buf b = {0};

		assert_string_equal(st_dtype_name((enum st_dtype)d), want[d].name);
		assert_int_equal(st_dtype_parse(want[d].name, strlen(want[d].name)), d);
		assert_int_equal(st_dtype_bits((enum st_dtype)d), want[d].bits);
		assert_int_equal(st_dtype_width((enum st_dtype)d), want[d].width);
		assert_int_equal(st_dtype_is_float((enum st_dtype)d), want[d].is_float);
		buf_addf(&b, "{\"a\":{\"dtype\":\"%s\",\"shape\":[8],\"data_offsets\":[0,%u]}}",
			 want[d].name, want[d].bits);
		h = expect_good(b.data, b.len, want[d].bits);
		assert_int_equal(h->tensors[0].dtype, d);
		st_free(h);
		buf_release(&b);
	}
	assert_int_equal(st_dtype_parse("F3", 2), -1);
	assert_int_equal(st_dtype_parse("F32", 2), -1);
	assert_int_equal(st_dtype_parse("F322", 4), -1);
	assert_int_equal(st_dtype_parse("", 0), -1);
}

static void test_misaligned(void **state)
{
	/* The data begins at 8 + N, which is what alignment is measured from. */
	const char *json = "{\"a\":" E("U8", "2", 0, 2) ",\"b\":" E("F32", "1", 2, 6) "}";
	size_t len = strlen(json);
	char padded[256];

	for (size_t pad = 0; pad < 8; pad++) {
		struct st_header *h;
		bool fits = (8 + len + pad + 2) % 4 == 0;

		memset(padded, ' ', sizeof(padded));
		memcpy(padded, json, len);
		h = expect_good(padded, len + pad, 6);
		if (fits)
			assert_null(st_misaligned(h));
		else
			assert_ptr_equal(st_misaligned(h), st_find(h, "b"));
		st_free(h);
	}
}

/* As many tensors as a large mixture of experts has, listed backwards and one of them twice. */
static void test_many_tensors(void **state)
{
	const size_t count = 100000;
	struct st_header *h;
	struct buf b = {0};
	char name[64];

	buf_addstr(&b, "{");
	for (size_t i = count; i-- > 0;)
		buf_addf(&b,
			 "\"layers.%zu.experts.%zu.weight\":{\"dtype\":\"BF16\",\"shape\":[2,1],"
			 "\"data_offsets\":[%zu,%zu]}%s",
			 i / 100, i % 100, i * 4, i * 4 + 4, i > 0 ? "," : "}");
	h = expect_good(b.data, b.len, count * 4);
	assert_int_equal(h->count, count);
	for (size_t i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "layers.%zu.experts.%zu.weight", i / 100, i % 100);
		assert_string_equal(h->tensors[i].name, name);
		assert_true(h->tensors[i].begin == i * 4);
		assert_ptr_equal(st_find(h, name), &h->tensors[i]);
	}
	st_free(h);
	b.data[b.len - 1] = ',';
	buf_addstr(&b, "\"layers.500.experts.7.weight\":" E("U8", "0", 0, 0) "}");
	expect_bad(b.data, b.len, count * 4, "tensor \"layers.500.experts.7.weight\": given twice");
	buf_release(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_text_rules),
		cmocka_unit_test(test_key_rules),
		cmocka_unit_test(test_number_rules),
		cmocka_unit_test(test_layout_rules),
		cmocka_unit_test(test_nul_bytes),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_read_length_rules),
		cmocka_unit_test(test_read_passes_errors_on),
		cmocka_unit_test(test_truncation),
		cmocka_unit_test(test_sample),
		cmocka_unit_test(test_accepts),
		cmocka_unit_test(test_dtypes),
		cmocka_unit_test(test_misaligned),
		cmocka_unit_test(test_many_tensors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
