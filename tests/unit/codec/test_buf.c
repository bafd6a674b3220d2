/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codec's small parts: the growing buffer, its JSON strings, the bounds-checked cursor, and the
 * arena.
 */
#include "codec/arena.h"
#include "codec/buf.h"
#include "codec/cursor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

static void test_buf_appends(void **state)
{
	struct buf b = {0};
	char *bytes;
	size_t len;

	assert_string_equal(buf_str(&b), "");
	buf_addstr(&b, "abc");
	buf_add(&b, "\0d", 2);
	buf_fill(&b, 'x', 3);
	buf_addf(&b, "%d-%s", 42, "z");
	assert_false(b.failed);
	assert_int_equal(b.len, 12);
	assert_memory_equal(b.data, "abc\0dxxx42-z", 12);
	assert_int_equal(buf_str(&b)[12], '\0');
	bytes = buf_detach(&b, &len);
	assert_int_equal(len, 12);
	assert_memory_equal(bytes, "abc\0dxxx42-z", 12);
	free(bytes);
	assert_null(b.data);
	assert_int_equal(b.len, 0);
	buf_addstr(&b, "again");
	assert_string_equal(buf_str(&b), "again");
	buf_release(&b);
	assert_null(b.data);
}

static void test_buf_grows(void **state)
{
	struct buf b = {0};

	for (int i = 0; i < 20000; i++)
		buf_addf(&b, "%05d", i);
	assert_int_equal(b.len, 100000);
	for (int i = 0; i < 20000; i++) {
		char want[16];

		snprintf(want, sizeof(want), "%05d", i);
		assert_memory_equal(b.data + (size_t)i * 5, want, 5);
	}
	buf_release(&b);
}

static void test_buf_fails_once(void **state)
{
	struct buf b = {0};
	size_t len = 7;

	buf_addstr(&b, "abc");
	buf_fill(&b, 'x', SIZE_MAX - 2);
	assert_true(b.failed);
	buf_addstr(&b, "more");
	buf_addf(&b, "%d", 1);
	buf_addjson(&b, "s", 1);
	assert_int_equal(b.len, 3);
	assert_string_equal(buf_str(&b), "");
	assert_null(buf_detach(&b, &len));
	assert_int_equal(len, 0);
	assert_false(b.failed);
}

static void test_buf_json(void **state)
{
	static const char raw[] = "a\"b\\c/\b\f\n\r\t\x01\x1f\x7f\0\xc3\xa9\xf0\x9f\x98\x80";
	struct buf b = {0};

	buf_addjson(&b, raw, sizeof(raw) - 1);
	assert_string_equal(buf_str(&b), "\"a\\\"b\\\\c/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\\u0000"
					 "\xc3\xa9\xf0\x9f\x98\x80\"");
	buf_release(&b);
	buf_addjson(&b, "", 0);
	assert_string_equal(buf_str(&b), "\"\"");
	buf_release(&b);
}

static void test_cursor_reads(void **state)
{
	static const uint8_t bytes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};
	struct cursor c;

	cursor_init(&c, bytes, sizeof(bytes));
	assert_int_equal(cursor_u8(&c), 1);
	assert_int_equal(cursor_u16(&c), 0x0302);
	assert_int_equal(cursor_u32(&c), 0x07060504);
	assert_true(cursor_u64(&c) == 0x0f0e0d0c0b0a0908);
	assert_int_equal(cursor_left(&c), 2);
	assert_ptr_equal(cursor_take(&c, 2), bytes + 15);
	assert_non_null(cursor_take(&c, 0));
	assert_int_equal(cursor_left(&c), 0);
	assert_false(c.bad);
}

static void test_cursor_stops_at_the_end(void **state)
{
	static const uint8_t bytes[] = {1, 2, 3};
	struct cursor c;

	cursor_init(&c, bytes, sizeof(bytes));
	assert_int_equal(cursor_u32(&c), 0);
	assert_true(c.bad);
	assert_int_equal(cursor_left(&c), 0);
	assert_int_equal(cursor_u8(&c), 0);
	assert_int_equal(cursor_u16(&c), 0);
	assert_int_equal(cursor_u64(&c), 0);
	assert_null(cursor_take(&c, 0));
	cursor_init(&c, bytes, sizeof(bytes));
	assert_null(cursor_take(&c, SIZE_MAX));
	assert_true(c.bad);
	cursor_init(&c, NULL, 0);
	assert_non_null(cursor_take(&c, 0));
	assert_null(cursor_take(&c, 1));
}

static void test_arena(void **state)
{
	struct arena a = {0};
	uint64_t *numbers[300];
	char *text[300];

	for (size_t i = 0; i < 300; i++) {
		text[i] = arena_text(&a, i * 7 + 1);
		assert_non_null(text[i]);
		memset(text[i], (int)(i & 0xff), i * 7 + 1);
		numbers[i] = arena_alloc(&a, (i % 5) * sizeof(uint64_t));
		assert_non_null(numbers[i]);
		assert_int_equal((uintptr_t)numbers[i] % sizeof(uint64_t), 0);
		for (size_t k = 0; k < i % 5; k++)
			numbers[i][k] = i;
	}
	assert_non_null(arena_text(&a, 3 << 20));
	for (size_t i = 0; i < 300; i++) {
		for (size_t k = 0; k < i * 7 + 1; k++)
			assert_int_equal((uint8_t)text[i][k], i & 0xff);
		for (size_t k = 0; k < i % 5; k++)
			assert_true(numbers[i][k] == i);
	}
	arena_release(&a);
	assert_null(a.chunks);
	assert_null(arena_alloc(&a, SIZE_MAX - 64));
	arena_release(&a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_buf_appends),
		cmocka_unit_test(test_buf_grows),
		cmocka_unit_test(test_buf_fails_once),
		cmocka_unit_test(test_buf_json),
		cmocka_unit_test(test_cursor_reads),
		cmocka_unit_test(test_cursor_stops_at_the_end),
		cmocka_unit_test(test_arena),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
