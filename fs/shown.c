/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is shown, and a plan for less than that or for the same.
 *
 * An object that goes away or is damaged is no reason to take back a version that does not need it
 * any more.  A trainer that has resumed from below it is one, and so is a pointer that was set
 * back, or bytes that were overwritten where they lie.
 *
 * Called by the run's thread; reads its state and changes nothing but the notes.
 */
#include "fs/run_internal.h"

/* Can all that a state is made of still be read as it was? */
static bool is_readable(const struct state *s)
{
	for (uint32_t i = 0; i < s->sources->blob_count; i++) {
		struct blob *b = s->sources->blobs[i];

		if (b->handle != NULL && store_settled(b->handle) == -ESTALE)
			return false;
	}
	return true;
}

bool shown_of_run(const struct run *r)
{
	return r->newest != NULL && r->newest->state != NULL &&
	       (strcmp(r->newest->lineage, r->label) == 0 ||
		(r->newest->version == 0 && r->base == NULL));
}

bool shown_taken_out(const struct run *r)
{
	return r->recorded.taken && shown_of_run(r) && r->newest->version >= r->recorded.out &&
	       r->newest->version <= r->recorded.until;
}

/* Is the plan's version younger than what is shown, which has a higher number?  Then the trainer
 * has resumed from somewhere below it. */
static bool went_on(const struct run *r, const struct plan *p)
{
	return !lineage_is_declared(&r->lineage) && !r->config.ignore_times &&
	       r->lineage.steps[p->last].mtime_ns > r->shown_ns;
}

/* Would the plan take back a version of this very run?  An object that goes away or is damaged is
 * no reason to: what is shown does not need it any more, unless it was overwritten where it lies.
 */
static bool goes_back(const struct run *r, const struct plan *p)
{
	return r->newest != NULL && r->newest->state != NULL &&
	       strcmp(r->newest->lineage, r->label) == 0 &&
	       r->lineage.steps[p->last].number < r->newest->version && !pointer_rewound(r) &&
	       !went_on(r, p) && !shown_taken_out(r) && is_readable(r->newest->state);
}

bool shown_stays(struct run *r, const struct plan *p)
{
	if (!goes_back(r, p))
		return false;
	run_note(r, "version %llu stays, although not all of its objects are there as they were",
		 (unsigned long long)r->newest->version);
	return true;
}

/* Does the plan make the very state that is shown, from other objects, and need those not be
 * touched?  A run that was pruned begins at a later anchor; what is shown then stays, with its
 * inodes, if all of it is near. */
bool shown_is_same(struct run *r, const struct plan *p)
{
	const struct manifest *m = r->lineage.manifest;
	const struct generation *g = r->newest;
	uint64_t present, size;
	const uint8_t *state;

	if (!lineage_is_declared(&r->lineage) || g == NULL || g->state == NULL ||
	    strcmp(g->lineage, r->label) != 0 || g->version != r->lineage.steps[p->last].number)
		return false;
	state = manifest_state(m, g->version);
	if (state == NULL || memcmp(state, r->shown_state, sizeof(r->shown_state)) != 0)
		return false;
	state_progress(g->state, &present, &size);
	return present == size && is_readable(g->state);
}
