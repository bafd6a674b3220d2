/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Further looks at a run.
 *
 * A look is a scan; the report and the listing of the last one are kept.  The look before will do
 * for who finds in it that something has moved, since what has gone does not come back.  For all
 * others it has to be later than what they have met, or it knows less than they do: what was read
 * may have been replaced after the look and before the reading.
 *
 * One thread.
 */
#include "tools/looks.h"

#include "cache/clock.h"

#include <string.h>

#define LOOK_NS (2 * NSEC_PER_SEC) /* so often the run is looked at, at most: */
enum { LOOKS_AT_ONCE = 64 };	   /* but for so many times */

void looks_release(struct looks *v)
{
	run_report_unref(v->now);
	listing_unref(v->there);
	v->now = NULL;
	v->there = NULL;
}

/* The look before will do for who finds in it that something has moved.  For all others it has to
 * be later than what they have met, as long as there are not too many of them. */
static bool look_again(struct looks *v, bool fresh)
{
	const bool have = v->now != NULL && v->there != NULL;

	if (have &&
	    (!fresh || (v->count >= LOOKS_AT_ONCE && clock_mono_ns() - v->looked_ns < LOOK_NS)))
		return true;
	v->count++;
	looks_release(v);
	if (run_scan(v->run, NULL) < 0)
		return false;
	v->now = run_report(v->run);
	v->there = run_listing(v->run);
	v->looked_ns = clock_mono_ns();
	return v->now != NULL && v->there != NULL;
}

/* Is the object that could not be read another one by now, or none? */
bool looks_object_moved(struct looks *v, const struct object *o)
{
	bool moved = false;

	for (int fresh = 0; fresh < 2 && !moved && look_again(v, fresh > 0); fresh++) {
		const struct object *now = listing_find(&v->there->listing, o->key);

		moved = now == NULL || !identity_equal(&now->id, &o->id);
	}
	v->moved |= moved;
	return moved;
}

static bool has_version(const struct run_report *p, const struct version_info *was)
{
	for (size_t i = 0; i < p->version_count; i++) {
		const struct version_info *info = &p->versions[i];

		if (info->number == was->number && info->state != VERSION_SUPERSEDED &&
		    strcmp(info->key, was->key) == 0)
			return true;
	}
	return false;
}

/* Is a version that could not be read no longer one of the run? */
bool looks_version_moved(struct looks *v, const struct version_info *was)
{
	bool moved = false;

	for (int fresh = 0; fresh < 2 && !moved && look_again(v, fresh > 0); fresh++)
		moved = !has_version(v->now, was);
	v->moved |= moved;
	return moved;
}

/* `text` NULL: any with that object. */
static bool has_problem(const struct run_report *p, const char *object, const char *text)
{
	for (size_t i = 0; i < p->problem_count; i++)
		if (strcmp(p->problems[i].object, object) == 0 &&
		    (text == NULL || strcmp(p->problems[i].text, text) == 0))
			return true;
	return false;
}

/* Has what the first look met passed?  Of an object that it had listed, or of one that it missed.
 */
bool looks_has_passed(struct looks *v, const struct listing *first, const char *key)
{
	const struct object *o = listing_find(first, key);
	bool passed;

	if (o != NULL)
		return looks_object_moved(v, o);
	passed = look_again(v, true) && !has_problem(v->now, key, NULL);
	v->moved |= passed;
	return passed;
}

struct run_report *looks_report(struct looks *v)
{
	struct run_report *report = look_again(v, true) ? v->now : NULL;

	if (report != NULL)
		v->now = NULL;
	return report;
}

bool looks_has_problem(struct looks *v, const char *object, const char *text)
{
	return look_again(v, v->now == NULL) && has_problem(v->now, object, text);
}
