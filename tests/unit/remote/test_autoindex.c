/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listings of web servers: ours, nginx's, Apache's and Python's.
 */
#include "cache/remote/autoindex.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static int objects(const char *text, struct autoindex *x, struct why *why)
{
	return autoindex_objects(text, strlen(text), x, why);
}

static const struct autoindex_entry *find(const struct autoindex *x, const char *name)
{
	for (size_t i = 0; i < x->count; i++)
		if (strcmp(x->v[i].name, name) == 0)
			return &x->v[i];
	return NULL;
}

static void test_objects(void **state)
{
	static const char text[] =
		"{\"objects\":[{\"key\":\"a/b\",\"size\":7,\"mtime\":\"2026-01-02T03:04:05.5Z\"},"
		"{\"key\":\"c\",\"size\":0,\"mtime\":1.25,\"etag\":\"\\\"x\\\"\"},"
		"{\"key\":\"d\",\"size\":1,\"xxh3\":\"00\"},{\"key\":\"e\",\"size\":1,"
		"\"mtime\":\"Thu, 01 Jan 1970 00:00:10 GMT\",\"etag\":\"a\\nb\"}]}";
	struct autoindex x;
	struct why why = {0};
	uint64_t row;

	assert_int_equal(autoindex_objects(text, sizeof(text) - 1, &x, &why), 0);
	assert_int_equal(x.count, 4);
	assert_int_equal(x.v[0].size, 7);
	assert_true(x.v[0].mtime_ns == INT64_C(1767323045500000000));
	assert_int_equal(x.v[1].mtime_ns, 1250000000);
	assert_string_equal(x.v[1].etag, "\"x\"");
	assert_true(x.v[2].mtime_ns == INT64_MIN);
	assert_true(x.v[3].mtime_ns == INT64_C(10000000000));
	assert_null(x.v[3].etag); /* no header can be like that */
	row = x.v[2].row;
	autoindex_release(&x);
	assert_int_equal(objects("{\"objects\":[{\"key\":\"d\",\"size\":1}]}", &x, &why), 0);
	assert_true(x.v[0].row != row);
	autoindex_release(&x);
	assert_int_equal(objects("[]", &x, &why), -EPROTO);
	assert_int_equal(objects("<html>", &x, &why), -EPROTO);
	assert_int_equal(objects("{\"objects\":[{\"key\":1}]}", &x, &why), -EBADMSG);
	assert_int_equal(objects("{\"objects\":[{\"key\":\"a\",\"size\":-1}]}", &x, &why),
			 -EBADMSG);
}

static void test_json(void **state)
{
	static const char text[] =
		"[{\"name\":\"d\",\"type\":\"directory\",\"mtime\":\"Wed, 30 Sep "
		"2026 01:02:03 GMT\"},{\"name\":\"a b\",\"type\":\"file\","
		"\"mtime\":\"Wed, 30 Sep 2026 01:02:03 GMT\",\"size\":9}]";
	struct autoindex x;

	assert_int_equal(autoindex_json(text, sizeof(text) - 1, &x), 0);
	assert_int_equal(x.count, 2);
	assert_true(x.v[0].directory);
	assert_false(x.v[1].directory);
	assert_int_equal(x.v[1].size, 9);
	assert_true(x.v[1].mtime_ns > 0);
	autoindex_release(&x);
	assert_int_equal(autoindex_json("{}", strlen("{}"), &x), -EPROTO);
	assert_int_equal(autoindex_json("[{\"name\":1}]", strlen("[{\"name\":1}]"), &x), -EPROTO);
}

static const char url[] = "http://h:81/top/a%20dir/";

static void test_nginx(void **state)
{
	static const char text[] =
		"<html><head><title>Index of /top/a dir/</title></head>\n<body>\n<h1>Index of "
		"/top/a dir/</h1><hr><pre><a href=\"../\">../</a>\n"
		"<a href=\"sub/\">sub/</a>     30-Nov-2026 20:55     -\n"
		"<a href=\"x%20%26%3C.json\">x &amp;&lt;.json</a>  30-Nov-2026 20:55     12\n"
		"<a href=\"q%3F.json\">q?.json</a>  30-Nov-2026 20:55     13\n"
		"<a href=\"/other/y\">y</a> 30-Nov-2026 20:55 1\n"
		"<a href=\"http://else/top/a%20dir/z\">z</a> 1\n"
		"<a href=\"%2e%2e%2fetc\">e</a> 1\n"
		"<a href=\"bad%zz\">e</a> 1\n"
		"</pre><hr></body>\n</html>\n";
	struct autoindex x;

	assert_int_equal(autoindex_html(text, sizeof(text) - 1, url, &x), 0);
	assert_int_equal(x.count, 3);
	assert_true(find(&x, "sub")->directory);
	assert_false(find(&x, "x &<.json")->directory);
	assert_true(find(&x, "x &<.json")->row != find(&x, "q?.json")->row);
	assert_true(find(&x, "x &<.json")->row != 0);
	autoindex_release(&x);
}

static void test_others(void **state)
{
	static const char apache[] =
		"<h1>Index of /top/a dir</h1><table><tr><th><a href=\"?C=N;O=D\">Name</a></th>"
		"</tr>\n<tr><td><a href=\"/top/\">Parent Directory</a></td></tr>\n"
		"<tr><td><A HREF='a&amp;b.txt'>a&amp;b.txt</A></td><td>2026-11-30</td></tr>\n";
	static const char python[] = "<title>Directory listing for /top/a dir/</title><ul>\n"
				     "<li><a href=\"step_1.bin\">step_1.bin</a></li>\n"
				     "<li><a href=\"d/\">d/</a></li>\n</ul>";
	struct autoindex x;

	assert_int_equal(autoindex_html(apache, sizeof(apache) - 1, url, &x), 0);
	assert_int_equal(x.count, 1);
	assert_non_null(find(&x, "a&b.txt"));
	autoindex_release(&x);
	/* Neither date nor size: a change would not show. */
	assert_int_equal(autoindex_html(python, sizeof(python) - 1, url, &x), 0);
	assert_int_equal(x.count, 2);
	assert_int_equal(find(&x, "step_1.bin")->row, 0);
	autoindex_release(&x);
	assert_int_equal(autoindex_html("<a href='x'>x</a>", 17, url, &x), -EPROTO);
	assert_int_equal(autoindex_html("", 0, url, &x), -EPROTO);
	assert_int_equal(autoindex_html("Index of <a href=\"x", 19, url, &x), 0);
	assert_int_equal(x.count, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_objects),
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_nginx),
		cmocka_unit_test(test_others),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
