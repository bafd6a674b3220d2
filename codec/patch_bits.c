/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The BITS form of a block: a bitmap says which elements change, and their values follow.
 *
 * Where a block changes much, a bitmap is shorter than positions, and a vector of values can be
 * spread over its ones instead of going to each element: the block costs what looking at all of it
 * costs, and no more for more changes.  The ranks say where the values of a part of it begin.
 *
 * Nothing here trusts the block, which may lie in a file that changes: ranks are cut to the count,
 * and values are counted off while they are taken.
 *
 * No state; any number of threads.
 */
#include "codec/bits_kernel.h"
#include "codec/patch_block.h"
#include "codec/rice_kernel.h"

enum { RANKS = PATCH_BITS_RANKS / 2 };

static uint64_t word_at(const struct patch_block *blk, uint32_t word)
{
	return load_le64(blk->positions + 8 * (size_t)word);
}

static uint32_t ones(uint64_t bits)
{
	return (uint32_t)__builtin_popcountll(bits);
}

/* The n lowest bits, fewer than 64. */
static uint64_t lowest(uint32_t n)
{
	return (UINT64_C(1) << n) - 1;
}

uint32_t patch_bits_rank(const struct patch_block *blk, uint32_t e)
{
	const uint32_t step = MIN(e, blk->elements - 1) / PATCH_BITS_STEP;
	uint32_t rank = load_le16(blk->payload + 2 * (size_t)step);

	if (e == blk->elements)
		return blk->count;
	for (uint32_t w = step * (PATCH_BITS_STEP / BITS_WORD); w < e / BITS_WORD; w++)
		rank += ones(word_at(blk, w));
	if (e % BITS_WORD != 0)
		rank += ones(word_at(blk, e / BITS_WORD) & lowest(e % BITS_WORD));
	return MIN(rank, blk->count);
}

/* Elements [e0, e1) of one word, of which dst is the first. */
static int change_some(const struct patch *p, const struct patch_block *blk, uint32_t e0,
		       uint32_t e1, uint32_t *taken, uint8_t *dst)
{
	const uint8_t *value = blk->values + (size_t)*taken * p->width;
	uint64_t bits = word_at(blk, e0 / BITS_WORD) >> e0 % BITS_WORD;

	if (e1 - e0 < BITS_WORD)
		bits &= lowest(e1 - e0);
	if (ones(bits) > blk->count - *taken)
		return -EBADMSG;
	*taken += ones(bits);
	for (; bits != 0; bits &= bits - 1, value += p->width) {
		uint8_t *at = dst + (size_t)(unsigned)__builtin_ctzll(bits) * p->width;

		switch (p->op) {
		case PATCH_SET: patch_change(at, value, PATCH_SET, p->width); break;
		case PATCH_ADD: patch_change(at, value, PATCH_ADD, p->width); break;
		default: patch_change(at, value, PATCH_XOR, p->width);
		}
	}
	return 0;
}

int patch_bits_apply(const struct patch *p, const struct patch_block *blk, uint32_t e0, uint32_t e1,
		     uint8_t *dst)
{
	bits_loop *change = p->kernel->bits->change[p->op][patch_width_log(p->width)];
	uint32_t taken = e0 == 0 ? 0 : patch_bits_rank(blk, e0);
	uint32_t first = MIN(ALIGN_UP(e0, (uint32_t)BITS_WORD), e1);
	uint32_t last = MAX(e1 / BITS_WORD * BITS_WORD, first);
	int n;

	if (e0 < first && change_some(p, blk, e0, first, &taken, dst) < 0)
		return -EBADMSG;
	n = change(dst + (size_t)(first - e0) * p->width, blk->positions + first / 8,
		   (last - first) / BITS_WORD, blk->values + (size_t)taken * p->width,
		   blk->count - taken);
	if (n < 0)
		return -EBADMSG;
	taken += (uint32_t)n;
	return last < e1
		       ? change_some(p, blk, last, e1, &taken, dst + (size_t)(last - e0) * p->width)
		       : 0;
}

int patch_bits_piece(struct patch_reader *r, struct patch_block *out)
{
	const struct patch_block *blk = &r->block;
	const uint32_t words = patch_bits_words(blk->elements);
	uint8_t *positions = r->rice.position_list;
	uint32_t n = 0;

	for (; r->word < words && n <= RICE_CHUNK - BITS_WORD; r->word++)
		for (uint64_t bits = word_at(blk, r->word); bits != 0; bits &= bits - 1)
			store_le16(
				positions + 2 * (size_t)n++,
				(uint16_t)(r->word * BITS_WORD + (unsigned)__builtin_ctzll(bits)));
	if (n > blk->count - r->done || (n == 0 && r->done < blk->count))
		return -EBADMSG;
	*out = (struct patch_block){
		.positions = positions,
		.values = blk->values + (size_t)r->done * r->width,
		.count = n,
		.elements = blk->elements,
		.form = PATCH_RAW,
	};
	r->done += n;
	return n > 0;
}

int patch_bits_check(const struct patch_block *blk)
{
	const uint32_t words = patch_bits_words(blk->elements);
	uint32_t count = 0;

	for (uint32_t i = 0; i < RANKS; i++) {
		const uint32_t begin = i * (PATCH_BITS_STEP / BITS_WORD);

		if (load_le16(blk->payload + 2 * (size_t)i) != (begin < words ? count : 0))
			return (int)i;
		for (uint32_t w = begin; w < MIN(begin + PATCH_BITS_STEP / BITS_WORD, words); w++)
			count += ones(word_at(blk, w));
	}
	if (blk->elements % BITS_WORD != 0 &&
	    word_at(blk, words - 1) >> blk->elements % BITS_WORD != 0)
		return RANKS;
	return count == blk->count ? -1 : RANKS;
}

size_t patch_bits_make(const uint8_t *positions, uint32_t count, uint32_t elements,
		       uint8_t dst[PATCH_BITS_MAX])
{
	const uint32_t words = patch_bits_words(elements);
	uint8_t *bitmap = dst + PATCH_BITS_RANKS;
	uint32_t i = 0;

	memset(dst, 0, PATCH_BITS_RANKS);
	for (uint32_t w = 0; w < words; w++) {
		uint64_t bits = 0;

		if (w % (PATCH_BITS_STEP / BITS_WORD) == 0)
			store_le16(dst + 2 * (size_t)(w / (PATCH_BITS_STEP / BITS_WORD)),
				   (uint16_t)i);
		for (; i < count && load_le16(positions + 2 * (size_t)i) / BITS_WORD == w; i++)
			bits |= UINT64_C(1) << load_le16(positions + 2 * (size_t)i) % BITS_WORD;
		store_le64(bitmap + 8 * (size_t)w, bits);
	}
	return PATCH_BITS_RANKS + 8 * (size_t)words;
}
