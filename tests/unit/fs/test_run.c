/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds of a run over real directories: publishing, bad and missing objects, holes, partial
 * anchors, a store that fails, companions, and the report.
 */
#include "tests/unit/fs/world.h"

#include <pthread.h>

static void publishes_versions(void **state)
{
	struct world *w = world_new(WRITE_V3, 1);
	struct generation *g, *old;

	world_open(w, false, true);
	put_bytes(w->bucket, "config.json", "{}", 2, 0);
	scan(w);
	check_newest(w, 0);
	add_anchor(w, 1);
	scan(w);
	check_newest(w, 1);
	old = history_newest(w->config.history);
	for (uint64_t n = 2; n <= 5; n++) {
		add_delta(w, n);
		scan(w);
		check_newest(w, n);
	}
	g = history_newest(w->config.history);
	assert_true(g->mtime_ns > old->mtime_ns);
	assert_string_equal(g->lineage, old->lineage);
	assert_string_equal(g->format, "TRL v2/v3 (gap_delta)");
	assert_int_equal(g->state->anchor, 1);
	assert_int_equal(g->state->deltas, 4);
	/* Same companion, same node; other weights, other node. */
	assert_ptr_equal(node_child(g->root, "config.json"), node_child(old->root, "config.json"));
	assert_ptr_not_equal(node_child(g->root, "model.safetensors"),
			     node_child(old->root, "model.safetensors"));
	check_generation(w, old);
	generation_unref(old);
	generation_unref(g);
	/* Nothing new: nothing happens. */
	g = history_newest(w->config.history);
	scan_all(w);
	old = history_newest(w->config.history);
	assert_ptr_equal(g, old);
	generation_unref(old);
	generation_unref(g);
	assert_int_equal(problem_count(w), 0);
	for (uint64_t n = 1; n <= 5; n++)
		check_build(w, n, n);
	check_no_build(w, 6);
	check_no_build(w, 0);
	world_free(w);
}

static void bad_delta_then_healed(void **state)
{
	struct world *w = world_new(WRITE_V3, 2);
	struct meant *bad;

	world_open(w, false, false);
	add_anchor(w, 1);
	add_delta(w, 2);
	bad = make_delta(w, 3);
	put_cut(w, bad);
	add_delta(w, 4);
	scan_all(w);
	check_newest(w, 2);
	assert_true(has_problem(w, "deltas/step_000003.safetensors", "pass the end"));
	assert_int_equal(state_of(w, 2), VERSION_OK);
	assert_int_equal(state_of(w, 3), VERSION_BROKEN);
	assert_int_equal(state_of(w, 4), VERSION_BLOCKED);
	check_no_build(w, 3);
	check_no_build(w, 4);
	bad->bad = false;
	put_meant(w, bad);
	put_meant(w, bad->next);
	scan_all(w);
	check_newest(w, 4);
	assert_int_equal(problem_count(w), 0);
	world_free(w);
}

/* Values that only encoding finds wrong: the header is good. */
static void bad_positions(void **state)
{
	const uint64_t beyond[] = {36, 37}, good[] = {0};
	const uint16_t values[] = {1, 2};
	struct world *w = world_new(WRITE_V1, 3);
	struct obj o = {0};
	struct meant *m;

	world_open(w, false, false);
	add_anchor(w, 1);
	m = meant_new(w, 2, false);
	m->bad = true;
	obj_indices(&o, "b.weight", ST_BF16, beyond, values, 2);
	obj_meta(&o, "format", "sparse_weight_patch");
	put_obj(w->bucket, "deltas/step_000002.safetensors", &o, w->time++);
	scan_all(w);
	check_newest(w, 1);
	assert_true(has_problem(w, "deltas/step_000002.safetensors", "outside the tensor"));
	obj_indices(&o, "nothing", ST_BF16, good, values, 1);
	put_obj(w->bucket, "deltas/step_000002.safetensors", &o, w->time++);
	scan_all(w);
	assert_true(has_problem(w, "deltas/step_000002.safetensors", "\"nothing\" is unknown"));
	obj_indices(&o, "b.weight", ST_F16, good, values, 1);
	put_obj(w->bucket, "deltas/step_000002.safetensors", &o, w->time++);
	scan_all(w);
	assert_true(has_problem(w, "deltas/step_000002.safetensors", "the tensor is BF16"));
	check_newest(w, 1);
	world_free(w);
}

static void holes(void **state)
{
	struct world *w = world_new(WRITE_V3, 4);

	w->config.hole_grace_ns = 5 * NSEC_PER_SEC;
	w->time = FIRST_TIME;
	clock_fake((FIRST_TIME + 10) * NSEC_PER_SEC);
	world_open(w, false, false);
	add_anchor(w, 1);
	add_delta(w, 2);
	w->time += 8;
	add_delta(w, 4); /* at + 10 */
	scan(w);
	check_newest(w, 2);
	assert_true(run_unsettled(w->run));
	assert_true(has_problem(w, "", "waiting a moment for number 3"));
	assert_int_equal(state_of(w, 4), VERSION_WAITING);
	/* A number above one that waits is not the version below that. */
	w->time--;
	add_delta(w, 6);
	scan(w);
	check_newest(w, 2);
	check_no_build(w, 5);
	clock_fake((FIRST_TIME + 16) * NSEC_PER_SEC);
	scan_all(w);
	check_newest(w, 6);
	assert_int_equal(problem_count(w), 0);
	/* The number that was skipped is the version before it. */
	check_build(w, 3, 2);
	check_build(w, 4, 4);
	check_build(w, 5, 4);
	/* A late look has nothing to wait for. */
	clock_fake((FIRST_TIME + 1000) * NSEC_PER_SEC);
	add_delta(w, 9);
	scan(w);
	check_newest(w, 9);
	world_free(w);
}

static void v1_hole_blocks(void **state)
{
	struct world *w = world_new(WRITE_V1, 5);

	world_open(w, false, false);
	add_anchor(w, 1);
	add_delta(w, 2);
	add_delta(w, 4);
	scan_all(w);
	check_newest(w, 2);
	assert_true(has_problem(w, "", "version 3 is missing"));
	assert_int_equal(state_of(w, 4), VERSION_BLOCKED);
	check_no_build(w, 3);
	/* A complete anchor ends it. */
	add_anchor(w, 6);
	add_delta(w, 7);
	scan_all(w);
	check_newest(w, 7);
	assert_int_equal(problem_count(w), 0);
	scan(w);
	scan(w);
	assert_int_equal(state_of(w, 2), VERSION_UNREAD);
	check_build(w, 2, 2);
	check_no_build(w, 5);
	check_no_build(w, 4);
	world_free(w);
}

static void partial_anchors(void **state)
{
	struct world *w = world_new(WRITE_V1, 6);
	struct meant *m;

	world_open(w, false, false);
	add_anchor(w, 1);
	m = meant_new(w, 2, false); /* a full file in deltas/, as v1.3 has it */
	for (int t = 0; t < MODEL_TENSORS; t++)
		meant_whole(m, t, &w->seed);
	put_meant(w, m);
	add_delta(w, 3);
	m = meant_new(w, 4, true);
	meant_whole(m, 0, &w->seed);
	meant_whole(m, 2, &w->seed);
	meant_whole(m, 4, &w->seed);
	put_meant(w, m);
	add_delta(w, 5);
	scan_all(w);
	check_newest(w, 5);
	for (uint64_t n = 1; n <= 5; n++)
		check_build(w, n, n);
	m = meant_new(w, 6, false); /* whole and changed tensors in one file */
	meant_whole(m, 1, &w->seed);
	meant_some(m, 0, &w->seed);
	put_meant(w, m);
	meant_new(w, 7, false); /* nothing at all */
	put_meant(w, m->next);
	scan_all(w);
	check_newest(w, 7);
	assert_int_equal(problem_count(w), 0);
	world_free(w);
}

/* ---- a store that fails ---- */

static struct {
	const struct store_ops *real;
	struct store_ops ops;
	uint64_t size; /* objects of that size fail ... */
	uint64_t off;  /* ... when they are read from here on */
	int fetches, failed;
} flaky;

static void flaky_fetch(struct fetch *f)
{
	flaky.fetches++;
	if (f->handle->size == flaky.size && f->off >= flaky.off) {
		flaky.failed++;
		f->done(f, -EIO);
		return;
	}
	flaky.real->fetch(f);
}

/* Values that cannot be read for a while: tried once a round, not for ever in one. */
static void io_errors_pass(void **state)
{
	struct world *w = world_new(WRITE_V3, 18);
	struct meant *m;
	size_t len;

	world_open(w, false, false);
	memset(&flaky, 0, sizeof(flaky));
	flaky.real = w->config.store->ops;
	flaky.ops = *flaky.real;
	flaky.ops.fetch = flaky_fetch;
	w->config.store->ops = &flaky.ops;
	add_anchor(w, 1);
	for (uint64_t n = 2; n <= 20; n++)
		add_delta(w, n);
	m = make_delta(w, 21);
	if (m->kind[0] != SOME)
		meant_some(m, 0, &w->seed);
	put_meant(w, m);
	char *bytes = meant_bytes(m, w->writer, &len);

	flaky.size = len;
	flaky.off = 8 + load_le64(bytes);
	free(bytes);
	scan(w);
	check_newest(w, 20);
	assert_int_equal(flaky.failed, 1);
	assert_true(run_unsettled(w->run));
	assert_int_equal(state_of(w, 21), VERSION_WAITING);
	assert_true(has_problem(w, "deltas/step_000021.safetensors", "cannot read"));
	scan(w);
	assert_int_equal(flaky.failed, 2);
	flaky.size = 0;
	scan(w);
	check_newest(w, 21);
	assert_int_equal(problem_count(w), 0);
	w->config.store->ops = flaky.real;
	world_free(w);
}

static void companions(void **state)
{
	struct world *w = world_new(WRITE_V3, 15);
	struct generation *g, *h;
	struct node *n;
	uint64_t early;

	world_open(w, false, false);
	put_bytes(w->bucket, "config.json", "{}", 2, 0);
	put_bytes(w->bucket, "sub/notes.txt", "hello", 5, 0);
	put_bytes(w->bucket, "model.safetensors.index.json", "{}", 2, 0);
	put_bytes(w->bucket, "pytorch_model.bin", "x", 1, 0);
	put_bytes(w->bucket, "other.safetensors", "x", 1, 0);
	add_anchor(w, 1);
	scan_all(w);
	g = history_newest(w->config.history);
	assert_int_equal(g->root->entry_count, 3);
	n = node_walk(g->root, "sub/notes.txt");
	assert_non_null(n);
	assert_int_equal(n->size, 5);
	early = node_child(g->root, "config.json")->ino;
	/* One changes: the tree follows, the weights' node stays. */
	for (int i = 0; i < 20; i++) {
		char text[16];

		snprintf(text, sizeof(text), "%07d", i);
		put_bytes(w->bucket, "config.json", text, 7, FIRST_TIME + i);
		scan_all(w);
	}
	h = history_newest(w->config.history);
	assert_ptr_equal(node_child(g->root, "model.safetensors"),
			 node_child(h->root, "model.safetensors"));
	assert_ptr_equal(node_walk(h->root, "sub/notes.txt"), n);
	assert_int_equal(h->version, 1);
	assert_string_equal(h->lineage, g->lineage);
	n = node_child(h->root, "config.json");
	char *bytes = read_node(n);
	assert_memory_equal(bytes, "0000019", 7);
	free(bytes);
	generation_unref(g);
	generation_unref(h);
	assert_null(nodes_get(w->config.nodes, early)); /* nothing keeps the old one */
	world_free(w);
}

/* ---- other threads ---- */

struct onlooker {
	struct world *w;
	bool stop;   /* atomic */
	bool failed; /* read after the join */
	uint64_t seen;
};

/* What the front does all the time while the watch thread scans. */
static void *look_on(void *arg)
{
	struct onlooker *o = arg;
	char have[512];

	while (!__atomic_load_n(&o->stop, __ATOMIC_RELAXED)) {
		struct run_report *p = run_report(o->w->run);
		struct listing_ref *l = run_listing(o->w->run);
		struct generation *g = history_newest(o->w->config.history);
		struct node *n = g != NULL ? node_child(g->root, "model.safetensors") : NULL;

		o->failed |= p == NULL || l == NULL || g == NULL;
		if (p != NULL && p->version_count > 0 && p->versions[0].key == NULL)
			o->failed = true;
		if (n != NULL)
			o->failed |= node_read(n, n->size / 2, have, sizeof(have)) != 0;
		o->failed |= g != NULL && g->version < o->seen;
		o->seen = g != NULL ? g->version : 0;
		run_report_unref(p);
		listing_unref(l);
		generation_unref(g);
	}
	return NULL;
}

static void readers_while_scanning(void **state)
{
	struct world *w = world_new(WRITE_V3, 19);
	struct onlooker o = {.w = w};
	pthread_t thread;

	w->config.keep = 2;
	world_open(w, false, false);
	add_anchor(w, 1);
	scan(w);
	assert_int_equal(pthread_create(&thread, NULL, look_on, &o), 0);
	for (uint64_t n = 2; n <= 25; n++) {
		if (n % 10 == 0)
			add_anchor(w, n);
		else
			add_delta(w, n);
		scan(w);
	}
	__atomic_store_n(&o.stop, true, __ATOMIC_RELAXED);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_false(o.failed);
	check_newest(w, 25);
	world_free(w);
}

static void report_of_everything(void **state)
{
	struct world *w = world_new(WRITE_V3, 16);
	struct run_report *p;

	w->config.deep = true;
	w->config.keep = 2;
	world_open(w, false, false);
	history_free(w->config.history);
	w->config.history = NULL;
	run_free(w->run);
	struct why why = {0};
	assert_int_equal(run_new(&w->config, &w->run, &why), 0);
	assert_null(run_report(w->run));
	assert_null(run_listing(w->run));
	add_anchor(w, 1);
	add_delta(w, 2);
	put_cut(w, make_delta(w, 3));
	add_delta(w, 4);
	add_anchor(w, 5);
	put_meant(w, meant_new(w, 6, false));
	put_bytes(w->bucket, "deltas/step_.safetensors", "x", 1, 0);
	put_bytes(w->bucket, "deltas/step_7.safetensors", "x", 1, FIRST_TIME);
	put_bytes(w->bucket, "deltas/step_6.safetensors", "x", 1, FIRST_TIME + 5);
	scan(w);
	p = run_report(w->run);
	assert_int_equal(p->version_count, 7);
	static const struct {
		uint64_t number;
		enum version_kind kind;
		enum version_state state;
	} want[] = {
		{1, VERSION_ANCHOR, VERSION_OK},	{2, VERSION_DELTA, VERSION_OK},
		{3, VERSION_DELTA, VERSION_BROKEN},	{4, VERSION_DELTA, VERSION_BLOCKED},
		{5, VERSION_ANCHOR, VERSION_OK},	{6, VERSION_EMPTY, VERSION_OK},
		{7, VERSION_DELTA, VERSION_SUPERSEDED},
	};
	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		assert_int_equal(p->versions[i].number, want[i].number);
		assert_int_equal(p->versions[i].kind, want[i].kind);
		assert_int_equal(p->versions[i].state, want[i].state);
	}
	assert_int_equal(p->versions[0].changed, 66000 + 37 + 1 + 1000 + 300);
	assert_int_equal(p->versions[0].elements, 66000 + 37 + 1 + 1000 + 300);
	assert_string_equal(p->versions[1].key, "deltas/step_000002.safetensors");
	assert_non_null(p->versions[2].problem);
	assert_true(has_problem(w, "deltas/step_.safetensors", "step_NUMBER"));
	assert_true(has_problem(w, "deltas/step_6.safetensors", "same number"));
	assert_int_equal(p->problem_count, 3);
	run_report_unref(p);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(publishes_versions),	  cmocka_unit_test(bad_delta_then_healed),
		cmocka_unit_test(bad_positions),	  cmocka_unit_test(holes),
		cmocka_unit_test(v1_hole_blocks),	  cmocka_unit_test(partial_anchors),
		cmocka_unit_test(io_errors_pass),	  cmocka_unit_test(companions),
		cmocka_unit_test(readers_while_scanning), cmocka_unit_test(report_of_everything),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
