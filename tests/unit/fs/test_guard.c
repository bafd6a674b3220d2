/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unit tests of fs/guard and fs/recall: every line of the two tables in guard.h, ranks that drift,
 * loads that overlap for ever, maps that are kept for ever; then which path an open came by.  And
 * the guard against a slow, plainly written model of it, over random events.  Time is an argument,
 * so nothing here depends on speed.
 */
#include "fs/guard.h"
#include "fs/recall.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

enum { SETTLE = 5, MAX_HOLD = 600 };

static const char v1[] = "v1", v2[] = "v2", v3[] = "v3";

static int setup(void **state)
{
	struct guard *g = calloc(1, sizeof(*g));

	assert_non_null(g);
	guard_init(g, SETTLE, MAX_HOLD);
	guard_moved(g, v1);
	*state = g;
	return 0;
}

static int teardown(void **state)
{
	guard_release_all(*state);
	free(*state);
	return 0;
}

static uint64_t opened(struct guard *g, int pid, int64_t now)
{
	uint64_t id = 0;
	bool fresh;

	assert_int_equal(guard_opened(g, pid, "a", false, true, now, &id, &fresh), 0);
	return id;
}

/* As the history does it. */
static uint64_t index_opened(struct guard *g, int pid, int64_t now)
{
	uint64_t id = 0;
	bool fresh;

	guard_index(g, pid, now);
	assert_int_equal(guard_opened(g, pid, "index", true, true, now, &id, &fresh), 0);
	return id;
}

static bool held(struct guard *g, int64_t now)
{
	guard_tick(g, now);
	return guard_held(g);
}

static void one_load(void **state)
{
	struct guard *g = *state;
	uint64_t id;

	assert_false(held(g, 0));
	assert_int_equal(guard_deadline(g), INT64_MAX);
	id = opened(g, 7, 10);
	assert_true(held(g, 10));
	assert_int_equal(guard_deadline(g), 10 + MAX_HOLD);
	assert_true(held(g, 300));
	guard_closed(g, id, 300);
	assert_int_equal(guard_deadline(g), 300 + SETTLE);
	assert_true(held(g, 304));
	/* Opened again while it settles: the same load, which settles anew. */
	assert_int_equal(opened(g, 7, 304), id);
	assert_true(held(g, 400));
	guard_closed(g, id, 400);
	assert_true(held(g, 404));
	assert_false(held(g, 405));
	assert_null(g->loads);
	/* The next one is another load, and holds again. */
	assert_int_not_equal(opened(g, 7, 500), id);
	assert_true(held(g, 500));
	assert_int_equal(g->expired, 0);
}

static void every_handle_counts(void **state)
{
	struct guard *g = *state;
	uint64_t id = opened(g, 7, 0);

	assert_int_equal(opened(g, 7, 1), id);
	guard_closed(g, id, 2);
	assert_true(held(g, 100));
	guard_closed(g, id, 100);
	assert_true(held(g, 104));
	assert_false(held(g, 105));
	/* One close too many, and one of a load that is over. */
	guard_closed(g, id, 106);
	guard_closed(g, 12345, 106);
	assert_false(held(g, 106));
}

static void ranks_drift(void **state)
{
	struct guard *g = *state;
	uint64_t id[8];

	/* Each begins 4 s after the one before it has closed its only file. */
	for (int i = 0; i < 8; i++) {
		id[i] = opened(g, 100 + i, i * 4);
		assert_true(held(g, i * 4));
		assert_ptr_equal(guard_view(g, 100 + i), v1);
		guard_closed(g, id[i], i * 4);
	}
	assert_true(held(g, 7 * 4 + 4));
	assert_false(held(g, 7 * 4 + 5));
}

static void maps_kept_for_ever(void **state)
{
	struct guard *g = *state;
	uint64_t kept = opened(g, 7, 0), other, again;

	guard_name(g, kept, "python");
	assert_true(held(g, 599));
	assert_false(held(g, 600));
	assert_int_equal(g->expired, 1);
	assert_int_equal(g->expired_pid, 7);
	assert_string_equal(g->expired_command, "python");
	guard_moved(g, v2);
	/* It is over: others, and its own next open, begin anew on what is current. */
	assert_null(guard_view(g, 7));
	assert_false(guard_uses(g, v1));
	assert_false(guard_split(g));
	other = opened(g, 8, 700);
	assert_true(held(g, 700));
	again = opened(g, 7, 701);
	assert_int_not_equal(again, kept);
	assert_ptr_equal(guard_view(g, 7), v2);
	/* The old map goes: that is no event of the new load. */
	guard_closed(g, kept, 702);
	guard_closed(g, again, 703);
	guard_closed(g, other, 703);
	assert_true(held(g, 707));
	assert_false(held(g, 708));
}

/* Somebody is always loading: current moves all the same, and each load stays what it is. */
static void loads_overlap_for_ever(void **state)
{
	struct guard *g = *state;
	uint64_t a = opened(g, 1, 0), b, c;
	uint64_t epoch = g->epoch;

	guard_closed(g, a, 590);
	b = opened(g, 2, 590);
	assert_true(held(g, 594));
	assert_true(held(g, 599));
	assert_false(held(g, 600)); /* though b has just begun */
	guard_moved(g, v2);
	assert_int_not_equal(g->epoch, epoch);
	assert_true(guard_split(g));
	assert_true(guard_uses(g, v1));
	assert_ptr_equal(guard_view(g, 2), v1);
	assert_int_equal(opened(g, 2, 601), b); /* the next shard: same load, no hold of v2 */
	assert_false(held(g, 601));
	assert_null(guard_view(g, 3));
	c = opened(g, 3, 602);
	assert_ptr_equal(guard_view(g, 3), v2);
	assert_true(held(g, 602));
	guard_closed(g, c, 603);
	assert_false(held(g, 608)); /* b does not hold v2 */
	epoch = g->epoch;
	guard_closed(g, b, 610);
	guard_closed(g, b, 610);
	guard_tick(g, 614);
	assert_ptr_equal(guard_view(g, 2), v1);
	guard_tick(g, 615);
	assert_null(guard_view(g, 2));
	assert_false(guard_split(g));
	/* What process 2 sees has changed. */
	assert_int_not_equal(g->epoch, epoch);
}

static void nothing_newer_at_max_hold(void **state)
{
	struct guard *g = *state;

	opened(g, 1, 0);
	opened(g, 2, 590);
	assert_false(held(g, 600));
	/* An open of a load under way is no new hold, a new load is. */
	opened(g, 2, 601);
	assert_false(held(g, 601));
	opened(g, 3, 602);
	assert_true(held(g, 602));
	assert_true(held(g, 602 + MAX_HOLD - 1));
	assert_false(held(g, 602 + MAX_HOLD));
	assert_int_equal(g->expired, 2);
}

static void release(void **state)
{
	struct guard *g = *state;

	opened(g, 1, 0);
	guard_release(g);
	assert_false(held(g, 0));
	guard_moved(g, v2);
	assert_ptr_equal(guard_view(g, 1), v1);
	opened(g, 1, 1);
	assert_false(held(g, 1));
	opened(g, 2, 1);
	assert_true(held(g, 1));
	/* A move that somebody forced. */
	guard_moved(g, v3);
	assert_false(held(g, 1));
	assert_ptr_equal(guard_view(g, 2), v2);
}

/* A process that loads again and again without a pause. */
static void reloads(void **state)
{
	struct guard *g = *state;
	uint64_t id = index_opened(g, 1, 0), epoch, again;

	assert_int_equal(index_opened(g, 1, 1), id); /* twice before the shards: nothing new */
	assert_int_equal(g->loads->began, 0);
	assert_int_equal(opened(g, 1, 2), id);
	/* While the view is current it is the same load with a new term; the hold keeps its own. */
	assert_int_equal(index_opened(g, 1, 500), id);
	assert_int_equal(g->loads->began, 500);
	assert_int_equal(opened(g, 1, 501), id);
	assert_true(held(g, 599));
	assert_false(held(g, 600));
	assert_int_equal(index_opened(g, 1, 601), id);
	assert_true(held(g, 601)); /* a new load on what is current */
	guard_moved(g, v2);
	assert_ptr_equal(guard_view(g, 1), v1);
	assert_int_equal(opened(g, 1, 602), id);
	epoch = g->epoch;
	again = index_opened(g, 1, 603);
	assert_int_not_equal(again, id);
	assert_int_not_equal(g->epoch, epoch);
	assert_ptr_equal(guard_view(g, 1), v2);
	assert_true(held(g, 603));
	/* What the earlier load had open does not count. */
	guard_closed(g, again, 604);
	guard_closed(g, id, 607);
	assert_true(held(g, 608));
	assert_false(held(g, 609));
}

static void announced(void **state)
{
	struct guard *g = *state;
	uint64_t id;
	bool fresh;

	assert_int_equal(guard_opened(g, 1, "a", false, false, 0, &id, &fresh), 0);
	assert_true(fresh);
	assert_true(held(g, 4));
	assert_int_equal(g->loads->opens, 0);
	assert_int_equal(guard_opened(g, 1, "a", false, true, 4, &id, &fresh), 0);
	assert_false(fresh);
	assert_true(held(g, 100));
	assert_int_equal(guard_opened(g, 2, "a", false, false, 100, &id, &fresh), 0);
	guard_closed(g, g->loads->next->id, 100);
	assert_false(held(g, 105)); /* it never came */
}

static void names(void **state)
{
	struct guard *g = *state;
	uint64_t id = 0;
	bool fresh;

	for (int i = 0; i < 3 * GUARD_NAMES; i++) {
		char name[16];

		snprintf(name, sizeof(name), "f%d", i / 2);
		assert_int_equal(guard_opened(g, 1, name, false, true, 0, &id, &fresh), 0);
	}
	assert_int_equal(g->loads->name_count, GUARD_NAMES);
	assert_string_equal(g->loads->names[1], "f1");
	assert_int_equal(g->loads->opens, 3 * GUARD_NAMES);
	guard_name(g, id, "a name that is longer than fits");
	assert_int_equal(strlen(g->loads->command), GUARD_COMMAND - 1);
	guard_name(g, 999, "nobody");
}

static void times_without_end(void **unused)
{
	struct guard g;

	guard_init(&g, INT64_MAX, INT64_MAX);
	guard_moved(&g, v1);
	guard_closed(&g, opened(&g, 1, 1000), 2000);
	assert_true(held(&g, INT64_MAX - 1));
	assert_int_equal(guard_deadline(&g), INT64_MAX);
	guard_release_all(&g);
}

/* ---- random events against a model that keeps every handle and every time ---- */

struct model_load {
	bool alive, sharded;
	uint64_t id;
	const void *view;
	int64_t began, last;
	int open;
};

struct model {
	struct model_load of[5]; /* by process */
	bool held;
	int64_t began;
	const void *current;
};

static void model_tick(struct model *m, int64_t now)
{
	bool any = false;

	if (m->held && now >= m->began + MAX_HOLD)
		m->held = false;
	for (int i = 0; i < 5; i++) {
		struct model_load *l = &m->of[i];

		if (now >= l->began + MAX_HOLD || (!l->open && now >= l->last + SETTLE))
			l->alive = false;
		any |= l->alive && l->view == m->current;
	}
	m->held &= any;
}

static void model_open(struct model *m, int pid, bool index, int64_t now, uint64_t id)
{
	struct model_load *l = &m->of[pid];

	model_tick(m, now);
	if (index && l->alive && l->sharded) {
		l->sharded = false;
		l->began = now;
		l->alive = l->view == m->current;
		if (l->alive && !m->held) {
			m->began = now;
			m->held = true;
		}
	}
	if (!l->alive) {
		*l = (struct model_load){true, false, id, m->current, now, now, 0};
		if (!m->held)
			m->began = now;
		m->held = true;
	}
	assert_int_equal(l->id, id);
	l->open++;
	l->sharded |= !index;
	l->last = now;
}

static void random_events(void **state)
{
	static const char views[] = "0123456789";
	struct guard *g = *state;
	struct model m = {.current = v1};
	uint64_t open_ids[64];
	unsigned seed = 20261130, opens = 0, moves = 0, splits = 0;
	int64_t now = 0;

	for (int round = 0; round < 200000; round++) {
		unsigned what = (unsigned)rand_r(&seed) % 100;
		int pid = (int)((unsigned)rand_r(&seed) % 5);

		now += rand_r(&seed) % 50 == 0 ? rand_r(&seed) % 300 : rand_r(&seed) % 3;
		if (what < 40 && opens < 64) {
			bool index = what < 5;

			open_ids[opens] = index ? index_opened(g, pid, now) : opened(g, pid, now);
			model_open(&m, pid, index, now, open_ids[opens]);
			opens++;
		} else if (what < 82 && opens) {
			unsigned at = (unsigned)rand_r(&seed) % opens;

			guard_closed(g, open_ids[at], now);
			model_tick(&m, now);
			for (int i = 0; i < 5; i++)
				if (m.of[i].alive && m.of[i].id == open_ids[at]) {
					m.of[i].open--;
					m.of[i].last = now;
				}
			open_ids[at] = open_ids[--opens];
		} else if (what == 99) {
			guard_release(g);
			m.held = false;
		} else {
			model_tick(&m, now);
			if (!held(g, now)) { /* as the history does */
				m.current = &views[++moves % 10];
				guard_moved(g, m.current);
			}
		}
		guard_tick(g, now);
		model_tick(&m, now);
		assert_int_equal(guard_held(g), m.held);
		splits += guard_split(g);
		for (int i = 0; i < 5; i++)
			assert_ptr_equal(guard_view(g, i), m.of[i].alive ? m.of[i].view : NULL);
	}
	assert_true(moves > 1000);
	assert_true(splits > 1000);
}

/* ---- recall ---- */

static const int64_t MINUTE = INT64_C(60000000000);

static void plain_or_not(void **unused)
{
	struct recall *r = calloc(1, sizeof(*r));
	struct recall_hit hit;

	assert_non_null(r);
	assert_false(recall_open(r, 10, 5000, 0, &hit));
	recall_plain(r, 10, 5000, 3, 0);
	assert_false(recall_open(r, 11, 5000, 1, &hit)); /* another thread */
	assert_false(recall_open(r, 10, 5001, 1, &hit)); /* another file */
	assert_true(recall_open(r, 10, 5000, 1, &hit));
	assert_true(hit.known && !hit.again);
	assert_int_equal(hit.epoch, 3);
	assert_false(recall_open(r, 10, 5000, 1, &hit)); /* used up */
	/* stat by plain path, then an open through versions/N, whose path is looked up first */
	recall_plain(r, 10, 5000, 3, 2);
	recall_other(r, 10);
	assert_false(recall_open(r, 10, 5000, 2, &hit));
	/* the last look-up counts */
	recall_plain(r, 10, 5000, 3, 3);
	recall_plain(r, 10, 6000, 4, 3);
	assert_false(recall_open(r, 10, 5000, 3, &hit));
	assert_true(recall_open(r, 10, 6000, 3, &hit));
	/* not for ever */
	recall_plain(r, 10, 5000, 3, 10);
	assert_false(recall_open(r, 10, 5000, 10 + MINUTE, &hit));
	free(r);
}

static void sent_back_once(void **unused)
{
	struct recall *r = calloc(1, sizeof(*r));
	struct recall_hit hit;

	assert_non_null(r);
	recall_plain(r, 10, 5000, 3, 0);
	assert_true(recall_open(r, 10, 5000, 0, &hit) && !hit.again);
	recall_again(r, 10, 0);
	recall_other(r, 10); /* a directory on the way */
	recall_plain(r, 10, 5002, 4, 1);
	assert_true(recall_open(r, 10, 5002, 1, &hit));
	assert_true(hit.again);
	recall_plain(r, 10, 5002, 4, 2);
	assert_true(recall_open(r, 10, 5002, 2, &hit));
	assert_false(hit.again);
	recall_again(r, 0, 2); /* nothing to remember it by */
	free(r);
}

static void threads_without_a_number(void **unused)
{
	struct recall *r = calloc(1, sizeof(*r));
	struct recall_hit hit;

	assert_non_null(r);
	assert_false(recall_open(r, 0, 5000, 0, &hit));
	recall_plain(r, 0, 5000, 3, 0);
	recall_plain(r, 0, 6000, 3, 0);
	recall_other(r, 0);
	for (int i = 0; i < 3; i++) {
		assert_true(recall_open(r, 0, 5000, i, &hit));
		assert_true(recall_open(r, 0, 6000, i, &hit));
	}
	assert_false(recall_open(r, 0, 7000, 3, &hit));
	assert_false(recall_open(r, 0, 5000, MINUTE, &hit));
	free(r);
}

static void more_threads_than_fit(void **unused)
{
	struct recall *r = calloc(1, sizeof(*r));
	int all = 4 * RECALL_SETS * RECALL_WAYS, known = 0;
	struct recall_hit hit;

	assert_non_null(r);
	for (int i = 1; i <= all; i++)
		recall_plain(r, i, 5000, 1, i);
	/* None that looked it up is missed, at the price of some that did not. */
	for (int i = 1; i <= all; i++) {
		assert_true(recall_open(r, i, 5000, all, &hit));
		known += hit.known;
	}
	assert_true(known > 0 && known <= RECALL_SETS * RECALL_WAYS);
	assert_true(recall_open(r, all + 1, 5000, all, &hit));
	assert_false(recall_open(r, all + 1, 5000, all + MINUTE, &hit));
	free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(one_load, setup, teardown),
		cmocka_unit_test_setup_teardown(every_handle_counts, setup, teardown),
		cmocka_unit_test_setup_teardown(ranks_drift, setup, teardown),
		cmocka_unit_test_setup_teardown(maps_kept_for_ever, setup, teardown),
		cmocka_unit_test_setup_teardown(loads_overlap_for_ever, setup, teardown),
		cmocka_unit_test_setup_teardown(nothing_newer_at_max_hold, setup, teardown),
		cmocka_unit_test_setup_teardown(release, setup, teardown),
		cmocka_unit_test_setup_teardown(reloads, setup, teardown),
		cmocka_unit_test_setup_teardown(announced, setup, teardown),
		cmocka_unit_test_setup_teardown(names, setup, teardown),
		cmocka_unit_test(times_without_end),
		cmocka_unit_test_setup_teardown(random_events, setup, teardown),
		cmocka_unit_test(plain_or_not),
		cmocka_unit_test(sent_back_once),
		cmocka_unit_test(threads_without_a_number),
		cmocka_unit_test(more_threads_than_fit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
