/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking into objects.
 *
 * An exam has three stages.  The first reads the header: what is it, is it whole, does it cover the
 * model.  The second matches it to a layout: every part is checked against the tensor it changes.
 * In the third the changed elements are validated one by one while they become a patch file in the
 * cache directory, named by the object's identity, so that a restart finds it there; objects that a
 * fold stands for do without.  Each is done once per object and identity; what may pass by itself
 * (an object being written, an I/O error) is tried again in a later round.
 */
#include "fs/run_internal.h"

#include "cache/clock.h"
#include "fs/counters.h"

#include <stdio.h>
#include <stdlib.h>

static void exam_unmatch(struct exam *e)
{
	layout_unref(e->layout);
	free(e->fulls);
	blob_unref(e->blob);
	link_unref(e->link);
	e->layout = NULL;
	e->dtypes = (struct identity){0};
	e->fulls = NULL;
	e->full_count = 0;
	e->patches = 0;
	e->blob = NULL;
	e->link = NULL;
}

static void exam_free(struct exam *e)
{
	exam_unmatch(e);
	free(e->key);
	free(e);
}

struct sweep {
	struct exam **gone;
	size_t count;
	bool all;
};

static void collect(void *value, void *ctx)
{
	struct sweep *s = ctx;
	struct exam *e = value;

	if (s->all || !e->seen)
		s->gone[s->count++] = e;
	e->seen = false;
}

void exams_sweep(struct run *r, bool all)
{
	struct sweep s = {.gone = calloc(table_count(r->exams) + 1, sizeof(struct exam *)),
			  .all = all};

	if (s.gone == NULL)
		return; /* next time */
	table_each(r->exams, collect, &s);
	for (size_t i = 0; i < s.count; i++) {
		table_remove_str(r->exams, s.gone[i]->key);
		exam_free(s.gone[i]);
	}
	free(s.gone);
}

/* May the same attempt succeed later although the object did not change? */
static bool passes_by_itself(int err)
{
	return err != -EBADMSG && err != -ENOTSUP && err != -EACCES && err != -ELOOP &&
	       err != -EISDIR && err != -ENXIO && err != -EFBIG && err != -ENAMETOOLONG &&
	       err != -EILSEQ && err != -EINVAL;
}

int exam_fail(struct run *r, struct exam *e, int err)
{
	e->round = r->round;
	e->state = passes_by_itself(err) ? EXAM_WAITING : EXAM_BROKEN;
	if (e->why.err == 0)
		why_set(&e->why, -err, "cannot be read");
	why_prefix(&e->why, "%s", e->key);
	return err;
}

int listed_error(const struct object *o, struct why *why)
{
	switch (o->err) {
	case ELOOP:
		return why_set(why, ELOOP,
			       "is a symbolic link that leads out of the bucket or in a circle; it "
			       "is not followed");
	case ENOENT: return why_set(why, ENOENT, "is a symbolic link to nothing");
	case LINEAGE_MISSING:
		return why_set(why, LINEAGE_MISSING,
			       "is named by " MANIFEST_KEY " and is not there");
	case LINEAGE_UNINDEXED:
		return why_set(why, LINEAGE_UNINDEXED,
			       "is named by the index of its directory and is not there");
	case EACCES:
		return why_set(why, EACCES, "may not be read by this user (permission denied)");
	case EISDIR:
	case ENXIO: return why_set(why, o->err, "is not a regular file");
	case EILSEQ: return why_set(why, EILSEQ, "has a name that is not UTF-8");
	case ENAMETOOLONG: return why_set(why, ENAMETOOLONG, "has a name that is too long");
	default: return why_set(why, o->err, "cannot be used (error %d)", o->err);
	}
}

/* True when every name of the cover has a full part.  Both are sorted by name. */
static bool covers(const struct cover *c, const struct delta *d)
{
	size_t p = 0;

	if (c->count == 0)
		return false;
	for (size_t i = 0; i < c->count; i++) {
		while (p < d->count && strcmp(d->parts[p].name, c->names[i]) < 0)
			p++;
		if (p >= d->count || strcmp(d->parts[p].name, c->names[i]) != 0 ||
		    d->parts[p].kind != PART_FULL)
			return false;
	}
	return true;
}

/* True when it has a part whose name the cover lacks. */
static bool is_foreign(const struct cover *c, const struct delta *d)
{
	size_t i = 0;

	for (size_t p = 0; p < d->count; p++) {
		while (i < c->count && strcmp(c->names[i], d->parts[p].name) < 0)
			i++;
		if (i >= c->count || strcmp(c->names[i], d->parts[p].name) != 0)
			return true;
	}
	return false;
}

/* States that a published delta records. */
static void take_states(struct exam *e, const struct delta *d)
{
	const char *state, *base;

	e->has_states = false;
	if (!d->format->native)
		return;
	state = st_meta(d->header, "state");
	base = st_meta(d->header, "base_state");
	e->has_states = state != NULL && base != NULL && manifest_unhex(state, e->to) == 0 &&
			manifest_unhex(base, e->from) == 0;
}

static void exam_open(struct run *r, struct exam *e, const struct object *o)
{
	const struct named *named = lineage_named(&r->lineage, o->key);
	struct opened *opened = NULL;
	const struct delta *d;
	int err;

	e->why = (struct why){0};
	if (recorded_bad(r, o, &e->why)) {
		exam_fail(r, e, -EBADMSG);
		return;
	}
	err = declared_admit(named, o, &e->why);
	if (err == 0 && note_read(r, e)) {
		err = opened_try(r, o, &e->why);
		if (err == 0) {
			e->state = EXAM_OK;
			e->bytes = o->size;
			return;
		}
	}
	if (err == 0)
		err = opened_get(r, o, &opened, &e->why);
	if (err == 0)
		err = declared_check(r, named, opened->delta, &e->why);
	if (err < 0) {
		opened_put(opened);
		exam_fail(r, e, err);
		/* What is named may not be listed yet, but not for long. */
		if ((err == -LINEAGE_MISSING || err == -LINEAGE_UNINDEXED) &&
		    clock_mono_ns() - e->first_seen_ns >= r->config.hole_grace_ns)
			e->state = EXAM_BROKEN;
		return;
	}
	d = opened->delta;
	e->state = EXAM_OK;
	e->complete = named != NULL ? named->entry->kind == MANIFEST_ANCHOR : covers(&r->cover, d);
	e->native = d->format->native;
	e->blind = d->format->blind;
	e->given_base = e->native && d->encoding == WFP1_GIVEN_BASE;
	take_states(e, d);
	e->foreign = is_foreign(&r->cover, d);
	e->holes_legal = d->holes_legal;
	e->base_version = d->base_version;
	e->full = d->full;
	e->sparse = d->sparse;
	e->changed = e->blind ? 0 : d->changed;
	e->bytes = o->size;
	snprintf(e->format, sizeof(e->format), "%s", d->generation);
	opened_put(opened);
}

struct exam *exam_get(struct run *r, const struct object *object)
{
	struct exam *e = table_get_str(r->exams, object->key);
	const struct identity declared =
		declared_identity(r, lineage_named(&r->lineage, object->key));

	COUNT(looks, 1);
	if (e != NULL && (!identity_equal(&e->id, &object->id) || e->listed_err != object->err ||
			  !identity_equal(&e->declared, &declared))) {
		table_remove_str(r->exams, e->key);
		exam_free(e);
		e = NULL;
	}
	if (e == NULL) {
		e = calloc(1, sizeof(*e));
		if (e == NULL)
			return NULL;
		e->key = strdup(object->key);
		e->id = object->id;
		e->listed_err = object->err;
		e->declared = declared;
		e->first_seen_ns = clock_mono_ns();
		e->state = EXAM_WAITING;
		e->round = r->round - 1;
		if (e->key == NULL || table_put_str(r->exams, e->key, e) < 0) {
			free(e->key);
			free(e);
			return NULL;
		}
	}
	if (e->state == EXAM_WAITING && e->round != r->round)
		exam_open(r, e, object);
	r->waited |= e->state == EXAM_WAITING;
	e->seen = true;
	return e;
}

bool exams_ok(struct run *r, const struct pieces *p, const struct exam **out_bad)
{
	bool ok = p->present;

	many_heads(r, p);
	if (out_bad != NULL)
		*out_bad = NULL;
	for (size_t i = 0; i < p->count && ok; i++) {
		const struct exam *e = exam_get(r, p->v[i].object);

		ok = e != NULL && e->state == EXAM_OK;
		if (!ok && out_bad != NULL)
			*out_bad = e;
	}
	return ok;
}

void exam_all(struct run *r)
{
	const struct object *o;

	for (size_t i = 0; i < r->lineage.step_count; i++)
		for (size_t k = 0; (o = step_objects(&r->lineage.steps[i], k)) != NULL; k++)
			exam_get(r, o);
	for (size_t i = 0; i < r->lineage.span_count; i++)
		exams_ok(r, &r->lineage.spans[i].pieces, NULL);
}

/* ---- matching to a layout ---- */

/* Can a tensor stored as `stored` be shown as `shown` without any loss? */
static bool shows_as(uint8_t stored, uint8_t shown)
{
	return stored == shown || (shown == ST_F32 && (stored == ST_BF16 || stored == ST_F16));
}

static void shape_text(char *dst, size_t cap, unsigned rank, const uint64_t *shape)
{
	size_t at = 0;

	at += (size_t)snprintf(dst, cap, "[");
	for (unsigned i = 0; i < rank && at < cap; i++)
		at += (size_t)snprintf(dst + at, cap - at, "%s%llu", i ? ", " : "",
				       (unsigned long long)shape[i]);
	if (at < cap)
		snprintf(dst + at, cap - at, "]");
}

int exam_target(const struct run *r, const struct layout *l, const struct delta *d,
		const struct part *p, uint32_t *out, struct why *why)
{
	uint32_t t = layout_find(l, p->name);

	if (t == LAYOUT_NONE && r->base != NULL && r->base->tied && tied_name(p->name)) {
		/* The base keeps the shared matrix under the other name; what counts is the half
		 * that the layout shows. */
		for (uint32_t i = 0; i < l->tensor_count; i++)
			if (tied_name(l->tensors[i].name) &&
			    delta_find(d, l->tensors[i].name) == NULL && l->tensors[i].alias == i)
				t = i;
		*out = t;
		return 0;
	}
	if (t == LAYOUT_NONE)
		return why_set(why, EBADMSG, "tensor \"%s\" is unknown: %s does not have it",
			       SHOWN(p->name),
			       r->base != NULL		 ? "--base"
			       : r->cover.origin != NULL ? r->cover.origin
							 : "the anchor");
	*out = l->tensors[t].alias == t ? t : LAYOUT_NONE;
	return 0;
}

static int check_shape(const struct layout_tensor *t, const struct part *p, struct why *why)
{
	char want[120], have[120];

	if (p->rank == t->rank &&
	    (t->rank == 0 || memcmp(p->shape, t->shape, t->rank * sizeof(*t->shape)) == 0))
		return 0;
	shape_text(want, sizeof(want), t->rank, t->shape);
	shape_text(have, sizeof(have), p->rank, p->shape);
	return why_set(why, EBADMSG, "tensor \"%s\" has shape %s here and %s in the model",
		       SHOWN(p->name), have, want);
}

static int check_full(const struct layout_tensor *t, const struct part *p,
		      const struct tensor_source *now, bool fresh, struct why *why)
{
	int err = check_shape(t, p, why);

	if (err < 0)
		return err;
	if (!shows_as(p->dtype, t->dtype))
		return why_set(why, EBADMSG,
			       "tensor \"%s\" is %s here and %s in the model, which cannot be "
			       "converted without loss",
			       SHOWN(p->name), st_dtype_name(p->dtype), st_dtype_name(t->dtype));
	if (!fresh && p->dtype != now->dtype)
		return why_set(why, EBADMSG,
			       "tensor \"%s\" is %s here and was %s before; a dtype may change at "
			       "a complete anchor only",
			       SHOWN(p->name), st_dtype_name(p->dtype), st_dtype_name(now->dtype));
	return 0;
}

/* Can the values of a sparse part be put into the tensor as it is stored? */
static int check_sparse(const struct part *p, const struct tensor_source *now, bool blind,
			struct why *why)
{
	if (now == NULL)
		return why_set(why, EBADMSG, "is a complete anchor with sparse tensors in it");
	if (!blind && p->dtype != now->dtype)
		return why_set(why, EBADMSG,
			       "the values for tensor \"%s\" are %s, the tensor is %s",
			       SHOWN(p->name), st_dtype_name(p->dtype), st_dtype_name(now->dtype));
	return 0;
}

/* Checks every part against its tensor, collects the full ones and counts the others. */
static int match_parts(struct run *r, struct exam *e, const struct delta *d,
		       const struct target *target, struct why *why)
{
	e->fulls = calloc(d->full ? d->full : 1, sizeof(*e->fulls));
	if (e->fulls == NULL)
		return -ENOMEM;
	for (size_t i = 0; i < d->count; i++) {
		const struct part *p = &d->parts[i];
		const struct tensor_source *now;
		uint32_t t = LAYOUT_NONE;
		int err = exam_target(r, target->layout, d, p, &t, why);

		if (err < 0)
			return err;
		if (t == LAYOUT_NONE)
			continue;
		now = target->now != NULL ? &target->now->v[t] : NULL;
		if (p->kind == PART_FULL) {
			err = check_full(&target->layout->tensors[t], p, now, now == NULL, why);
			e->fulls[e->full_count++] = (struct full){.offset = p->offset,
								  .tensor = t,
								  .dtype = p->dtype,
								  .packed = d->original != NULL};
		} else if (p->changed > 0 || e->native) {
			err = e->native && now != NULL ? 0 : check_sparse(p, now, e->blind, why);
			if (err == 0 && p->shape != NULL)
				err = check_shape(&target->layout->tensors[t], p, why);
			e->patches++;
		}
		if (err < 0)
			return err;
	}
	return 0;
}

/* What the patch holds depends on the object, on the index it is read with, and with --base on
 * which tensors that has. */
static void patch_name(const struct run *r, const struct exam *e, char out[48])
{
	const struct named *named = lineage_named(&r->lineage, e->key);
	struct identity id = e->id;
	char hex[33];

	if (named != NULL && named->entry->index != NULL)
		identity_mix(&id, named->entry->index_id, sizeof(named->entry->index_id));

	if (r->base != NULL)
		identity_mix(&id, r->base->id.bytes, sizeof(r->base->id.bytes));
	identity_hex(&id, hex);
	snprintf(out, 48, "%s.patch", hex);
}

/* The link for the sparse parts as an earlier process has left it in the cache directory. */
static bool find_link(struct run *r, struct exam *e, uint64_t number, const struct target *target,
		      const char *name)
{
	struct mapping *mapping = NULL;

	if (e->native || cachedir_map(r->config.cache, name, &mapping) < 0)
		return false;
	if (link_new(number, number, mapping, true, name, target->layout, NULL, &e->link, NULL) ==
	    0)
		return true;
	cachedir_remove(r->config.cache, name); /* damaged: make it again */
	return false;
}

/* The link for the sparse parts, made now (of a published one: from the cache directory, too).
 * `alone`: no others are made at the same time. */
static int make_link(struct run *r, struct exam *e, const struct opened *opened, uint64_t number,
		     const struct target *target, const char *name, bool alone, struct why *why)
{
	const struct source src = opened->src;
	const struct delta *d = opened->delta;
	struct cachedir *cache = r->config.cache;
	struct mapping *mapping = NULL;
	uint64_t size = 0;
	int fd = -1, err;

	if (e->native) {
		err = e->given_base ? given_base_link(r, d, opened->blob, number, target, name,
						      &e->link, why)
				    : native_link(r, d, opened->blob, number, target, name,
						  &e->link, why);
		e->changed = err == 0 ? e->link->changed : 0;
		return err;
	}
	if (e->full == 0)
		blob_want_beginning(opened->blob);
	err = cachedir_create(cache, &fd);
	if (err < 0)
		return why_set(why, -err,
			       "no file for its patch can be made in the cache directory");
	err = exam_encode(r, e, d, &src, target, fd, name, alone, &size, why);
	if (err < 0 && cachedir_spill(cache, fd, err)) {
		*why = (struct why){0};
		err = exam_encode(r, e, d, &src, target, fd, name, alone, &size, why);
	}
	if (err < 0) {
		cachedir_abort(cache, fd);
		return err;
	}
	err = cachedir_commit(cache, fd, name, size, &mapping);
	if (err < 0)
		return why_set(why, -err, "its patch cannot be stored in the cache directory%s",
			       err == -ENOSPC ? " (no space left)" : "");
	return link_new(number, number, mapping, false, name, target->layout, NULL, &e->link, why);
}

/* What takes long does not begin any more when the mount ends. */
static int not_stopped(const struct run *r, struct why *why)
{
	return __atomic_load_n(&r->stop, __ATOMIC_RELAXED)
		       ? why_set(why, ECANCELED, "the mount is being taken down")
		       : 0;
}

int exam_link(struct run *r, struct exam *e, const struct object *object, uint64_t number,
	      const struct target *target, struct why *why)
{
	struct opened *opened = NULL;
	char name[48];
	int err;

	patch_name(r, e, name);
	if (find_link(r, e, number, target, name))
		return 0;
	err = not_stopped(r, why);
	if (err < 0)
		return err;
	err = opened_new(r, object, &opened, why);
	if (err == 0)
		err = make_link(r, e, opened, number, target, name, false, why);
	opened_free(opened);
	return err;
}

void exam_unlinked(struct run *r, struct exam *e, int err, const struct why *why)
{
	exam_unmatch(e);
	e->why = *why;
	exam_fail(r, e, err);
}

int exam_match(struct run *r, struct exam *e, const struct object *object, uint64_t number,
	       const struct target *target, bool link)
{
	bool matched = e->layout == target->layout && identity_equal(&e->dtypes, &target->dtypes);
	struct opened *opened = NULL;
	bool noted, needs_link;
	char name[48];
	int err = 0;

	if (e->link != NULL && link_broken(e->link)) {
		link_unref(e->link);
		e->link = NULL;
	}
	if (matched && (!link || e->patches == 0 || e->link != NULL))
		return 0;
	if (!matched)
		exam_unmatch(e);
	e->why = (struct why){0};
	noted = !matched && note_fits(e, target);
	if (noted)
		e->patches = e->noted.patches;
	if (!matched && !noted) {
		err = opened_get(r, object, &opened, &e->why);
		if (err == 0)
			err = match_parts(r, e, opened->delta, target, &e->why);
		if (err == 0)
			note_write(r, e, opened->delta, target);
	}
	patch_name(r, e, name);
	needs_link = err == 0 && link && e->patches > 0 && !find_link(r, e, number, target, name);
	if (needs_link)
		err = not_stopped(r, &e->why);
	if (needs_link && err == 0 && opened == NULL)
		err = opened_get(r, object, &opened, &e->why);
	if (needs_link && err == 0)
		err = make_link(r, e, opened, number, target, name, true, &e->why);
	if (err == 0 && e->blind && e->link != NULL)
		e->changed = e->link->changed;
	if (err < 0) {
		exam_unmatch(e);
		exam_fail(r, e, err);
	} else if (!matched) {
		e->layout = layout_ref(target->layout);
		e->dtypes = target->dtypes;
	}
	opened_put(opened);
	return err;
}
