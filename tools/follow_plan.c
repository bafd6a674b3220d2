/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of follow, for one replica and one version N.
 *
 *	pause -> reload -> verify -> resume -> new
 *
 * and where each step may lead instead.  "again" is taken while attempts are left; GIVE_UP stands
 * for what --on-failure says.  Rules behind the table:
 *
 * - Before the reload nothing has happened to the weights: whatever goes wrong ends with the old
 *   ones being served, or said to be paused.
 * - From the first byte of the reload on, the weights are of no one version until a reload has
 *   succeeded.  A retry reads the same versions/N again, whole; so does an engine's own "rollback".
 * - A replica that is gone in between comes back unpaused, with what it starts with: it begins
 *   again with the pause.  One that then cannot be paused is said to serve mixed weights, which is
 *   the worst that it may be doing.
 * - One that was left with mixed weights, or found paused, begins like that: when the next version
 *   does not get as far as a reload, it stays as it is.
 * - Traffic is let in after a verified reload, or with untouched weights, or because the policy
 *   says so; the end state then has a name of its own.
 *
 * No I/O, no clock, no state.
 */
#include "tools/follow_plan.h"

enum { GIVE_UP = PLAN_STATES, NEVER };

struct cell {
	int again; /* NEVER: this is not tried again */
	int next;
};

#define FINAL(state)	    {NEVER, (state)}
#define AGAIN(again_, next) {(again_), (next)}

/* clang-format off */
static const struct cell table[PLAN_NEW][PLAN_OUTCOMES] = {
	[PLAN_PAUSE] = {
		[PLAN_OK]      = FINAL(PLAN_RELOAD),
		[PLAN_REFUSED] = FINAL(PLAN_OLD),
		[PLAN_FAILED]  = FINAL(PLAN_UNDO),
		[PLAN_LOST]    = FINAL(PLAN_UNDO),
		[PLAN_DOWN]    = FINAL(PLAN_AWAY),
	},
	[PLAN_RELOAD] = {
		[PLAN_OK]      = FINAL(PLAN_VERIFY),
		[PLAN_REFUSED] = FINAL(PLAN_UNDO),
		[PLAN_FAILED]  = AGAIN(PLAN_RELOAD, GIVE_UP),
		[PLAN_LOST]    = AGAIN(PLAN_RELOAD, GIVE_UP),
		[PLAN_DOWN]    = AGAIN(PLAN_PAUSE, PLAN_AWAY),
	},
	[PLAN_VERIFY] = {
		[PLAN_OK]      = FINAL(PLAN_RESUME),
		[PLAN_REFUSED] = FINAL(GIVE_UP),
		[PLAN_FAILED]  = AGAIN(PLAN_PAUSE, GIVE_UP),
		[PLAN_LOST]    = AGAIN(PLAN_VERIFY, GIVE_UP),
		[PLAN_DOWN]    = AGAIN(PLAN_PAUSE, PLAN_AWAY),
	},
	[PLAN_RESUME] = {
		[PLAN_OK]      = FINAL(PLAN_NEW),
		[PLAN_REFUSED] = FINAL(PLAN_NEW_PAUSED),
		[PLAN_FAILED]  = AGAIN(PLAN_RESUME, PLAN_NEW_PAUSED),
		[PLAN_LOST]    = AGAIN(PLAN_RESUME, PLAN_NEW_PAUSED),
		[PLAN_DOWN]    = AGAIN(PLAN_PAUSE, PLAN_AWAY),
	},
	[PLAN_UNDO] = {
		[PLAN_OK]      = FINAL(PLAN_OLD),
		[PLAN_REFUSED] = FINAL(PLAN_OLD_PAUSED),
		[PLAN_FAILED]  = AGAIN(PLAN_UNDO, PLAN_OLD_PAUSED),
		[PLAN_LOST]    = AGAIN(PLAN_UNDO, PLAN_OLD_PAUSED),
		[PLAN_DOWN]    = FINAL(PLAN_AWAY),
	},
	[PLAN_BACK] = {
		[PLAN_OK]      = FINAL(PLAN_UNDO),
		[PLAN_REFUSED] = FINAL(PLAN_MIXED_PAUSED),
		[PLAN_FAILED]  = AGAIN(PLAN_BACK, PLAN_MIXED_PAUSED),
		[PLAN_LOST]    = AGAIN(PLAN_BACK, PLAN_MIXED_PAUSED),
		[PLAN_DOWN]    = FINAL(PLAN_AWAY),
	},
	[PLAN_LET] = {
		[PLAN_OK]      = FINAL(PLAN_MIXED_SERVING),
		[PLAN_REFUSED] = FINAL(PLAN_MIXED_PAUSED),
		[PLAN_FAILED]  = AGAIN(PLAN_LET, PLAN_MIXED_PAUSED),
		[PLAN_LOST]    = AGAIN(PLAN_LET, PLAN_MIXED_PAUSED),
		[PLAN_DOWN]    = FINAL(PLAN_AWAY),
	},
};
/* clang-format on */

bool plan_is_end(enum plan_state state)
{
	return state >= PLAN_NEW;
}

/* What was paused and cannot be said to serve, in an engine that cannot be paused, serves. */
static enum plan_state settle(int next, const struct plan_facts *facts)
{
	if (next == GIVE_UP) {
		if (facts->policy == PLAN_GO_BACK && facts->has_previous)
			return PLAN_BACK;
		next = facts->policy == PLAN_LET_SERVE ? PLAN_LET : PLAN_MIXED_PAUSED;
	}
	if (next == PLAN_MIXED_PAUSED && !facts->can_pause)
		return PLAN_MIXED_SERVING;
	return (enum plan_state)next;
}

/* What the weights are is not known any more, and the table would take them for the old ones. */
static enum plan_state give_up(enum plan_state state, const struct plan_facts *facts)
{
	enum plan_state next = settle(GIVE_UP, facts);

	if (state == PLAN_PAUSE && !facts->paused && next != PLAN_BACK)
		return PLAN_MIXED_SERVING;
	return next;
}

enum plan_state plan_next(enum plan_state state, enum plan_outcome outcome,
			  const struct plan_facts *facts)
{
	const struct cell *cell = &table[state][outcome];
	bool ends_pause = state == PLAN_RESUME || state == PLAN_UNDO || state == PLAN_LET;

	if (state == PLAN_PAUSE && outcome == PLAN_OK && facts->stopping)
		return facts->dirty ? settle(GIVE_UP, facts) : PLAN_UNDO;
	if (facts->dirty && outcome != PLAN_OK && outcome != PLAN_DOWN &&
	    (state == PLAN_PAUSE || (state == PLAN_RELOAD && outcome == PLAN_REFUSED)))
		return give_up(state, facts);
	/* Told to end, only what lets traffic in is still tried again. */
	if (cell->again != NEVER && facts->may_retry &&
	    (!facts->stopping || (ends_pause && cell->again != PLAN_PAUSE)))
		return (enum plan_state)cell->again;
	return settle(cell->next, facts);
}

enum plan_state plan_stop(enum plan_state state, const struct plan_facts *facts)
{
	switch (state) {
	case PLAN_PAUSE: return facts->dirty ? give_up(state, facts) : PLAN_OLD;
	case PLAN_RELOAD: return facts->dirty ? give_up(state, facts) : PLAN_UNDO;
	default: return state;
	}
}

enum plan_state plan_begin(enum plan_state left, bool same)
{
	switch (left) {
	case PLAN_NEW: return same ? PLAN_NEW : PLAN_PAUSE;
	case PLAN_NEW_PAUSED: return same ? PLAN_RESUME : PLAN_PAUSE;
	case PLAN_MIXED_PAUSED:
	case PLAN_MIXED_SERVING: return same ? left : PLAN_PAUSE;
	default: return PLAN_PAUSE;
	}
}

const char *plan_name(enum plan_state state)
{
	static const char *const names[PLAN_STATES] = {
		[PLAN_PAUSE] = "pause",
		[PLAN_RELOAD] = "reload",
		[PLAN_VERIFY] = "verify",
		[PLAN_RESUME] = "resume",
		[PLAN_UNDO] = "resume",
		[PLAN_BACK] = "reload the version before",
		[PLAN_LET] = "resume",
		[PLAN_NEW] = "serving",
		[PLAN_OLD] = "serving-old",
		[PLAN_NEW_PAUSED] = "paused",
		[PLAN_OLD_PAUSED] = "paused-old",
		[PLAN_MIXED_PAUSED] = "paused-mixed",
		[PLAN_MIXED_SERVING] = "serving-mixed",
		[PLAN_AWAY] = "away",
	};

	return names[state];
}
