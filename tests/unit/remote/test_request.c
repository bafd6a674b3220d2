/* SPDX-License-Identifier: Apache-2.0 */
/*
 * URLs, values of header fields, and requests.
 */
#include "cache/remote/request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "cache/remote/fields.h"

static void parse(void **state)
{
	static const struct {
		const char *text, *host, *path, *query;
		unsigned port;
		bool https;
	} good[] = {
		{"https://huggingface.co", "huggingface.co", "/", NULL, 443, true},
		{"HTTPS://HuggingFace.CO/a%2Fb//c/../d?x=1&y#f", "huggingface.co", "/a%2Fb//c/../d",
		 "x=1&y", 443, true},
		{"http://127.0.0.1:8080?q", "127.0.0.1", "/", "q", 8080, false},
		{"http://h:/", "h", "/", NULL, 80, false},
		{"http://[::1]:9000/b", "[::1]", "/b", NULL, 9000, false},
		{"https://my_bucket.s3.amazonaws.com:443/k?", "my_bucket.s3.amazonaws.com", "/k",
		 "", 443, true},
		{"http://h#frag?no", "h", "/", NULL, 80, false},
		{"http://h/a@b", "h", "/a@b", NULL, 80, false},
	};
	static const char *const bad[] = {
		"",
		"huggingface.co",
		"ftp://h/",
		"file:///etc/passwd",
		"https://",
		"https:///p",
		"https://user@h/",
		"https://user:pw@h/",
		"https://h:0/",
		"https://h:65536/",
		"https://h:8x/",
		"https://h:123456/",
		"https://h h/",
		"https://h/a b",
		"https://h/a\nb",
		"https://h\\@x/",
		"https://[::1/",
		"https://[]/",
		"https://h]/",
		"https://h%41/",
		"http://h\x7f/",
	};

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		struct url u = {0};

		assert_int_equal(url_parse(good[i].text, &u, NULL), 0);
		assert_string_equal(u.host, good[i].host);
		assert_string_equal(u.path, good[i].path);
		if (good[i].query == NULL)
			assert_null(u.query);
		else
			assert_string_equal(u.query, good[i].query);
		assert_int_equal(u.port, good[i].port);
		assert_int_equal(u.https, good[i].https);
		url_release(&u);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct url u = {0};
		struct why why = {0};

		assert_int_equal(url_parse(bad[i], &u, &why), -EINVAL);
		assert_null(strstr(why.text, "pw"));
		assert_null(u.path);
	}
}

static void origins(void **state)
{
	struct url u = {0};
	struct buf b = {0};

	assert_true(url_text_same_origin("https://h/a", "https://H:443/b?c"));
	assert_false(url_text_same_origin("https://h/a", "http://h/a"));
	assert_false(url_text_same_origin("https://h/a", "https://h:444/a"));
	assert_false(url_text_same_origin("https://h.evil/", "https://h/"));
	assert_false(url_text_same_origin("https://h/", NULL));
	assert_false(url_text_same_origin("rubbish", "rubbish"));
	assert_int_equal(url_parse("http://Host:8080/p/q?r", &u, NULL), 0);
	url_format(&u, &b);
	assert_string_equal(buf_str(&b), "http://host:8080/p/q?r");
	b.len = 0;
	url_format_host(&u, &b);
	assert_string_equal(buf_str(&b), "host:8080");
	url_release(&u);
	buf_release(&b);
}

static void local(void **state)
{
	static const char *const yes[] = {"localhost", "a.localhost",	  "127.0.0.1",
					  "127.9.9.9", "169.254.169.254", "[::1]",
					  "[fe80::1]", "[febf::1]",	  "[fd00:ec2::254]"};
	static const char *const no[] = {
		"localhost.evil.com", "notlocalhost", "128.0.0.1", "169.253.0.1",
		"127.0.0.1.evil.com", "[fec0::1]",    "[::2]",	   "huggingface.co",
		"[fd00::1]"};
	struct url u = {0};

	for (size_t i = 0; i < ARRAY_LEN(yes); i++) {
		strncpy(u.host, yes[i], sizeof(u.host) - 1);
		assert_true(url_is_local(&u));
	}
	for (size_t i = 0; i < ARRAY_LEN(no); i++) {
		strncpy(u.host, no[i], sizeof(u.host) - 1);
		assert_false(url_is_local(&u));
	}
}

/* The examples of RFC 3986 §5.4 that stay within http, and what must be refused. */
static void resolve(void **state)
{
	static const char *const good[][2] = {
		{"g", "http://a/b/c/g"},
		{"./g", "http://a/b/c/g"},
		{"g/", "http://a/b/c/g/"},
		{"/g", "http://a/g"},
		{"//g", "http://g/"},
		{"?y", "http://a/b/c/d;p?y"},
		{"g?y", "http://a/b/c/g?y"},
		{"#s", "http://a/b/c/d;p?q"},
		{"g#s", "http://a/b/c/g"},
		{";x", "http://a/b/c/;x"},
		{"", "http://a/b/c/d;p?q"},
		{".", "http://a/b/c/"},
		{"./", "http://a/b/c/"},
		{"..", "http://a/b/"},
		{"../", "http://a/b/"},
		{"../g", "http://a/b/g"},
		{"../..", "http://a/"},
		{"../../g", "http://a/g"},
		{"../../../g", "http://a/g"},
		{"/./g", "http://a/g"},
		{"/../g", "http://a/g"},
		{"g.", "http://a/b/c/g."},
		{"..g", "http://a/b/c/..g"},
		{"./g/.", "http://a/b/c/g/"},
		{"g/../h", "http://a/b/c/h"},
		{"g;x=1/../y", "http://a/b/c/y"},
		{"g?y/../x", "http://a/b/c/g?y/../x"},
		{" /g\t", "http://a/g"},
		{"http://x/a/../b", "http://x/a/../b"}, /* a key may look like that */
		{"HTTPS://Cdn.Example:443/k?Signature=a%2Bb",
		 "https://cdn.example/k?Signature=a%2Bb"},
		{"/x:y", "http://a/x:y"},
	};
	static const char *const bad[] = {"ftp://a/",	   "javascript:x", "http://u@h/",
					  "http://u:p@h/", "//u@h/x",	   "http://",
					  "/a b",	   "mailto:a@b"};
	struct why why = {0};
	char *out = NULL;

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		assert_int_equal(url_resolve("http://a/b/c/d;p?q", good[i][0], &out, &why), 0);
		assert_string_equal(out, good[i][1]);
		free(out);
		out = NULL;
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_int_equal(url_resolve("http://a/b", bad[i], &out, &why), -EPROTO);
		assert_null(out);
	}
	assert_int_equal(url_resolve("https://a/b?Signature=marked", "http://a/b", &out, &why),
			 -EPROTO);
	assert_non_null(strstr(why.text, "https to http"));
	assert_null(strstr(why.text, "marked"));
}

static void encoding(void **state)
{
	static const char raw[] = "a/b c+d%e~f-g_h.i=\xe2\x82\xac*'(!)&";
	struct buf b = {0}, back = {0};

	url_encode(&b, raw, strlen(raw), true);
	assert_string_equal(buf_str(&b), "a/b%20c%2Bd%25e~f-g_h.i%3D%E2%82%AC%2A%27%28%21%29%26");
	assert_int_equal(url_decode(&back, b.data, b.len, false), 0);
	assert_string_equal(buf_str(&back), raw);
	b.len = back.len = 0;
	url_encode(&b, "a/b", 3, false);
	assert_string_equal(buf_str(&b), "a%2Fb");
	assert_int_equal(url_decode(&back, "a+b%2b%2F", 9, true), 0);
	assert_string_equal(buf_str(&back), "a b+/");
	back.len = 0;
	assert_int_equal(url_decode(&back, "a+b", 3, false), 0);
	assert_string_equal(buf_str(&back), "a+b");
	assert_int_equal(url_decode(&back, "%", 1, false), -EINVAL);
	assert_int_equal(url_decode(&back, "%2", 2, false), -EINVAL);
	assert_int_equal(url_decode(&back, "%zz", 3, false), -EINVAL);
	assert_int_equal(url_decode(&back, "%2 ", 3, false), -EINVAL);
	assert_int_equal(url_decode(&back, "%00", 3, false), -EINVAL);
	b.len = 0;
	url_query_add(&b, "list-type", "2");
	url_query_add(&b, "continuation-token", "1/a+b==");
	url_query_add(&b, "acl", NULL);
	assert_string_equal(buf_str(&b), "list-type=2&continuation-token=1%2Fa%2Bb%3D%3D&acl=");
	buf_release(&b);
	buf_release(&back);
}

static void shown(void **state)
{
	char s[64];

	assert_string_equal(url_show(s, sizeof(s), "https://h/p?Signature=x#f"), "h/p");
	assert_string_equal(url_show(s, sizeof(s), "https://user:pw@h:1/p"), "h:1/p");
	assert_string_equal(url_show(s, sizeof(s), "https://u@v@h/p@q"), "h/p@q");
	assert_string_equal(url_show(s, sizeof(s), "rubbish?x"), "rubbish");
	assert_null(strchr(url_show(s, sizeof(s), "http://h/a\nb"), '\n'));
	assert_true(strlen(url_show(s, 10, "http://host.example/long/path")) < 10);
}

static void requests(void **state)
{
	struct request r = {0};

	request_set_header(&r, "Accept", "a");
	request_set_headerf(&r, "accept", "%s/%d", "b", 2);
	request_set_header(&r, "If-Match", "\"etag\"");
	assert_int_equal(r.header_count, 2);
	assert_string_equal(request_header(&r, "ACCEPT"), "b/2");
	request_remove_header(&r, "accept");
	request_remove_header(&r, "absent");
	assert_null(request_header(&r, "Accept"));
	assert_string_equal(request_header(&r, "if-match"), "\"etag\"");
	request_set_range(&r, 10, 5);
	request_set_body(&r, "body", 4);
	assert_int_equal(r.failed, 0);
	assert_int_equal(r.body.size, 4);
	request_release(&r);
	assert_null(r.url);
	/* What would be a second line. */
	request_set_header(&r, "X", "a\r\nAuthorization: b");
	assert_int_equal(r.failed, -EINVAL);
	assert_int_equal(r.header_count, 0);
	r.failed = 0;
	request_set_header(&r, "X: y\r\nZ", "a");
	assert_int_equal(r.failed, -EINVAL);
	r.failed = 0;
	request_set_header(&r, "", "a");
	assert_int_equal(r.failed, -EINVAL);
	r.failed = 0;
	request_set_range(&r, UINT64_MAX, 2);
	assert_int_equal(r.failed, -EINVAL);
	r.failed = 0;
	request_set_range(&r, 0, 0);
	assert_int_equal(r.failed, -EINVAL);
	request_release(&r);
}

static void content_range(void **state)
{
	static const char *const bad[] = {
		"",
		"bytes",
		"bytes ",
		"bytes 5-4/10",
		"bytes 5-10/10",
		"bytes 5-9",
		"bytes -9/10",
		"bytes 5-9/10x",
		"items 5-9/10",
		"bytes5-9/10",
		"bytes 5-9/-1",
		"bytes a-b/c",
		"bytes 0-18446744073709551615/*",
		"bytes 0-18446744073709551616/*",
		"bytes 5 - 9/10",
	};
	struct content_range r = {0};

	assert_int_equal(field_content_range(" bytes 5-9/10 ", &r), 0);
	assert_true(r.first == 5 && r.last == 9 && r.total == 10);
	assert_int_equal(field_content_range("Bytes 0-0/*", &r), 0);
	assert_true(r.first == 0 && r.last == 0 && r.total == UINT64_MAX);
	assert_int_equal(field_content_range("bytes */123", &r), 0);
	assert_true(r.first > r.last && r.total == 123);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(field_content_range(bad[i], &r), -EINVAL);
}

static void dates(void **state)
{
	static const struct {
		const char *text;
		int64_t ns;
	} iso[] = {
		{"1970-01-01T00:00:00Z", 0},
		{"2026-08-14T09:10:11.123Z", INT64_C(1786698611123000000)},
		{"2026-08-14T09:10:11.123456789Z", INT64_C(1786698611123456789)},
		{"2026-08-14T09:10:11.1234567899Z", INT64_C(1786698611123456789)},
		{"2026-08-14T11:10:11+02:00", INT64_C(1786698611000000000)},
		{"2026-08-14T04:40:11-0430", INT64_C(1786698611000000000)},
		{"2000-02-29 23:59:60Z", INT64_C(951868799000000000)},
		{"1969-12-31T23:59:59Z", -INT64_C(1000000000)},
	};
	static const char *const bad_iso[] = {"",
					      "2026-08-14",
					      "2026-08-14T09:10:11",
					      "2026-13-01T00:00:00Z",
					      "2025-02-29T00:00:00Z",
					      "2026-08-14T24:00:00Z",
					      "2026-08-14T09:10:11.Z",
					      "2026-08-14T09:10:11Zx",
					      "9999-01-01T00:00:00Z"};
	static const char *const bad_http[] = {"",
					       "Sun, 06 Nov 1994 08:49:37",
					       "06 Nov 1994 08:49:37 GMT",
					       "Sun, 31 Feb 1994 08:49:37 GMT",
					       "Sun, 06 Nox 1994 08:49:37 GMT",
					       "Sunday, 06-Nov-94 08:49:37 GMT"};
	int64_t t = 0;

	for (size_t i = 0; i < ARRAY_LEN(iso); i++) {
		assert_int_equal(field_iso_time(iso[i].text, &t), 0);
		assert_int_equal(t, iso[i].ns);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad_iso); i++)
		assert_int_equal(field_iso_time(bad_iso[i], &t), -EINVAL);
	assert_int_equal(field_http_date("Sun, 06 Nov 1994 08:49:37 GMT", &t), 0);
	assert_int_equal(t, 784111777);
	for (size_t i = 0; i < ARRAY_LEN(bad_http); i++)
		assert_int_equal(field_http_date(bad_http[i], &t), -EINVAL);
}

static void waits(void **state)
{
	struct rate_limit r;

	assert_int_equal(field_retry_after_ms("120", 0), 120000);
	assert_int_equal(field_retry_after_ms(" 0 ", 0), 0);
	assert_int_equal(field_retry_after_ms("Sun, 06 Nov 1994 08:49:37 GMT", 784111770), 7000);
	assert_int_equal(field_retry_after_ms("Sun, 06 Nov 1994 08:49:37 GMT", 784111780), 0);
	assert_int_equal(field_retry_after_ms(NULL, 0), -1);
	assert_int_equal(field_retry_after_ms("soon", 0), -1);
	assert_int_equal(field_retry_after_ms("-5", 0), -1);
	assert_true(field_retry_after_ms("99999999999999999999999", 0) > 0);
	assert_true(field_rate_limit("\"api\";r=0;t=37", &r));
	assert_string_equal(r.name, "api");
	assert_int_equal(r.remaining, 0);
	assert_int_equal(r.reset_s, 37);
	assert_true(field_rate_limit_policy("\"fixed window\";\"api\";q=500;w=300", &r));
	assert_int_equal(r.quota, 500);
	assert_int_equal(r.window_s, 300);
	assert_int_equal(r.reset_s, 37);
	assert_true(field_rate_limit("hub_api; t=5", &r));
	assert_int_equal(r.remaining, -1);
	assert_int_equal(r.reset_s, 5);
	assert_false(field_rate_limit("rubbish", &r));
	assert_false(field_rate_limit(NULL, &r));
	assert_int_equal(r.reset_s, -1);
}

static void numbers(void **state)
{
	uint64_t v = 0;

	assert_int_equal(field_u64(" 18446744073709551615 ", &v), 0);
	assert_true(v == UINT64_MAX);
	assert_int_equal(field_u64("18446744073709551616", &v), -ERANGE);
	assert_int_equal(field_u64("", &v), -EINVAL);
	assert_int_equal(field_u64("-1", &v), -EINVAL);
	assert_int_equal(field_u64("1x", &v), -EINVAL);
	assert_int_equal(field_u64("1 2", &v), -EINVAL);
}

static void links(void **state)
{
	static const char two[] = "<https://h/api/xet-read-token/x>; rel=\"xet-auth\", "
				  "<https://h/v1/a,b;c>; title=\"x, rel=next\"; rel=\"next last\"";
	char *out = NULL;

	assert_int_equal(field_link(two, "next", &out), 0);
	assert_string_equal(out, "https://h/v1/a,b;c");
	free(out);
	assert_int_equal(field_link(two, "xet-auth", &out), 0);
	assert_string_equal(out, "https://h/api/xet-read-token/x");
	free(out);
	assert_int_equal(field_link("<u>;rel=next", "next", &out), 0);
	assert_string_equal(out, "u");
	free(out);
	out = NULL;
	assert_int_equal(field_link("<u>; rel=\"prev\"", "next", &out), -ENOENT);
	assert_int_equal(field_link("<u>; rel=\"nextish\"", "next", &out), -ENOENT);
	assert_int_equal(field_link("<u>", "next", &out), -ENOENT);
	assert_int_equal(field_link("<u", "next", &out), -EINVAL);
	assert_int_equal(field_link("<u>; title=\"unended", "next", &out), -ENOENT);
	assert_int_equal(field_link("<u>; rel=\"next", "next", &out), 0);
	free(out);
	assert_int_equal(field_link("", "next", &out), -ENOENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parse),    cmocka_unit_test(origins),
		cmocka_unit_test(local),    cmocka_unit_test(resolve),
		cmocka_unit_test(encoding), cmocka_unit_test(shown),
		cmocka_unit_test(requests), cmocka_unit_test(content_range),
		cmocka_unit_test(dates),    cmocka_unit_test(waits),
		cmocka_unit_test(numbers),  cmocka_unit_test(links),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
