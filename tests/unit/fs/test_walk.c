/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All versions of a run one after the other: run_walk() makes the states that run_build() makes,
 * fails where that fails and in the same words, and looks at no more of each version the longer the
 * chain below it is.  And what a round of a mount looks at in a long chain.
 */
#include "tests/unit/fs/world.h"

#include "fs/counters.h"

enum { LONG = 240 };

/* A run as a tool has it; the world's own is closed. */
static struct run *tool(struct world *w)
{
	struct run_config config = w->config;
	struct why why = {0};
	struct run *r;

	config.history = NULL;
	config.deep = true;
	if (run_new(&config, &r, &why) < 0 || run_scan(r, &why) < 0)
		fail_msg("no run: %s", why.text);
	return r;
}

static void same_bytes(const struct state *a, const struct state *b)
{
	const size_t size = (size_t)a->layout->files[0].size;
	char *x = malloc(size), *y = malloc(size);

	assert_true(x != NULL && y != NULL);
	assert_int_equal(b->layout->files[0].size, size);
	assert_int_equal(state_read(a, 0, 0, x, size), 0);
	assert_int_equal(state_read(b, 0, 0, y, size), 0);
	assert_memory_equal(x, y, size);
	free(x);
	free(y);
}

/* Both ways have the same to say of every version up to `last`. */
static void compare(struct world *w, uint64_t last, unsigned want_whole)
{
	struct run *walked = tool(w), *built = tool(w);
	unsigned whole = 0;

	for (uint64_t n = 1; n <= last; n++) {
		struct why why = {0}, why_built = {0};
		struct generation *g = NULL;
		struct state *s = NULL;
		int err = run_build(built, n, &g, &why_built);

		assert_int_equal(run_walk(walked, n, &s, &why), err);
		assert_string_equal(why.text, why_built.text);
		if (err < 0)
			continue;
		whole++;
		assert_int_equal(s->version, g->version);
		assert_int_equal(s->anchor, g->state->anchor);
		assert_int_equal(s->deltas, g->state->deltas);
		assert_true(identity_equal(&s->fingerprint, &g->state->fingerprint));
		assert_true(s->sources->blob_count <= g->state->sources->blob_count);
		same_bytes(s, g->state);
		generation_unref(g);
		state_unref(s);
	}
	assert_int_equal(whole, want_whole);
	run_free(walked);
	run_free(built);
}

static void add_partial(struct world *w, uint64_t number)
{
	struct meant *m = meant_new(w, number, true);

	meant_whole(m, (int)(number % MODEL_TENSORS), &w->seed);
	put_meant(w, m);
}

/* Deltas, partial anchors and complete ones, and numbers that were skipped. */
static void the_same(void **state)
{
	struct world *w = world_new(WRITE_V3, 11);

	add_anchor(w, 1);
	for (uint64_t n = 2; n <= 90; n++)
		if (n % 45 == 0)
			add_anchor(w, n);
		else if (n % 7 == 0)
			add_partial(w, n);
		else if (n % 10 != 3)
			add_delta(w, n);
	world_open(w, false, true);
	compare(w, 90, 90);
	world_free(w);
}

/* Damaged objects, of which one ends a long chain; and a run that begins with one. */
static void the_same_sentences(void **state)
{
	struct world *w = world_new(WRITE_V1, 12);

	put_cut(w, make_delta(w, 1));
	for (uint64_t n = 2; n <= 5; n++)
		add_delta(w, n);
	add_anchor(w, 6);
	for (uint64_t n = 7; n <= 60; n++)
		if (n == 20 || n == 50)
			add_anchor(w, n);
		else if (n == 12 || n == 31 || n == 33)
			put_cut(w, make_delta(w, n));
		else if (n != 40)
			add_delta(w, n);
	world_open(w, false, true);
	compare(w, 60, 6 + 11 + 11);
	world_free(w);
}

/* The second half of a long chain takes no more looks than the first, up to what folding it does
 * now and then. */
static void work_is_linear(void **state)
{
	struct world *w = world_new(WRITE_V3, 13);
	uint64_t looks[3];
	struct why why = {0};
	struct run *r;

	add_anchor(w, 1);
	for (uint64_t n = 2; n <= LONG; n++)
		add_delta(w, n);
	world_open(w, false, true);
	r = tool(w);
	looks[0] = counters.looks;
	for (uint64_t n = 1; n <= LONG; n++) {
		struct state *s = NULL;

		assert_int_equal(run_walk(r, n, &s, &why), 0);
		assert_in_range(s->link_count, 0, 32);
		state_unref(s);
		looks[1 + (n > LONG / 2)] = counters.looks;
	}
	assert_in_range(looks[2] - looks[1], 1, 3 * (looks[1] - looks[0]) / 2);
	assert_in_range(looks[2] - looks[0], 1, 50 * LONG);
	run_free(r);
	world_free(w);
}

/* A round that finds one more version does not ask about every group of the chain below it, what
 * larger ones there might be. */
static void a_round_is_linear(void **state)
{
	struct world *w = world_new(WRITE_V3, 14);
	uint64_t looks, last = 2 * LONG;

	add_anchor(w, 1);
	for (uint64_t n = 2; n <= last; n++)
		add_delta(w, n);
	world_open(w, false, true);
	/* One group is folded a round. */
	for (int i = 0; i < LONG / 4; i++)
		scan(w);
	for (int i = 0; i < 3; i++) {
		add_delta(w, ++last);
		looks = counters.looks;
		scan(w);
		check_newest(w, last);
		assert_in_range(counters.looks - looks, 1, 12 * last);
	}
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_same),
		cmocka_unit_test(the_same_sentences),
		cmocka_unit_test(work_is_linear),
		cmocka_unit_test(a_round_is_linear),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
