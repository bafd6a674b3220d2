/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unit tests of fs/history: what is kept and what goes, the hold on current, pins, replaced
 * versions, the subscriber and the waiters.  Time stands still (clock_fake), so nothing here
 * depends on speed.
 */
#include "fs/history.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "cache/clock.h"

/* A generation only counts references of its state: a double keeps weights out of this test. */
__attribute__((weak)) struct state *state_ref(struct state *s)
{
	__atomic_fetch_add(&s->refs, 1, __ATOMIC_RELAXED);
	return s;
}

__attribute__((weak)) void state_unref(struct state *s)
{
	if (s && __atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL) == 0)
		free(s);
}

__attribute__((weak)) int state_read(const struct state *s, uint32_t file, uint64_t off, void *dst,
				     size_t len)
{
	return -EIO;
}

static struct nodes *nodes;

static struct generation *generation(uint64_t version, const char *lineage)
{
	struct generation *g = calloc(1, sizeof(*g));

	assert_non_null(g);
	g->refs = 1;
	g->version = version;
	snprintf(g->lineage, sizeof(g->lineage), "%s", lineage);
	g->state = calloc(1, sizeof(*g->state));
	assert_non_null(g->state);
	g->state->refs = 1;
	g->state->version = version;
	g->state->anchor = 1;
	g->state->deltas = (unsigned)version - 1;
	g->root = node_dir(nodes, g->state, (int64_t)version);
	assert_non_null(g->root);
	return g;
}

/* Publishes and returns the number of the root, by which its being alive can be seen. */
static uint64_t publish(struct history *h, uint64_t version, const char *lineage)
{
	struct generation *g = generation(version, lineage);
	uint64_t ino = g->root->ino;

	assert_int_equal(history_publish(h, g), 0);
	generation_unref(g);
	return ino;
}

static bool alive(uint64_t ino)
{
	struct node *n = nodes_get(nodes, ino);

	node_unref(n);
	return n != NULL;
}

static uint64_t version_of(struct generation *g)
{
	uint64_t v = g ? g->version : UINT64_MAX;

	generation_unref(g);
	return v;
}

static int setup(void **unused)
{
	nodes = nodes_new();
	clock_fake(1000 * NSEC_PER_SEC);
	return nodes ? 0 : -1;
}

static int teardown(void **unused)
{
	clock_fake(-1);
	nodes_free(nodes);
	return 0;
}

static void starts_empty(void **unused)
{
	struct history *h = history_new(2);
	struct history_entry *v;
	size_t count;

	assert_null(history_current(h));
	assert_null(history_newest(h));
	assert_null(history_version(h, 1));
	assert_int_equal(history_pin(h, 1), -ENOENT);
	assert_int_equal(history_unpin(h, 1), -ENOENT);
	assert_int_equal(history_list(h, &v, &count), 0);
	assert_int_equal(count, 0);
	free(v);
	assert_int_equal(history_wait(h, true, 0, clock_mono_ns()), -ETIMEDOUT);
	history_free(h);
}

static void keeps_the_last(void **unused)
{
	struct history *h = history_new(3);
	uint64_t ino[6];
	struct history_entry *v;
	size_t count;

	for (unsigned i = 0; i < 6; i++)
		ino[i] = publish(h, i + 1, "aaaaaaaa");
	for (unsigned i = 0; i < 6; i++)
		assert_int_equal(alive(ino[i]), i >= 3);
	assert_null(history_version(h, 3));
	assert_int_equal(version_of(history_version(h, 4)), 4);
	assert_int_equal(version_of(history_current(h)), 6);
	assert_int_equal(version_of(history_newest(h)), 6);
	assert_int_equal(history_list(h, &v, &count), 0);
	assert_int_equal(count, 3);
	for (size_t i = 0; i < count; i++) {
		assert_int_equal(v[i].version, i + 4);
		assert_int_equal(v[i].anchor, 1);
		assert_int_equal(v[i].deltas, i + 3);
		assert_string_equal(v[i].lineage, "aaaaaaaa");
		assert_int_equal(v[i].current, i == 2);
		assert_int_equal(v[i].newest, i == 2);
		assert_false(v[i].pinned);
	}
	free(v);
	history_free(h);
	assert_false(alive(ino[5]));
}

static void keeps_what_is_open(void **unused)
{
	struct history *h = history_new(1);
	uint64_t one = publish(h, 1, "a"), two;
	struct generation *g = history_version(h, 1);
	struct node *root = node_ref(g->root);

	generation_unref(g);
	node_opened(root);
	two = publish(h, 2, "a");
	publish(h, 3, "a");
	assert_false(alive(two));
	assert_int_equal(version_of(history_version(h, 1)), 1);
	node_closed(root);
	history_tick(h);
	assert_null(history_version(h, 1));
	assert_true(alive(one)); /* the handle's own reference */
	node_unref(root);
	assert_false(alive(one));
	history_free(h);
}

static void keeps_what_is_pinned(void **unused)
{
	struct history *h = history_new(1);

	publish(h, 1, "a");
	assert_int_equal(history_pin(h, 1), 0);
	publish(h, 2, "a");
	assert_int_equal(history_pin(h, 2), 0);
	publish(h, 3, "a");
	assert_int_equal(version_of(history_version(h, 1)), 1);
	assert_int_equal(history_unpin(h, 3), -ENOENT);
	assert_int_equal(history_unpin(h, 1), 0);
	assert_null(history_version(h, 1));
	assert_int_equal(version_of(history_version(h, 2)), 2);
	history_unpin_all(h);
	assert_null(history_version(h, 2));
	assert_int_equal(version_of(history_version(h, 3)), 3);
	history_free(h);
}

static void asked_for_versions_take_no_place(void **unused)
{
	struct history *h = history_new(2);
	struct generation *old = generation(3, "a");

	publish(h, 8, "a");
	publish(h, 9, "a");
	assert_int_equal(history_add_pinned(h, old), 0);
	assert_int_equal(version_of(history_current(h)), 9);
	assert_int_equal(version_of(history_newest(h)), 9);
	assert_int_equal(version_of(history_version(h, 8)), 8);
	assert_int_equal(version_of(history_version(h, 3)), 3);
	assert_int_equal(history_add_pinned(h, old), 0); /* twice: once */
	generation_unref(old);
	assert_int_equal(history_unpin(h, 3), 0);
	assert_null(history_version(h, 3));
	assert_int_equal(version_of(history_version(h, 8)), 8);
	history_free(h);
}

static void a_new_lineage_replaces_the_number(void **unused)
{
	struct history *h = history_new(8);
	uint64_t first = publish(h, 1, "aaaaaaaa"), second = publish(h, 2, "aaaaaaaa"), again;
	struct generation *g = history_version(h, 1);
	struct node *root = node_ref(g->root);
	struct history_entry *v;
	size_t count;

	generation_unref(g);
	node_opened(root);
	assert_int_equal(history_pin(h, 2), 0);
	again = publish(h, 1, "bbbbbbbb");
	publish(h, 2, "bbbbbbbb");

	g = history_version(h, 1);
	assert_int_equal(g->root->ino, again);
	assert_string_equal(g->lineage, "bbbbbbbb");
	generation_unref(g);
	assert_false(alive(second)); /* the pin went over to the new 2 */
	assert_int_equal(history_list(h, &v, &count), 0);
	assert_int_equal(count, 3);
	assert_true(v[2].pinned && v[2].version == 2);
	free(v);
	node_closed(root);
	node_unref(root);
	assert_true(alive(first));
	history_tick(h);
	assert_false(alive(first));
	history_free(h);
}

static void taken_out_versions_go(void **unused)
{
	struct history *h = history_new(8);
	struct generation *open;
	uint64_t ino[6];

	for (uint64_t v = 1; v <= 5; v++)
		ino[v] = publish(h, v, "aaaaaaaa");
	assert_int_equal(history_pin(h, 4), 0);
	open = history_version(h, 5);
	__atomic_fetch_add(&open->state->opens, 1, __ATOMIC_RELAXED);
	history_hold(h, NSEC_PER_SEC);
	publish(h, 2, "aaaaaaaa");
	assert_int_equal(version_of(history_current(h)), 5);
	history_drop(h, 3, UINT64_MAX);
	assert_int_equal(version_of(history_current(h)), 2);
	assert_int_equal(version_of(history_newest(h)), 2);
	for (uint64_t v = 3; v <= 5; v++)
		assert_null(history_version(h, v));
	assert_int_equal(version_of(history_version(h, 1)), 1);
	assert_false(alive(ino[3]) || alive(ino[4]));
	assert_true(alive(ino[5]));
	__atomic_fetch_sub(&open->state->opens, 1, __ATOMIC_RELAXED);
	generation_unref(open);
	history_tick(h);
	assert_false(alive(ino[5]));
	/* The newest is never dropped. */
	history_drop(h, 0, UINT64_MAX);
	assert_int_equal(version_of(history_newest(h)), 2);
	assert_null(history_version(h, 1));
	history_free(h);
}

static void hold_keeps_current(void **unused)
{
	struct history *h = history_new(1);

	history_hold(h, 5 * NSEC_PER_SEC);
	publish(h, 1, "a"); /* nothing to hold yet: the first is shown */
	assert_int_equal(version_of(history_current(h)), 1);
	publish(h, 2, "a");
	assert_int_equal(version_of(history_current(h)), 1);
	assert_int_equal(version_of(history_newest(h)), 2);
	assert_int_equal(history_held_until(h), 1005 * NSEC_PER_SEC);
	history_tick(h);
	assert_int_equal(version_of(history_current(h)), 1);
	clock_fake(1005 * NSEC_PER_SEC);
	assert_int_equal(history_held_until(h), 0);
	history_tick(h);
	assert_int_equal(version_of(history_current(h)), 2);
	assert_null(history_version(h, 1));

	history_hold(h, INT64_MAX);
	publish(h, 3, "a");
	assert_int_equal(version_of(history_current(h)), 2);
	history_release(h);
	assert_int_equal(version_of(history_current(h)), 3);
	history_free(h);
}

static uint64_t viewed(struct history *h, int pid)
{
	return version_of(history_view(h, pid));
}

static void loads_keep_current(void **unused)
{
	struct history *h = history_new(1);
	struct history_load *v;
	uint64_t epoch, a, b, ino;
	char command[16];
	size_t count;
	bool fresh;
	int pid;

	clock_fake(1000 * NSEC_PER_SEC);
	assert_false(history_guarded(h));
	history_set_guard(h, 5 * NSEC_PER_SEC, 60 * NSEC_PER_SEC);
	assert_true(history_guarded(h));
	ino = publish(h, 1, "a");
	assert_int_equal(history_wake_at(h), INT64_MAX);
	epoch = history_epoch(h);
	assert_int_equal(history_load_opened(h, 77, "x", false, &epoch, &a, &fresh), 0);
	assert_true(fresh);
	history_load_named(h, a, "python");
	assert_int_equal(history_load_opened(h, 77, "y", false, &epoch, &a, &fresh), 0);
	assert_false(fresh);
	publish(h, 2, "a");
	publish(h, 3, "a");
	assert_int_equal(viewed(h, 77), 1);
	assert_int_equal(viewed(h, 0), 1);
	assert_int_equal(version_of(history_newest(h)), 3);
	assert_false(history_split(h));
	assert_int_equal(history_loads(h, &v, &count), 0);
	assert_int_equal(count, 1);
	assert_int_equal(v->pid, 77);
	assert_string_equal(v->command, "python");
	assert_int_equal(v->version, 1);
	assert_int_equal(v->open, 2);
	assert_true(v->holds);
	assert_string_equal(v->files, "x\ny");
	assert_int_equal(v->end - v->began, 60 * NSEC_PER_SEC);
	history_loads_free(v, count);
	assert_true(history_wake_at(h) <= clock_mono_ns() + 5 * NSEC_PER_SEC);

	/* As long as it may: current moves on, the process keeps what it began with, though it
	 * has nothing open at the moment and only one version is kept. */
	clock_fake(1059 * NSEC_PER_SEC);
	assert_int_equal(history_load_opened(h, 78, "x", false, &epoch, &b, &fresh), 0);
	history_load_closed(h, b);
	clock_fake(1060 * NSEC_PER_SEC);
	history_tick(h);
	assert_int_equal(viewed(h, 0), 3);
	assert_int_equal(viewed(h, 77), 3);
	assert_int_equal(viewed(h, 78), 1);
	assert_true(history_split(h));
	assert_true(alive(ino));
	assert_int_equal(history_expired(h, &pid, command), 1);
	assert_int_equal(pid, 77);
	assert_string_equal(command, "python");

	/* What was looked up before the move has to be looked up again, and then stays. */
	assert_int_equal(history_load_opened(h, 79, "x", false, &epoch, &b, &fresh), -ESTALE);
	publish(h, 4, "a");
	assert_int_equal(viewed(h, 79), 3);
	epoch = history_epoch(h);
	assert_int_equal(history_load_opened(h, 79, "x", false, &epoch, &b, &fresh), 0);
	assert_int_equal(viewed(h, 0), 3);
	clock_fake(1064 * NSEC_PER_SEC);
	assert_int_equal(viewed(h, 78), 3); /* over */
	assert_false(history_split(h));
	/* ... which somebody who looked a name up before may not have known */
	assert_int_equal(history_load_opened(h, 78, "x", false, &epoch, &b, &fresh), -ESTALE);
	history_tick(h);
	assert_false(alive(ino));
	history_release(h);
	assert_int_equal(viewed(h, 0), 4);
	assert_int_equal(viewed(h, 79), 3);
	assert_int_equal(history_load_opened(h, 80, "x", false, NULL, &b, &fresh), 0);
	history_free(h);
}

struct seen {
	struct history *h;
	unsigned calls;
	uint64_t current;
};

static void on_change(void *ctx)
{
	struct seen *s = ctx;

	s->calls++;
	s->current = version_of(history_current(s->h)); /* would dead-lock under the lock */
}

static void subscriber_hears_of_changes(void **unused)
{
	struct seen s = {.h = history_new(4)};

	history_subscribe(s.h, on_change, &s);
	publish(s.h, 1, "a");
	assert_int_equal(s.calls, 1);
	assert_int_equal(s.current, 1);
	history_tick(s.h);
	assert_int_equal(history_pin(s.h, 1), 0);
	history_hold(s.h, NSEC_PER_SEC);
	assert_int_equal(s.calls, 1);
	publish(s.h, 2, "a"); /* newest moves, current does not */
	assert_int_equal(s.calls, 2);
	assert_int_equal(s.current, 1);
	history_release(s.h);
	assert_int_equal(s.calls, 3);
	assert_int_equal(s.current, 2);
	history_subscribe(s.h, NULL, NULL);
	publish(s.h, 3, "a");
	assert_int_equal(s.calls, 3);
	history_free(s.h);
}

static void ready(struct history *h, uint64_t version)
{
	struct generation *g = history_version(h, version);

	assert_non_null(g);
	history_ready(h, g);
	generation_unref(g);
}

static void the_gate_waits_for_ready(void **unused)
{
	struct history *h = history_new(4);
	uint64_t seen = 0;

	history_gate(h);
	publish(h, 1, "a"); /* nothing was shown: no waiting */
	assert_int_equal(version_of(history_current(h)), 1);
	publish(h, 2, "a");
	publish(h, 3, "a");
	assert_int_equal(version_of(history_current(h)), 1);
	assert_int_equal(version_of(history_newest(h)), 3);
	ready(h, 2); /* a newer one has come meanwhile: still a step */
	assert_int_equal(version_of(history_current(h)), 2);
	ready(h, 1); /* never back */
	assert_int_equal(version_of(history_current(h)), 2);
	history_hold(h, NSEC_PER_SEC);
	ready(h, 3);
	assert_int_equal(version_of(history_current(h)), 2);
	history_release(h);
	assert_int_equal(version_of(history_current(h)), 3);

	assert_int_equal(history_moved(h, &seen, 0), 0);
	assert_int_equal(history_moved(h, &seen, 0), -ETIMEDOUT);
	publish(h, 3, "b"); /* another run's: the same number, not ready */
	assert_int_equal(history_moved(h, &seen, 0), 0);
	ready(h, 3);
	assert_int_equal(history_moved(h, &seen, 0), 0);
	history_wake(h);
	assert_int_equal(history_moved(h, &seen, -1), 0);
	history_free(h);
}

static void *publisher(void *ctx)
{
	for (uint64_t v = 1; v <= 20; v++)
		publish(ctx, v, "a");
	return NULL;
}

static void waiters_wake(void **unused)
{
	struct history *h = history_new(2);
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, publisher, h), 0);
	assert_int_equal(history_wait(h, false, 0, -1), 0);
	assert_int_equal(history_wait(h, true, 7, -1), 0);
	assert_int_equal(history_wait(h, false, 20, -1), 0);
	assert_int_equal(version_of(history_current(h)), 20);
	pthread_join(thread, NULL);
	assert_int_equal(history_wait(h, true, 21, clock_mono_ns()), -ETIMEDOUT);
	history_free(h);
}

static void without_weights_there_is_no_version(void **unused)
{
	struct history *h = history_new(2);
	struct generation *g = generation(0, "");

	node_unref(g->root);
	g->root = node_dir(nodes, NULL, 0);
	state_unref(g->state);
	g->state = NULL;
	assert_int_equal(history_publish(h, g), 0);
	generation_unref(g);
	assert_int_equal(version_of(history_current(h)), 0);
	assert_int_equal(history_wait(h, false, 0, clock_mono_ns()), -ETIMEDOUT);
	history_free(h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(starts_empty),
		cmocka_unit_test(keeps_the_last),
		cmocka_unit_test(keeps_what_is_open),
		cmocka_unit_test(keeps_what_is_pinned),
		cmocka_unit_test(asked_for_versions_take_no_place),
		cmocka_unit_test(a_new_lineage_replaces_the_number),
		cmocka_unit_test(taken_out_versions_go),
		cmocka_unit_test(hold_keeps_current),
		cmocka_unit_test(loads_keep_current),
		cmocka_unit_test(subscriber_hears_of_changes),
		cmocka_unit_test(the_gate_waits_for_ready),
		cmocka_unit_test(waiters_wake),
		cmocka_unit_test(without_weights_there_is_no_version),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
