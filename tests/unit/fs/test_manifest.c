/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightfs.json: what is taken, and that everything else is refused with a sentence that says what
 * is wrong.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fs/manifest.h"
#include "fs/rfc3339.h"

#include <stdio.h>
#include <stdlib.h>

#define S1   "\"state\": \"000102030405060708090a0b0c0d0e0f\", "
#define S2   "\"state\": \"100102030405060708090a0b0c0d0e0f\", "
#define TAIL "\"encoding\": \"wfp1\", \"objects\": "
#define ONE  "[{\"key\": \"anchors/a.safetensors\", \"size\": 7}]"
#define TWO  "[{\"key\": \"deltas/b.safetensors\", \"size\": 8}]"
#define A4   "{\"version\": 4, \"kind\": \"anchor\", " S1 TAIL ONE "}"
#define D5   "{\"version\": 5, \"kind\": \"delta\", \"base\": 4, " S2 TAIL TWO "}"
#define D6   "{\"version\": 6, \"kind\": \"delta\", \"base\": 5, " S2 TAIL "[]}"
#define SPAN                                                                                       \
	"{\"base\": 4, \"version\": 6, " S2 TAIL                                                   \
	"[{\"key\": \"compact/c.safetensors\", \"size\": 9}]}"
#define HEAD "{\"format\": \"weightfs-run\", \"version\": 1, \"lineage\": \"9f86d081\", "
#define RUN(newest, steps, spans)                                                                  \
	HEAD "\"newest\": " newest ", \"steps\": [" steps "], \"spans\": [" spans "]}"
#define WITH_OBJECTS(objects)                                                                      \
	RUN("4", "{\"version\": 4, \"kind\": \"anchor\", " S1 TAIL objects "}", "")

static struct manifest *taken(const char *text)
{
	struct manifest *m = NULL;
	struct why why = {0};

	if (manifest_parse(text, strlen(text), &m, &why) < 0)
		fail_msg("%s", why.text);
	return m;
}

static void refused(const char *text, int err, const char *words)
{
	struct manifest *m = NULL;
	struct why why = {0};

	assert_int_equal(manifest_parse(text, strlen(text), &m, &why), err);
	assert_null(m);
	if (strstr(why.text, words) == NULL)
		fail_msg("\"%s\" lacks \"%s\"", why.text, words);
}

static void takes_a_run(void **state)
{
	struct manifest *m = taken(RUN("6", A4 ", " D5 ", " D6, SPAN));

	assert_string_equal(m->lineage, "9f86d081");
	assert_int_equal(m->step_count, 3);
	assert_int_equal(m->span_count, 1);
	assert_int_equal(m->newest, 6);
	assert_int_equal(m->steps[0].kind, MANIFEST_ANCHOR);
	assert_int_equal(m->steps[1].base, 4);
	assert_string_equal(m->steps[1].objects[0].key, "deltas/b.safetensors");
	assert_int_equal(m->steps[1].objects[0].size, 8);
	assert_int_equal(m->steps[2].object_count, 0);
	assert_ptr_equal(manifest_find(m, 5, MANIFEST_DELTA), &m->steps[1]);
	assert_null(manifest_find(m, 5, MANIFEST_ANCHOR));
	assert_ptr_equal(manifest_find(m, 6, MANIFEST_SPAN), &m->spans[0]);
	assert_int_equal(manifest_state(m, 5)[0], 0x10);
	assert_null(manifest_state(m, 7));
	manifest_free(m);
	/* What is not known is left out. */
	m = taken(HEAD "\"newest\": 0, \"steps\": [], \"colour\": [1, {}]}");
	assert_int_equal(m->step_count, 0);
	manifest_free(m);
}

static void refuses_what_is_no_manifest(void **state)
{
	refused("", -EBADMSG, "not JSON");
	refused("[1]", -EBADMSG, "not a JSON object");
	refused("{}", -EBADMSG, "no description of a run");
	refused("{\"format\": \"weightfs-run\", \"version\": 2}", -ENOTSUP, "version 2");
	refused("{\"format\": \"weightfs-run\", \"version\": \"1\"}", -EBADMSG, "whole number");
	refused("{\"format\": \"weightfs-run\", \"format\": 1}", -EBADMSG, "duplicate");
	refused("{\"format\": \"weightfs-run\", \"version\": 1}", -EBADMSG, "\"lineage\"");
	refused("{\"format\": \"weightfs-run\", \"version\": 1, \"lineage\": \"9F86D081\"}",
		-EBADMSG, "8 hex digits");
	refused(HEAD "\"steps\": []}", -EBADMSG, "\"newest\"");
	refused(HEAD "\"newest\": 0}", -EBADMSG, "\"steps\" is missing");
	refused(HEAD "\"newest\": -1, \"steps\": []}", -EBADMSG, "0 or more");
	refused(HEAD "\"newest\": 0, \"steps\": [], \"publisher\": {\"id\": \"x\"}}", -EBADMSG,
		"32 hex digits");
	refused(HEAD "\"newest\": 0, \"steps\": [], \"publisher\": {\"time\": \"today\"}}",
		-EBADMSG, "no time");
}

static void refuses_bad_steps(void **state)
{
	refused(RUN("5", D5, ""), -EBADMSG, "first step, 5, is no anchor");
	refused(RUN("4", A4 ", " D5, ""), -EBADMSG, "\"newest\" is 4");
	refused(RUN("6", A4 ", " D6, ""), -EBADMSG, "not the version before it");
	refused(RUN("4", D5 ", " A4, ""), -EBADMSG, "no anchor");
	refused(RUN("5", A4 ", " D5 ", " D5, ""), -EBADMSG, "twice");
	refused(RUN("4", A4 ", " A4, ""), -EBADMSG, "twice");
	refused(RUN("4", "7", ""), -EBADMSG, "step 0: is not a JSON object");
	refused(RUN("4", "{\"version\": 4, \"kind\": \"half\"}", ""), -EBADMSG, "\"half\"");
	refused(RUN("4", "{\"version\": 4.0, \"kind\": \"anchor\"}", ""), -EBADMSG, "whole number");
	refused(RUN("4", "{\"version\": 4, \"kind\": \"anchor\", \"state\": \"00\"}", ""), -EBADMSG,
		"32 hex digits");
	refused(RUN("4", "{\"version\": 4, \"kind\": \"anchor\", " S1 "\"encoding\": \"A b\"}", ""),
		-EBADMSG, "\"encoding\"");
	refused(RUN("4", "{\"version\": 4, \"kind\": \"anchor\", " S1 "\"time\": 5, " TAIL ONE "}",
		    ""),
		-EBADMSG, "not text");
	refused(RUN("0", "{\"version\": 0, \"kind\": \"anchor\", " S1 TAIL ONE "}", ""), -EBADMSG,
		"begin at 1");
}

static void refuses_bad_objects(void **state)
{
	static const char *const keys[] = {"/anchors/a",     "anchors/../../a", "anchors//a",
					   "anchors/./a",    "a.safetensors",	"other/a",
					   "anchors/.a",     "anchors/",	"leases/a.json",
					   "anchors/a\\\\b", "anchors/\\u0007", ""};

	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		char text[1000];

		snprintf(text, sizeof(text), WITH_OBJECTS("[{\"key\": \"%s\", \"size\": 1}]"),
			 keys[i]);
		refused(text, -EBADMSG, "no plain path");
	}
	refused(WITH_OBJECTS("[]"), -EBADMSG, "has no objects");
	refused(WITH_OBJECTS("{}"), -EBADMSG, "not a list");
	refused(WITH_OBJECTS("[\"anchors/a\"]"), -EBADMSG, "{\"key\", \"size\"}");
	refused(WITH_OBJECTS("[{\"key\": \"anchors/a\"}]"), -EBADMSG, "no \"size\"");
	refused(WITH_OBJECTS("[{\"key\": \"anchors/a\\u0000b\", \"size\": 1}]"), -EBADMSG, "");
	refused(WITH_OBJECTS("[{\"key\": \"anchors/a\", \"size\": 1, \"file\": \"x/y\"}]"),
		-EBADMSG, "plain name");
	refused(WITH_OBJECTS("[{\"key\": \"anchors/a\", \"size\": 1}, "
			     "{\"key\": \"anchors/b\", \"size\": 1}]"),
		-EBADMSG, "which file");
	refused(WITH_OBJECTS("[{\"key\": \"anchors/a\", \"size\": 1, \"file\": \"m\"}, "
			     "{\"key\": \"anchors/b\", \"size\": 1, \"file\": \"m\"}]"),
		-EBADMSG, "file \"m\" twice");
	refused(WITH_OBJECTS("[{\"key\": \"anchors/a\", \"size\": 1, \"file\": \"m\"}, "
			     "{\"key\": \"anchors/a\", \"size\": 1, \"file\": \"n\"}]"),
		-EBADMSG, "named twice");
	assert_true(manifest_key_ok("weight_v000001/model.safetensors", "xor-zstd"));
	assert_false(manifest_key_ok("leases/a", "xor-zstd"));
	assert_false(manifest_key_ok("weight_v000001/model.safetensors", "wfp1"));
}

static void refuses_bad_spans(void **state)
{
	refused(RUN("5", A4 ", " D5, SPAN), -EBADMSG, "does not join two steps");
	refused(RUN("6", A4 ", " D5 ", " D6, SPAN ", " SPAN), -EBADMSG, "twice");
	refused(RUN("6", A4 ", " D5 ", " D6, "{\"base\": 4, \"version\": 6, " S1 TAIL TWO "}"),
		-EBADMSG, "another state");
	refused(RUN("6", A4 ", " D5 ", " D6, "{\"base\": 6, \"version\": 4, " S1 TAIL TWO "}"),
		-EBADMSG, "does not join");
}

static struct manifest_entry entry(enum manifest_kind kind, uint64_t version, uint64_t base)
{
	struct manifest_entry e = {.kind = kind, .version = version, .base = base};
	char key[80];

	memset(e.state, (int)version, sizeof(e.state));
	snprintf(e.encoding, sizeof(e.encoding), "wfp1");
	snprintf(key, sizeof(key), "deltas/%d-%d-%d", kind, (int)base, (int)version);
	assert_int_equal(manifest_entry_object(&e, key, NULL, version), 0);
	return e;
}

static int add(struct manifest *m, enum manifest_kind kind, uint64_t version, uint64_t base)
{
	struct manifest_entry e = entry(kind, version, base);
	struct why why = {0};
	int err = manifest_add(m, &e, &why);

	assert_true((err == 0) == (why.text[0] == '\0'));
	manifest_entry_release(&e);
	return err;
}

static char *text_of(const struct manifest *m)
{
	struct buf b = {0};
	size_t len;

	assert_int_equal(manifest_compose(m, &b), 0);
	buf_addf(&b, "%c", '\0');
	return buf_detach(&b, &len);
}

static void adds_in_order(void **state)
{
	struct manifest *m = NULL, *again, *copy = NULL;
	char *before, *after;

	assert_int_equal(manifest_new("xyz", &m), -EINVAL);
	assert_int_equal(manifest_new("9f86d081", &m), 0);
	assert_int_equal(add(m, MANIFEST_DELTA, 1, 0), -EBADMSG);
	assert_int_equal(add(m, MANIFEST_ANCHOR, 10, 0), 0);
	assert_int_equal(add(m, MANIFEST_DELTA, 12, 10), 0);
	assert_int_equal(add(m, MANIFEST_DELTA, 13, 12), 0);
	assert_int_equal(add(m, MANIFEST_ANCHOR, 13, 0), 0);
	assert_int_equal(add(m, MANIFEST_DELTA, 14, 13), 0);
	assert_int_equal(add(m, MANIFEST_SPAN, 13, 10), 0);
	before = text_of(m);
	assert_int_equal(add(m, MANIFEST_DELTA, 14, 13), -EEXIST);
	assert_int_equal(add(m, MANIFEST_ANCHOR, 13, 0), -EEXIST);
	assert_int_equal(add(m, MANIFEST_ANCHOR, 12, 0), -EBADMSG);
	assert_int_equal(add(m, MANIFEST_DELTA, 16, 15), -EBADMSG);
	assert_int_equal(add(m, MANIFEST_SPAN, 13, 10), -EEXIST);
	assert_int_equal(add(m, MANIFEST_SPAN, 13, 11), -EBADMSG);
	after = text_of(m);
	assert_string_equal(before, after);
	free(after);
	assert_int_equal(m->newest, 14);
	assert_int_equal(m->steps[2].kind, MANIFEST_ANCHOR);
	assert_int_equal(m->steps[3].kind, MANIFEST_DELTA);
	again = taken(before);
	after = text_of(again);
	assert_string_equal(before, after);
	assert_int_equal(manifest_copy(m, &copy), 0);
	manifest_free(m);
	assert_int_equal(manifest_cut(copy, 12), -ENOENT);
	assert_int_equal(manifest_cut(copy, 13), 0);
	assert_int_equal(copy->step_count, 2);
	assert_int_equal(copy->steps[0].kind, MANIFEST_ANCHOR);
	assert_int_equal(copy->span_count, 0);
	assert_int_equal(manifest_drop_span(again, 10, 13), 0);
	assert_int_equal(manifest_drop_span(again, 10, 13), -ENOENT);
	manifest_free(again);
	manifest_free(copy);
	free(before);
	free(after);
}

static void times(void **state)
{
	static const char *const good[] = {"1970-01-01T00:00:00Z", "2026-11-30T23:05:59Z",
					   "2024-02-29T12:00:00.250Z",
					   "2199-12-31T23:59:59.000000001Z"};
	static const char *const bad[] = {"",
					  "2026-11-30",
					  "2026-11-30T23:05:59",
					  "2026-13-01T00:00:00Z",
					  "2025-02-29T00:00:00Z",
					  "2026-11-30T24:00:00Z",
					  "2026-11-30T23:05:59.Z",
					  "2026-11-30T23:05:59Zx",
					  "1969-11-30T23:05:59Z",
					  "2026-11-30T23:05:59+2:00"};
	int64_t ns = 0, other = 0;

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		char text[RFC3339_LEN];

		assert_int_equal(rfc3339_parse(good[i], &ns), 0);
		rfc3339_format(ns, text);
		assert_string_equal(text, good[i]);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(rfc3339_parse(bad[i], &ns), -EINVAL);
	assert_int_equal(rfc3339_parse("2026-12-01T01:05:59+02:00", &ns), 0);
	assert_int_equal(rfc3339_parse("2026-11-30T23:05:59Z", &other), 0);
	assert_int_equal(ns, other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(takes_a_run),
		cmocka_unit_test(refuses_what_is_no_manifest),
		cmocka_unit_test(refuses_bad_steps),
		cmocka_unit_test(refuses_bad_objects),
		cmocka_unit_test(refuses_bad_spans),
		cmocka_unit_test(adds_in_order),
		cmocka_unit_test(times),
	};

	return cmocka_run_group_tests_name("manifest", tests, NULL, NULL);
}
