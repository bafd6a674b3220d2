/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Server-sent events, whole and in pieces of every size.
 */
#include "cache/remote/sse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void note(void *ctx, const char *name, const char *data, bool cut)
{
	buf_addf(ctx, "%s=%s%s;", name, data, cut ? "(cut)" : "");
}

static const struct {
	const char *stream, *events;
} cases[] = {
	{"event: ready\ndata: {}\n\n", "ready={};"},
	{"data: x\n\n", "message=x;"},
	{"data:x\ndata:  y\n\n", "message=x\n y;"},
	{": ping\n\n: ping\r\n\r\n", ""},
	{"event: a\r\ndata: 1\r\n\r\nevent: b\rdata: 2\r\r", "a=1;b=2;"},
	{"\xef\xbb\xbf"
	 "data: bom\n\n",
	 "message=bom;"},
	{"event: lost\n\ndata: kept\n\n", "message=kept;"},
	{"id: 7\nretry: 9\nunknown: x\nnonsense\ndata: d\n\n", "message=d;"},
	{"data\n\n", "message=;"},
	{"data: not ended\n", ""},
	{"event: changes\ndata: {\"cursor\":\"c1\"}\n\nevent: x\n", "changes={\"cursor\":\"c1\"};"},
};

static void test_events(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		size_t len = strlen(cases[i].stream);

		for (size_t step = 1; step <= len; step++) {
			struct buf seen = {0};
			struct sse s = {.event = note, .ctx = &seen};

			for (size_t at = 0; at < len; at += step)
				sse_feed(&s, cases[i].stream + at, MIN(step, len - at));
			assert_string_equal(buf_str(&seen), cases[i].events);
			sse_release(&s);
			buf_release(&seen);
		}
	}
}

static void count(void *ctx, const char *name, const char *data, bool cut)
{
	size_t *n = ctx;

	n[cut]++;
	assert_true(strlen(data) <= SSE_EVENT_MAX);
}

static void test_bounded(void **state)
{
	static const char line[] = "data: 0123456789012345678901234567890123456789\n";
	size_t n[2] = {0};
	struct sse s = {.event = count, .ctx = n};

	for (size_t i = 0; i < SSE_EVENT_MAX / 20; i++)
		sse_feed(&s, line, sizeof(line) - 1);
	sse_feed(&s, "\n", 1);
	assert_int_equal(n[1], 1);
	sse_feed(&s, "data: fine\n\n", 12);
	assert_int_equal(n[0], 1);
	/* One line without an end. */
	for (size_t i = 0; i < SSE_EVENT_MAX / 20; i++)
		sse_feed(&s, line, sizeof(line) - 2);
	sse_feed(&s, "\n\n", 2);
	assert_int_equal(n[1], 2);
	sse_release(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_events),
		cmocka_unit_test(test_bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
