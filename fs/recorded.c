/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a run's objects record of their tensors, and what follows when a version has other bytes.
 *
 * Collecting goes from a version's own delta downwards, until each tensor has been met: the last
 * object that changes a tensor says what it is, or does not, and then nothing is recorded of it.
 * When the next version comes only its deltas are looked into, and what was right and is not
 * changed by them stays so.
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

/* Does the entry's encoding have checksums?  Our own formats protect themselves. */
static bool may_record(const struct manifest_entry *e)
{
	return e != NULL &&
	       (format_named(e->encoding) != NULL || e->whole_kind != CHECKSUM_NONE ||
		strcmp(e->encoding, "hfdir") == 0 || strcmp(e->encoding, "base") == 0 ||
		strcmp(e->encoding, "xor-zstd") == 0);
}

/* ---- collecting ---- */

struct collect {
	struct run *r;
	struct checks *out;
	bool *met;   /* tensors that a later object has said something of; NULL: take all */
	size_t left; /* tensors that have not been met */
};

static void take_part(struct collect *c, const struct part *part, uint32_t t, uint64_t version)
{
	struct check *check = &c->out->v[t];

	if (c->met != NULL) {
		if (c->met[t])
			return;
		c->met[t] = true;
		c->left--;
	}
	*check = (struct check){.version = version};
	if (part->checksum_kind != CHECKSUM_NONE &&
	    strlen(part->checksum) == checksum_digits(part->checksum_kind)) {
		check->kind = (uint8_t)part->checksum_kind;
		snprintf(check->hex, sizeof(check->hex), "%s", part->checksum);
	}
}

static int take_pieces(struct collect *c, const struct pieces *p, uint64_t version)
{
	for (size_t i = 0; i < p->count; i++) {
		struct opened *opened = NULL;
		int err = opened_get(c->r, p->v[i].object, &opened, NULL);

		if (err < 0)
			return err;
		for (size_t k = 0; k < opened->delta->count; k++) {
			const struct part *part = &opened->delta->parts[k];
			uint32_t t = LAYOUT_NONE;

			if (part->kind == PART_SPARSE && part->changed == 0)
				continue;
			if (exam_target(c->r, c->out->layout, opened->delta, part, &t, NULL) == 0 &&
			    t != LAYOUT_NONE)
				take_part(c, part, t, version);
		}
		opened_put(opened);
	}
	return 0;
}

static bool are_recorded(const struct run *r, size_t base, size_t last)
{
	for (size_t i = base + 1; i <= last; i++)
		if (!may_record(r->lineage.steps[i].delta.entry))
			return false;
	return true;
}

/* From the newest downwards; what cannot be opened (a span may stand for it) says nothing, and
 * nothing below it is believed. */
static int collect_all(struct run *r, size_t base, size_t last, struct checks *out)
{
	struct collect c = {.r = r, .out = out, .left = out->layout->tensor_count};
	int err = 0;

	c.met = calloc(out->layout->tensor_count + 1, sizeof(*c.met));
	if (c.met == NULL)
		return -ENOMEM;
	for (uint32_t t = 0; t < out->layout->tensor_count; t++)
		if (out->layout->tensors[t].alias != t) {
			c.met[t] = true;
			c.left--;
		}
	for (size_t i = last; i > base && c.left > 0 && err == 0; i--)
		err = take_pieces(&c, &r->lineage.steps[i].delta, r->lineage.steps[i].number);
	if (err == 0 && c.left > 0 && may_record(r->lineage.steps[base].anchor.entry))
		err = take_pieces(&c, &r->lineage.steps[base].anchor,
				  r->lineage.steps[base].number);
	free(c.met);
	return err == -ENOMEM ? err : 0;
}

static const struct manifest_entry *entry_of(const struct step *s)
{
	if (s->delta.entry != NULL && s->delta.entry->whole_kind != CHECKSUM_NONE)
		return s->delta.entry;
	return s->anchor.entry;
}

static void take_whole(struct run *r, const struct step *s, bool states, struct checks *out)
{
	const struct manifest_entry *e = entry_of(s);
	const struct check before = out->whole;
	const uint8_t *state;

	out->whole = (struct check){.version = s->number};
	out->has_state = false;
	if (r->base != NULL)
		return;
	if (e != NULL && e->whole_kind != CHECKSUM_NONE) {
		out->whole.kind = (uint8_t)e->whole_kind;
		snprintf(out->whole.hex, sizeof(out->whole.hex), "%s", e->whole);
		out->whole.done = before.done && before.version == s->number &&
				  strcmp(before.hex, e->whole) == 0;
	}
	state = states && lineage_is_declared(&r->lineage)
			? manifest_state(r->lineage.manifest, s->number)
			: NULL;
	if (state != NULL) {
		out->has_state = true;
		out->state_done = false;
		memcpy(out->state, state, sizeof(out->state));
	}
}

/* What the steps up to an index are made of. */
static struct identity chain_id(const struct run *r, size_t base, size_t last)
{
	struct identity id = {0};

	for (size_t i = base; i <= last; i++) {
		const struct step *s = &r->lineage.steps[i];
		const struct pieces *p = i == base ? &s->anchor : &s->delta;

		identity_mix(&id, &s->number, sizeof(s->number));
		for (size_t k = 0; k < p->count; k++)
			identity_mix(&id, p->v[k].object->id.bytes,
				     sizeof(p->v[k].object->id.bytes));
	}
	return id;
}

/* Goes on from what is known of a version below, if the chain goes on from that. */
static bool extend(struct run *r, size_t base, size_t last, struct layout *layout,
		   struct checks *out)
{
	const struct recorded *known = &r->recorded;
	const struct step *at = lineage_find(&r->lineage, known->version);
	struct collect c = {.r = r, .out = out};
	struct identity id;
	size_t from;

	if (known->checks.layout != layout || at == NULL)
		return false;
	from = (size_t)(at - r->lineage.steps);
	if (from < base || from > last)
		return false;
	id = chain_id(r, base, from);
	if (!identity_equal(&id, &known->chain) || checks_copy(&known->checks, out) < 0)
		return false;
	for (size_t i = from + 1; i <= last; i++)
		if (take_pieces(&c, &r->lineage.steps[i].delta, r->lineage.steps[i].number) < 0) {
			checks_release(out);
			return false;
		}
	return true;
}

static int collect(struct run *r, size_t base, size_t last, struct layout *layout, bool states,
		   struct checks *out)
{
	int err = 0;

	*out = (struct checks){0};
	if (r->lineage.manifest == NULL)
		return 0;
	if (extend(r, base, last, layout, out)) {
		take_whole(r, &r->lineage.steps[last], states, out);
		return 0;
	}
	err = checks_new(layout, out);
	if (err == 0 && are_recorded(r, base, last))
		err = collect_all(r, base, last, out);
	if (err == 0)
		take_whole(r, &r->lineage.steps[last], states, out);
	else
		checks_release(out);
	return err;
}

static void remember(struct run *r, const struct plan *p, struct checks *checks)
{
	struct recorded *k = &r->recorded;

	checks_release(&k->checks);
	k->checks = *checks;
	*checks = (struct checks){0};
	k->version = r->lineage.steps[p->last].number;
	k->chain = chain_id(r, p->base, p->last);
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
		take_whole(r, s, true, out);
		found = out->whole.kind != CHECKSUM_NONE || out->has_state;
	}
	for (size_t k = 0; k < p->count && t != LAYOUT_NONE && !found; k++) {
		struct collect c = {.r = r, .out = out};

		if (take_pieces(&c, &(struct pieces){.v = &p->v[k], .count = 1}, s->number) < 0)
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
		wrong = checks_compare(state, &checks, 1, NULL, &miss, NULL) == -EBADMSG;
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
	if (object == NULL)
		return 0;
	describe(r, tensor, &first, text);
	err = add_bad(r, object, text);
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

int recorded_admit(struct run *r, const struct plan *p, const struct state *state,
		   enum verified *out, struct why *why)
{
	struct check_miss miss = {0};
	struct checks checks;
	int err;

	*out = VERIFIED_NO;
	if (r->config.verify != VERIFY_EAGER || r->config.history == NULL)
		return 0;
	err = collect(r, p->base, p->last, state->layout, true, &checks);
	if (err < 0)
		return why_set(why, ENOMEM, "out of memory");
	err = checks_compare(state, &checks, processors(), NULL, &miss, why);
	*out = checks_sum(&checks);
	if (err == 0 && checks.layout != NULL)
		remember(r, p, &checks);
	else if (err == -EBADMSG && blame(r, p->base, p->last, state->layout, &miss) < 0)
		err = why_set(why, ENOMEM, "out of memory");
	checks_release(&checks);
	return err;
}

/* ---- after it has ---- */

static bool is_near(const struct state *s)
{
	uint64_t present, size;

	state_progress(s, &present, &size);
	return present == size;
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
	if (base == NULL || last == NULL || base > last ||
	    strcmp(r->newest->lineage, r->label) != 0)
		return;
	p.base = (size_t)(base - r->lineage.steps);
	p.last = (size_t)(last - r->lineage.steps);
	if (collect(r, p.base, p.last, s->layout, false, &checks) < 0)
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
	if (k->work != NULL && !check_work_busy(k->work) && is_near(r->newest->state))
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

int run_check(struct run *r, const struct state *state, bool own, struct check_result *out,
	      struct why *why)
{
	const struct step *base = lineage_find(&r->lineage, state->anchor);
	const struct step *last = lineage_find(&r->lineage, state->version);
	struct check_miss miss = {0};
	struct checks checks = {0};
	char text[480];
	size_t from, to;
	int err;

	*out = (struct check_result){0};
	if (base == NULL || last == NULL || base > last || r->lineage.manifest == NULL)
		return 0;
	from = (size_t)(base - r->lineage.steps);
	to = (size_t)(last - r->lineage.steps);
	if (own) {
		struct collect c = {.r = r, .out = &checks};

		err = checks_new(state->layout, &checks);
		if (err == 0 && to == from && may_record(last->anchor.entry))
			err = take_pieces(&c, &last->anchor, last->number);
		if (err == 0 && may_record(last->delta.entry))
			err = take_pieces(&c, &last->delta, last->number);
		/* Beside an anchor it is not needed. */
		if (err < 0 && to == from && last->delta.present)
			err = 0;
		if (err == 0)
			take_whole(r, last, false, &checks);
	} else {
		err = collect(r, from, to, state->layout, false, &checks);
	}
	if (err < 0)
		why_set(why, -err, "what is recorded of its tensors cannot be read");
	if (err == 0)
		err = checks_compare(state, &checks, processors(), NULL, &miss, why);
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
