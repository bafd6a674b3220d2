/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All versions of a run, one after the other, for a tool that looks at each.
 *
 * run_build() plans and assembles a version from its anchor on.  Here what the version asked for
 * last is made of is kept, and the next one is that and its own delta, where the plan for it would
 * say so: then only that delta is looked into.  A version that begins anew (with an anchor, or by a
 * span) is built as ever, and what only those before it needed is let go of.  So a run costs as
 * much as it has versions, and memory is that of one version.
 *
 * Of a version that is not whole the reason is kept in the same way: what follows it in the chain
 * is not whole for the same one.
 *
 * The run's thread.  Forgotten with each new lineage.
 */
#include "fs/run_internal.h"

#include <stdio.h>
#include <stdlib.h>

void run_walk_end(struct run *r)
{
	state_unref(r->walk.state);
	free(r->walk.ends);
	r->walk = (struct walk){0};
}

/* Looks up where spans end, once. */
static bool find_ends(struct run *r)
{
	const struct lineage *l = &r->lineage;
	struct walk *w = &r->walk;

	if (w->ends != NULL)
		return true;
	w->ends = calloc(l->step_count, sizeof(*w->ends));
	for (size_t i = 0; w->ends != NULL && i < l->span_count; i++)
		w->ends[lineage_find(l, l->spans[i].version) - l->steps] = true;
	return w->ends != NULL;
}

/* What is kept is now that of step i, or nothing; takes over the state. */
static void keep(struct walk *w, size_t i, const struct plan *p, struct state *state)
{
	state_unref(w->state);
	w->state = state;
	w->at = i;
	w->blocked = false;
	if (state != NULL)
		w->plan = *p;
}

/* Keeps why step i is not whole, if it is what the obstacle says and time does not change it. */
static void keep_why(struct run *r, size_t i, const struct why *why)
{
	struct walk *w = &r->walk;
	struct why whole = {0};

	keep(w, i, NULL, NULL);
	if (why->err != ENOENT || r->obstacle.text[0] == '\0' || r->waited || r->obstacle.waiting)
		return;
	run_not_whole(r, r->lineage.steps[i].number, &whole);
	w->of_version = strcmp(why->text, whole.text) == 0;
	w->blocked = w->of_version || strcmp(why->text, r->obstacle.text) == 0;
	snprintf(w->why, sizeof(w->why), "%s", r->obstacle.text);
}

/* Step i is not whole either. */
static int still_blocked(struct run *r, size_t i, struct why *why)
{
	struct walk *w = &r->walk;

	snprintf(r->obstacle.text, sizeof(r->obstacle.text), "%s", w->why);
	w->at = i;
	return w->of_version ? run_not_whole(r, r->lineage.steps[i].number, why)
			     : why_set(why, ENOENT, "%s", w->why);
}

/* From the version before; -EAGAIN: not in this way. */
static int next(struct run *r, size_t i, struct state **out, struct why *why)
{
	struct walk *w = &r->walk;
	struct plan p = {.base = w->plan.base, .last = i};
	struct why local = {0};

	if (i == 0 || w->at != i - 1 || (w->state == NULL && !w->blocked) || !find_ends(r))
		return -EAGAIN;
	memset(&r->obstacle, 0, sizeof(r->obstacle));
	if (!plan_follows(r, i, w->ends))
		return -EAGAIN;
	if (w->blocked)
		return still_blocked(r, i, why);
	if (assemble_next(r, &p, w->state, out, &local) < 0)
		return -EAGAIN;
	keep(w, i, &p, state_ref(*out));
	return 0;
}

/* From its anchor. */
static int anew(struct run *r, size_t i, struct state **out, struct why *why)
{
	const bool waited = r->waited;
	struct walk *w = &r->walk;
	struct plan p;
	int err;

	r->waited = false;
	err = run_find(r, r->lineage.steps[i].number, &p, out, why);
	if (err < 0) {
		keep_why(r, i, why);
	} else {
		if (w->state != NULL && p.base > w->plan.base)
			folds_pass(r, w->plan.base, p.base - 1);
		keep(w, i, &p, state_ref(*out));
	}
	r->waited |= waited;
	return err;
}

int run_walk(struct run *r, uint64_t version, struct state **out, struct why *why)
{
	const struct step *s = lineage_find(&r->lineage, version);
	struct why local = {0};
	struct plan p;
	size_t i;
	int err;

	r->round++;
	r->quiet = 0; /* as in run_build() */
	if (version == 0 && r->base != NULL)
		return assemble_base(r, out) < 0 ? why_set(why, ENOMEM, "out of memory") : 0;
	if (s == NULL)
		return run_find(r, version, &p, out, why);
	i = (size_t)(s - r->lineage.steps);
	if (r->walk.state != NULL && r->walk.at == i) { /* an anchor beside a delta */
		*out = state_ref(r->walk.state);
		return 0;
	}
	err = next(r, i, out, &local);
	if (err == -EAGAIN) {
		local = (struct why){0};
		err = anew(r, i, out, &local);
	}
	if (err < 0 && why != NULL)
		*why = local;
	return err;
}
