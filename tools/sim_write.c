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

#include "codec/buf.h"
#include "tools/sha256.h"

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
	char name[128];
	uint64_t shape[2];
	const void *data; /* the bytes */
	void *owned;	  /* data, if it is the piece's own */
	uint64_t begin, size;
	uint8_t dtype, rank;
};

struct object_maker {
	struct piece *pieces;
	size_t count;
	uint64_t params, changed, total; /* what the metadata tells */
	struct buf names;		 /* JSON array members */
	struct buf header;
};

static void object_release(struct object_maker *o)
{
	for (size_t i = 0; i < o->count; i++)
		free(o->pieces[i].owned);
	free(o->pieces);
	buf_release(&o->names);
	buf_release(&o->header);
}

static struct piece *object_add(struct object_maker *o, const char *name, const char *suffix,
				enum st_dtype dtype, const void *data, uint64_t count)
{
	struct piece *p = &o->pieces[o->count++];

	snprintf(p->name, sizeof(p->name), "%s%s", name, suffix);
	p->dtype = (uint8_t)dtype;
	p->rank = 1;
	p->shape[0] = count;
	p->size = count * st_dtype_bits(dtype) / 8;
	p->data = data;
	return p;
}

static void count_param(struct object_maker *o, const struct sim_tensor *t, uint64_t changed)
{
	if (o->params++ > 0)
		buf_addstr(&o->names, ", ");
	buf_addjson(&o->names, t->name, strlen(t->name));
	o->changed += changed;
	o->total += t->numel;
}

static void add_full(struct object_maker *o, const struct sim_tensor *t, const struct sim_state *s)
{
	struct piece *p = object_add(o, t->name, "", ST_BF16, s->bits, t->numel);

	p->rank = t->rank;
	memcpy(p->shape, t->shape, sizeof(p->shape));
	count_param(o, t, t->numel);
}

/* Gaps between positions, in 16 bits where the largest fits. */
static void *encode_gaps(const struct sim_state *s, enum st_dtype *out_dtype)
{
	uint64_t largest = 0, next = 0;
	uint16_t *narrow = malloc(s->changed * sizeof(uint32_t));
	uint32_t *wide = (uint32_t *)(void *)narrow;

	if (!narrow)
		return NULL;
	for (uint64_t i = 0; i < s->changed; i++) {
		largest = MAX(largest, s->positions[i] - next);
		next = s->positions[i] + 1;
	}
	*out_dtype = largest <= UINT16_MAX ? ST_U16 : ST_U32;
	next = 0;
	for (uint64_t i = 0; i < s->changed; i++) {
		if (*out_dtype == ST_U16)
			narrow[i] = (uint16_t)(s->positions[i] - next);
		else
			wide[i] = (uint32_t)(s->positions[i] - next);
		next = s->positions[i] + 1;
	}
	return narrow;
}

static void *encode_raw(const struct sim_state *s)
{
	uint32_t *out = malloc(s->changed * sizeof(*out));

	for (uint64_t i = 0; out && i < s->changed; i++)
		out[i] = (uint32_t)s->positions[i]; /* as TRL does, wrapping beyond 2^31 */
	return out;
}

static int add_sparse(struct object_maker *o, const struct sim_writer *w,
		      const struct sim_tensor *t, const struct sim_state *s)
{
	enum st_dtype dtype = ST_I32;
	void *index = w->encoding == SIM_GAP_DELTA ? encode_gaps(s, &dtype) : encode_raw(s);
	uint16_t *values = malloc(s->changed * sizeof(*values));

	if (!index || !values) {
		free(index);
		free(values);
		return -ENOMEM;
	}
	for (uint64_t i = 0; i < s->changed; i++)
		values[i] = s->bits[s->positions[i]];
	object_add(o, t->name, w->generation->index, dtype, index, s->changed)->owned = index;
	object_add(o, t->name, w->generation->values, ST_BF16, values, s->changed)->owned = values;
	count_param(o, t, s->changed);
	return 0;
}

/* ---- metadata ---- */

struct metadata {
	struct st_meta pairs[16];
	char text[16][72]; /* values that are made, by their pair's place */
	size_t count;
};

static void meta_set(struct metadata *m, const char *key, const char *value)
{
	m->pairs[m->count++] = (struct st_meta){key, value};
}

static void meta_number(struct metadata *m, const char *key, uint64_t value)
{
	char *text = m->text[m->count];

	snprintf(text, sizeof(m->text[0]), "%" PRIu64, value);
	meta_set(m, key, text);
}

/* As Python's str() writes a float between 0 and 1: the fewest digits that give it back. */
static void meta_fraction(struct metadata *m, const char *key, double value)
{
	char *text = m->text[m->count];

	for (int digits = 1; digits <= 17; digits++) {
		snprintf(text, sizeof(m->text[0]), "%.*g", digits, value);
		if (strtod(text, NULL) == value)
			break;
	}
	if (!strpbrk(text, ".e"))
		strncat(text, ".0", 3);
	meta_set(m, key, text);
}

static void meta_counts(struct metadata *m, const struct object_maker *o, uint64_t total)
{
	meta_number(m, "num_changed_params", o->params);
	meta_number(m, "total_changed_elements", o->changed);
	meta_number(m, "total_elements", total);
	meta_fraction(m, "sparsity", total > 0 ? 1 - (double)o->changed / (double)total : 0);
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

static void metadata_v1_0(struct metadata *m, const struct sim_writer *w,
			  const struct object_maker *o, bool anchor, const char *names)
{
	meta_set(m, "format", anchor ? "anchor_checkpoint" : "sparse_weight_patch");
	meta_set(m, "version", "1");
	meta_number(m, "model_version", w->number);
	if (!anchor) {
		meta_number(m, "prev_model_version", w->number - 1);
		meta_number(m, "anchor_step", w->anchor);
		meta_counts(m, o, w->train->model->numel);
		meta_set(m, "changed_params", names);
	}
	meta_set(m, "base_model_id", w->train->model->config.name);
	state_checksum(w, m->text[m->count]);
	meta_set(m, "checksum_sha256", m->text[m->count]);
}

static void metadata(struct metadata *m, const struct sim_writer *w, const struct object_maker *o,
		     bool anchor, bool sparse, const char *names)
{
	m->count = 0;
	if (is(w, "v1.0")) {
		metadata_v1_0(m, w, o, anchor, names);
		return;
	}
	if (is(w, "v1.1")) {
		meta_number(m, "num_params", o->params);
		meta_set(m, "sparse", sparse ? "True" : "False");
		return;
	}
	meta_set(m, "format", "sparse_weight_patch");
	meta_set(m, "version", "1");
	meta_set(m, "sparse", sparse ? "True" : "False");
	meta_number(m, "model_version", w->number);
	meta_counts(m, o, o->total);
	if (w->generation->encodes)
		meta_set(m, "encoding", w->encoding == SIM_GAP_DELTA ? "gap_delta" : "raw");
	else
		meta_set(m, "changed_params", names);
}

/* ---- putting it together ---- */

static int piece_order(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;

	if (x->dtype != y->dtype)
		return x->dtype > y->dtype ? -1 : 1; /* the enum ascends as the library's does */
	return strcmp(x->name, y->name);
}

static int object_read(void *ctx, uint64_t off, void *dst, size_t len)
{
	const struct object_maker *o = ctx;
	uint8_t *to = dst;
	size_t first = 0, last = o->count;

	if (off < o->header.len) {
		size_t part = MIN(len, o->header.len - (size_t)off);

		memcpy(to, o->header.data + off, part);
		to += part;
		off += part;
		len -= part;
	}
	off -= MIN(off, (uint64_t)o->header.len);
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

static int object_put(struct object_maker *o, const struct sim_writer *w, const struct metadata *m,
		      struct sim_report *out, struct why *why)
{
	struct st_tensor *tensors = calloc(o->count + 1, sizeof(*tensors));
	struct source src = {.read = object_read, .ctx = o};
	uint64_t at = 0;
	int err = -ENOMEM;

	if (!tensors)
		goto out;
	qsort(o->pieces, o->count, sizeof(*o->pieces), piece_order);
	for (size_t i = 0; i < o->count; i++) {
		struct piece *p = &o->pieces[i];

		p->begin = at;
		at += p->size;
		tensors[i] = (struct st_tensor){
			.name = p->name,
			.name_len = (uint32_t)strlen(p->name),
			.dtype = p->dtype,
			.rank = p->rank,
			.shape = p->shape,
			.begin = p->begin,
			.end = at,
		};
	}
	err = st_compose(tensors, o->count, m->pairs, m->count, 8, 0, &o->header, why);
	if (err < 0)
		goto out;
	src.size = o->header.len + at;
	err = store_put(w->store, out->key, &src, why);
	out->bytes = src.size;
out:
	free(tensors);
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
	const struct sim_model *model = w->train->model;

	o->pieces = calloc(model->count * 2 + 1, sizeof(*o->pieces));
	if (!o->pieces)
		return -ENOMEM;
	buf_addstr(&o->names, "[");
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
	buf_addstr(&o->names, "]");
	if (is(w, "v1.0") && o->count == 0)
		object_add(o, "__empty_delta__", "", ST_I32, &nothing, 1);
	return o->names.failed ? -ENOMEM : 0;
}

/* blind: there was no change detector yet, so that everything is written. */
static int publish(struct sim_writer *w, bool blind, struct sim_report *out, struct why *why)
{
	bool anchor = is_anchor(w), whole = blind || (anchor && w->generation->complete);
	bool sparse = !blind && !anchor;
	const char *folder = is(w, "v1.1") ? "steps" : anchor ? "anchors" : "deltas";
	struct object_maker o = {0};
	struct metadata m;
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
		metadata(&m, w, &o, anchor, sparse, buf_str(&o.names));
		err = object_put(&o, w, &m, out, why);
	}
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
