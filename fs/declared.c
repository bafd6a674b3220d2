/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which objects make a version of a declared run.
 *
 * Upwards from an anchor: each step is reached by its delta, or several at once by a span (a
 * cumulative delta), the largest that fits.  So who joins late gets few objects, and deltas that a
 * span stands for need not be looked into, nor exist.  Who has them already uses them.
 *
 * The anchor is the one that the version shown stands on, as long as the run still has it and the
 * chain from there reaches as far: a mount that follows does not read a new anchor, whose bytes it
 * can make itself.  Else it is the newest that can be used.
 */
#include "fs/run_internal.h"

#include <stdlib.h>

/* Is this step's delta, or a fold around it, here already? */
static bool at_hand(struct run *r, const struct step *s)
{
	for (size_t i = 0; i < r->fold_count; i++)
		if (!r->folds[i].failed && r->folds[i].first <= s->number &&
		    r->folds[i].last >= s->number)
			return true;
	for (size_t i = 0; i < s->delta.count; i++) {
		const struct exam *e = table_get_str(r->exams, s->delta.v[i].object->key);

		if (e == NULL || e->state != EXAM_OK || e->link == NULL)
			return false;
	}
	return true;
}

/* How many spans come before (base, version), it included. */
static size_t spans_until(const struct lineage *l, uint64_t base, uint64_t version)
{
	size_t lo = 0, hi = l->span_count;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		const struct span *s = &l->spans[mid];

		if (s->base < base || (s->base == base && s->version <= version))
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* A span that begins here, ends at `end` or below, and is here already: how many steps it stands
 * for; 0: there is none. */
static size_t span_at_hand(struct run *r, size_t first, size_t end)
{
	const struct lineage *l = &r->lineage;
	size_t best = 0;

	const uint64_t base = l->steps[first - 1].number;

	for (size_t i = spans_until(l, base, l->steps[end - 1].number);
	     i > 0 && l->spans[i - 1].base == base; i--) {
		const struct span *s = &l->spans[i - 1];
		const struct exam *e;
		size_t n;

		e = table_get_str(r->exams, s->pieces.v[0].object->key);
		n = (size_t)(lineage_find(l, s->version) - l->steps) - (first - 1);
		if (e != NULL && e->state == EXAM_OK && e->link != NULL && n > best)
			best = n;
	}
	return best;
}

/* Are the steps [first, first + n) here already, one by one or by spans that are? */
static bool all_at_hand(struct run *r, size_t first, size_t n)
{
	const size_t end = first + n;

	while (first < end) {
		size_t step = span_at_hand(r, first, end);

		if (step == 0 && !at_hand(r, &r->lineage.steps[first]))
			return false;
		first += step > 0 ? step : 1;
	}
	return true;
}

/* Is it itself here already? */
static bool is_at_hand(struct run *r, const struct span *s)
{
	const struct exam *e = table_get_str(r->exams, s->pieces.v[0].object->key);

	return e != NULL && e->state == EXAM_OK && e->link != NULL;
}

const struct span *span_at(struct run *r, size_t first, size_t last, size_t *out_size)
{
	const struct lineage *l = &r->lineage;
	const uint64_t base = l->steps[first - 1].number, limit = l->steps[last].number;
	size_t i = spans_until(l, base, limit);

	*out_size = 1;
	/* Of one base the longest comes last. */
	for (; i > 0 && l->spans[i - 1].base == base; i--) {
		const struct span *s = &l->spans[i - 1];
		size_t n = (size_t)(lineage_find(l, s->version) - l->steps) - (first - 1);

		if (n < 2 || (!is_at_hand(r, s) && all_at_hand(r, first, n)) ||
		    !exams_ok(r, &s->pieces, NULL))
			continue;
		*out_size = n;
		return s;
	}
	return NULL;
}

void spans_keep_bad(struct run *r)
{
	const struct lineage *l = &r->lineage;

	for (size_t i = 0; i < l->span_count; i++)
		for (size_t k = 0; k < l->spans[i].pieces.count; k++) {
			const struct object *o = l->spans[i].pieces.v[k].object;
			struct exam *e = table_get_str(r->exams, o->key);

			if (e != NULL && e->state == EXAM_BROKEN && identity_equal(&e->id, &o->id))
				e->seen = true;
		}
}

bool spans_used(struct run *r, const struct plan *p, bool **out)
{
	size_t size;

	*out = NULL;
	if (r->lineage.span_count == 0)
		return true;
	*out = calloc(p->last - p->base + 1, sizeof(**out));
	if (*out == NULL)
		return false;
	for (size_t i = p->base + 1; i <= p->last; i += size)
		if (span_at(r, i, p->last, &size) != NULL)
			memset(*out + (i - p->base - 1), true, size);
	return true;
}

static void cannot(struct run *r, const struct step *s, const struct exam *bad)
{
	/* A whole checkpoint is no step of a chain: the one to blame is found from above. */
	if (bad == NULL && s->anchor.present)
		return;
	if (bad == NULL) {
		obstacle(r, s->number, "version %llu has no delta to follow by",
			 (unsigned long long)s->number);
		return;
	}
	if (obstacle(r, s->number, "%s", bad->why.text))
		r->obstacle.waiting = bad->state == EXAM_WAITING;
	r->unsettled |= bad->state == EXAM_WAITING;
}

/* The highest step that a chain from this anchor reaches. */
static size_t reach(struct run *r, size_t base, size_t limit)
{
	size_t i = base, n;

	while (i < limit) {
		const struct step *next = &r->lineage.steps[i + 1];
		const struct exam *bad;

		if (span_at(r, i + 1, limit, &n) == NULL && !exams_ok(r, &next->delta, &bad)) {
			cannot(r, next, bad);
			break;
		}
		i += n;
	}
	return i;
}

/* The step that the version shown stands on, if the run still has it as an anchor. */
static const struct step *followed(struct run *r)
{
	const struct generation *g = r->newest;
	const struct step *s;

	if (g == NULL || g->state == NULL || strcmp(g->lineage, r->label) != 0)
		return NULL;
	s = lineage_find(&r->lineage, g->state->anchor);
	return s != NULL && exams_ok(r, &s->anchor, NULL) ? s : NULL;
}

/* The newest anchor that can be used; NULL: none. */
static const struct step *newest_anchor(struct run *r, size_t limit)
{
	const struct step *steps = r->lineage.steps;
	const struct exam *bad;

	for (size_t i = limit + 1; i-- > 0;) {
		if (!steps[i].anchor.present)
			continue;
		if (exams_ok(r, &steps[i].anchor, &bad))
			return &steps[i];
		cannot(r, &steps[i], bad);
	}
	return NULL;
}

bool declared_plan(struct run *r, uint64_t limit, struct plan *out)
{
	const struct lineage *l = &r->lineage;
	const struct step *follow = followed(r), *newest;
	struct plan from = {0};
	size_t hi = l->step_count;
	bool ok = false;

	while (hi > 0 && l->steps[hi - 1].number > limit)
		hi--;
	if (hi-- == 0)
		return false;
	if (follow != NULL && (size_t)(follow - l->steps) <= hi) {
		from.base = (size_t)(follow - l->steps);
		from.last = reach(r, from.base, hi);
		ok = true;
	}
	newest = ok && from.last == hi ? NULL : newest_anchor(r, hi);
	if (newest != NULL && (!ok || newest != follow)) {
		size_t base = (size_t)(newest - l->steps), last = reach(r, base, hi);

		if (!ok || last > from.last)
			from = (struct plan){.base = base, .last = last};
		ok = true;
	}
	if (!ok)
		obstacle(r, 0, "there is no complete anchor to start from");
	else if (from.last == hi)
		memset(&r->obstacle, 0, sizeof(r->obstacle));
	*out = from;
	return ok;
}

bool declared_follows(struct run *r, size_t i, const bool *ends)
{
	const struct step *s = &r->lineage.steps[i];

	/* One with a span, or with an anchor (also one that cannot be used, and says why), is to be
	 * planned anew. */
	return !s->anchor.present && !ends[i] && exams_ok(r, &s->delta, NULL);
}

bool declared_whole(struct run *r, size_t i, const bool *below)
{
	const struct lineage *l = &r->lineage;
	const struct step *s = &l->steps[i];

	if (exams_ok(r, &s->anchor, NULL) ||
	    (i > 0 && below[i - 1] && exams_ok(r, &s->delta, NULL)))
		return true;
	for (size_t k = 0; k < l->span_count; k++)
		if (l->spans[k].version == s->number &&
		    below[lineage_find(l, l->spans[k].base) - l->steps] &&
		    exams_ok(r, &l->spans[k].pieces, NULL))
			return true;
	return false;
}
