/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several runs in one source: which directories are runs, the stores of parts over one listing, the
 * gate that decides, and turns.
 *
 * The source is a store of this test's own, whose listing and failures are set by hand.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "fs/gate.h"
#include "fs/parts.h"
#include "fs/runs.h"
#include "fs/turns.h"

#include <poll.h>

/* ---- a source ---- */

struct fake {
	struct store base;
	const char *const *keys; /* sorted, NULL-terminated */
	uint64_t size;		 /* of each */
	int err;		 /* listing fails with it */
	unsigned listed, refreshed, stopped;
};

static int fake_list(struct store *s, const char *prefix, struct listing *out, struct why *why)
{
	struct fake *f = (struct fake *)s;
	size_t n = 0;

	f->listed++;
	assert_string_equal(prefix, "");
	if (f->err != 0)
		return why_set(why, -f->err, "it cannot be listed");
	while (f->keys[n] != NULL)
		n++;
	out->v = calloc(n + 1, sizeof(*out->v));
	assert_non_null(out->v);
	for (; out->count < n; out->count++) {
		out->v[out->count].key = strdup(f->keys[out->count]);
		out->v[out->count].size = f->size;
	}
	return 0;
}

static int fake_open(struct store *s, const struct object *o, struct handle **out, struct why *why)
{
	assert_string_equal(o->key, "team/b/anchors/step_1.safetensors");
	return why_set(why, EACCES, "it is seen");
}

static void fake_stop(struct store *s)
{
	((struct fake *)s)->stopped++;
}

static void fake_refresh(struct store *s)
{
	((struct fake *)s)->refreshed++;
}

static void fake_free(struct store *s)
{
}

static const struct store_ops fake_ops = {
	.name = "fake",
	.list = fake_list,
	.open = fake_open,
	.stop = fake_stop,
	.refresh = fake_refresh,
	.free = fake_free,
};

static char fake_name[] = "fake://";

#define KEYS(...) ((const char *const[]){__VA_ARGS__, NULL})

static struct fake fake(const char *const *keys)
{
	return (struct fake){.base = {.ops = &fake_ops, .name = fake_name}, .keys = keys};
}

/* ---- finding ---- */

static void marks(void **unused)
{
	static const char *const good[] = {
		"weightfs.json",
		"anchors/step_000001.safetensors",
		"deltas/step_7.safetensors",
		"steps/step_7.safetensors",
		"checkpoint-100/model.safetensors",
		"weight_v000007/model.safetensors.index.json",
		"updates/weight_v000007/model.safetensors.index.json",
		"checkpoints/checkpoint-3/FULL/metadata.json",
		"broadcasts/step_3/STABLE",
	};
	static const char *const bad[] = {
		"config.json",
		"model.safetensors",
		"adapter_model.safetensors",
		"anchors/README.md",
		"anchors",
		"xanchors/step_1.safetensors",
		"v1/anchors/step_1.safetensors",
		"step_5/log.txt",
		"checkpoint-5/adapter_model.safetensors",
		"checkpoint-5/optimizer.pt",
		"compact/1-2.safetensors",
		"leases/x",
	};

	for (size_t i = 0; i < ARRAY_LEN(good); i++)
		if (!runs_mark(good[i]))
			fail_msg("%s is no mark", good[i]);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		if (runs_mark(bad[i]))
			fail_msg("%s is a mark", bad[i]);
}

static void check_runs(const char *const *keys, bool top, const char *want)
{
	struct fake f = fake(keys);
	struct listing l = {0};
	struct buf have = {0};
	struct runs runs;

	assert_int_equal(fake_list(&f.base, "", &l, NULL), 0);
	assert_int_equal(runs_find(&l, top, &runs), 0);
	if (runs.top)
		buf_addstr(&have, "TOP");
	runs_names(&runs, &have);
	assert_string_equal(buf_str(&have), want);
	runs_release(&runs);
	buf_release(&have);
	listing_release(&l);
}

static void found(void **unused)
{
	check_runs(KEYS("a/anchors/step_1.safetensors", "a/deltas/step_2.safetensors", "b.txt",
			"lora/adapter_model.safetensors", "team/b/weightfs.json",
			"team/c/checkpoint-1/model.safetensors"),
		   true, "a, team/b, team/c");
	/* What lies in a run is the run's, also when it comes first in the listing. */
	check_runs(KEYS("a/a/anchors/step_1.safetensors", "a/deltas/step_2.safetensors"), true,
		   "a");
	check_runs(KEYS("a-b/weightfs.json", "a/weightfs.json", "a/x/weightfs.json",
			"ab/weightfs.json"),
		   true, "a, a-b, ab");
	/* Three levels, no more. */
	check_runs(KEYS("a/b/c/weightfs.json", "d/e/f/g/weightfs.json"), true, "a/b/c");
	check_runs(KEYS("a/weightfs.json", "anchors/step_1.safetensors"), true, "TOP");
	check_runs(KEYS("a/weightfs.json", "anchors/step_1.safetensors"), false, "a");
	check_runs(KEYS("latest", "run/weight_v000001/model.safetensors.index.json"), true, "TOP");
	check_runs(KEYS("config.json", "logs/x"), true, "");
	/* Names like those of versions, for runs. */
	check_runs(KEYS("v1/anchors/step_1.safetensors", "v2/anchors/step_1.safetensors"), true,
		   "v1, v2");
	check_runs(KEYS("checkpoint-1/model.safetensors", "v2/anchors/step_1.safetensors"), true,
		   "TOP");
}

static void nesting(void **unused)
{
	assert_true(runs_nested("a", "a"));
	assert_true(runs_nested("a", "a/b"));
	assert_true(runs_nested("a/b", "a"));
	assert_false(runs_nested("a", "ab"));
	assert_false(runs_nested("a/b", "a/c"));
	assert_false(runs_nested("a/bc", "a/b"));
}

/* ---- parts ---- */

static size_t count_of(struct store *part, const char *first)
{
	struct listing l = {0};
	struct why why = {0};
	size_t n;

	assert_int_equal(store_list(part, "", &l, &why), 0);
	if (first != NULL)
		assert_string_equal(l.v[0].key, first);
	n = l.count;
	listing_release(&l);
	return n;
}

static bool notified(struct store *part)
{
	struct pollfd p = {.fd = store_watch_fd(part), .events = POLLIN};

	return poll(&p, 1, 0) == 1;
}

static void parts_share(void **unused)
{
	struct fake f = fake(KEYS("a/x", "team/b/anchors/step_1.safetensors", "team/bc/y"));
	struct object o = {.key = (char *)"anchors/step_1.safetensors"};
	struct handle *handle = NULL;
	struct listing_ref *l = NULL;
	struct store *a, *b;
	struct parts *p;
	struct why why = {0};

	f.base.far = true;
	assert_int_equal(parts_new(&f.base, INT64_MAX, NULL, &p), 0);
	assert_int_equal(parts_open(p, "a", "fake://a", &a), 0);
	assert_int_equal(parts_open(p, "team/b", "fake://team/b", &b), 0);
	assert_true(a->far);
	assert_int_equal(count_of(a, "x"), 1);
	assert_int_equal(count_of(b, "anchors/step_1.safetensors"), 1);
	assert_int_equal(f.listed, 1);
	assert_int_equal(store_open(b, &o, &handle, &why), -EACCES);
	assert_string_equal(why.text, "it is seen");
	assert_false(notified(a) || notified(b));

	/* A change is told to whom it concerns, and seen by it. */
	f.keys = KEYS("a/x", "team/b/anchors/step_1.safetensors", "team/b/z", "team/bc/y");
	assert_int_equal(parts_list(p, true, false, &l, &why), 0);
	assert_int_equal(l->listing.count, 4);
	listing_unref(l);
	assert_true(!notified(a) && notified(b));
	assert_int_equal(count_of(b, NULL), 2);
	assert_false(notified(b));
	assert_int_equal(f.listed, 2);
	f.size = 7;
	store_refresh(a);
	assert_int_equal(count_of(a, "x"), 1);
	assert_int_equal(f.refreshed, 1);
	assert_true(!notified(a) && notified(b));
	store_free(a);
	store_free(b);
	parts_free(p);
}

static void parts_fail(void **unused)
{
	struct fake f = fake(KEYS("a/x"));
	struct listing_ref *l = NULL;
	struct listing none;
	struct store *a, *b;
	struct parts *p;
	struct why why = {0};

	assert_int_equal(parts_new(&f.base, 0, NULL, &p), 0);
	assert_int_equal(parts_open(p, "a", "fake://a", &a), 0);
	assert_null(parts_last(p));
	f.err = -EIO;
	assert_int_equal(store_list(a, "", &none, &why), -EIO);
	assert_string_equal(why.text, "it cannot be listed");
	f.err = 0;
	assert_int_equal(count_of(a, "x"), 1);
	f.err = -EIO;
	f.size = 1;
	assert_int_equal(store_list(a, "", &none, &why), -EIO);
	/* The first time, the last listing there is will do. */
	assert_int_equal(parts_open(p, "a", "fake://a", &b), 0);
	assert_int_equal(count_of(b, "x"), 1);
	assert_int_equal(store_list(b, "", &none, &why), -EIO);
	l = parts_last(p);
	assert_non_null(l);
	listing_unref(l);
	store_stop(b);
	f.err = 0;
	assert_int_equal(store_list(b, "", &none, &why), -ECANCELED);
	assert_int_equal(count_of(a, "x"), 1);
	parts_stop(p);
	assert_int_equal(f.stopped, 1);
	assert_int_equal(store_list(a, "", &none, &why), -ECANCELED);
	store_free(a);
	store_free(b);
	parts_free(p);
}

/* ---- the gate ---- */

static void count_call(void *ctx)
{
	++*(unsigned *)ctx;
}

static void gate_decides(void **unused)
{
	struct fake f = fake(KEYS("config.json"));
	const struct gate_config config = {0};
	struct listing_ref *first = NULL;
	unsigned calls = 0;
	struct store *g;

	f.base.far = true;
	assert_int_equal(gate_new(&f.base, &config, &g), 0);
	assert_true(g->far);
	gate_subscribe(g, count_call, &calls);
	assert_int_equal(count_of(g, "config.json"), 1);
	assert_int_equal(gate_state(g), GATE_UNKNOWN);
	f.keys = KEYS("a/weightfs.json", "config.json");
	assert_int_equal(count_of(g, NULL), 0);
	assert_int_equal(gate_state(g), GATE_SEVERAL);
	assert_int_equal(calls, 1);
	assert_ptr_equal(gate_source(g, &first), &f.base);
	assert_int_equal(first->listing.count, 2);
	listing_unref(first);
	/* For ever, and the source is left to the roster. */
	f.keys = KEYS("weightfs.json");
	assert_int_equal(count_of(g, NULL), 0);
	assert_int_equal(f.listed, 2);
	store_free(g);
}

static void gate_of_one(void **unused)
{
	const struct gate_config configs[] = {{0}, {.one = true}};

	for (size_t i = 0; i < ARRAY_LEN(configs); i++) {
		struct fake f = fake(i == 0 ? KEYS("weightfs.json") : KEYS("config.json"));
		unsigned calls = 0;
		struct store *g;

		assert_int_equal(gate_new(&f.base, &configs[i], &g), 0);
		gate_subscribe(g, count_call, &calls);
		assert_int_equal(count_of(g, NULL), 1);
		assert_int_equal(gate_state(g), GATE_ONE);
		f.keys = KEYS("a/weightfs.json", "b/weightfs.json");
		assert_int_equal(count_of(g, "a/weightfs.json"), 2);
		assert_int_equal(calls, 0);
		store_free(g);
	}
}

static void gate_of_several(void **unused)
{
	struct fake f = fake(KEYS("anchors/step_1.safetensors"));
	const struct gate_config config = {.several = true};
	struct listing_ref *first = NULL;
	struct why why = {0};
	struct listing none;
	struct store *g;

	assert_int_equal(gate_new(&f.base, &config, &g), 0);
	f.err = -EIO;
	assert_int_equal(store_list(g, "", &none, &why), -EIO);
	f.err = 0;
	assert_int_equal(count_of(g, NULL), 0);
	assert_int_equal(count_of(g, NULL), 0);
	assert_int_equal(f.listed, 2);
	gate_source(g, &first);
	assert_int_equal(first->listing.count, 1);
	listing_unref(first);
	store_free(g);
}

static void gate_of_a_tool(void **unused)
{
	struct fake f = fake(KEYS("a/weightfs.json", "b/weightfs.json"));
	const struct gate_config config = {.tool = true};
	struct listing none;
	struct why why = {0};
	struct store *g;

	assert_int_equal(gate_new(&f.base, &config, &g), 0);
	assert_int_equal(store_list(g, "", &none, &why), -EISDIR);
	assert_non_null(strstr(why.text, "holds 2 runs: a, b; name one, such as fake:///a"));
	store_free(g);
}

/* ---- turns ---- */

static bool says(void *ctx)
{
	return *(bool *)ctx;
}

static void taking_turns(void **unused)
{
	bool stopped = true;
	struct turns t;

	turns_init(&t, 1);
	assert_true(turns_take_unless(&t, says, &stopped));
	assert_false(turns_take_unless(&t, says, &stopped));
	turns_give(&t);
	turns_take(&t);
	turns_open(&t);
	stopped = false;
	assert_false(turns_take_unless(&t, says, &stopped));
	turns_give(&t);
	assert_true(turns_take_unless(&t, says, &stopped));
	assert_true(turns_take_unless(NULL, says, &stopped));
	turns_destroy(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(marks),	  cmocka_unit_test(found),
		cmocka_unit_test(nesting),	  cmocka_unit_test(parts_share),
		cmocka_unit_test(parts_fail),	  cmocka_unit_test(gate_decides),
		cmocka_unit_test(gate_of_one),	  cmocka_unit_test(gate_of_several),
		cmocka_unit_test(gate_of_a_tool), cmocka_unit_test(taking_turns),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
