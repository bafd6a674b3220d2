/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places on the Hub, and the URLs made of them.
 */
#include "cache/remote/hub_url.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

struct good {
	const char *text;
	enum hub_kind kind;
	const char *id, *revision, *prefix;
};

static const struct good goods[] = {
	{"hf://buckets/ns/name", HUB_BUCKET, "ns/name", NULL, ""},
	{"hf://buckets/ns/name/", HUB_BUCKET, "ns/name", NULL, ""},
	{"hf://buckets/ns/na.me-1/runs/a b/", HUB_BUCKET, "ns/na.me-1", NULL, "runs/a b"},
	{"hf://org/model", HUB_MODEL, "org/model", "main", ""},
	{"hf://models/org/model", HUB_MODEL, "org/model", "main", ""},
	{"hf://gpt2", HUB_MODEL, "gpt2", "main", ""},
	{"hf://gpt2@v1", HUB_MODEL, "gpt2", "v1", ""},
	{"hf://org/model@v1.0", HUB_MODEL, "org/model", "v1.0", ""},
	{"hf://org/model@v1.0/sub/dir", HUB_MODEL, "org/model", "v1.0", "sub/dir"},
	{"hf://org/model@refs/pr/3", HUB_MODEL, "org/model", "refs/pr/3", ""},
	{"hf://org/model@refs/pr/3/sub", HUB_MODEL, "org/model", "refs/pr/3", "sub"},
	{"hf://org/model@a%2Fb/sub", HUB_MODEL, "org/model", "a/b", "sub"},
	{"hf://org/model/sub/x@y", HUB_MODEL, "org/model", "main", "sub/x@y"},
	{"hf://datasets/org/d@v/x", HUB_DATASET, "org/d", "v", "x"},
	{"hf://spaces/org/s", HUB_SPACE, "org/s", "main", ""},
	{"https://huggingface.co/buckets/ns/name", HUB_BUCKET, "ns/name", NULL, ""},
	{"https://huggingface.co/buckets/ns/name/tree/a%20b/c?x=1#y", HUB_BUCKET, "ns/name", NULL,
	 "a b/c"},
	{"https://hf.co/org/model", HUB_MODEL, "org/model", "main", ""},
	{"https://HuggingFace.co/org/model/tree/dev/sub?a=b", HUB_MODEL, "org/model", "dev", "sub"},
	{"https://huggingface.co/org/model/blob/refs%2Fpr%2F1/f", HUB_MODEL, "org/model",
	 "refs/pr/1", "f"},
	{"https://huggingface.co/datasets/org/d/", HUB_DATASET, "org/d", "main", ""},
	{"http://mirror.example:8080/hub/datasets/org/d", HUB_DATASET, "org/d", "main", ""},
};

static const char mirror[] = "http://mirror.example:8080/hub/";

static void test_good(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(goods); i++) {
		const struct good *g = &goods[i];
		const char *endpoint = strstr(g->text, "mirror") != NULL ? mirror : NULL;
		struct hub_place p = {0};
		struct why why = {0};

		assert_true(hub_place_is(g->text, endpoint));
		if (hub_place_parse(g->text, endpoint, &p, &why) < 0)
			fail_msg("%s: %s", g->text, why.text);
		if (p.kind != g->kind)
			fail_msg("%s: kind %d", g->text, (int)p.kind);
		assert_string_equal(p.id, g->id);
		assert_string_equal(p.prefix, g->prefix);
		if (g->revision == NULL)
			assert_null(p.revision);
		else
			assert_string_equal(p.revision, g->revision);
		assert_string_equal(p.endpoint, endpoint != NULL ? "http://mirror.example:8080/hub"
								 : "https://huggingface.co");
		hub_place_release(&p);
	}
}

static void test_bad(void **state)
{
	static const char *const bads[] = {
		"hf://",
		"hf://buckets",
		"hf://buckets/ns",
		"hf://buckets/ns/name@main",
		"hf://buckets/ns@x/name",
		"hf://buckets/ns/name/a//b",
		"hf://buckets/ns/name/../x",
		"hf://buckets/ns/na me",
		"hf://buckets/../name",
		"hf://org/model@",
		"hf://org/model@a%00b",
		"hf://org/model@..",
		"hf://org//x",
		"hf://user:secret@org/model",
		"hf://org/m\001del",
		"https://huggingface.co/",
		"https://huggingface.co/buckets/ns",
		"https://huggingface.co/org/model/settings",
		"https://huggingface.co/org/model/tree/main/%2e%2e/x",
	};
	struct hub_place p = {0};

	for (size_t i = 0; i < ARRAY_LEN(bads); i++) {
		struct why why = {0};

		if (hub_place_parse(bads[i], NULL, &p, &why) != -EINVAL)
			fail_msg("%s is taken", bads[i]);
		assert_true(why.text[0] != '\0');
		assert_null(strstr(why.text, "secret"));
	}
	assert_int_equal(hub_place_parse("hf://a/b", "ftp://x", &p, NULL), -EINVAL);
	assert_int_equal(hub_place_parse("hf://a/b", "https://u:p@x", &p, NULL), -EINVAL);
	assert_int_equal(hub_place_parse("hf://a/b", "https://x/?q", &p, NULL), -EINVAL);
	assert_false(hub_place_is("s3://a/b", NULL));
	assert_false(hub_place_is("https://example.org/org/model", NULL));
	assert_false(hub_place_is("https://huggingface.co.evil.example/a/b", NULL));
	assert_false(hub_place_is("/local/dir", NULL));
}

static void test_urls(void **state)
{
	struct hub_place p = {0};
	struct buf b = {0};

	assert_int_equal(hub_place_parse("hf://buckets/ns/n/a b+c", "http://h:1", &p, NULL), 0);
	hub_url_info(&p, &b);
	assert_string_equal(buf_str(&b), "http://h:1/api/buckets/ns/n");
	b.len = 0;
	hub_url_tree(&p, NULL, &b);
	assert_string_equal(buf_str(&b),
			    "http://h:1/api/buckets/ns/n/tree/a%20b%2Bc?recursive=true&limit=1000");
	b.len = 0;
	hub_url_resolve(&p, NULL, "d/#x?.bin", &b);
	assert_string_equal(buf_str(&b), "http://h:1/buckets/ns/n/resolve/a%20b%2Bc/d/%23x%3F.bin");
	b.len = 0;
	hub_url_events(&p, "since", "2026-01-02T03:04:05.678Z", &b);
	assert_string_equal(buf_str(&b), "http://h:1/api/buckets/ns/n/events?since="
					 "2026-01-02T03%3A04%3A05.678Z");
	b.len = 0;
	hub_url_events(&p, NULL, NULL, &b);
	assert_string_equal(buf_str(&b), "http://h:1/api/buckets/ns/n/events");
	hub_place_release(&p);

	assert_int_equal(hub_place_parse("hf://datasets/o/d@refs/pr/1", NULL, &p, NULL), 0);
	b.len = 0;
	hub_url_info(&p, &b);
	assert_string_equal(buf_str(&b),
			    "https://huggingface.co/api/datasets/o/d/revision/refs%2Fpr%2F1");
	b.len = 0;
	hub_url_tree(&p, "0123", &b);
	assert_string_equal(buf_str(&b), "https://huggingface.co/api/datasets/o/d/tree/0123?"
					 "recursive=true&limit=1000&expand=false");
	b.len = 0;
	hub_url_resolve(&p, "0123", "x", &b);
	assert_string_equal(buf_str(&b), "https://huggingface.co/datasets/o/d/resolve/0123/x");
	assert_false(hub_place_pinned(&p));
	hub_place_release(&p);
	assert_int_equal(hub_place_parse("hf://o/m@0123456789abcdef0123456789abcdef01234567", NULL,
					 &p, NULL),
			 0);
	assert_true(hub_place_pinned(&p));
	hub_place_release(&p);
	buf_release(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good),
		cmocka_unit_test(test_bad),
		cmocka_unit_test(test_urls),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
