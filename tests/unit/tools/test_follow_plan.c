/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of follow: every state with every outcome against a table written by hand, and then
 * every way through it, however things go wrong, against what must hold on all of them.
 */
#include "tools/follow_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define PAUSE  PLAN_PAUSE
#define RELOAD PLAN_RELOAD
#define VERIFY PLAN_VERIFY
#define RESUME PLAN_RESUME
#define UNDO   PLAN_UNDO
#define BACK   PLAN_BACK
#define LET    PLAN_LET

/* Of a row: with attempts left; without, by policy. */
static const struct row {
	enum plan_state state;
	enum plan_outcome outcome;
	int again, keep, back, let;
} rows[] = {
	{PAUSE, PLAN_OK, RELOAD, RELOAD, RELOAD, RELOAD},
	{PAUSE, PLAN_REFUSED, PLAN_OLD, PLAN_OLD, PLAN_OLD, PLAN_OLD},
	{PAUSE, PLAN_FAILED, UNDO, UNDO, UNDO, UNDO},
	{PAUSE, PLAN_LOST, UNDO, UNDO, UNDO, UNDO},
	{PAUSE, PLAN_DOWN, PLAN_AWAY, PLAN_AWAY, PLAN_AWAY, PLAN_AWAY},
	{RELOAD, PLAN_OK, VERIFY, VERIFY, VERIFY, VERIFY},
	{RELOAD, PLAN_REFUSED, UNDO, UNDO, UNDO, UNDO},
	{RELOAD, PLAN_FAILED, RELOAD, PLAN_MIXED_PAUSED, BACK, LET},
	{RELOAD, PLAN_LOST, RELOAD, PLAN_MIXED_PAUSED, BACK, LET},
	{RELOAD, PLAN_DOWN, PAUSE, PLAN_AWAY, PLAN_AWAY, PLAN_AWAY},
	{VERIFY, PLAN_OK, RESUME, RESUME, RESUME, RESUME},
	{VERIFY, PLAN_REFUSED, PLAN_MIXED_PAUSED, PLAN_MIXED_PAUSED, BACK, LET},
	{VERIFY, PLAN_FAILED, PAUSE, PLAN_MIXED_PAUSED, BACK, LET},
	{VERIFY, PLAN_LOST, VERIFY, PLAN_MIXED_PAUSED, BACK, LET},
	{VERIFY, PLAN_DOWN, PAUSE, PLAN_AWAY, PLAN_AWAY, PLAN_AWAY},
	{RESUME, PLAN_OK, PLAN_NEW, PLAN_NEW, PLAN_NEW, PLAN_NEW},
	{RESUME, PLAN_REFUSED, PLAN_NEW_PAUSED, PLAN_NEW_PAUSED, PLAN_NEW_PAUSED, PLAN_NEW_PAUSED},
	{RESUME, PLAN_FAILED, RESUME, PLAN_NEW_PAUSED, PLAN_NEW_PAUSED, PLAN_NEW_PAUSED},
	{RESUME, PLAN_LOST, RESUME, PLAN_NEW_PAUSED, PLAN_NEW_PAUSED, PLAN_NEW_PAUSED},
	{RESUME, PLAN_DOWN, PAUSE, PLAN_AWAY, PLAN_AWAY, PLAN_AWAY},
	{UNDO, PLAN_OK, PLAN_OLD, PLAN_OLD, PLAN_OLD, PLAN_OLD},
	{UNDO, PLAN_REFUSED, PLAN_OLD_PAUSED, PLAN_OLD_PAUSED, PLAN_OLD_PAUSED, PLAN_OLD_PAUSED},
	{UNDO, PLAN_FAILED, UNDO, PLAN_OLD_PAUSED, PLAN_OLD_PAUSED, PLAN_OLD_PAUSED},
	{UNDO, PLAN_LOST, UNDO, PLAN_OLD_PAUSED, PLAN_OLD_PAUSED, PLAN_OLD_PAUSED},
	{UNDO, PLAN_DOWN, PLAN_AWAY, PLAN_AWAY, PLAN_AWAY, PLAN_AWAY},
	{BACK, PLAN_OK, UNDO, UNDO, UNDO, UNDO},
	{BACK, PLAN_REFUSED, PLAN_MIXED_PAUSED, PLAN_MIXED_PAUSED, PLAN_MIXED_PAUSED,
	 PLAN_MIXED_PAUSED},
	{BACK, PLAN_FAILED, BACK, PLAN_MIXED_PAUSED, PLAN_MIXED_PAUSED, PLAN_MIXED_PAUSED},
	{BACK, PLAN_LOST, BACK, PLAN_MIXED_PAUSED, PLAN_MIXED_PAUSED, PLAN_MIXED_PAUSED},
	{BACK, PLAN_DOWN, PLAN_AWAY, PLAN_AWAY, PLAN_AWAY, PLAN_AWAY},
	{LET, PLAN_OK, PLAN_MIXED_SERVING, PLAN_MIXED_SERVING, PLAN_MIXED_SERVING,
	 PLAN_MIXED_SERVING},
	{LET, PLAN_REFUSED, PLAN_MIXED_PAUSED, PLAN_MIXED_PAUSED, PLAN_MIXED_PAUSED,
	 PLAN_MIXED_PAUSED},
	{LET, PLAN_FAILED, LET, PLAN_MIXED_PAUSED, PLAN_MIXED_PAUSED, PLAN_MIXED_PAUSED},
	{LET, PLAN_LOST, LET, PLAN_MIXED_PAUSED, PLAN_MIXED_PAUSED, PLAN_MIXED_PAUSED},
	{LET, PLAN_DOWN, PLAN_AWAY, PLAN_AWAY, PLAN_AWAY, PLAN_AWAY},
};

static void expect(const struct row *r, const struct plan_facts *facts, int want)
{
	enum plan_state got = plan_next(r->state, r->outcome, facts);

	if ((int)got != want)
		fail_msg("state %d, outcome %d: %s, not %s", r->state, r->outcome, plan_name(got),
			 plan_name((enum plan_state)want));
}

static void test_table(void **state)
{
	bool seen[PLAN_NEW][PLAN_OUTCOMES] = {{false}};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const struct row *r = &rows[i];
		struct plan_facts facts = {.can_pause = true, .has_previous = true};

		assert_false(seen[r->state][r->outcome]);
		seen[r->state][r->outcome] = true;
		expect(r, &facts, r->keep);
		facts.policy = PLAN_GO_BACK;
		expect(r, &facts, r->back);
		facts.policy = PLAN_LET_SERVE;
		expect(r, &facts, r->let);
		facts.policy = PLAN_KEEP_PAUSED;
		facts.may_retry = true;
		expect(r, &facts, r->again);
	}
	for (int s = 0; s < PLAN_NEW; s++)
		for (int o = 0; o < PLAN_OUTCOMES; o++)
			assert_true(seen[s][o]);
}

static void test_special_cases(void **state)
{
	struct plan_facts facts = {.policy = PLAN_GO_BACK, .can_pause = true};

	/* Nothing to go back to. */
	assert_int_equal(plan_next(RELOAD, PLAN_FAILED, &facts), PLAN_MIXED_PAUSED);
	/* What cannot be paused serves. */
	facts = (struct plan_facts){.policy = PLAN_KEEP_PAUSED};
	assert_int_equal(plan_next(RELOAD, PLAN_FAILED, &facts), PLAN_MIXED_SERVING);
	/* Told to end: a pause is taken back, a resume is still tried again, a reload is not. */
	facts = (struct plan_facts){.can_pause = true, .may_retry = true, .stopping = true};
	assert_int_equal(plan_next(PAUSE, PLAN_OK, &facts), UNDO);
	assert_int_equal(plan_next(RELOAD, PLAN_OK, &facts), VERIFY);
	assert_int_equal(plan_next(RELOAD, PLAN_FAILED, &facts), PLAN_MIXED_PAUSED);
	assert_int_equal(plan_next(RESUME, PLAN_FAILED, &facts), RESUME);
	assert_int_equal(plan_next(RESUME, PLAN_DOWN, &facts), PLAN_AWAY);
	assert_int_equal(plan_next(UNDO, PLAN_LOST, &facts), UNDO);
	/* Told to end before it began. */
	assert_int_equal(plan_stop(PAUSE, &facts), PLAN_OLD);
	assert_int_equal(plan_stop(RELOAD, &facts), UNDO);
	facts.dirty = true;
	assert_int_equal(plan_stop(RELOAD, &facts), PLAN_MIXED_PAUSED);
	assert_int_equal(plan_stop(PAUSE, &facts), PLAN_MIXED_SERVING);
	/* A pause that fails, or a reload that is refused, after a reload was begun: not "old". */
	assert_int_equal(plan_next(PAUSE, PLAN_REFUSED, &facts), PLAN_MIXED_SERVING);
	assert_int_equal(plan_next(PAUSE, PLAN_OK, &facts), PLAN_MIXED_PAUSED);
	assert_int_equal(plan_next(RELOAD, PLAN_REFUSED, &facts), PLAN_MIXED_PAUSED);
	facts = (struct plan_facts){
		.policy = PLAN_GO_BACK, .can_pause = true, .dirty = true, .has_previous = true};
	assert_int_equal(plan_next(PAUSE, PLAN_LOST, &facts), BACK);
	assert_int_equal(plan_next(RELOAD, PLAN_REFUSED, &facts), BACK);
	assert_int_equal(plan_stop(RESUME, &facts), RESUME);
	/* Left paused with mixed weights by the update before: it stays that. */
	facts = (struct plan_facts){.can_pause = true, .dirty = true, .paused = true};
	for (int o = PLAN_REFUSED; o <= PLAN_LOST; o++)
		assert_int_equal(plan_next(PAUSE, (enum plan_outcome)o, &facts), PLAN_MIXED_PAUSED);
	assert_int_equal(plan_stop(PAUSE, &facts), PLAN_MIXED_PAUSED);
}

static void test_begin(void **state)
{
	assert_int_equal(plan_begin(PLAN_NEW, true), PLAN_NEW);
	assert_int_equal(plan_begin(PLAN_NEW_PAUSED, true), RESUME);
	/* A version that left mixed weights is not tried again by itself. */
	assert_int_equal(plan_begin(PLAN_MIXED_PAUSED, true), PLAN_MIXED_PAUSED);
	assert_int_equal(plan_begin(PLAN_MIXED_SERVING, true), PLAN_MIXED_SERVING);
	for (int s = PLAN_NEW; s < PLAN_STATES; s++)
		assert_int_equal(plan_begin((enum plan_state)s, false), PAUSE);
	assert_int_equal(plan_begin(PLAN_OLD, true), PAUSE);
	assert_int_equal(plan_begin(PLAN_OLD_PAUSED, true), PAUSE);
	assert_int_equal(plan_begin(PLAN_AWAY, true), PAUSE);
	for (int s = 0; s < PLAN_STATES; s++)
		assert_true(plan_name((enum plan_state)s)[0] != '\0');
}

/* ---- every way through ---- */

enum { RETRIES = 1 };

struct walk { /* an engine as the outcomes describe it, and how often each state was begun */
	enum plan_state state;
	unsigned tries[PLAN_NEW];
	bool loaded, verified, dirty, paused, unheld, stopping;
	unsigned depth;
};

static unsigned long walked;

static void check_end(const struct walk *w, const struct plan_facts *facts)
{
	walked++;
	switch (w->state) {
	case PLAN_NEW:
	case PLAN_NEW_PAUSED: assert_true(w->loaded && w->verified); break;
	case PLAN_OLD:
	case PLAN_OLD_PAUSED:
		/* The weights are old ones, whole: never touched, or loaded anew. */
		assert_false(w->dirty);
		break;
	case PLAN_MIXED_SERVING:
		assert_true(w->dirty);
		assert_true(facts->policy == PLAN_LET_SERVE || !facts->can_pause || w->unheld);
		break;
	case PLAN_MIXED_PAUSED: assert_true(facts->can_pause); break;
	default: assert_int_equal(w->state, PLAN_AWAY);
	}
}

static void walk(struct walk w, const struct plan_facts *set)
{
	assert_true(w.depth < 40);
	if (plan_is_end(w.state)) {
		check_end(&w, set);
		return;
	}
	if (!w.stopping) { /* told to end just now */
		struct walk next = w;
		struct plan_facts facts = *set;

		facts.dirty = w.dirty;
		facts.paused = w.paused;
		next.stopping = facts.stopping = true;
		next.unheld |= w.state == PAUSE;
		next.state = plan_stop(w.state, &facts);
		walk(next, set);
	}
	for (int o = 0; o < PLAN_OUTCOMES; o++) {
		struct walk next = w;
		struct plan_facts facts = *set;

		next.tries[w.state]++;
		facts.may_retry = next.tries[w.state] <= RETRIES;
		facts.stopping = w.stopping;
		if (w.state == RELOAD && o != PLAN_REFUSED && o != PLAN_DOWN)
			next.dirty = true;
		if (w.state == RELOAD)
			next.loaded = o == PLAN_OK;
		if (w.state == VERIFY)
			next.verified = o == PLAN_OK;
		if (w.state == BACK && o == PLAN_OK)
			next.dirty = false;
		if (w.state == PAUSE)
			next.unheld = o != PLAN_OK;
		if (o == PLAN_DOWN) /* it comes back with what it starts with */
			next.loaded = next.verified = false;
		facts.dirty = next.dirty;
		facts.paused = w.paused;
		next.paused = o != PLAN_DOWN && (w.paused || w.state == PAUSE);
		next.state = plan_next(w.state, (enum plan_outcome)o, &facts);
		next.depth++;
		walk(next, set);
	}
}

static void test_every_way(void **state)
{
	for (int policy = 0; policy <= PLAN_LET_SERVE; policy++)
		for (int bits = 0; bits < 4; bits++) {
			struct plan_facts set = {
				.policy = (enum plan_policy)policy,
				.can_pause = bits & 1,
				.has_previous = bits & 2,
			};
			struct walk w = {.state = PAUSE};

			walk(w, &set);
			w.dirty = true; /* by the update before */
			walk(w, &set);
			w.paused = set.can_pause;
			walk(w, &set);
		}
	assert_true(walked > 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_table),
		cmocka_unit_test(test_special_cases),
		cmocka_unit_test(test_begin),
		cmocka_unit_test(test_every_way),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
