/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sentences for errors: set, prefixed, cut without splitting a character, and names made printable.
 */
#include "codec/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

static void set_and_prefixed(void **state)
{
	struct why why = {0};

	assert_int_equal(why_set(&why, EBADMSG, "%d things", 3), -EBADMSG);
	assert_string_equal(why.text, "3 things");
	assert_int_equal(why_prefix(&why, "%s", "deltas/x"), -EBADMSG);
	assert_string_equal(why.text, "deltas/x: 3 things");
	assert_int_equal(why_prefix(&why, "outer"), -EBADMSG);
	assert_string_equal(why.text, "outer: deltas/x: 3 things");
	assert_int_equal(why_set(NULL, EIO, "unheard"), -EIO);
	assert_int_equal(why_prefix(NULL, "unheard"), -EIO);
	why = (struct why){0};
	assert_int_equal(why_prefix(&why, "nothing failed"), -EIO);
}

/* Is the text whole characters of UTF-8? */
static bool is_whole(const char *text)
{
	for (size_t i = 0; text[i] != '\0';) {
		const unsigned char c = (unsigned char)text[i];
		size_t n = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;

		for (size_t k = 1; k < n; k++)
			if (((unsigned char)text[i + k] & 0xc0) != 0x80)
				return false;
		i += n;
	}
	return true;
}

/* Whatever the lengths, a text that does not fit ends with a whole character. */
static void cut(void **state)
{
	static const char *const letters[] = {"x", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
	struct why why;
	char text[700];

	for (size_t l = 0; l < ARRAY_LEN(letters); l++)
		for (size_t lead = 0; lead < 4; lead++) {
			size_t at = lead;

			memset(text, '.', lead);
			for (; at + 4 < sizeof(text); at += strlen(letters[l]))
				memcpy(text + at, letters[l], strlen(letters[l]));
			text[at] = '\0';
			why_set(&why, EIO, "%s", text);
			assert_true(is_whole(why.text));
			assert_true(strlen(why.text) > sizeof(why.text) - 5);
			assert_memory_equal(why.text, text, strlen(why.text));
			/* In front of it there is always room. */
			why_prefix(&why, "in front");
			assert_true(is_whole(why.text));
			assert_memory_equal(why.text, "in front: ", 10);
			assert_true(strlen(why.text) > sizeof(why.text) - 5);
			assert_memory_equal(why.text + 10, text, strlen(why.text) - 10);
			why_prefix(&why, "%s", text);
			assert_true(is_whole(why.text));
			assert_true(strlen(why.text) > sizeof(why.text) - 9);
		}
	/* What was complete stays, up to the last byte. */
	memset(text, 'y', sizeof(why.text) - 3);
	memcpy(text + sizeof(why.text) - 3, "\xc3\xa4", 3);
	why_set(&why, EIO, "%s", text);
	assert_string_equal(why.text, text);
}

static void names(void **state)
{
	static const struct {
		const char *name;
		size_t cap;
		const char *want;
	} cases[] = {
		{"plain.weight", 50, "plain.weight"},
		{"a\n\x1b[31m\"\\", 50, "a\\x0a\\x1b[31m\\x22\\x5c"},
		{"\xc3\xa4\xff\xc3", 50, "\xc3\xa4\\xff\\xc3"},
		{"\xc2\x85\x7f", 50, "\\xc2\\x85\\x7f"},
		{"", 50, ""},
		{"0123456789", 10, "012345..."},
		{"012345", 10, "012345"},
		{"01234\xc3\xa4", 9, "01234..."},
	};
	char out[64];

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		memset(out, '#', sizeof(out));
		assert_ptr_equal(printable(out, cases[i].cap, cases[i].name, strlen(cases[i].name)),
				 out);
		assert_string_equal(out, cases[i].want);
		assert_int_equal(out[cases[i].cap], '#');
	}
	assert_string_equal(SHOWN("x\ny"), "x\\x0ay");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(set_and_prefixed),
		cmocka_unit_test(cut),
		cmocka_unit_test(names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
