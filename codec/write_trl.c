/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The writer of TRL's objects: counting, layout, metadata and index bytes.
 *
 * What TRL itself writes is always bf16.  Here a tensor keeps its dtype: TRL's receivers assign the
 * values through torch, which converts to the dtype of their copy, and a reader that compares
 * dtypes, as ours does, gets the same bits back.  Elements that are no whole bytes (F4, F6) have no
 * positions in these formats.
 *
 * Not here: I/O, and which elements change; the caller walks the tensors.
 */
#include "codec/write_trl.h"

#include "codec/arena.h"
#include "codec/patch_block.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

const struct trl_form trl_form_v1 = {".indices", ".values", NULL, false};
const struct trl_form trl_form_gaps = {".idx", ".val", "gap_delta", true};
const struct trl_form trl_form_raw = {".idx", ".val", "raw", false};

void trl_count(struct trl_tensor *t, const uint64_t *positions, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		t->widest = MAX(t->widest, positions[i] - t->next);
		t->next = positions[i] + 1;
	}
	t->changed += n;
}

int trl_check(const struct trl_form *form, const struct trl_tensor *t, struct why *why)
{
	if (t->whole || t->changed == 0)
		return 0;
	if (st_dtype_bits(t->dtype) % 8 != 0)
		return why_set(
			why, ENOTSUP,
			"tensor \"%s\" is %s, whose single elements TRL's deltas cannot name; "
			"publish with --encoding wfp1",
			SHOWN(t->name), st_dtype_name(t->dtype));
	/* Gaps would get further, but TRL's own reader casts what it decodes to 32 bits. */
	if (t->numel > (uint64_t)INT32_MAX + 1)
		return why_set(why, ENOTSUP,
			       "tensor \"%s\" has %" PRIu64 " elements, more than the 2^31 that "
			       "TRL's 32-bit %s can name; publish with --encoding wfp1",
			       SHOWN(t->name), t->numel, form->gaps ? "gaps" : "positions");
	return 0;
}

enum st_dtype trl_index_dtype(const struct trl_form *form, const struct trl_tensor *t)
{
	if (!form->gaps)
		return ST_I32;
	return t->widest <= UINT16_MAX ? ST_U16 : ST_U32;
}

void trl_index(const struct trl_form *form, const struct trl_tensor *t, const uint64_t *positions,
	       size_t n, uint64_t *next, void *dst)
{
	const enum st_dtype dtype = trl_index_dtype(form, t);
	uint8_t *out = dst;

	for (size_t i = 0; i < n; i++) {
		const uint64_t value = form->gaps ? positions[i] - *next : positions[i];

		if (dtype == ST_U16)
			store_le16(out + 2 * i, (uint16_t)value);
		else
			store_le32(out + 4 * i, (uint32_t)value);
		*next = positions[i] + 1;
	}
}

/* ---- which elements ---- */

/* The positions of a RAW block or piece, added behind the *count that are there. */
static int add_positions(const struct patch_block *b, uint64_t first, uint64_t *positions,
			 size_t *count)
{
	for (uint32_t i = 0; i < b->count; i++) {
		const uint64_t at = load_le16(b->positions + 2 * (size_t)i);

		if (at >= b->elements || *count >= PATCH_BLOCK ||
		    (*count > 0 && first + at <= positions[*count - 1]))
			return -EBADMSG;
		positions[(*count)++] = first + at;
	}
	return 0;
}

/* In ADD and XOR a zero of a DENSE block means "unchanged". */
static void add_dense(const struct patch *p, const struct patch_block *b, uint64_t first,
		      uint64_t *positions, size_t *count)
{
	for (uint32_t i = 0; i < b->elements; i++)
		if (p->op == PATCH_SET || patch_load(b->values + (size_t)i * p->width, p->width))
			positions[(*count)++] = first + i;
}

int trl_positions(const struct patch *patch, uint64_t block, uint64_t *positions, size_t *out_count)
{
	const uint64_t first = block << PATCH_BLOCK_SHIFT;
	struct patch_block b, piece;
	struct patch_reader r;
	size_t count = 0;
	int err = patch_block_at(patch, block, &b);

	if (err == 0 && b.count > 0 && b.form == PATCH_RAW) {
		err = add_positions(&b, first, positions, &count);
	} else if (err == 0 && b.count > 0 && b.form == PATCH_DENSE) {
		add_dense(patch, &b, first, positions, &count);
	} else if (err == 0 && b.count > 0) {
		err = patch_pieces(patch, &b, &r);
		while (err == 0 && (err = patch_piece(&r, &piece)) > 0)
			err = add_positions(&piece, first, positions, &count);
	}
	if (err == 0)
		*out_count = count;
	return err;
}

/* ---- layout ---- */

/* A tensor of the file, and where to tell its place. */
struct piece {
	struct st_tensor st;
	uint64_t *at;
	uint64_t shape; /* of an index or values, which have one dimension */
};

static int piece_order(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;

	if (x->st.dtype != y->st.dtype)
		return x->st.dtype > y->st.dtype ? -1 : 1; /* the enum ascends as theirs does */
	return strcmp(x->st.name, y->st.name);
}

static const char *suffixed(struct arena *names, const char *name, const char *suffix)
{
	const size_t len = strlen(name), more = strlen(suffix) + 1;
	char *out = arena_text(names, len + more);

	if (out != NULL) {
		memcpy(out, name, len);
		memcpy(out + len, suffix, more);
	}
	return out;
}

static void set_piece(struct piece *p, const char *name, enum st_dtype dtype, uint64_t count,
		      uint64_t *at)
{
	*p = (struct piece){
		.st = {.name = name, .dtype = (uint8_t)dtype, .rank = 1, .numel = count},
		.at = at,
		.shape = count,
	};
}

/* The pieces of one tensor, 0 to 2; or -ENOMEM. */
static int add_pieces(const struct trl_form *form, struct trl_tensor *t, struct arena *names,
		      struct piece *p)
{
	if (t->whole) {
		set_piece(p, t->name, t->dtype, t->numel, &t->values_at);
		p->st.rank = t->rank;
		p->st.shape = t->shape;
		return 1;
	}
	if (t->changed == 0)
		return 0;
	set_piece(&p[0], suffixed(names, t->name, form->index), trl_index_dtype(form, t),
		  t->changed, &t->index_at);
	set_piece(&p[1], suffixed(names, t->name, form->values), t->dtype, t->changed,
		  &t->values_at);
	return p[0].st.name != NULL && p[1].st.name != NULL ? 2 : -ENOMEM;
}

static int name_order(const void *a, const void *b)
{
	const struct piece *const *x = a, *const *y = b;

	return strcmp((*x)->st.name, (*y)->st.name);
}

/* Would a reader take two whole tensors for index and values of a third? */
static bool looks_paired(const struct trl_form *form, const struct piece *p,
			 struct piece *const *sorted, size_t count)
{
	const size_t len = p->st.name_len, cut = strlen(form->index);
	char other[ST_NAME_MAX + 16];
	struct piece key = {.st.name = other}, *look = &key;

	if (len <= cut || strcmp(p->st.name + len - cut, form->index) != 0 ||
	    st_dtype_is_float(p->st.dtype) || p->st.dtype == ST_BOOL ||
	    snprintf(other, sizeof(other), "%.*s%s", (int)(len - cut), p->st.name, form->values) >=
		    (int)sizeof(other))
		return false;
	return bsearch(&look, sorted, count, sizeof(struct piece *), name_order) != NULL;
}

static int check_names(struct piece *pieces, size_t count, struct why *why)
{
	static const struct trl_form *const forms[] = {&trl_form_v1, &trl_form_gaps};
	struct piece **sorted = malloc((count + 1) * sizeof(struct piece *));
	int err = 0;

	if (sorted == NULL)
		return why_set(why, ENOMEM, "no memory for the names of %zu tensors", count);
	for (size_t i = 0; i < count; i++)
		sorted[i] = &pieces[i];
	qsort(sorted, count, sizeof(struct piece *), name_order);
	for (size_t i = 0; i < count && err == 0; i++) {
		const struct piece *p = sorted[i];
		bool paired = false;

		if (i > 0 && strcmp(sorted[i - 1]->st.name, p->st.name) == 0)
			err = why_set(why, EINVAL,
				      "two tensors of a delta would be called \"%s\"; publish with "
				      "--encoding wfp1",
				      SHOWN(p->st.name));
		/* Only those that are whole can be mistaken. */
		for (size_t k = 0; k < ARRAY_LEN(forms) && p->st.shape != &p->shape; k++)
			paired |= looks_paired(forms[k], p, sorted, count);
		if (paired)
			err = why_set(
				why, EINVAL,
				"tensor \"%s\" would be taken for the index of a sparse pair; "
				"publish with --encoding wfp1",
				SHOWN(p->st.name));
	}
	free(sorted);
	return err;
}

static int tile(struct piece *pieces, size_t count, struct why *why)
{
	uint64_t at = 0;

	for (size_t i = 0; i < count; i++) {
		struct st_tensor *st = &pieces[i].st;
		uint64_t bits;

		if (mul_overflows(st->numel, st_dtype_bits(st->dtype), &bits) ||
		    add_overflows(at, bits / 8, &st->end) || st->end > INT64_MAX)
			return why_set(why, EFBIG, "tensor \"%s\" is larger than any file",
				       SHOWN(st->name));
		st->begin = at;
		at = st->end;
	}
	return 0;
}

int trl_layout(const struct trl_form *form, struct trl_tensor *tensors, size_t count,
	       const struct st_meta *meta, size_t meta_count, struct buf *out, uint64_t *out_size,
	       struct why *why)
{
	struct piece *pieces = calloc(2 * count + 1, sizeof(*pieces));
	struct st_tensor *table = NULL;
	struct arena names = {0};
	const size_t start = out->len;
	size_t n = 0;
	int err = 0;

	for (size_t i = 0; pieces != NULL && i < count && err >= 0; i++) {
		err = trl_check(form, &tensors[i], why);
		if (err < 0)
			goto out;
		err = add_pieces(form, &tensors[i], &names, &pieces[n]);
		n += err > 0 ? (size_t)err : 0;
	}
	table = calloc(n + 1, sizeof(*table));
	if (pieces == NULL || table == NULL || err < 0) {
		err = why_set(why, ENOMEM, "no memory for the layout of %zu tensors", count);
		goto out;
	}
	qsort(pieces, n, sizeof(*pieces), piece_order);
	for (size_t i = 0; i < n; i++) {
		pieces[i].st.name_len = (uint32_t)strlen(pieces[i].st.name);
		if (pieces[i].st.shape == NULL)
			pieces[i].st.shape = &pieces[i].shape;
	}
	err = check_names(pieces, n, why);
	if (err == 0)
		err = tile(pieces, n, why);
	if (err < 0)
		goto out;
	for (size_t i = 0; i < n; i++)
		table[i] = pieces[i].st;
	err = st_compose(table, n, meta, meta_count, 8, 0, out, why);
	if (err < 0)
		goto out;
	for (size_t i = 0; i < n; i++)
		*pieces[i].at = out->len - start + pieces[i].st.begin;
	*out_size = out->len - start + (n > 0 ? pieces[n - 1].st.end : 0);
out:
	arena_release(&names);
	free(table);
	free(pieces);
	return err;
}

/* ---- metadata ---- */

void trl_fraction(double value, char out[32])
{
	for (int digits = 1; digits <= 17; digits++) {
		snprintf(out, 32, "%.*g", digits, value);
		if (strtod(out, NULL) == value)
			break;
	}
	if (strchr(out, '.') == NULL && strchr(out, 'e') == NULL)
		memcpy(out + strlen(out), ".0", 3);
}

static void set(struct trl_meta *m, const char *key, const char *value)
{
	m->pairs[m->count++] = (struct st_meta){key, value};
}

static void set_number(struct trl_meta *m, const char *key, uint64_t value)
{
	snprintf(m->text[m->count], sizeof(m->text[0]), "%" PRIu64, value);
	set(m, key, m->text[m->count]);
}

void trl_meta_make(struct trl_meta *m, const struct trl_form *form, uint64_t version, bool sparse,
		   const struct trl_tensor *tensors, size_t count)
{
	uint64_t params = 0, changed = 0, total = 0;

	*m = (struct trl_meta){0};
	buf_addstr(&m->names, "[");
	for (size_t i = 0; i < count; i++) {
		const struct trl_tensor *t = &tensors[i];

		if (!t->whole && t->changed == 0)
			continue;
		buf_addstr(&m->names, params++ > 0 ? ", " : "");
		buf_addjson(&m->names, t->name, strlen(t->name));
		changed += t->whole ? t->numel : t->changed;
		total += t->numel;
	}
	buf_addstr(&m->names, "]");
	set(m, "format", "sparse_weight_patch");
	set(m, "version", "1");
	set(m, "sparse", sparse ? "True" : "False");
	set_number(m, "model_version", version);
	set_number(m, "num_changed_params", params);
	set_number(m, "total_changed_elements", changed);
	set_number(m, "total_elements", total);
	trl_fraction(total > 0 ? 1 - (double)changed / (double)total : 0, m->text[m->count]);
	set(m, "sparsity", m->text[m->count]);
	if (form->encoding != NULL)
		set(m, "encoding", form->encoding);
	else
		set(m, "changed_params", buf_str(&m->names));
}

void trl_meta_release(struct trl_meta *m)
{
	buf_release(&m->names);
}
