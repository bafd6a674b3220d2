/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which objects make a version: walk down from the newest number to the nearest complete anchor.
 *
 * state(N) = a complete anchor N, else state of the number before with N's full tensors replaced
 * and its changed elements applied.  So a version is whole when every object between it and the
 * complete anchor below is.  Anything that is not pushes the newest whole version below it; the
 * walk goes on, and the first obstacle met (the one for the highest number) is what `status` names
 * as the reason that newer objects are not shown.
 *
 * Holes: v2 and v3 of TRL use a number up when nothing changed and write no file.  A hole counts as
 * settled once a higher number has been there for the grace time; in v1, which never skips a
 * number, a hole is a missing object.  So is, in any format, a number that we have seen an object
 * for: what follows was made on top of it.  Nor is it one where an object lies that was set aside
 * as an earlier run's without being older than all of this run, or that a run goes on from which
 * should be over (lineage_unsure()).
 */
#include "fs/run_internal.h"

#include "cache/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const struct object *step_objects(const struct step *s, size_t i)
{
	if (i < s->delta.count)
		return s->delta.v[i].object;
	i -= s->delta.count;
	return i < s->anchor.count ? s->anchor.v[i].object : NULL;
}

const struct object *step_above(const struct step *s, size_t i)
{
	if (s->delta.entry != NULL && i >= s->delta.count)
		return NULL;
	return step_objects(s, i);
}

bool step_is_native(const struct step *s)
{
	return s->delta.entry != NULL && strncmp(s->delta.entry->encoding, "wfp1", 4) == 0;
}

bool obstacle(struct run *r, uint64_t number, const char *fmt, ...)
{
	va_list ap;

	if (r->obstacle.text[0] != '\0')
		return false;
	r->obstacle.number = number;
	va_start(ap, fmt);
	vsnprintf(r->obstacle.text, sizeof(r->obstacle.text), fmt, ap);
	va_end(ap);
	return true;
}

struct look { /* a step, looked into */
	bool usable, complete, holes_legal, waiting;
	int64_t base_version; /* of its delta, or -1 */
	int64_t first_seen_ns;
	const struct exam *states; /* an object that records states, or NULL */
	const char *why;
};

static void look_into(struct run *r, const struct step *s, struct look *out)
{
	const struct object *o;
	bool anchor_complete = s->anchor.count > 0, delta_complete = s->delta.count > 0;

	*out = (struct look){.usable = true, .base_version = -1};
	many_heads(r, &s->delta);
	many_heads(r, &s->anchor);
	for (size_t i = 0; (o = step_objects(s, i)) != NULL; i++) {
		struct exam *e = exam_get(r, o);
		bool *complete = i < s->delta.count ? &delta_complete : &anchor_complete;

		*complete &= e != NULL && e->state == EXAM_OK && e->complete;
		if (e == NULL || e->state != EXAM_OK) {
			out->usable = false;
			out->waiting |= e == NULL || e->state == EXAM_WAITING;
			out->why = e != NULL ? e->why.text : "out of memory";
			continue;
		}
		out->holes_legal |= e->holes_legal;
		if (e->has_states)
			out->states = e;
		out->first_seen_ns = MAX(out->first_seen_ns, e->first_seen_ns);
		if (i < s->delta.count)
			out->base_version = e->base_version;
	}
	out->complete = anchor_complete || delta_complete;
	/* A complete anchor needs nothing else of its number. */
	if (anchor_complete)
		out->usable = true;
}

/* ---- numbers that were there ---- */

static int compare_numbers(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* The index of the first known number that is not below n. */
static size_t known_at(const struct run *r, uint64_t n)
{
	size_t lo = 0, hi = r->known.count;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (r->known.v[mid] < n)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* An object that a later one with a lower number has put out of date: its number is free again. */
static void known_forget(struct run *r, uint64_t n)
{
	size_t at = known_at(r, n);

	if (at == r->known.count || r->known.v[at] != n)
		return;
	r->known.count--;
	memmove(&r->known.v[at], &r->known.v[at + 1], (r->known.count - at) * sizeof(*r->known.v));
}

int known_update(struct run *r)
{
	const struct lineage *l = &r->lineage;
	uint64_t *grown;
	size_t count;

	if (strcmp(r->known.label, r->label) != 0)
		r->known.count = 0;
	memcpy(r->known.label, r->label, sizeof(r->known.label));
	for (size_t i = 0; i < l->stray_count; i++)
		if (l->strays[i].kind == STRAY_SUPERSEDED)
			known_forget(r, l->strays[i].number);
	count = r->known.count;
	grown = realloc(r->known.v, (count + l->step_count + 1) * sizeof(*grown));
	if (grown == NULL)
		return -ENOMEM;
	r->known.v = grown;
	for (size_t i = 0; i < l->step_count; i++) {
		size_t at = known_at(r, l->steps[i].number);

		if (at == r->known.count || r->known.v[at] != l->steps[i].number)
			grown[count++] = l->steps[i].number;
	}
	r->known.count = count;
	qsort(grown, count, sizeof(*grown), compare_numbers);
	return 0;
}

/* ---- walking ---- */

static bool is_younger(int64_t mtime_ns, int64_t ns)
{
	int64_t age;

	/* Times may be anything; one that is out of all bounds is long ago. */
	return !__builtin_sub_overflow(clock_real_ns(), mtime_ns, &age) && age < ns;
}

/* Is what lies between two neighbouring steps in order?  If not, why is recorded. */
static bool joined(struct run *r, const struct step *low, const struct step *high,
		   const struct look *below, const struct look *h)
{
	size_t gone = known_at(r, low->number + 1);
	const struct stray *unsure;

	if (h->base_version >= 0 && (uint64_t)h->base_version != low->number) {
		obstacle(r, high->number,
			 "version %llu applies to version %lld, but the one before it here is %llu",
			 (unsigned long long)high->number, (long long)h->base_version,
			 (unsigned long long)low->number);
		return false;
	}
	if (below->states != NULL && h->states != NULL &&
	    memcmp(below->states->to, h->states->from, sizeof(h->states->from)) != 0) {
		obstacle(r, high->number,
			 "version %llu was made for another version %llu than the one here",
			 (unsigned long long)high->number, (unsigned long long)low->number);
		return false;
	}
	if (high->number == low->number + 1)
		return true;
	if (gone < r->known.count && r->known.v[gone] < high->number) {
		obstacle(r, high->number,
			 "version %llu is missing: its object was here and is gone, and version "
			 "%llu builds on it",
			 (unsigned long long)r->known.v[gone], (unsigned long long)high->number);
		return false;
	}
	unsure = lineage_unsure(&r->lineage, low->number, high->number);
	if (unsure != NULL) {
		obstacle(
			r, high->number,
			"version %llu may build on %.200s, which is older than %.200s and so of "
			"another run; the next complete anchor goes on; if it belongs to this run, "
			"the times mean nothing: --times ignore",
			(unsigned long long)high->number, unsure->object->key,
			unsure->against->key);
		return false;
	}
	if (!h->holes_legal) {
		obstacle(r, high->number,
			 "version %llu is missing (no object has that number, and this format "
			 "skips none)",
			 (unsigned long long)low->number + 1);
		return false;
	}
	if (clock_mono_ns() - h->first_seen_ns < r->config.hole_grace_ns &&
	    is_younger(high->mtime_ns, r->config.hole_grace_ns)) {
		if (obstacle(
			    r, high->number,
			    "version %llu is waiting a moment for number %llu, which has no object "
			    "yet",
			    (unsigned long long)high->number, (unsigned long long)low->number + 1))
			r->obstacle.waiting = true;
		r->unsettled = true;
		return false;
	}
	return true;
}

/* How many steps have a number up to this one. */
static size_t steps_until(const struct lineage *l, uint64_t limit)
{
	size_t lo = 0, hi = l->step_count;

	while (lo < hi) {
		const size_t mid = lo + (hi - lo) / 2;

		if (l->steps[mid].number <= limit)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

bool plan_make(struct run *r, uint64_t limit, struct plan *out)
{
	const struct lineage *l = &r->lineage;
	struct look above = {0}, here;
	bool has_top = false;
	size_t top = 0;

	if (l->manifest != NULL)
		return declared_plan(r, limit, out);
	for (size_t i = steps_until(l, limit); i-- > 0;) {
		const struct step *s = &l->steps[i];

		look_into(r, s, &here);
		if (!here.usable) {
			obstacle(r, s->number, "%s", here.why);
			r->unsettled |= here.waiting;
			has_top = false;
			continue;
		}
		if (!has_top || !joined(r, s, &l->steps[i + 1], &here, &above))
			top = i;
		has_top = true;
		if (here.complete) {
			*out = (struct plan){.base = i, .last = top};
			return true;
		}
		above = here;
	}
	if (l->step_count > 0)
		obstacle(r, 0, "there is no complete anchor to start from%s%.200s",
			 r->cover.origin != NULL ? ": none covers every tensor of " : "",
			 r->cover.origin != NULL ? r->cover.origin : "");
	return false;
}

bool plan_follows(struct run *r, size_t i, const bool *ends)
{
	const struct step *steps = r->lineage.steps;
	struct look below, here;

	if (r->lineage.manifest != NULL)
		return declared_follows(r, i, ends);
	look_into(r, &steps[i], &here);
	if (!here.usable || here.complete)
		return false;
	look_into(r, &steps[i - 1], &below);
	return !below.usable || joined(r, &steps[i - 1], &steps[i], &below, &here);
}

void plan_whole(struct run *r, bool *out)
{
	const struct lineage *l = &r->lineage;
	struct look below = {0};

	for (size_t i = 0; i < l->step_count; i++) {
		struct look here;

		if (l->manifest != NULL) {
			out[i] = declared_whole(r, i, out);
			continue;
		}
		look_into(r, &l->steps[i], &here);
		out[i] = here.usable && (here.complete || (i > 0 && out[i - 1] &&
							   joined(r, &l->steps[i - 1], &l->steps[i],
								  &below, &here)));
		below = here;
	}
}

int64_t mtime_after(int64_t m)
{
	return m > INT64_MAX - 1000000 ? m : m + 1000000;
}

int64_t plan_mtime(const struct run *r, const struct plan *p)
{
	int64_t m = r->lineage.steps[0].mtime_ns;

	/* Strictly increasing, also where a bucket was written within one tick of the clock or its
	 * times mean nothing.  Counted from the lineage's beginning, so that it does not depend on
	 * which anchor a version is built from. */
	for (size_t i = 1; i <= p->last; i++)
		m = MAX(r->lineage.steps[i].mtime_ns, mtime_after(m));
	return m;
}

const struct object *plan_objects(const struct run *r, const struct plan *p, size_t i, size_t k)
{
	const struct step *s = &r->lineage.steps[i];

	if (i > p->base)
		return step_above(s, k);
	return step_objects(s, s->anchor.entry != NULL ? k + s->delta.count : k);
}

/* Identity of the plan: all its objects. */
static struct identity plan_id(const struct run *r, const struct plan *p)
{
	struct identity id = {0};
	const struct object *o;

	for (size_t i = p->base; i <= p->last; i++)
		for (size_t k = 0; (o = plan_objects(r, p, i, k)) != NULL; k++) {
			identity_mix(&id, o->id.bytes, sizeof(o->id.bytes));
			identity_mix(&id, &r->lineage.steps[i].number,
				     sizeof(r->lineage.steps[i].number));
		}
	return id;
}

bool plan_is_shown(const struct run *r, const struct plan *p)
{
	struct identity id;

	if (r->newest == NULL || r->newest->version != r->lineage.steps[p->last].number)
		return false;
	id = plan_id(r, p);
	return identity_equal(&id, &r->shown);
}

void plan_remember(struct run *r, const struct plan *p)
{
	const struct manifest *m = r->lineage.manifest;
	const uint8_t *state = lineage_is_declared(&r->lineage)
				       ? manifest_state(m, r->lineage.steps[p->last].number)
				       : NULL;

	memset(r->shown_state, 0, sizeof(r->shown_state));
	if (state != NULL)
		memcpy(r->shown_state, state, sizeof(r->shown_state));
	r->shown = plan_id(r, p);
	r->shown_ns = r->lineage.steps[p->last].mtime_ns;
}

bool plan_hole_legal(struct run *r, const struct plan *p, uint64_t version)
{
	const struct step *above = &r->lineage.steps[p->last + 1];
	size_t at = known_at(r, r->lineage.steps[p->last].number + 1);
	struct look look;

	if (r->lineage.manifest != NULL || p->last + 1 >= r->lineage.step_count ||
	    above->number < version ||
	    lineage_unsure(&r->lineage, r->lineage.steps[p->last].number, above->number) != NULL ||
	    (at < r->known.count && r->known.v[at] <= version))
		return false;
	look_into(r, above, &look);
	return look.usable && look.holes_legal;
}
