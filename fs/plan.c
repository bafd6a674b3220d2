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
 * number, a hole is a missing object.
 */
#include "fs/run_internal.h"

#include "cache/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <xxhash.h>

const struct object *step_objects(const struct step *s, size_t i)
{
	if (s->delta == NULL)
		return i == 0 ? s->anchor : NULL;
	return i == 0 ? s->delta : i == 1 ? s->anchor : NULL;
}

static void obstacle(struct run *r, uint64_t number, const char *fmt, ...) PRINTF(3, 4);
static void obstacle(struct run *r, uint64_t number, const char *fmt, ...)
{
	va_list ap;

	if (r->obstacle.text[0] != '\0')
		return;
	r->obstacle.number = number;
	va_start(ap, fmt);
	vsnprintf(r->obstacle.text, sizeof(r->obstacle.text), fmt, ap);
	va_end(ap);
}

struct look { /* a step, looked into */
	bool usable, complete, holes_legal, waiting;
	int64_t base_version; /* of its delta, or -1 */
	int64_t first_seen_ns;
	const char *why;
};

static void look_into(struct run *r, const struct step *s, struct look *out)
{
	const struct object *o;
	bool anchor_complete = false;

	*out = (struct look){.usable = true, .base_version = -1};
	for (size_t i = 0; (o = step_objects(s, i)) != NULL; i++) {
		struct exam *e = exam_get(r, o);

		if (e == NULL || e->state != EXAM_OK) {
			out->usable = false;
			out->waiting |= e == NULL || e->state == EXAM_WAITING;
			out->why = e != NULL ? e->why.text : "out of memory";
			continue;
		}
		out->complete |= e->complete;
		anchor_complete |= e->complete && o == s->anchor;
		out->holes_legal |= e->holes_legal;
		out->first_seen_ns = MAX(out->first_seen_ns, e->first_seen_ns);
		if (o == s->delta)
			out->base_version = e->base_version;
	}
	/* A complete anchor needs nothing else of its number. */
	if (anchor_complete)
		out->usable = true;
}

/* Is what lies between two neighbouring steps in order?  If not, why is recorded. */
static bool joined(struct run *r, const struct step *low, const struct step *high,
		   const struct look *h)
{
	if (h->base_version >= 0 && (uint64_t)h->base_version != low->number) {
		obstacle(r, high->number,
			 "version %llu applies to version %lld, but the one before it here is %llu",
			 (unsigned long long)high->number, (long long)h->base_version,
			 (unsigned long long)low->number);
		return false;
	}
	if (high->number == low->number + 1)
		return true;
	if (!h->holes_legal) {
		obstacle(r, high->number,
			 "version %llu is missing (no object has that number, and this format "
			 "skips none)",
			 (unsigned long long)low->number + 1);
		return false;
	}
	if (clock_mono_ns() - h->first_seen_ns < r->config.hole_grace_ns &&
	    clock_real_ns() - high->mtime_ns < r->config.hole_grace_ns) {
		obstacle(
			r, high->number,
			"version %llu is waiting a moment for number %llu, which has no object yet",
			(unsigned long long)high->number, (unsigned long long)low->number + 1);
		r->unsettled = true;
		return false;
	}
	return true;
}

bool plan_make(struct run *r, uint64_t limit, struct plan *out)
{
	const struct lineage *l = &r->lineage;
	struct look above = {0}, here;
	bool has_top = false;
	size_t top = 0;

	for (size_t i = l->step_count; i-- > 0;) {
		const struct step *s = &l->steps[i];

		if (s->number > limit)
			continue;
		look_into(r, s, &here);
		if (!here.usable) {
			obstacle(r, s->number, "%s", here.why);
			r->unsettled |= here.waiting;
			has_top = false;
			continue;
		}
		if (!has_top || !joined(r, s, &l->steps[i + 1], &above))
			top = i;
		has_top = true;
		if (here.complete) {
			*out = (struct plan){.base = i, .last = top};
			return true;
		}
		above = here;
	}
	if (l->step_count > 0)
		obstacle(r, l->steps[l->step_count - 1].number,
			 "there is no complete anchor to start from%s%.200s",
			 r->cover.origin != NULL ? ": none covers every tensor of " : "",
			 r->cover.origin != NULL ? r->cover.origin : "");
	return false;
}

int64_t plan_mtime(const struct run *r, const struct plan *p)
{
	int64_t m = r->lineage.steps[p->base].mtime_ns;

	/* Strictly increasing, also where a bucket was written within one tick of the clock. */
	for (size_t i = p->base + 1; i <= p->last; i++)
		m = MAX(r->lineage.steps[i].mtime_ns, m + 1000000);
	return m;
}

/* Identity of the plan: all its objects. */
static bool plan_id(const struct run *r, const struct plan *p, struct identity *out)
{
	XXH3_state_t *h = XXH3_createState();
	XXH128_canonical_t digest;
	const struct object *o;

	if (h == NULL)
		return false;
	XXH3_128bits_reset(h);
	for (size_t i = p->base; i <= p->last; i++)
		for (size_t k = 0; (o = step_objects(&r->lineage.steps[i], k)) != NULL; k++) {
			XXH3_128bits_update(h, o->id.bytes, sizeof(o->id.bytes));
			XXH3_128bits_update(h, &r->lineage.steps[i].number,
					    sizeof(r->lineage.steps[i].number));
		}
	XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(h));
	XXH3_freeState(h);
	memcpy(out->bytes, digest.digest, sizeof(out->bytes));
	return true;
}

bool plan_is_shown(const struct run *r, const struct plan *p)
{
	struct identity id;

	return r->newest->version == r->lineage.steps[p->last].number && plan_id(r, p, &id) &&
	       identity_equal(&id, &r->shown);
}

void plan_remember(struct run *r, const struct plan *p)
{
	if (!plan_id(r, p, &r->shown))
		memset(&r->shown, 0, sizeof(r->shown));
}

bool plan_hole_legal(struct run *r, const struct plan *p)
{
	struct look above;

	if (p->last + 1 >= r->lineage.step_count)
		return false;
	look_into(r, &r->lineage.steps[p->last + 1], &above);
	return above.usable && above.holes_legal;
}
