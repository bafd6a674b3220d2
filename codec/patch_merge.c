/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merging patches of one tensor into one with the same effect.
 *
 * Block by block: the patches are applied, oldest first, to a scratch block of zeros, and a bitmap
 * notes which elements were touched.  On zeros SET, ADD and XOR leave just the value that a merged
 * patch has to have, also when an ADD or XOR follows a SET.  Then the touched elements go to the
 * writer and their scratch back to zero.
 *
 * When all patches have the same operation that is all.  Otherwise kinds[], instead of the bitmap,
 * has the operation that each element now needs (0: none, KIND_NONE: none can do it), and a patch
 * form with one operation per tensor can express the result only if all that is left needs the same
 * one.
 *
 * Inputs may be malformed: what they say is bounded as in patch_apply().  One call uses one thread.
 */
#include "codec/patch.h"
#include "codec/patch_block.h"

#include <stdlib.h>

enum {
	WORDS = PATCH_BLOCK / 64,
	EMIT_STEP = 4,
	KIND_NONE = 255, /* no operation can express it: ADD and XOR came together */
};

struct merger {
	struct patch_writer *writer;
	uint8_t *scratch;  /* PATCH_BLOCK elements; zero between blocks but for SET */
	uint64_t *touched; /* PATCH_BLOCK bits, zero between blocks; unused with kinds */
	uint8_t *kinds;	   /* a kind per element, zero between blocks; NULL: one operation */
	uint8_t kind;	   /* with kinds: what all elements kept so far need, 0 before the first */
	unsigned width;
	struct patch_reader reader; /* of the block at hand, RICE or (with kinds) BITS */
};

/* ---- into the scratch ---- */

/* Marks elements 0 ... elements-1. */
static void touch_all(uint64_t *touched, uint32_t elements)
{
	memset(touched, 0xff, elements / 64 * 8);
	if (elements % 64 != 0)
		touched[elements / 64] |= (UINT64_C(1) << elements % 64) - 1;
}

PATCH_INLINE int gather(struct merger *m, const struct patch_block *blk, enum patch_op op,
			unsigned width)
{
	const uint8_t *restrict positions = blk->positions, *restrict values = blk->values;
	uint8_t *restrict scratch = m->scratch;
	uint64_t *restrict touched = m->touched;
	const uint32_t count = blk->count, elements = blk->elements;

	if (blk->form == PATCH_DENSE) {
		patch_change_row(scratch, values, elements, op, width);
		touch_all(touched, elements);
		return 0;
	}
	for (size_t i = 0; i < count; i++) {
		uint32_t pos = load_le16(positions + 2 * i);

		if (pos >= elements)
			return -EBADMSG;
		patch_change(scratch + (size_t)pos * width, values + i * width, op, width);
		touched[pos / 64] |= UINT64_C(1) << pos % 64;
	}
	return 0;
}

/* What an element needs now that op changes it too. */
static uint8_t kind_after(uint8_t kind, enum patch_op op)
{
	if (op == PATCH_SET || kind == 0)
		return op;
	return kind == PATCH_SET || kind == op ? kind : KIND_NONE;
}

/* The same for patches of several operations, one element at a time. */
static int gather_mixed(struct merger *m, const struct patch_block *blk, enum patch_op op)
{
	const unsigned w = m->width;

	for (size_t i = 0; i < blk->count; i++) {
		size_t pos = blk->form == PATCH_DENSE ? i : load_le16(blk->positions + 2 * i);
		const uint8_t *value = blk->values + i * w;
		uint8_t *at = m->scratch + pos * w, *kind = m->kinds + pos;

		if (pos >= blk->elements)
			return -EBADMSG;
		if (op != PATCH_SET && patch_load(value, w) == 0)
			continue;
		*kind = kind_after(*kind, op);
		patch_change(at, value, op, w);
		if ((*kind == PATCH_ADD || *kind == PATCH_XOR) && patch_load(at, w) == 0)
			*kind = 0;
	}
	return 0;
}

/* ---- and out again ---- */

/* The touched elements in order, into positions[], which has room for EMIT_STEP more; the bitmap is
 * zero again. How many bits a word has cannot be predicted, so each gets EMIT_STEP of them at a
 * time without a branch: what is written for bits that are not there is overwritten by the next. */
static uint32_t list_touched(uint64_t *restrict touched, uint8_t *restrict positions)
{
	uint32_t n = 0;

	for (uint32_t word = 0; word < WORDS; word++) {
		uint64_t bits = touched[word];

		touched[word] = 0;
		do {
			for (int i = 0; i < EMIT_STEP; i++) {
				uint32_t bit = (uint32_t)__builtin_ctzll(bits | UINT64_C(1) << 63);

				store_le16(positions + 2 * (size_t)n, (uint16_t)(word * 64 + bit));
				n += bits != 0;
				bits &= bits - 1;
			}
		} while (bits != 0);
	}
	return n;
}

/* Moves the listed elements to values[]; those that are zero drop out unless `zeros`, and their
 * scratch is cleared. */
PATCH_INLINE uint32_t collect(const struct merger *m, uint32_t count, bool zeros, unsigned width)
{
	uint8_t *restrict positions = m->writer->positions, *restrict values = m->writer->values;
	uint8_t *restrict scratch = m->scratch;
	size_t n = 0;

	for (size_t i = 0; i < count; i++) {
		uint16_t pos = load_le16(positions + 2 * i);
		uint64_t v = patch_load(scratch + (size_t)pos * width, width);

		patch_store(values + n * width, v, width);
		if (!zeros) {
			patch_store(scratch + (size_t)pos * width, 0, width);
			store_le16(positions + 2 * n, pos);
		}
		n += zeros || v != 0;
	}
	return (uint32_t)n;
}

static int emit_mixed(struct merger *m, uint32_t *out_count, struct why *why)
{
	const unsigned w = m->width;
	uint32_t n = 0;

	for (size_t pos = 0; pos < PATCH_BLOCK; pos++) {
		uint8_t kind = m->kinds[pos];

		if (kind == 0)
			continue;
		if (m->kind == 0)
			m->kind = kind;
		if (kind == KIND_NONE || m->kind != kind)
			return why_set(why, ENOTSUP,
				       "patches that set, add and xor different elements cannot "
				       "be merged into one: keep them apart");
		store_le16(m->writer->positions + 2 * n, (uint16_t)pos);
		memcpy(m->writer->values + (size_t)n * w, m->scratch + pos * w, w);
		n++;
	}
	memset(m->kinds, 0, PATCH_BLOCK);
	memset(m->scratch, 0, (size_t)PATCH_BLOCK * w);
	if (n > 0)
		m->writer->op = m->kind;
	*out_count = n;
	return 0;
}

/* ---- one loop per operation and width ---- */

#define GATHER(op, width)                                                                          \
	static int gather_##op##_##width(struct merger *m, const struct patch_block *blk)          \
	{                                                                                          \
		return gather(m, blk, op, width);                                                  \
	}
#define GATHERS(op) GATHER(op, 1) GATHER(op, 2) GATHER(op, 4) GATHER(op, 8)
#define ENTRIES(op) {gather_##op##_1, gather_##op##_2, gather_##op##_4, gather_##op##_8}

GATHERS(PATCH_SET)
GATHERS(PATCH_ADD)
GATHERS(PATCH_XOR)

static int (*const gathers[4][4])(struct merger *, const struct patch_block *) = {
	[PATCH_SET] = ENTRIES(PATCH_SET),
	[PATCH_ADD] = ENTRIES(PATCH_ADD),
	[PATCH_XOR] = ENTRIES(PATCH_XOR),
};

static uint32_t emit_uniform(struct merger *m)
{
	/* A SET overwrites what is left in the scratch, so only ADD and XOR need it cleared. */
	bool zeros = m->writer->op == PATCH_SET;
	uint32_t n = list_touched(m->touched, m->writer->positions);

	switch (m->width) {
	case 1: return zeros ? collect(m, n, true, 1) : collect(m, n, false, 1);
	case 2: return zeros ? collect(m, n, true, 2) : collect(m, n, false, 2);
	case 4: return zeros ? collect(m, n, true, 4) : collect(m, n, false, 4);
	default: return zeros ? collect(m, n, true, 8) : collect(m, n, false, 8);
	}
}

/* While one patch is gathered the next one's payload comes. */
static void prefetch_block(const struct patch *p, uint64_t block)
{
	struct patch_block blk;

	if (patch_block_at(p, block, &blk) == 0)
		patch_prefetch_bytes(blk.payload, (size_t)blk.payload_len);
}

/* A block of the form BITS, which is spread over the scratch as it is. */
static int gather_bits(struct merger *m, const struct patch *p, const struct patch_block *blk)
{
	const uint32_t rest = blk->elements % PATCH_BITS_WORD;
	uint32_t words = blk->elements / PATCH_BITS_WORD;

	for (uint32_t w = 0; w < words; w++)
		m->touched[w] |= load_le64(blk->positions + 8 * (size_t)w);
	if (rest != 0)
		m->touched[words] |=
			load_le64(blk->positions + 8 * (size_t)words) & ((UINT64_C(1) << rest) - 1);
	return patch_bits_apply(p, blk, 0, blk->elements, m->scratch);
}

/* A block, or a piece of one, into the scratch. */
static int gather_block(struct merger *m, const struct patch *p, const struct patch_block *blk)
{
	return m->kinds != NULL ? gather_mixed(m, blk, p->op)
				: gathers[p->op][patch_width_log(p->width)](m, blk);
}

static int gather_pieces(struct merger *m, const struct patch *p, const struct patch_block *blk)
{
	struct patch_block piece;
	int ret = patch_pieces(p, blk, &m->reader);

	while (ret == 0 && (ret = patch_piece(&m->reader, &piece)) > 0)
		ret = gather_block(m, p, &piece);
	return ret;
}

/* The hash of the block's bytes after the last patch that changes it. */
static void pass_hash(struct merger *m, const struct patch *p, uint64_t block)
{
	int64_t i = p->hashes != NULL ? patch_groups_index(p, block) : -1;

	if (i >= 0)
		patch_writer_hash(m->writer, block, load_le64(p->hashes + 8 * (uint64_t)i));
}

static int merge_block(struct merger *m, const struct patch *const *patches, size_t k,
		       uint64_t block, struct why *why)
{
	uint32_t count = 0;
	bool any = false;

	for (size_t i = 0; i < k; i++) {
		const struct patch *p = patches[i];
		struct patch_block blk;
		int ret = patch_block_at(p, block, &blk);

		if (i + 1 < k)
			prefetch_block(patches[i + 1], block);
		if (ret == 0 && blk.count > 0) {
			any = true;
			if (blk.form == PATCH_BITS && m->kinds == NULL)
				ret = gather_bits(m, p, &blk);
			else
				ret = blk.form == PATCH_RICE || blk.form == PATCH_BITS
					      ? gather_pieces(m, p, &blk)
					      : gather_block(m, p, &blk);
			pass_hash(m, p, block);
		}
		if (ret < 0)
			return why_set(why, EBADMSG, "block %llu of patch %zu is damaged",
				       (unsigned long long)block, i);
	}
	if (!any)
		return 0;
	if (m->kinds != NULL) {
		int ret = emit_mixed(m, &count, why);

		if (ret < 0)
			return ret;
	} else {
		count = emit_uniform(m);
	}
	return patch_writer_block(m->writer, block, count, why);
}

static int merger_init(struct merger *m, enum patch_coding coding,
		       const struct patch *const *patches, size_t k, const struct sink *sink,
		       uint64_t at, struct why *why)
{
	const struct patch *first = patches[0];
	bool mixed = false, hashes = true;

	for (size_t i = 0; i < k; i++) {
		hashes &= patches[i]->hashes != NULL;
		if (patches[i]->numel != first->numel || patches[i]->width != first->width)
			return why_set(why, EINVAL,
				       "patches of %llu elements of %u bytes and of %llu of %u "
				       "cannot be merged: they are of different tensors",
				       (unsigned long long)first->numel, first->width,
				       (unsigned long long)patches[i]->numel, patches[i]->width);
		mixed |= patches[i]->op != first->op;
	}
	m->width = first->width;
	m->writer = patch_writer_new(first->op, first->width, first->numel, sink, at);
	m->scratch = calloc(PATCH_BLOCK, first->width);
	m->touched = calloc(WORDS, sizeof(*m->touched));
	m->kinds = mixed ? calloc(PATCH_BLOCK, 1) : NULL;
	if (m->writer == NULL || m->scratch == NULL || m->touched == NULL ||
	    (mixed && m->kinds == NULL))
		return why_set(why, ENOMEM, "out of memory for merging patches");
	m->writer->kernel = first->kernel;
	if (coding == PATCH_CODING_RICE)
		return patch_writer_rice(m->writer, first->kernel, hashes, why);
	return 0;
}

int patch_merge_as(enum patch_coding coding, const struct patch *const *patches, size_t k,
		   const struct sink *sink, uint64_t at, uint64_t *out_len, uint64_t *out_changed,
		   struct why *why)
{
	struct merger *m = calloc(1, sizeof(*m));
	uint64_t len = 0, changed = 0;
	int ret = 0;

	if (m == NULL)
		return why_set(why, ENOMEM, "out of memory for merging patches");
	if (k > 0)
		ret = merger_init(m, coding, patches, k, sink, at, why);
	for (uint64_t b = 0; ret == 0 && k > 0 && b < patches[0]->blocks; b++)
		ret = merge_block(m, patches, k, b, why);
	if (ret == 0 && k > 0 && m->writer->changed > 0)
		ret = patch_writer_end(m->writer, &len, &changed, why);
	if (ret == 0) {
		*out_len = len;
		if (out_changed != NULL)
			*out_changed = changed;
	}
	patch_writer_free(m->writer);
	free(m->scratch);
	free(m->touched);
	free(m->kinds);
	free(m);
	return ret;
}

int patch_merge(const struct patch *const *patches, size_t k, const struct sink *sink, uint64_t at,
		uint64_t *out_len, uint64_t *out_changed, struct why *why)
{
	return patch_merge_as(PATCH_CODING_RAW, patches, k, sink, at, out_len, out_changed, why);
}
