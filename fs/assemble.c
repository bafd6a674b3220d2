/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a plan to what is shown: the state (where every tensor's bytes come from and which patches
 * lie on top) and the tree of files around it.
 *
 * Assembling walks the plan upwards and matches each object to the layout and to the tensors as the
 * anchor has them stored (a dtype changes at a complete anchor only); an object that turns out bad
 * is marked so and the caller plans again without it.  Then downwards, so that only those objects
 * stay open that a tensor is still read from.  Nothing here is visible to readers until the whole
 * generation is handed to the history.
 */
#include "fs/run_internal.h"

#include <stdio.h>
#include <stdlib.h>

static struct sources *sources_new(uint32_t count, uint32_t room)
{
	struct sources *s = calloc(1, sizeof(*s));

	if (s == NULL)
		return NULL;
	s->refs = 1;
	s->count = count;
	s->v = calloc(count ? count : 1, sizeof(*s->v));
	s->blobs = calloc(room, sizeof(struct blob *));
	if (s->v == NULL || s->blobs == NULL) {
		sources_unref(s);
		return NULL;
	}
	return s;
}

/* Sources before any object: --base's own, or nothing at all. */
static struct sources *sources_start(const struct run *r, const struct layout *layout,
				     uint64_t number)
{
	const struct sources *base = r->base != NULL ? r->base->sources : NULL;
	struct sources *s = sources_new(layout->tensor_count, base != NULL ? base->blob_count : 1);

	if (s == NULL)
		return NULL;
	for (uint32_t i = 0; base != NULL && i < base->blob_count; i++)
		s->blobs[s->blob_count++] = blob_ref(base->blobs[i]);
	for (uint32_t i = 0; i < s->count; i++) {
		if (base != NULL)
			s->v[i] = base->v[i];
		else
			s->v[i].blob = LAYOUT_NONE;
		s->v[i].version = number;
	}
	return s;
}

static int sources_add(struct sources *s, struct blob *blob)
{
	struct blob **grown =
		realloc(s->blobs, ((size_t)s->blob_count + 1) * sizeof(struct blob *));

	if (grown == NULL)
		return -ENOMEM;
	s->blobs = grown;
	s->blobs[s->blob_count++] = blob_ref(blob);
	return 0;
}

/* Takes those full tensors of an object that `s` does not have from a higher version than `above`.
 * Without any the object's bytes are let go of. */
static int take_fulls(struct run *r, struct exam *e, const struct object *o, uint64_t number,
		      uint64_t above, bool base, struct sources *s)
{
	bool any = false;
	int err;

	for (size_t i = 0; i < e->full_count; i++) {
		struct tensor_source *v = &s->v[e->fulls[i].tensor];

		if (v->version > above && !base)
			continue;
		any = true;
		*v = (struct tensor_source){
			.offset = e->fulls[i].offset,
			.version = number,
			.blob = s->blob_count,
			.dtype = e->fulls[i].dtype,
			.packed = e->fulls[i].packed,
		};
	}
	if (!any) {
		blob_unref(e->blob);
		e->blob = NULL;
		return 0;
	}
	if (e->blob == NULL) {
		err = blob_open(r->config.store, o, false, &e->blob, &e->why);
		if (err < 0)
			return exam_fail(r, e, err);
	}
	return sources_add(s, e->blob);
}

static struct target target_make(struct layout *layout, const struct sources *now)
{
	struct target t = {.layout = layout, .now = now};

	for (uint32_t i = 0; now != NULL && i < now->count; i++)
		identity_mix(&t.dtypes, &now->v[i].dtype, sizeof(now->v[i].dtype));
	return t;
}

struct target target_of_state(const struct state *s)
{
	struct target t = target_make(s->layout, s->sources);

	t.anchor = s->anchor;
	return t;
}

/* Every tensor must come from somewhere. */
static int check_sources(const struct layout *l, const struct sources *s, struct why *why)
{
	char name[200];

	for (uint32_t i = 0; i < s->count; i++)
		if (s->v[i].blob == LAYOUT_NONE && l->tensors[i].alias == i)
			return why_set(why, EBADMSG, "lacks tensor \"%s\"",
				       printable(name, sizeof(name), l->tensors[i].name,
						 strlen(l->tensors[i].name)));
	return 0;
}

/* Which of them would come first is anybody's guess. */
static int mixed_step(struct exam *e)
{
	return why_set(&e->why, EBADMSG,
		       "has changed elements, and another object of its number has whole tensors");
}

/* A partial anchor beside a complete object of the same number in deltas/. */
static int over_base(struct run *r, const struct step *step, struct layout *layout,
		     struct sources *s, struct why *why)
{
	const struct object *o = step->anchor.v[0].object;
	struct target target = target_make(layout, s);
	struct exam *e = exam_get(r, o);
	int err;

	if (e == NULL || e->state != EXAM_OK)
		return why_set(why, EAGAIN, "the anchor changed in the meantime");
	err = exam_match(r, e, o, step->number, &target, false);
	if (err == 0 && e->patches > 0)
		err = exam_fail(r, e, mixed_step(e));
	if (err == 0)
		err = take_fulls(r, e, o, step->number, 0, true, s);
	*why = e->why;
	return err;
}

/* The full tensors of one object of the anchor. */
static int take_piece(struct run *r, const struct piece *piece, uint64_t number,
		      const struct target *target, struct sources *s, struct why *why)
{
	struct exam *e = exam_get(r, piece->object);
	int err;

	if (e == NULL || e->state != EXAM_OK)
		return why_set(why, EAGAIN, "the anchor changed in the meantime");
	e->why = (struct why){0};
	err = exam_match(r, e, piece->object, number, target, false);
	if (err == 0)
		err = take_fulls(r, e, piece->object, number, 0, true, s);
	if (err < 0)
		*why = e->why;
	return err;
}

/* Marks an anchor as one that cannot be used, for a reason that is no single object's. */
static int anchor_fail(struct run *r, const struct pieces *anchor, struct why *why)
{
	struct exam *e = exam_get(r, anchor->v[0].object);

	if (e == NULL || why->err == 0)
		return why_set(why, ENOMEM, "out of memory");
	e->why = *why;
	exam_fail(r, e, -why->err);
	*why = e->why;
	return -why->err;
}

/* The step that a chain starts from: a complete anchor, over --base's bytes. */
static int base_step(struct run *r, const struct step *step, struct layout **out_layout,
		     struct sources **out, struct why *why)
{
	const struct pieces *anchor = complete_pieces(r, step);
	struct target target = {0};
	int err;

	if (step->number == 0 && step->anchor.present && step->anchor.count == 0) {
		/* Version 0 of a run whose deltas begin there. */
		*out_layout = r->base->layout;
		*out = sources_start(r, r->base->layout, 0);
		return *out != NULL ? 0 : why_set(why, ENOMEM, "out of memory");
	}
	if (anchor == NULL)
		return why_set(why, EAGAIN, "the anchor changed in the meantime");
	*why = (struct why){0};
	if (layout_for(r, anchor, &target.layout, why) < 0)
		return anchor_fail(r, anchor, why);
	*out_layout = target.layout;
	*out = sources_start(r, target.layout, step->number);
	if (*out == NULL)
		return why_set(why, ENOMEM, "out of memory");
	for (size_t i = 0; i < anchor->count; i++) {
		err = take_piece(r, &anchor->v[i], step->number, &target, *out, why);
		if (err < 0)
			return err;
	}
	if (check_sources(target.layout, *out, why) < 0)
		return anchor_fail(r, anchor, why);
	if (anchor == &step->delta && step->anchor.present)
		return over_base(r, step, target.layout, *out, why);
	return 0;
}

/* A step's objects against the tensors as they are stored.  Changed elements come later, where no
 * fold has them. */
static int match_step(struct run *r, const struct step *step, const struct target *target,
		      struct why *why)
{
	const struct object *o;
	size_t fulls = 0;

	for (size_t i = 0; (o = step_above(step, i)) != NULL; i++) {
		struct exam *e = exam_get(r, o);
		int err = -EAGAIN;

		if (e == NULL)
			return why_set(why, ENOMEM, "out of memory");
		if (e->state == EXAM_OK)
			err = exam_match(r, e, o, step->number, target, false);
		if (err == 0 && fulls > 0 && e->patches > 0)
			err = exam_fail(r, e, mixed_step(e));
		if (err < 0) {
			*why = e->why;
			return err;
		}
		fulls += e->full_count;
	}
	return 0;
}

static int match_pieces(struct run *r, const struct pieces *p, uint64_t number,
			const struct target *target, struct why *why)
{
	for (size_t i = 0; i < p->count; i++) {
		const struct object *o = p->v[i].object;
		struct exam *e = exam_get(r, o);
		int err = e != NULL && e->state == EXAM_OK
				  ? exam_match(r, e, o, number, target, false)
				  : -EAGAIN;

		if (err < 0) {
			if (e != NULL)
				*why = e->why;
			return err;
		}
	}
	return 0;
}

/* The full tensors of the steps above the base: for each tensor the last one. */
static int take_steps(struct run *r, const struct plan *p, struct sources *s, struct why *why)
{
	const struct step *steps = r->lineage.steps;

	for (size_t i = p->last; i > p->base; i--)
		for (size_t k = steps[i].delta.count + steps[i].anchor.count; k-- > 0;) {
			const struct object *o = step_above(&steps[i], k);
			struct exam *e = o != NULL ? table_get_str(r->exams, o->key) : NULL;
			int err;

			/* What a span stands for was not looked into. */
			if (e == NULL || e->full_count == 0)
				continue;
			err = take_fulls(r, e, o, steps[i].number, steps[p->base].number, false, s);
			if (err < 0) {
				*why = e->why;
				return err;
			}
		}
	return 0;
}

static bool same_sources(const struct sources *a, const struct sources *b)
{
	if (a->count != b->count || a->blob_count != b->blob_count)
		return false;
	for (uint32_t i = 0; i < a->blob_count; i++)
		if (a->blobs[i] != b->blobs[i])
			return false;
	for (uint32_t i = 0; i < a->count; i++) {
		const struct tensor_source *x = &a->v[i], *y = &b->v[i];

		if (x->offset != y->offset || x->version != y->version || x->blob != y->blob ||
		    x->dtype != y->dtype || x->packed != y->packed)
			return false;
	}
	return true;
}

/* The newest generation's sources in place of equal ones. */
static struct sources *share_sources(const struct run *r, struct sources *s)
{
	const struct state *newest = r->newest != NULL ? r->newest->state : NULL;

	if (newest == NULL || !same_sources(newest->sources, s))
		return s;
	sources_unref(s);
	return sources_ref(newest->sources);
}

/* Everything but the links. */
static int assemble_sources(struct run *r, const struct plan *p, struct layout **out_layout,
			    struct sources **out, struct why *why)
{
	const struct step *steps = r->lineage.steps;
	struct target target;
	int err = base_step(r, &steps[p->base], out_layout, out, why);

	if (err < 0)
		return err;
	target = target_make(*out_layout, *out);
	for (size_t i = p->base + 1, n; err == 0 && i <= p->last; i += n) {
		const struct span *span = span_at(r, i, p->last, &n);

		err = span != NULL ? match_pieces(r, &span->pieces, span->version, &target, why)
				   : match_step(r, &steps[i], &target, why);
	}
	if (err == 0)
		err = take_steps(r, p, *out, why);
	if (err == 0)
		*out = share_sources(r, *out);
	return err;
}

static void mix_step(const struct run *r, const struct plan *p, size_t i, struct identity *id)
{
	const struct step *s = &r->lineage.steps[i];
	const struct object *o;

	for (size_t k = 0; (o = plan_objects(r, p, i, k)) != NULL; k++)
		identity_mix(id, o->id.bytes, sizeof(o->id.bytes));
	identity_mix(id, &s->number, sizeof(s->number));
}

/* Equal for states that show the same bytes by the same headers.  p NULL: --base alone. */
static struct identity fingerprint(const struct run *r, const struct plan *p,
				   const struct layout *layout)
{
	struct identity id = {0};

	if (r->base != NULL)
		identity_mix(&id, r->base->id.bytes, sizeof(r->base->id.bytes));
	for (uint32_t i = 0; i < layout->file_count; i++)
		identity_mix(&id, layout->files[i].head, layout->files[i].head_len);
	for (size_t i = p != NULL ? p->base : 1; p != NULL && i <= p->last; i++)
		mix_step(r, p, i, &id);
	return id;
}

int assemble_state(struct run *r, const struct plan *p, struct state **out, struct why *why)
{
	const struct step *steps = r->lineage.steps;
	struct sources *sources = NULL;
	struct layout *layout = NULL;
	struct link **links = NULL;
	struct identity id;
	struct target target;
	uint32_t count = 0;
	int err = assemble_sources(r, p, &layout, &sources, why);

	if (err < 0)
		goto out;
	target = target_make(layout, sources);
	target.anchor = steps[p->base].number;
	err = fold_stack(r, p, &target, &links, &count, why);
	if (err < 0)
		goto out;
	id = fingerprint(r, p, layout);
	err = state_new(steps[p->last].number, steps[p->base].number, (unsigned)(p->last - p->base),
			layout, sources, links, count, &id, out);
	if (err < 0)
		why_set(why, -err, "out of memory");
out:
	free(links);
	sources_unref(sources);
	return err;
}

/* Lets go of a blob that no tensor is read from any more, also where an exam has it. */
static void drop_blob(struct run *r, const struct step *from, const struct blob *blob)
{
	const struct object *o;

	for (size_t k = 0; from != NULL && (o = step_objects(from, k)) != NULL; k++) {
		struct exam *e = table_get_str(r->exams, o->key);

		if (e != NULL && e->blob == blob) {
			blob_unref(e->blob);
			e->blob = NULL;
		}
	}
}

/* Those blobs of s that a tensor is read from, and no others.  `below` is what s was made from. */
static int keep_used(struct run *r, const struct sources *below, struct sources *s)
{
	uint32_t *place = malloc(((size_t)s->blob_count + 1) * sizeof(*place));
	uint32_t n = 0;

	if (place == NULL)
		return -ENOMEM;
	for (uint32_t b = 0; b < s->blob_count; b++)
		place[b] = LAYOUT_NONE;
	for (uint32_t i = 0; i < s->count; i++)
		if (s->v[i].blob != LAYOUT_NONE)
			place[s->v[i].blob] = 0;
	for (uint32_t i = 0; i < below->count; i++) {
		const struct tensor_source *v = &below->v[i];

		if (v->blob != LAYOUT_NONE && place[v->blob] == LAYOUT_NONE)
			drop_blob(r, lineage_find(&r->lineage, v->version), s->blobs[v->blob]);
	}
	for (uint32_t b = 0; b < s->blob_count; b++) {
		if (place[b] == LAYOUT_NONE) {
			blob_unref(s->blobs[b]);
			continue;
		}
		s->blobs[n] = s->blobs[b];
		place[b] = n++;
	}
	s->blob_count = n;
	for (uint32_t i = 0; i < s->count; i++)
		if (s->v[i].blob != LAYOUT_NONE)
			s->v[i].blob = place[s->v[i].blob];
	free(place);
	return 0;
}

/* The sources below with a step's full tensors in their places. */
static int sources_next(struct run *r, const struct step *step, struct sources *below,
			struct sources **out, struct why *why)
{
	const struct object *o;
	bool any = false;
	int err = 0;

	for (size_t k = 0; (o = step_above(step, k)) != NULL; k++)
		any |= exam_get(r, o)->full_count > 0;
	if (!any) {
		*out = sources_ref(below);
		return 0;
	}
	*out = sources_new(below->count, below->blob_count + 1);
	if (*out == NULL)
		return why_set(why, ENOMEM, "out of memory");
	memcpy((*out)->v, below->v, below->count * sizeof(*below->v));
	for (uint32_t b = 0; b < below->blob_count; b++)
		(*out)->blobs[(*out)->blob_count++] = blob_ref(below->blobs[b]);
	for (size_t k = 0; err == 0 && (o = step_above(step, k)) != NULL; k++) {
		struct exam *e = exam_get(r, o);

		if (e->full_count > 0)
			err = take_fulls(r, e, o, step->number, 0, true, *out);
		if (err < 0)
			*why = e->why;
	}
	return err < 0 ? err : keep_used(r, below, *out);
}

int assemble_next(struct run *r, const struct plan *p, const struct state *below,
		  struct state **out, struct why *why)
{
	const struct step *step = &r->lineage.steps[p->last];
	struct target target = target_of_state(below);
	struct identity id = below->fingerprint;
	struct sources *sources = NULL;
	struct link **links = NULL;
	uint32_t count = 0;
	int err = match_step(r, step, &target, why);

	if (err == 0)
		err = sources_next(r, step, below->sources, &sources, why);
	if (err < 0)
		goto out;
	target.now = sources;
	err = fold_stack(r, p, &target, &links, &count, why);
	if (err < 0)
		goto out;
	mix_step(r, p, p->last, &id);
	err = state_new(step->number, below->anchor, below->deltas + 1, below->layout, sources,
			links, count, &id, out);
	if (err < 0)
		why_set(why, -err, "out of memory");
out:
	free(links);
	sources_unref(sources);
	return err;
}

int assemble_base(struct run *r, struct state **out)
{
	struct identity id = fingerprint(r, NULL, r->base->own);

	return state_new(0, 0, 0, r->base->own, r->base->sources, NULL, 0, &id, out);
}

/* ---- the tree ---- */

static int put_weights(struct run *r, struct node *root, struct state *state, int64_t mtime_ns,
		       const struct generation *like)
{
	const struct layout *l = state->layout;
	struct node *node;
	char *copy;
	int err = 0;

	for (uint32_t i = 0; i < l->file_count && err == 0; i++) {
		node = like != NULL && like->state == state
			       ? node_child(like->root, l->files[i].name)
			       : NULL;
		node = node != NULL ? node_ref(node)
				    : node_weights(r->config.nodes, state, i, mtime_ns);
		err = node != NULL ? node_put(root, l->files[i].name, node) : -ENOMEM;
		node_unref(node);
	}
	if (err == 0 && l->index != NULL) {
		copy = malloc(l->index_len);
		if (copy == NULL)
			return -ENOMEM;
		memcpy(copy, l->index, l->index_len);
		node = node_bytes(r->config.nodes, copy, l->index_len, mtime_ns);
		err = node != NULL ? node_put(root, LAYOUT_INDEX_NAME, node) : -ENOMEM;
		node_unref(node);
	}
	return err;
}

int assemble_tree(struct run *r, struct state *state, uint64_t version, int64_t mtime_ns,
		  const char *format, const struct generation *like, struct generation **out)
{
	struct generation *g = calloc(1, sizeof(*g));
	int err = 0;

	if (g == NULL)
		return -ENOMEM;
	*g = (struct generation){.refs = 1, .version = version, .mtime_ns = mtime_ns};
	snprintf(g->lineage, sizeof(g->lineage), "%s",
		 version > 0 || (state != NULL && state->link_count > 0) ? r->label : "");
	snprintf(g->format, sizeof(g->format), "%s", format);
	g->state = state != NULL ? state_ref(state) : NULL;
	g->root = node_dir(r->config.nodes, state, mtime_ns);
	if (g->root == NULL)
		err = -ENOMEM;
	if (err == 0 && state != NULL)
		err = put_weights(r, g->root, state, mtime_ns, like);
	if (err == 0)
		err = companions_put(r, state, g->root, &r->companions_made);
	if (err < 0) {
		generation_unref(g);
		return err;
	}
	node_seal(g->root);
	*out = g;
	return 0;
}
