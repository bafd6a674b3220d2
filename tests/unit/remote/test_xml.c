/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XML of listings and errors: what is read, what is refused.
 */
#include "cache/remote/xml.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static int note(void *ctx, const char *path, const char *text, size_t len)
{
	assert_int_equal(strlen(text), len);
	buf_addf(ctx, "%s=%s|", path, text);
	return strcmp(text, "stop") == 0 ? -ECANCELED : 0;
}

static int walk(const char *xml, struct buf *out, struct why *why)
{
	struct xml_reader reader = {.element = note, .ctx = out};

	out->len = 0;
	return xml_walk(xml, strlen(xml), &reader, why);
}

static void elements(void **state)
{
	static const char xml[] = "<?xml version=\"1.0\"?>\n<s3:R "
				  "xmlns:s3='u'><s3:C><K>a&amp;&#252;&lt;b</K><E/></s3:C>"
				  "<!-- x --><T><![CDATA[<raw>]]></T></s3:R>";
	struct buf out = {0};

	assert_int_equal(walk(xml, &out, NULL), 0);
	assert_string_equal(buf_str(&out), "R/C/K=a&\xc3\xbc<b|R/C/E=|R/C=|R/T=<raw>|R=|");
	assert_int_equal(walk("<a><b>stop</b><c/></a>", &out, NULL), -ECANCELED);
	assert_string_equal(buf_str(&out), "a/b=stop|");
	buf_release(&out);
}

static void refusals(void **state)
{
	static const char *const bad[] = {
		"",
		"hello",
		"<a>",
		"<a></b>",
		"<a/><b/>",
		"<a>\x01</a>",
		"<a>\xff</a>",
		"<!DOCTYPE a><a/>",
		"<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>",
		"<!DOCTYPE a SYSTEM 'file:///etc/passwd'><a/>",
		"<a>&undefined;</a>",
		"<a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a>",
	};
	struct buf out = {0};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct why why = {0};

		assert_int_equal(walk(bad[i], &out, &why), -EPROTO);
		assert_int_equal(why.err, EPROTO);
		assert_true(why.text[0] != '\0');
	}
	buf_release(&out);
}

static void long_text(void **state)
{
	struct buf xml = {0}, out = {0};

	buf_addstr(&xml, "<a>");
	buf_fill(&xml, 'x', 70000);
	buf_addstr(&xml, "</a>");
	assert_int_equal(walk(buf_str(&xml), &out, NULL), -EPROTO);
	/* Many elements are no long text. */
	xml.len = 0;
	buf_addstr(&xml, "<a>");
	for (int i = 0; i < 20000; i++)
		buf_addstr(&xml, "<b>0123456789</b>\n");
	buf_addstr(&xml, "</a>");
	assert_int_equal(walk(buf_str(&xml), &out, NULL), 0);
	buf_release(&xml);
	buf_release(&out);
}

static void one_text(void **state)
{
	static const char xml[] = "<E><Code>x</Code><I><Code>y</Code></I><ICode>z</ICode></E>";
	char *s = xml_text(xml, sizeof(xml) - 1, "Code");

	assert_string_equal(s, "x");
	free(s);
	s = xml_text(xml, sizeof(xml) - 1, "I/Code");
	assert_string_equal(s, "y");
	free(s);
	assert_null(xml_text(xml, sizeof(xml) - 1, "None"));
	assert_null(xml_text("<a>", 3, "b"));
	assert_null(xml_text("", 0, "b"));
}

static void escaped(void **state)
{
	struct buf b = {0};

	xml_escape(&b, "\"a<&>b\"");
	assert_string_equal(buf_str(&b), "&quot;a&lt;&amp;&gt;b&quot;");
	buf_release(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(elements), cmocka_unit_test(refusals), cmocka_unit_test(long_text),
		cmocka_unit_test(one_text), cmocka_unit_test(escaped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
