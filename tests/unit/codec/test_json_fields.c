/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members of JSON objects by table: what is wanted among what is not, exact 64-bit numbers, nulls,
 * lists, and every refusal with a sentence that has the member's name.  And what may be passed
 * over: any value of JSON, to 64 levels, and nothing else.
 */
#include "codec/json_fields.h"
#include "codec/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

struct taken {
	const char *text, *maybe;
	uint64_t number, sum;
	struct json_shape shape;
};

static int take_number(struct st_json *j, void *into)
{
	struct taken *t = into;
	uint64_t n;
	int err = st_json_u64(j, &n);

	t->sum += err == 0 ? n : 0;
	return err;
}

static const struct field table[] = {
	{"text", FIELD_TEXT, false, offsetof(struct taken, text), NULL},
	{"maybe", FIELD_TEXT, true, offsetof(struct taken, maybe), NULL},
	{"number", FIELD_NUMBER, true, offsetof(struct taken, number), NULL},
	{"shape", FIELD_SHAPE, true, offsetof(struct taken, shape), NULL},
	{"list", FIELD_LIST, true, 0, take_number},
};

static int take(const char *text, struct taken *t, struct arena *arena, uint32_t *seen,
		struct why *why)
{
	struct st_json j;
	int err;

	*t = (struct taken){0};
	st_json_init(&j, text, strlen(text), why);
	j.what = "manifest";
	err = json_fields(&j, table, ARRAY_LEN(table), arena, t, seen);
	return err == 0 ? json_end(&j) : err;
}

static void test_members(void **state)
{
	struct arena arena = {0};
	struct why why = {0};
	struct taken t;
	uint32_t seen;

	assert_int_equal(
		take("{\"x\":{\"text\":[1,{}]},\"list\":[1,2,3],\"maybe\":null,\"y\":-0.5e-3,"
		     "\"text\":\"a\\u00e9\\n\",\"number\":18446744073709551615,"
		     "\"shape\":[2,3,4],\"z\":[true,false,null,\"\\\"\",1E+2,-7]} \n",
		     &t, &arena, &seen, &why),
		0);
	assert_string_equal(t.text, "a\xc3\xa9\n");
	assert_null(t.maybe);
	assert_true(t.number == UINT64_MAX);
	assert_int_equal(t.shape.numel, 24);
	assert_int_equal(t.shape.rank, 3);
	assert_int_equal(t.shape.dims[2], 4);
	assert_int_equal(t.sum, 6);
	assert_int_equal(seen, 1 | 4 | 8 | 16);
	assert_int_equal(
		take("{\"te\\u0078t\":\"\",\"list\":[],\"shape\":[]}", &t, &arena, &seen, &why), 0);
	assert_string_equal(t.text, "");
	assert_int_equal(t.shape.numel, 1);
	assert_int_equal(t.shape.rank, 0);
	arena_release(&arena);
}

static void test_refused(void **state)
{
	static const struct {
		const char *text, *sentence;
	} bad[] = {
		{"", "expected '{'"},
		{"[]", "expected '{'"},
		{"{}", "\"text\" is missing"},
		{"{\"text\":null}", "\"text\""},
		{"{\"text\":1}", "\"text\": byte 8 of the manifest: expected a string"},
		{"{\"text\":\"a\",\"text\":\"b\"}", "\"text\" is there twice"},
		{"{\"text\":\"a\",\"maybe\":null,\"maybe\":\"b\"}", "\"maybe\" is there twice"},
		{"{\"text\":\"a\\u0000b\"}", "\"text\" has a NUL"},
		{"{\"text\":\"a\",\"number\":-1}", "negative"},
		{"{\"text\":\"a\",\"number\":1.5}", "plain integer"},
		{"{\"text\":\"a\",\"number\":18446744073709551616}", "not below 2^64"},
		{"{\"text\":\"a\",\"shape\":[4294967296,4294967296]}", "64 bits"},
		{"{\"text\":\"a\",\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
		 "1,1,1,1,1,1,1,1]}",
		 "too many dimensions"},
		{"{\"text\":\"a\",\"shape\":3}", "\"shape\""},
		{"{\"text\":\"a\",\"list\":{}}", "\"list\""},
		{"{\"text\":\"a\",\"list\":[1,\"2\"]}", "a number"},
		{"{\"text\":\"a\"} {", "stands behind it"},
		{"{\"text\":\"a\"", "found its end"},
		{"{\"text\":\"a\",\"x\":}", "a value"},
		{"{\"text\":\"a\",\"x\":01}", "none that JSON has"},
		{"{\"text\":\"a\",\"x\":1.}", "none that JSON has"},
		{"{\"text\":\"a\",\"x\":2e+}", "none that JSON has"},
		{"{\"text\":\"a\",\"x\":-}", "none that JSON has"},
		{"{\"text\":\"a\",\"x\":NaN}", "a value"},
		{"{\"text\":\"a\",\"x\":[1,]}", "a value"},
		{"{\"text\":\"a\",\"x\":[1}", "',' or ']'"},
		{"{\"text\":\"a\",\"x\":{\"b\"}}", "':'"},
		{"{\"text\":\"a\",\"x\":{1:2}}", "a string"},
		{"{\"text\":\"a\",\"x\":[[[\"", "does not end"},
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct arena arena = {0};
		struct why why = {0};
		struct taken t;
		uint32_t seen;

		assert_int_equal(take(bad[i].text, &t, &arena, &seen, &why), -EBADMSG);
		if (strstr(why.text, bad[i].sentence) == NULL)
			fail_msg("%s: %s", bad[i].text, why.text);
		arena_release(&arena);
	}
}

static int skip_nested(unsigned depth, struct why *why)
{
	char text[200];
	struct st_json j;

	memset(text, '[', depth);
	memset(text + depth, ']', depth);
	st_json_init(&j, text, 2 * (size_t)depth, why);
	return st_json_skip(&j);
}

static void test_depth(void **state)
{
	struct why why = {0};

	assert_int_equal(skip_nested(64, &why), 0);
	assert_int_equal(skip_nested(65, &why), -EBADMSG);
	assert_non_null(strstr(why.text, "nested more than 64 deep"));
}

static void test_dtypes(void **state)
{
	assert_int_equal(torch_dtype("torch.bfloat16"), ST_BF16);
	assert_int_equal(torch_dtype("float8_e4m3fn"), ST_F8_E4M3);
	assert_int_equal(torch_dtype("int64"), ST_I64);
	assert_int_equal(torch_dtype("BF16"), -1);
	assert_int_equal(torch_dtype(""), -1);
	assert_int_equal(torch_dtype("torch."), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_members),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_depth),
		cmocka_unit_test(test_dtypes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
