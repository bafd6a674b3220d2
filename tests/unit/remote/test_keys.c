/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listings made of object stores' keys.
 */
#include "cache/remote/keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void test_usable(void **state)
{
	static const char *const good[] = {
		"a", "a/b.c", "a b+%41", "\xc3\xbc", "\xf0\x9f\x98\x80", "a..b/c.", "\xe2\x82\xac"};
	static const char *const bad[] = {
		"",
		"/a",
		"a/",
		"a//b",
		"../a",
		"a/../b",
		"./a",
		".a",
		"a/.b/c",
		"a\nb",
		"a\x7f",
		"\xff",
		"\xc3",
		"\xc0\x80",
		"\xe0\x80\x80",
		"\xed\xa0\x80",
		"\xf4\x90\x80\x80",
		"\xf0\x80\x80\x80",
		"a\x80",
	};
	char deep[2 * 40] = "";

	for (size_t i = 0; i < ARRAY_LEN(good); i++)
		if (!keys_usable(good[i]))
			fail_msg("good %zu is refused", i);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		if (keys_usable(bad[i]))
			fail_msg("bad %zu is taken", i);
	for (size_t i = 0; i < KEYS_DEPTH_MAX; i++)
		memcpy(deep + 2 * i, "x/", 2);
	deep[2 * KEYS_DEPTH_MAX - 1] = '\0';
	assert_true(keys_usable(deep));
	deep[2 * KEYS_DEPTH_MAX - 1] = '/';
	deep[2 * KEYS_DEPTH_MAX] = 'x';
	assert_false(keys_usable(deep));
}

static void test_listing(void **state)
{
	static const char *const in[] = {"b",  "a/z", "a",  "a.txt", "c/d/e", "b",   ".x",
					 "c/", "c-d", "a0", "c/d",   "//",    "c/d!"};
	static const char *const want[] = {"a.txt", "a/z", "a0", "b", "c-d", "c/d!", "c/d/e"};
	struct identity id = {{0}};
	struct listing l, copy;
	struct keys k = {0};

	for (size_t i = 0; i < ARRAY_LEN(in); i++)
		keys_add(&k, in[i], i, (int64_t)i, &id);
	assert_int_equal(keys_finish(&k, &l), 0);
	assert_int_equal(l.count, ARRAY_LEN(want));
	for (size_t i = 0; i < l.count; i++) {
		assert_string_equal(l.v[i].key, want[i]);
		assert_int_equal(l.v[i].err, 0);
	}
	/* The later of two of one name; "a" and "c/d" are directories, "c/" and "//" no paths. */
	assert_int_equal(listing_find(&l, "b")->size, 5);
	assert_int_equal(l.hidden, 4);
	assert_int_equal(listing_copy(&l, &copy), 0);
	assert_int_equal(copy.hidden, 4);
	listing_release(&l);
	assert_string_equal(copy.v[0].key, "a.txt");
	listing_release(&copy);
	memset(&k, 0, sizeof(k));
	assert_int_equal(keys_finish(&k, &l), 0);
	assert_int_equal(l.count, 0);
	listing_release(&l);
}

static void test_below(void **state)
{
	assert_string_equal(keys_below("a/b", ""), "a/b");
	assert_string_equal(keys_below("logs/a", "logs"), "a");
	assert_null(keys_below("logs_x/a", "logs"));
	assert_null(keys_below("logs", "logs"));
	assert_null(keys_below("logs/", "logs"));
	assert_null(keys_below("other", "logs"));
}

static void test_identity(void **state)
{
	struct identity a, b;

	identity_of_text("xet", "abc", 3, &a);
	identity_of_text("xet", "abc", 3, &b);
	assert_true(identity_equal(&a, &b));
	identity_of_text("sha256", "abc", 3, &b);
	assert_false(identity_equal(&a, &b));
	identity_of_text("xet", "abd", 3, &b);
	assert_false(identity_equal(&a, &b));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_usable),
		cmocka_unit_test(test_listing),
		cmocka_unit_test(test_below),
		cmocka_unit_test(test_identity),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
