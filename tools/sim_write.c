/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a sync as each generation of TRL's delta weight sync does.
 *
 * A generation is a row of the table below.  Common to all: number 1 is the starting policy, whole;
 * then each sync is an anchor or a delta of the elements whose bf16 bits differ.  They differ in
 * names, in whether a sync without changes takes a number, in what a periodic anchor holds and in
 * what the second sync is.  The detectors of real trainers miss some changes; this one misses none,
 * so that the files tell the whole state.
 *
 * An object is laid out as the safetensors library would: dtypes from large to small, then names.
 * Values go out from the state itself; only index arrays and gathered values are copied.
 */
#include "tools/sim_write.h"

#include "codec/write_trl.h"
#include "codec/sha256.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
	       "arrays are written as they lie in memory");

static const struct sim_generation generations[] = {
	{"v1.0", ".indices", ".values", 10, false, true, true, false, SIM_SECOND_DELTA},
	{"v1.1", ".indices", ".values", 0, false, true, false, false, SIM_SECOND_ANCHOR},
	{"v1.2", ".indices", ".values", 10, true, true, false, false, SIM_SECOND_ANCHOR},
	{"v1.3", ".indices", ".values", 10, false, false, false, false, SIM_SECOND_FULL_DELTA},
	{"v2", ".idx", ".val", 10, false, false, true, true, SIM_SECOND_DELTA},
	{"v3", ".idx", ".val", 20, false, true, true, true, SIM_SECOND_DELTA},
};

static bool is(const struct sim_writer *w, const char *name)
{
	return strcmp(w->generation->name, name) == 0;
}

const struct sim_generation *sim_generation_find(const char *name, struct why *why)
{
	for (size_t i = 0; i < ARRAY_LEN(generations); i++)
		if (strcmp(generations[i].name, name) == 0)
			return &generations[i];
	why_set(why, EINVAL, "there is no generation \"%s\"; there are: v1.0 v1.1 v1.2 v1.3 v2 v3",
		name);
	return NULL;
}

void sim_writer_init(struct sim_writer *w, const struct sim_generation *generation,
		     struct store *store, const struct sim_train *train)
{
	*w = (struct sim_writer){
		.generation = generation,
		.store = store,
		.train = train,
		.encoding = generation->encodes ? SIM_GAP_DELTA : SIM_RAW,
		.interval = generation->interval,
	};
}

/* ---- an object in the making ---- */

struct piece {
	const void *data;
	uint64_t begin, size; /* in the object */
};

struct object_maker {
	struct trl_tensor *tensors; /* count of them */
	struct arrays {
		const void *values; /* or the whole tensor */
		void *index, *own;  /* own: values, if they are its own */
	} *arrays;		    /* likewise */
	struct piece *pieces;
	size_t count, piece_count;
	uint64_t params, changed, total; /* what the metadata tells */
	struct buf header;
};

static void object_release(struct object_maker *o)
{
	for (size_t i = 0; i < o->count; i++) {
		free(o->arrays[i].index);
		free(o->arrays[i].own);
	}
	free(o->tensors);
	free(o->arrays);
	free(o->pieces);
	buf_release(&o->header);
}

static struct trl_tensor *object_add(struct object_maker *o, const struct sim_tensor *t)
{
	struct trl_tensor *out = &o->tensors[o->count++];

	*out = (struct trl_tensor){
		.name = t->name,
		.shape = t->shape,
		.numel = t->numel,
		.dtype = ST_BF16,
		.rank = t->rank,
	};
	o->params++;
	o->total += t->numel;
	return out;
}

static void add_full(struct object_maker *o, const struct sim_tensor *t, const struct sim_state *s)
{
	o->arrays[o->count].values = s->bits;
	object_add(o, t)->whole = true;
	o->changed += t->numel;
}

static const struct trl_form *form_of(const struct sim_writer *w)
{
	if (!w->generation->encodes)
		return &trl_form_v1;
	return w->encoding == SIM_GAP_DELTA ? &trl_form_gaps : &trl_form_raw;
}

static int add_sparse(struct object_maker *o, const struct sim_writer *w,
		      const struct sim_tensor *t, const struct sim_state *s)
{
	struct arrays *arrays = &o->arrays[o->count];
	struct trl_tensor *out = object_add(o, t);
	uint16_t *values = malloc(s->changed * sizeof(*values));
	uint64_t next = 0;

	arrays->index = malloc(s->changed * sizeof(uint32_t));
	arrays->values = arrays->own = values;
	if (!arrays->index || !values)
		return -ENOMEM;
	for (uint64_t i = 0; i < s->changed; i++)
		values[i] = s->bits[s->positions[i]];
	trl_count(out, s->positions, s->changed);
	trl_index(form_of(w), out, s->positions, s->changed, &next, arrays->index);
	o->changed += s->changed;
	return 0;
}

/* ---- metadata ---- */

/* What is older than codec/write_trl.c knows. */
static void meta_set(struct trl_meta *m, const char *key, const char *value)
{
	m->pairs[m->count++] = (struct st_meta){key, value};
}

static void meta_number(struct trl_meta *m, const char *key, uint64_t value)
{
	char *text = m->text[m->count];

	snprintf(text, sizeof(m->text[0]), "%" PRIu64, value);
	meta_set(m, key, text);
}

static void state_checksum(const struct sim_writer *w, char out[65])
{
	const struct sim_model *model = w->train->model;
	struct sha256 sha;

	sha256_init(&sha);
	for (size_t i = 0; i < model->count; i++)
		sha256_update(&sha, w->train->states[i].bits, model->tensors[i].numel * 2);
	sha256_hex(&sha, out);
}

static void metadata_v1_0(struct trl_meta *m, const struct sim_writer *w,
			  const struct object_maker *o, bool anchor)
{
	const uint64_t total = w->train->model->numel;

	m->count = 0;
	meta_set(m, "format", anchor ? "anchor_checkpoint" : "sparse_weight_patch");
	meta_set(m, "version", "1");
	meta_number(m, "model_version", w->number);
	if (!anchor) {
		meta_number(m, "prev_model_version", w->number - 1);
		meta_number(m, "anchor_step", w->anchor);
		meta_number(m, "num_changed_params", o->params);
		meta_number(m, "total_changed_elements", o->changed);
		meta_number(m, "total_elements", total);
		trl_fraction(1 - (double)o->changed / (double)total, m->text[m->count]);
		meta_set(m, "sparsity", m->text[m->count]);
		meta_set(m, "changed_params", buf_str(&m->names));
	}
	meta_set(m, "base_model_id", w->train->model->config.name);
	state_checksum(w, m->text[m->count]);
	meta_set(m, "checksum_sha256", m->text[m->count]);
}

static void metadata(struct trl_meta *m, const struct sim_writer *w, const struct object_maker *o,
		     bool anchor, bool sparse)
{
	/* v1.0's marker of an empty delta is no parameter. */
	trl_meta_make(m, form_of(w), w->number, sparse, o->tensors, o->params);
	if (is(w, "v1.0")) {
		metadata_v1_0(m, w, o, anchor);
	} else if (is(w, "v1.1")) {
		m->count = 0;
		meta_number(m, "num_params", o->params);
		meta_set(m, "sparse", sparse ? "True" : "False");
	}
}

/* ---- putting it together ---- */

static int piece_order(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;

	return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static void list_pieces(struct object_maker *o, const struct sim_writer *w)
{
	for (size_t i = 0; i < o->count; i++) {
		const struct trl_tensor *t = &o->tensors[i];
		const struct arrays *a = &o->arrays[i];
		const uint64_t values = t->whole ? t->numel : t->changed;
		const uint64_t width = st_dtype_width(trl_index_dtype(form_of(w), t));

		o->pieces[o->piece_count++] =
			(struct piece){a->values, t->values_at, values * st_dtype_width(t->dtype)};
		if (!t->whole)
			o->pieces[o->piece_count++] =
				(struct piece){a->index, t->index_at, t->changed * width};
	}
	qsort(o->pieces, o->piece_count, sizeof(*o->pieces), piece_order);
}

static int object_read(void *ctx, uint64_t off, void *dst, size_t len)
{
	const struct object_maker *o = ctx;
	uint8_t *to = dst;
	size_t first = 0, last = o->piece_count;

	if (off < o->header.len) {
		size_t part = MIN(len, o->header.len - (size_t)off);

		memcpy(to, o->header.data + off, part);
		to += part;
		off += part;
		len -= part;
	}
	while (first < last) { /* the first piece that ends after off */
		size_t middle = first + (last - first) / 2;

		if (o->pieces[middle].begin + o->pieces[middle].size <= off)
			first = middle + 1;
		else
			last = middle;
	}
	for (; len > 0; first++) {
		const struct piece *p = &o->pieces[first];
		uint64_t skip = off - p->begin;
		size_t part = (size_t)MIN((uint64_t)len, p->size - skip);

		memcpy(to, (const uint8_t *)p->data + skip, part);
		to += part;
		off += part;
		len -= part;
	}
	return 0;
}

static int object_put(struct object_maker *o, const struct sim_writer *w, const struct trl_meta *m,
		      struct sim_report *out, struct why *why)
{
	struct source src = {.read = object_read, .ctx = o};
	int err;

	if (m->names.failed)
		return why_set(why, ENOMEM, "%s: out of memory", out->key);
	err = trl_layout(form_of(w), o->tensors, o->count, m->pairs, m->count, &o->header,
			 &src.size, why);
	if (err < 0)
		return err;
	list_pieces(o, w);
	err = store_put(w->store, out->key, &src, why);
	out->bytes = src.size;
	return err;
}

static bool is_anchor(const struct sim_writer *w)
{
	uint64_t count = w->generation->counted_on_syncs ? w->syncs : w->number;

	if (w->number == 1 || (w->number == 2 && w->generation->second == SIM_SECOND_ANCHOR))
		return true;
	return w->interval > 0 && count % w->interval == 0;
}

static int fill(struct object_maker *o, const struct sim_writer *w, bool whole, bool sparse)
{
	static const uint32_t nothing;
	static const uint64_t one = 1;
	const struct sim_model *model = w->train->model;

	o->tensors = calloc(model->count + 1, sizeof(*o->tensors));
	o->arrays = calloc(model->count + 1, sizeof(*o->arrays));
	o->pieces = calloc(model->count * 2 + 1, sizeof(*o->pieces));
	if (!o->tensors || !o->arrays || !o->pieces)
		return -ENOMEM;
	for (size_t i = 0; i < model->count; i++) {
		const struct sim_state *s = &w->train->states[i];
		int err = 0;

		if (whole || (!sparse && s->changed > 0))
			add_full(o, &model->tensors[i], s);
		else if (s->changed > 0)
			err = add_sparse(o, w, &model->tensors[i], s);
		if (err < 0)
			return err;
	}
	if (is(w, "v1.0") && o->count == 0) {
		o->arrays[0].values = &nothing;
		o->tensors[o->count++] = (struct trl_tensor){
			.name = "__empty_delta__",
			.shape = &one,
			.numel = 1,
			.dtype = ST_I32,
			.rank = 1,
			.whole = true,
		};
	}
	return 0;
}

/* blind: there was no change detector yet, so that everything is written. */
static int publish(struct sim_writer *w, bool blind, struct sim_report *out, struct why *why)
{
	bool anchor = is_anchor(w), whole = blind || (anchor && w->generation->complete);
	bool sparse = !blind && !anchor;
	const char *folder = is(w, "v1.1") ? "steps" : anchor ? "anchors" : "deltas";
	struct object_maker o = {0};
	struct trl_meta m = {0};
	int err;

	out->kind = sparse ? "delta" : !whole ? "partial anchor" : anchor ? "anchor" : "full";
	snprintf(out->key, sizeof(out->key), "%s/step_%06" PRIu64 ".safetensors", folder,
		 w->number);
	if (anchor)
		w->anchor = w->number;
	err = fill(&o, w, whole, sparse);
	if (err < 0) {
		why_set(why, -err, "%s: out of memory", out->key);
	} else {
		metadata(&m, w, &o, anchor, sparse);
		err = object_put(&o, w, &m, out, why);
	}
	trl_meta_release(&m);
	object_release(&o);
	return err;
}

int sim_writer_sync(struct sim_writer *w, struct sim_report *out, struct why *why)
{
	const struct sim_generation *g = w->generation;
	bool blind = w->number == 0 || (w->number == 1 && g->second != SIM_SECOND_DELTA);
	uint64_t changed = sim_train_changed(w->train);

	w->syncs++;
	*out = (struct sim_report){.changed = w->number == 0 ? 0 : changed, .kind = "nothing"};
	if (!blind && changed == 0 && !g->holes) {
		out->number = w->number; /* no change, no number */
		return 0;
	}
	out->number = ++w->number;
	if (!blind && changed == 0 && !is(w, "v1.0") && !(is_anchor(w) && g->complete))
		return 0; /* the number is taken, by no object */
	return publish(w, blind, out, why);
}
