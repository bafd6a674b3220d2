/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follows when a version has other bytes than its run's objects record of it.
 *
 * When a tensor is wrong, the first version of the chain in which it is decides whose fault it is:
 * an XOR over another base is wrong from version 1 on.  Its object is remembered as bad, by
 * identity, so that no later look takes it in again; the plans that follow do without it and all
 * that is built on it.
 *
 * The run's thread; comparing in the background is fs/check_work.c's.
 */
#include "fs/run_internal.h"

#include "cache/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void remember(struct run *r, const struct plan *p, struct checks *checks)
{
	struct recorded *k = &r->recorded;

	checks_release(&k->checks);
	k->checks = *checks;
	*checks = (struct checks){0};
	k->version = r->lineage.steps[p->last].number;
	k->chain = recorded_chain(r, p->base, p->last);
}

/* ---- whose fault it is ---- */

struct bad {
	struct identity id;
	char *text;
};

bool recorded_bad(const struct run *r, const struct object *o, struct why *why)
{
	for (size_t i = 0; i < r->recorded.bad_count; i++)
		if (identity_equal(&r->recorded.bad[i].id, &o->id)) {
			why_set(why, EBADMSG, "%s", r->recorded.bad[i].text);
			return true;
		}
	return false;
}

static int add_bad(struct run *r, const struct object *o, const char *text)
{
	struct recorded *k = &r->recorded;
	struct bad *grown = realloc(k->bad, (k->bad_count + 1) * sizeof(*grown));
	struct exam *e;

	if (grown == NULL)
		return -ENOMEM;
	k->bad = grown;
	grown[k->bad_count] = (struct bad){.id = o->id, .text = strdup(text)};
	if (grown[k->bad_count].text == NULL)
		return -ENOMEM;
	k->bad_count++;
	e = exam_get(r, o);
	if (e != NULL && e->state != EXAM_BROKEN) {
		why_set(&e->why, EBADMSG, "%s", text);
		exam_fail(r, e, -EBADMSG);
	}
	return 0;
}

/* What a step's own objects record of one thing; the object is the one that does. */
static bool recorded_at(struct run *r, size_t base, size_t i, const char *tensor,
			struct layout *layout, struct checks *out, const struct object **out_object)
{
	const struct step *s = &r->lineage.steps[i];
	const struct pieces *p = i == base ? &s->anchor : &s->delta;
	const uint32_t t = tensor != NULL ? layout_find(layout, tensor) : LAYOUT_NONE;
	bool found = false;

	if (checks_new(layout, out) < 0)
		return false;
	*out_object = p->count > 0 ? p->v[0].object : NULL;
	if (tensor == NULL) {
		recorded_whole(r, s, true, out);
		found = out->whole.kind != CHECKSUM_NONE || out->has_state;
	}
	for (size_t k = 0; k < p->count && t != LAYOUT_NONE && !found; k++) {
		const struct pieces one = {.v = &p->v[k], .count = 1, .entry = p->entry};

		if (recorded_pieces(r, &one, s->number, out) < 0)
			break;
		found = out->v[t].kind != CHECKSUM_NONE;
		*out_object = p->v[k].object;
	}
	for (uint32_t k = 0; found && k < layout->tensor_count; k++)
		if (k != t)
			out->v[k].kind = CHECKSUM_NONE;
	if (!found || *out_object == NULL)
		checks_release(out);
	return found && *out_object != NULL;
}

/* Is the version of step i wrong in this?  What cannot be told is not. */
static bool is_wrong(struct run *r, size_t i, const char *tensor, const struct object **out_object,
		     struct check_miss *out_miss)
{
	const uint64_t number = r->lineage.steps[i].number;
	struct check_miss miss = {0};
	struct state *state = NULL;
	struct checks checks;
	struct why why = {0};
	struct plan p;
	bool wrong = false;

	if (run_assemble(r, number, &p, &state, &why) < 0)
		return false;
	if (state->version == number &&
	    recorded_at(r, p.base, i, tensor, state->layout, &checks, out_object)) {
		wrong = checks_compare(state, &checks, 1, &r->stop, &miss, NULL) == -EBADMSG;
		checks_release(&checks);
	}
	if (wrong)
		*out_miss = miss;
	state_unref(state);
	return wrong;
}

/* The steps that record it, from the base to `last`, ascending; malloc'ed. */
static size_t *recorders(struct run *r, size_t base, size_t last, const char *tensor,
			 struct layout *layout, size_t *out_count)
{
	size_t *v = calloc(last - base + 1, sizeof(*v));

	*out_count = 0;
	for (size_t i = base; v != NULL && i <= last; i++) {
		const struct object *o;
		struct checks checks;

		if (!recorded_at(r, base, i, tensor, layout, &checks, &o))
			continue;
		checks_release(&checks);
		v[(*out_count)++] = i;
	}
	return v;
}

static void describe(const struct run *r, const char *tensor, const struct check_miss *miss,
		     char out[480])
{
	char name[100], what[140];

	if (tensor != NULL)
		snprintf(what, sizeof(what), "tensor \"%s\" has the checksum",
			 printable(name, sizeof(name), tensor, strlen(tensor)));
	else
		snprintf(what, sizeof(what), "its version has the %s",
			 miss->of_state ? "state" : "hash");
	snprintf(out, 480,
		 "%s %.64s, and its %s says %.64s: one of the objects that the version is made of "
		 "is damaged%s",
		 what, miss->have, r->lineage.own != NULL ? "delta" : "publisher", miss->want,
		 r->base != NULL ? ", or --base is not the checkpoint that the run started from"
				 : "");
}

/* Takes out the first version in which it is wrong.  -ENOMEM, or 0. */
static int blame(struct run *r, size_t base, size_t last, struct layout *layout,
		 const struct check_miss *miss)
{
	const char *tensor =
		miss->tensor != LAYOUT_NONE ? layout->tensors[miss->tensor].name : NULL;
	const struct step *said = lineage_find(&r->lineage, miss->version);
	const struct object *object = NULL;
	struct check_miss first = *miss;
	size_t *v, n = 0, lo = 0, hi, guilty = last;
	char text[480];
	int err;

	if (said != NULL)
		guilty = (size_t)(said - r->lineage.steps);
	v = recorders(r, base, guilty, tensor, layout, &n);
	if (v == NULL)
		return -ENOMEM;
	/* Wrong once, it stays wrong: the last one is. */
	for (hi = n > 0 ? n - 1 : 0; lo < hi;) {
		const size_t mid = lo + (hi - lo) / 2;

		if (is_wrong(r, v[mid], tensor, &object, &first))
			hi = mid;
		else
			lo = mid + 1;
	}
	guilty = n > 0 ? v[lo] : guilty;
	free(v);
	if (!is_wrong(r, guilty, tensor, &object, &first) || object == NULL) {
		/* Not when looked at alone: what was found is all there is to say. */
		const struct step *s = &r->lineage.steps[guilty];

		object = guilty > base ? step_above(s, 0) : step_first(s);
		first = *miss;
	}
	if (object == NULL || __atomic_load_n(&r->stop, __ATOMIC_RELAXED))
		return 0; /* told to stop, nothing of this was looked at to the end */
	describe(r, tensor, &first, text);
	err = add_bad(r, object, text);
	r->recorded.taken = true;
	r->recorded.out = r->lineage.steps[guilty].number;
	r->recorded.until = UINT64_MAX;
	for (size_t i = guilty + 1; i < r->lineage.step_count; i++)
		if (r->lineage.steps[i].anchor.present) {
			r->recorded.until = r->lineage.steps[i].number - 1;
			break;
		}
	r->quiet = 0;
	r->unsettled = true;
	return err;
}

/* ---- before a version becomes visible ---- */

static unsigned processors(void)
{
	const long n = sysconf(_SC_NPROCESSORS_ONLN);

	return n > 0 ? (unsigned)n : 1;
}

void run_stop(struct run *r, bool stop)
{
	__atomic_store_n(&r->stop, stop, __ATOMIC_RELAXED);
}

int recorded_admit(struct run *r, const struct plan *p, const struct state *state,
		   enum verified *out, struct why *why)
{
	struct check_miss miss = {0};
	struct checks checks;
	int err;

	*out = VERIFIED_NO;
	if (r->config.verify != VERIFY_EAGER || r->config.history == NULL)
		return 0;
	err = recorded_collect(r, p, state->layout, true, &checks);
	if (err < 0)
		return why_set(why, ENOMEM, "out of memory");
	err = checks_compare(state, &checks, processors(), &r->stop, &miss, why);
	*out = checks_sum(&checks);
	if (err == -ECANCELED)
		why_set(why, ECANCELED, "the mount is being taken down");
	if (err == 0 && checks.layout != NULL)
		remember(r, p, &checks);
	else if (err == -EBADMSG && blame(r, p->base, p->last, state->layout, &miss) < 0)
		err = why_set(why, ENOMEM, "out of memory");
	checks_release(&checks);
	return err;
}

/* ---- after it has ---- */

/* Whole, on this machine: nothing is fetched for the sake of comparing. */
static bool is_near(const struct run *r, const struct state *s)
{
	uint64_t present, size;

	if (r->config.store->far || (r->config.base != NULL && r->config.base->far))
		return false;
	state_progress(s, &present, &size);
	return present == size;
}

void recorded_drop(struct run *r)
{
	if (r->recorded.taken && r->config.history != NULL)
		history_drop(r->config.history, r->recorded.out, r->recorded.until);
	r->recorded.taken = false;
}

static void say(struct generation *g, const struct checks *c)
{
	__atomic_store_n(&g->verified, (int)checks_sum(c), __ATOMIC_RELAXED);
}

/* Marks as right what was found right and is still what is recorded. */
static void merge(struct checks *into, const struct checks *from)
{
	if (into->layout != from->layout || into->layout == NULL)
		return;
	for (uint32_t t = 0; t < into->layout->tensor_count; t++)
		into->v[t].done |= from->v[t].done && into->v[t].kind == from->v[t].kind &&
				   into->v[t].version == from->v[t].version &&
				   strcmp(into->v[t].hex, from->v[t].hex) == 0;
	into->whole.done |= from->whole.done && into->whole.version == from->whole.version &&
			    strcmp(into->whole.hex, from->whole.hex) == 0;
}

void recorded_take(struct run *r)
{
	struct recorded *k = &r->recorded;
	struct state *state = NULL;
	struct check_miss miss = {0};
	struct checks checks;
	int err = 0;

	if (k->work == NULL || !check_work_take(k->work, &state, &checks, &miss, &err))
		return;
	merge(&k->checks, &checks);
	k->failed = err < 0 && err != -EBADMSG;
	if (r->newest != NULL && r->newest->state == state)
		say(r->newest, &k->checks);
	if (err == -EBADMSG && strcmp(k->label, r->label) == 0) {
		const struct step *base = lineage_find(&r->lineage, state->anchor);
		const struct step *last = lineage_find(&r->lineage, state->version);

		if (base != NULL && last != NULL &&
		    blame(r, (size_t)(base - r->lineage.steps), (size_t)(last - r->lineage.steps),
			  state->layout, &miss) < 0)
			log_debug("out of memory for what a checksum says");
	}
	checks_release(&checks);
	state_unref(state);
}

/* What is recorded of the newest version, once for each. */
static void follow(struct run *r)
{
	const struct state *s = r->newest->state;
	const struct step *base, *last;
	struct checks checks;
	struct plan p;

	base = lineage_find(&r->lineage, s->anchor);
	last = lineage_find(&r->lineage, s->version);
	if (base == NULL || last == NULL || base > last || !shown_of_run(r))
		return;
	p.base = (size_t)(base - r->lineage.steps);
	p.last = (size_t)(last - r->lineage.steps);
	if (recorded_collect(r, &p, s->layout, false, &checks) < 0)
		return;
	if (checks.layout != NULL)
		remember(r, &p, &checks);
	else
		checks_release(&r->recorded.checks);
	memcpy(r->recorded.label, r->label, sizeof(r->recorded.label));
	r->recorded.followed = r->published;
	r->recorded.failed = false;
	say(r->newest, &r->recorded.checks);
}

void recorded_follow(struct run *r)
{
	struct recorded *k = &r->recorded;

	if (r->config.verify != VERIFY_LAZY || r->config.history == NULL || r->newest == NULL ||
	    r->newest->state == NULL)
		return;
	if (k->followed != r->published)
		follow(r);
	if (k->followed != r->published || k->failed || !checks_due(&k->checks))
		return;
	if (k->work == NULL)
		k->work = check_work_new();
	if (k->work != NULL && !check_work_busy(k->work) && is_near(r, r->newest->state))
		check_work_start(k->work, r->newest->state, &k->checks);
}

void recorded_release(struct run *r)
{
	check_work_free(r->recorded.work);
	checks_release(&r->recorded.checks);
	for (size_t i = 0; i < r->recorded.bad_count; i++)
		free(r->recorded.bad[i].text);
	free(r->recorded.bad);
}

/* ---- for tools ---- */

int run_check(struct run *r, const struct state *state, bool own, const volatile bool *stop,
	      struct check_result *out, struct why *why)
{
	const struct step *base = lineage_find(&r->lineage, state->anchor);
	const struct step *last = lineage_find(&r->lineage, state->version);
	struct check_miss miss = {0};
	struct checks checks = {0};
	char text[480];
	struct plan p;
	int err;

	*out = (struct check_result){0};
	if (base == NULL || last == NULL || base > last || r->lineage.manifest == NULL)
		return 0;
	p.base = (size_t)(base - r->lineage.steps);
	p.last = (size_t)(last - r->lineage.steps);
	if (own) {
		const bool whole = p.base == p.last;

		err = checks_new(state->layout, &checks);
		if (err == 0 && whole)
			err = recorded_pieces(r, &last->anchor, last->number, &checks);
		if (err == 0)
			err = recorded_pieces(r, &last->delta, last->number, &checks);
		/* Beside an anchor it is not needed. */
		if (err < 0 && whole && last->delta.present)
			err = 0;
		if (err == 0)
			recorded_whole(r, last, false, &checks);
	} else {
		err = recorded_collect(r, &p, state->layout, false, &checks);
	}
	if (err < 0)
		why_set(why, -err, "what is recorded of its tensors cannot be read");
	if (err == 0)
		err = checks_compare(state, &checks, processors(), stop, &miss, why);
	checks_count(&checks, &out->recorded, &out->right, &out->unknown);
	if (err == -EBADMSG) {
		describe(r,
			 miss.tensor != LAYOUT_NONE ? state->layout->tensors[miss.tensor].name
						    : NULL,
			 &miss, text);
		why_set(why, EBADMSG, "%s", text);
	}
	checks_release(&checks);
	return err;
}
