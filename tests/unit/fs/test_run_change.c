/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs whose objects do not only come: restarted, pruned, deleted, damaged, rewritten in place, and
 * two objects of one number.
 */
#include "tests/unit/fs/world.h"

static void restarted_run(void **state)
{
	struct world *w = world_new(WRITE_V3, 7);
	char old[9];
	struct generation *g, *kept;

	world_open(w, false, false);
	add_anchor(w, 1);
	for (uint64_t n = 2; n <= 6; n++)
		add_delta(w, n);
	scan_all(w);
	check_newest(w, 6);
	kept = history_newest(w->config.history);
	memcpy(old, kept->lineage, sizeof(old));
	/* The new run has nothing whole yet, and a companion changes: no relabelling. */
	put_bytes(w->bucket, "anchors/step_000001.safetensors", "rubbish", 7, w->time++);
	put_bytes(w->bucket, "config.json", "{}", 2, 0);
	scan_all(w);
	check_newest(w, 6);
	g = history_newest(w->config.history);
	assert_non_null(node_child(g->root, "config.json"));
	assert_string_equal(g->lineage, old);
	generation_unref(g);
	restart(w);
	add_anchor(w, 1);
	scan(w);
	check_newest(w, 1);
	g = history_newest(w->config.history);
	assert_string_not_equal(g->lineage, old);
	assert_int_equal(strlen(g->lineage), 8);
	assert_true(g->mtime_ns > kept->mtime_ns);
	generation_unref(g);
	assert_true(has_note(w, "5 objects are older"));
	check_no_build(w, 6);
	/* The same numbers again, also a hole where the old run had an object. */
	add_delta(w, 2);
	add_delta(w, 4);
	scan_all(w);
	check_newest(w, 4);
	/* What the old run showed has its bytes still: its files were replaced, not overwritten. */
	assert_true(kept->version == 6);
	free(read_node(node_child(kept->root, "model.safetensors")));
	generation_unref(kept);
	world_free(w);
}

/* Another model in the same place: the old run's first object must not be the measure. */
static void restarted_with_another_model(void **state)
{
	static const uint16_t v[4] = {1, 2, 3, 4};
	struct world *w = world_new(WRITE_V3, 8);
	struct generation *g;
	struct obj o = {0};

	world_open(w, false, false);
	add_anchor(w, 1);
	add_anchor(w, 20);
	add_delta(w, 21);
	scan_all(w);
	check_newest(w, 21);
	obj_tensor(&o, "other", ST_BF16, 0, 4, v);
	obj_meta(&o, "format", "sparse_weight_patch");
	put_obj(w->bucket, "anchors/step_000001.safetensors", &o, w->time++);
	scan_all(w);
	g = history_newest(w->config.history);
	assert_int_equal(g->version, 1);
	assert_int_equal(g->state->layout->tensor_count, 1);
	generation_unref(g);
	/* Once more, with a damaged first object and a complete anchor later. */
	restart(w);
	put_bytes(w->bucket, "anchors/step_000001.safetensors", "rubbish", 7, w->time++);
	add_anchor(w, 20);
	scan_all(w);
	check_newest(w, 20);
	world_free(w);
}

/* Two objects of one number: the anchor lies on the delta. */
static void two_objects_of_one_number(void **state)
{
	const uint64_t pos[] = {3};
	const uint16_t value[] = {0x1111};
	struct world *w = world_new(WRITE_V3, 17);
	struct obj o = {0};
	struct meant *m;

	world_open(w, false, false);
	add_anchor(w, 1);
	m = meant_new(w, 2, false);
	for (int t = 0; t < MODEL_TENSORS; t++)
		meant_whole(m, t, &w->seed);
	put_meant(w, m);
	memset(m->values[1], 0x22, specs[1].n * 2);
	obj_tensor(&o, "b.weight", ST_BF16, 0, specs[1].n, m->values[1]);
	obj_meta(&o, "format", "sparse_weight_patch");
	put_obj(w->bucket, "anchors/step_000002.safetensors", &o, w->time++);
	scan_all(w);
	check_newest(w, 2);
	assert_int_equal(problem_count(w), 0);
	/* Which of these comes first cannot be known. */
	m = meant_new(w, 3, false);
	meant_whole(m, 1, &w->seed);
	put_meant(w, m);
	obj_gaps(&o, "b.weight", ST_BF16, pos, value, 1);
	obj_meta(&o, "format", "sparse_weight_patch");
	put_obj(w->bucket, "anchors/step_000003.safetensors", &o, w->time++);
	scan_all(w);
	check_newest(w, 2);
	assert_true(has_problem(w, "anchors/step_000003.safetensors", "another object of its"));
	world_free(w);
}

static void deleted_objects(void **state)
{
	struct world *w = world_new(WRITE_V3, 9);
	struct meant *third, *fourth;

	world_open(w, false, false);
	add_anchor(w, 1);
	add_delta(w, 2);
	third = add_delta(w, 3);
	fourth = add_delta(w, 4);
	scan_all(w);
	/* What is shown stays; a hole that had an object is none. */
	remove_meant(w, fourth);
	scan_all(w);
	check_newest(w, 4);
	assert_true(has_note(w, "version 4 stays"));
	add_delta(w, 5);
	scan_all(w);
	check_newest(w, 4);
	assert_true(has_problem(w, "", "version 4 is missing: its object was here"));
	check_no_build(w, 4);
	check_no_build(w, 5);
	put_meant(w, fourth);
	put_meant(w, fourth->next);
	scan_all(w);
	check_newest(w, 5);
	/* Everything goes; nothing moves. */
	for (struct meant *m = w->list; m != NULL; m = m->next)
		remove_meant(w, m);
	scan_all(w);
	check_newest(w, 5);
	assert_int_equal(third->number, 3);
	world_free(w);
}

/* The first objects are pruned while we look: the run goes on under its name. */
static void pruned_while_mounted(void **state)
{
	struct world *w = world_new(WRITE_V3, 10);
	struct generation *g;
	char label[9];

	world_open(w, false, false);
	add_anchor(w, 1);
	add_delta(w, 2);
	add_anchor(w, 10);
	add_delta(w, 11);
	scan_all(w);
	g = history_newest(w->config.history);
	memcpy(label, g->lineage, sizeof(label));
	generation_unref(g);
	remove_meant(w, w->list);
	remove_meant(w, w->list->next);
	scan_all(w);
	check_newest(w, 11);
	/* A partial anchor is still known to be one. */
	struct meant *m = meant_new(w, 12, true);
	meant_whole(m, 0, &w->seed);
	put_meant(w, m);
	scan_all(w);
	check_newest(w, 12);
	g = history_newest(w->config.history);
	assert_string_equal(g->lineage, label);
	assert_int_equal(g->state->anchor, 10);
	generation_unref(g);
	world_free(w);
}

/* Number 1 was gone before we came: the union of names is the measure. */
static void pruned_before(void **state)
{
	struct world *w = world_new(WRITE_V1, 11);
	struct meant *partial, *m;

	world_open(w, false, false);
	m = add_delta(w, 19);
	if (m->kind[0] != SOME)
		meant_some(m, 0, &w->seed);
	m->bad = true; /* for the model: nothing below it */
	partial = meant_new(w, 20, true);
	meant_whole(partial, 1, &w->seed);
	partial->bad = true; /* not a start */
	put_meant(w, m);
	put_meant(w, partial);
	scan_all(w);
	check_newest(w, 0);
	assert_true(has_problem(w, "", "no complete anchor"));
	w->first = NULL;
	add_anchor(w, 21);
	add_delta(w, 22);
	scan_all(w);
	check_newest(w, 22);
	assert_true(has_note(w, "version 21 is taken for a complete anchor"));
	/* A name that the anchor lacks shows that it was not complete after all: what is shown
	 * stays until there is a better one. */
	struct obj o = {0};
	obj_tensor(&o, "surprise", ST_BF16, 0, 1, (uint16_t[]){7});
	obj_meta(&o, "format", "sparse_weight_patch");
	put_obj(w->bucket, "deltas/step_000023.safetensors", &o, w->time++);
	scan_all(w);
	check_newest(w, 22);
	check_no_build(w, 22);
	add_delta(w, 23);
	scan_all(w);
	check_newest(w, 23);
	world_free(w);
}

/* A damaged first object does not keep a later complete anchor from being shown. */
static void damaged_first(void **state)
{
	struct world *w = world_new(WRITE_V3, 12);
	struct meant *m;

	world_open(w, false, false);
	m = add_anchor(w, 1);
	put_cut(w, m);
	add_delta(w, 2);
	scan_all(w);
	check_newest(w, 0);
	assert_true(has_problem(w, "anchors/step_000001.safetensors", "pass the end"));
	w->first = NULL;
	add_anchor(w, 20);
	add_delta(w, 21);
	scan_all(w);
	check_newest(w, 21);
	world_free(w);
}

static void rewritten_in_place(void **state)
{
	struct world *w = world_new(WRITE_V3, 13);
	struct generation *g;
	struct node *n;
	char path[300], *want, *have;
	size_t len;
	int stale = 0;

	world_open(w, false, false);
	add_anchor(w, 1);
	add_delta(w, 2);
	scan_all(w);
	g = history_newest(w->config.history);
	n = node_child(g->root, "model.safetensors");
	want = read_node(n);
	have = malloc(n->size);
	snprintf(path, sizeof(path), "%s/anchors/step_000001.safetensors", w->bucket);
	restart(w);
	add_anchor(w, 1); /* composes another one, in the file's place ... */
	char *bytes = meant_bytes(w->list, w->writer, &len);
	generation_unref(g);
	scan_all(w);
	check_newest(w, 1);
	g = history_newest(w->config.history);
	n = node_child(g->root, "model.safetensors");
	free(want);
	want = read_node(n);
	bytes[len - 1] ^= 1;
	write_bytes(path, bytes, len); /* ... and this one into the file itself */
	for (uint64_t off = 0; off < n->size; off += 4096) {
		size_t size = (size_t)MIN(n->size - off, UINT64_C(4096));
		int err = node_read(n, off, have, size);

		if (err == 0)
			assert_memory_equal(have, want + off, size);
		else
			assert_int_equal(err, -ESTALE);
		stale += err != 0;
	}
	assert_true(stale > 0);
	w->list->values[MODEL_TENSORS - 1][specs[MODEL_TENSORS - 1].n - 1] ^= 0x100;
	scan_all(w);
	check_newest(w, 1);
	generation_unref(g);
	free(bytes);
	free(have);
	free(want);
	world_free(w);
}

/* The base of what is shown is overwritten and bad: the newest whole one below is shown. */
static void overwritten_and_bad(void **state)
{
	struct world *w = world_new(WRITE_V3, 14);
	struct meant *anchor;
	char path[300];

	world_open(w, false, false);
	add_anchor(w, 1);
	add_delta(w, 2);
	anchor = add_anchor(w, 3);
	add_delta(w, 4);
	scan_all(w);
	check_newest(w, 4);
	snprintf(path, sizeof(path), "%s/anchors/step_000003.safetensors", w->bucket);
	write_bytes(path, "rubbish", 7);
	set_time(path, FIRST_TIME + 2);
	anchor->bad = true;
	scan_all(w);
	check_newest(w, 2);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(restarted_run),
		cmocka_unit_test(restarted_with_another_model),
		cmocka_unit_test(two_objects_of_one_number),
		cmocka_unit_test(deleted_objects),
		cmocka_unit_test(pruned_while_mounted),
		cmocka_unit_test(pruned_before),
		cmocka_unit_test(damaged_first),
		cmocka_unit_test(rewritten_in_place),
		cmocka_unit_test(overwritten_and_bad),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
