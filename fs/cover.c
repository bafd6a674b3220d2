/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cover: which tensors an anchor must have to be a start of the chain.
 *
 * The cheap and sure reference is the run's first object: it holds the policy before training,
 * complete in every generation of TRL.  What it said stays true when it is pruned later.  Where it
 * cannot be had (gone before we came, or damaged), --base says which tensors there are; without
 * that, an anchor is believed to be complete when it has every name that any object at hand has.
 * Such an assumed cover follows the objects: a new name makes it grow, an object that goes or
 * changes has it made anew.
 *
 * A change of cover drops all exams, since `complete` depends on it.
 */
#include "fs/run_internal.h"

#include <stdlib.h>

void cover_release(struct cover *c)
{
	for (size_t i = 0; i < c->count; i++)
		free(c->names[i]);
	free(c->names);
	free(c->origin);
	*c = (struct cover){0};
}

static bool cover_add(struct cover *c, size_t *cap, const char *name)
{
	char **grown;

	if (c->count == *cap) {
		*cap = *cap ? *cap * 2 : 64;
		grown = realloc(c->names, *cap * sizeof(char *));
		if (grown == NULL)
			return false;
		c->names = grown;
	}
	c->names[c->count] = strdup(name);
	return c->names[c->count] != NULL && ++c->count;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorts the names and drops doubles. */
static void cover_sort(struct cover *c)
{
	size_t kept = 0;

	if (c->count == 0)
		return;
	qsort(c->names, c->count, sizeof(char *), compare_names);
	for (size_t i = 0; i < c->count; i++)
		if (kept > 0 && strcmp(c->names[kept - 1], c->names[i]) == 0)
			free(c->names[i]);
		else
			c->names[kept++] = c->names[i];
	c->count = kept;
}

/* Adds the names of all parts of an object that has been looked into. */
static int cover_add_object(struct run *r, const struct object *o, struct cover *c, size_t *cap)
{
	struct opened *opened = NULL;
	int err = opened_get(r, o, &opened, NULL);

	if (err < 0)
		return err;
	for (size_t i = 0; err == 0 && i < opened->delta->count; i++)
		if (!cover_add(c, cap, opened->delta->parts[i].name))
			err = -ENOMEM;
	opened_put(opened);
	return err;
}

static const struct object *first_object(const struct run *r)
{
	const struct step *s = r->lineage.steps;

	return r->lineage.step_count == 0 || s->number > 1 ? NULL : step_first(s);
}

static bool cover_from_object(struct run *r, const struct object *o, struct cover *c)
{
	size_t cap = 0;

	c->from = COVER_FIRST;
	c->origin = strdup(o->key);
	c->id = o->id;
	return c->origin != NULL && cover_add_object(r, o, c, &cap) == 0 && c->count > 0;
}

/* Floating-point tensors of --base: what a trainer can have as parameters.  A tied pair counts as
 * its embedding. */
static bool cover_from_base(struct run *r, struct cover *c)
{
	const struct layout *l = r->base->layout;
	size_t cap = 0;

	c->from = COVER_BASE;
	c->origin = strdup("--base");
	c->id = r->base->id;
	for (uint32_t i = 0; i < l->tensor_count; i++)
		if (st_dtype_is_float(l->tensors[i].dtype) && l->tensors[i].alias == i &&
		    !cover_add(c, &cap, l->tensors[i].name))
			return false;
	cover_sort(c);
	return c->origin != NULL;
}

/* All names that any object has. */
static bool cover_assume(struct run *r, struct cover *c)
{
	const struct object *o;
	size_t cap = 0;

	c->from = COVER_ASSUMED;
	c->origin = strdup("the run's objects");
	if (c->origin == NULL)
		return false;
	for (size_t i = 0; i < r->lineage.step_count; i++)
		for (size_t k = 0; (o = step_objects(&r->lineage.steps[i], k)) != NULL; k++) {
			const struct exam *e = exam_get(r, o);

			if (e != NULL && e->state == EXAM_OK &&
			    cover_add_object(r, o, c, &cap) == -ENOMEM)
				return false;
		}
	cover_sort(c);
	return true;
}

/* Does an assumed cover still say what the objects say?  New ones are counted in. */
static bool still_assumed(struct run *r)
{
	const struct object *o;
	size_t old = 0, new = 0;

	for (size_t i = 0; i < r->lineage.step_count; i++)
		for (size_t k = 0; (o = step_objects(&r->lineage.steps[i], k)) != NULL; k++) {
			struct exam *e = exam_get(r, o);

			if (e == NULL || (e->state != EXAM_OK && !e->counted))
				continue;
			if (e->foreign && !e->counted)
				return false;
			old += e->counted;
			new += !e->counted;
			e->counted = true;
		}
	if (old != r->cover.counted)
		return false;
	r->cover.counted += new;
	return true;
}

/* Is what the cover was made from still the best there is?  `first`: a first object that can be
 * used, or NULL. */
static bool still_good(struct run *r, const struct object *first)
{
	const struct cover *c = &r->cover;

	if (first != NULL)
		return c->from == COVER_FIRST && strcmp(c->origin, first->key) == 0 &&
		       identity_equal(&c->id, &first->id);
	if (strcmp(c->label, r->label) != 0)
		return false;
	return c->from == COVER_FIRST || c->from == COVER_BASE ||
	       (c->from == COVER_ASSUMED && still_assumed(r));
}

/* A first object that says what the model is; NULL when there is none.  *out_wait: one is there,
 * but cannot be read yet. */
static const struct object *usable_first(struct run *r, bool *out_wait)
{
	const struct object *o = first_object(r);
	const struct exam *e;

	*out_wait = false;
	if (o == NULL)
		return NULL;
	/* Known already, whatever was found wrong with it later on. */
	if (r->cover.from == COVER_FIRST && strcmp(r->cover.origin, o->key) == 0 &&
	    identity_equal(&r->cover.id, &o->id))
		return o;
	e = exam_get(r, o);
	*out_wait = e == NULL || e->state == EXAM_WAITING;
	return e != NULL && e->state == EXAM_OK && e->sparse == 0 && e->full > 0 ? o : NULL;
}

/* weightfs.json says it all. */
static bool cover_declared(struct run *r)
{
	if (r->cover.from != COVER_DECLARED || strcmp(r->cover.label, r->label) != 0) {
		cover_release(&r->cover);
		r->cover.from = COVER_DECLARED;
		memcpy(r->cover.label, r->label, sizeof(r->label));
		exams_sweep(r, true);
	}
	return r->lineage.step_count > 0;
}

bool cover_update(struct run *r)
{
	const struct object *first;
	struct cover c = {0};
	bool wait, ok;

	if (r->lineage.manifest != NULL)
		return cover_declared(r);
	first = usable_first(r, &wait);
	if (r->lineage.step_count == 0)
		return false;
	if (wait) {
		/* Of another run: nothing may be judged by it. */
		if (r->cover.from != COVER_NONE && strcmp(r->cover.label, r->label) != 0) {
			cover_release(&r->cover);
			exams_sweep(r, true);
		}
		return false;
	}
	if (r->cover.from != COVER_NONE && still_good(r, first)) {
		memcpy(r->cover.label, r->label, sizeof(r->label));
		return true;
	}
	ok = first != NULL     ? cover_from_object(r, first, &c)
	     : r->base != NULL ? cover_from_base(r, &c)
			       : cover_assume(r, &c);
	if (!ok) {
		cover_release(&c);
		return false;
	}
	memcpy(c.label, r->label, sizeof(c.label));
	cover_release(&r->cover);
	r->cover = c;
	exams_sweep(r, true);
	/* The exams are new and know nothing of being counted: this makes them. */
	return c.from != COVER_ASSUMED || still_assumed(r);
}
