/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a run's objects record of their tensors.
 *
 * From a version's own delta downwards, until each tensor has been met: the last object that
 * changes a tensor says what it is, or does not, and then nothing is recorded of it.  When the next
 * version comes only its deltas are looked into, and what was right and is not changed by them
 * stays so.  A chain with a delta in an encoding without checksums records nothing of tensors,
 * since which of them that changes is not looked up.
 *
 * No state of its own; the run's thread.
 */
#include "fs/run_internal.h"

#include <stdio.h>
#include <stdlib.h>

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
	if (!may_record(p->entry))
		return 0;
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
	if (err == 0 && c.left > 0)
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

void recorded_whole(const struct run *r, const struct step *s, bool states, struct checks *out)
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
struct identity recorded_chain(const struct run *r, size_t base, size_t last)
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
	id = recorded_chain(r, base, from);
	if (!identity_equal(&id, &known->chain) || checks_copy(&known->checks, out) < 0)
		return false;
	for (size_t i = from + 1; i <= last; i++)
		if (!may_record(r->lineage.steps[i].delta.entry) ||
		    take_pieces(&c, &r->lineage.steps[i].delta, r->lineage.steps[i].number) < 0) {
			checks_release(out);
			return false;
		}
	return true;
}

int recorded_pieces(struct run *r, const struct pieces *p, uint64_t version, struct checks *out)
{
	struct collect c = {.r = r, .out = out};

	return take_pieces(&c, p, version);
}

int recorded_collect(struct run *r, const struct plan *p, struct layout *layout, bool states,
		     struct checks *out)
{
	int err;

	*out = (struct checks){0};
	if (r->lineage.manifest == NULL)
		return 0;
	if (extend(r, p->base, p->last, layout, out)) {
		recorded_whole(r, &r->lineage.steps[p->last], states, out);
		return 0;
	}
	err = checks_new(layout, out);
	if (err == 0 && are_recorded(r, p->base, p->last))
		err = collect_all(r, p->base, p->last, out);
	if (err == 0)
		recorded_whole(r, &r->lineage.steps[p->last], states, out);
	else
		checks_release(out);
	return err;
}
