/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing form version 1: what patch_write.c does in another way for it.
 *
 * The payload goes to the sink as it comes, right behind the head; directory, hashes and lengths
 * are kept in memory (10 to 14 bytes per changed block) and follow it at the end.  So which of the
 * two sizes the lengths have is known before they are written.  The head is written last.
 *
 * A block takes the smallest of its forms; the encoder says how long it would be before it encodes.
 *
 * Invariants: entries below writer.next are final but for bits of the last one; `listed` lengths
 * (and hashes) are final.
 */
#include "codec/patch_block.h"

#include <stdlib.h>

enum { FIRST_CAP = 64 };

void patch_groups_free(struct patch_groups *g)
{
	if (g == NULL)
		return;
	rice_encoder_free(g->encoder);
	free(g->code);
	free(g->entries);
	free(g->lengths);
	free(g->hashes);
	free(g);
}

int patch_writer_rice(struct patch_writer *w, const struct rice_kernel *kernel, bool hashes,
		      struct why *why)
{
	struct patch_groups *g = calloc(1, sizeof(*g));

	if (g == NULL)
		return why_set(why, ENOMEM, "out of memory for a patch");
	g->count = (w->blocks + PATCH_GROUP - 1) / PATCH_GROUP;
	g->want_hashes = hashes;
	g->encoder = rice_encoder_new(kernel != NULL ? kernel : patch_kernel(NULL));
	g->entries = calloc(MAX(g->count, UINT64_C(1)), PATCH_GROUP_ENTRY);
	/* what is larger than RAW is not encoded */
	g->code = malloc((size_t)PATCH_BLOCK * (2 + w->width) + 8);
	if (g->encoder == NULL || g->entries == NULL || g->code == NULL) {
		patch_groups_free(g);
		return why_set(why, ENOMEM, "out of memory for a patch");
	}
	patch_groups_free(w->groups);
	w->groups = g;
	w->front_len = PATCH_HEAD;
	return 0;
}

void patch_writer_hash(struct patch_writer *w, uint64_t block, uint64_t hash)
{
	struct patch_groups *g = w->groups;

	if (g == NULL)
		return;
	g->has_hash = true;
	g->hash_block = block;
	g->hash = hash;
}

static int grow(struct patch_groups *g, struct why *why)
{
	uint32_t cap = g->cap > 0 ? 2 * g->cap : FIRST_CAP;
	uint32_t *lengths;
	uint64_t *hashes;

	if (g->listed < g->cap)
		return 0;
	if (g->listed >= PATCH_LISTED_MAX)
		return why_set(why, EFBIG,
			       "the patch of one tensor would change more than %u blocks",
			       PATCH_LISTED_MAX);
	lengths = reallocarray(g->lengths, cap, sizeof(*lengths));
	if (lengths != NULL)
		g->lengths = lengths;
	hashes = g->want_hashes ? reallocarray(g->hashes, cap, sizeof(*hashes)) : NULL;
	if (hashes != NULL)
		g->hashes = hashes;
	if (lengths == NULL || (g->want_hashes && hashes == NULL))
		return why_set(why, ENOMEM, "out of memory for the directory of a patch");
	g->cap = cap;
	return 0;
}

/* Entries up to the group's are begun. */
static void reach(struct patch_writer *w, uint64_t groups)
{
	struct patch_groups *g = w->groups;

	for (; w->next < groups; w->next++)
		store_le64(g->entries + PATCH_GROUP_ENTRY * w->next + 8,
			   w->payload | (uint64_t)g->listed << PATCH_OFFSET_BITS);
}

/* Into the directory. */
static int list_block(struct patch_writer *w, uint64_t block, struct why *why)
{
	struct patch_groups *g = w->groups;
	uint8_t *entry = g->entries + PATCH_GROUP_ENTRY * (block / PATCH_GROUP);
	int ret = grow(g, why);

	if (ret < 0)
		return ret;
	if (g->want_hashes && (!g->has_hash || g->hash_block != block))
		return why_set(why, EINVAL, "the patch has no hash for its block %llu",
			       (unsigned long long)block);
	if (g->want_hashes)
		g->hashes[g->listed] = g->hash;
	g->has_hash = false;
	reach(w, block / PATCH_GROUP + 1);
	store_le64(entry, load_le64(entry) | UINT64_C(1) << block % PATCH_GROUP);
	return 0;
}

static int put_prefix(struct patch_writer *w, uint32_t count, unsigned form, struct why *why)
{
	uint32_t v = (count - 1) << PATCH_FORM_BITS | form;
	uint8_t bytes[PATCH_PREFIX_MAX];
	unsigned n = 0;

	for (; v >= 0x80; v >>= 7)
		bytes[n++] = (uint8_t)(v | 0x80);
	bytes[n++] = (uint8_t)v;
	return patch_writer_put(w, bytes, n, why);
}

int patch_groups_block(struct patch_writer *w, uint64_t block, uint32_t count, struct why *why)
{
	struct patch_groups *g = w->groups;
	const uint32_t elements = patch_block_elements(w->numel, block);
	const uint64_t raw = (uint64_t)count * (2 + w->width), before = w->payload;
	uint64_t dense = (uint64_t)elements * w->width, size;
	int ret = list_block(w, block, why);

	if (ret < 0)
		return ret;
	if (w->op == PATCH_SET && count < elements)
		dense = UINT64_MAX;
	size = rice_plan(g->encoder, w->op, w->width, w->positions, w->values, count, elements);
	if (size < raw && size < dense) {
		rice_write(g->encoder, g->code);
		ret = put_prefix(w, count, PATCH_RICE, why);
		if (ret == 0)
			ret = patch_writer_put(w, g->code, (size_t)size, why);
	} else if (dense < raw) {
		ret = patch_writer_dense(w, count, elements, why);
		count = elements;
		if (ret == 0)
			ret = put_prefix(w, count, PATCH_DENSE, why);
		if (ret == 0)
			ret = patch_writer_put(w, w->values, (size_t)dense, why);
	} else {
		ret = put_prefix(w, count, PATCH_RAW, why);
		if (ret == 0)
			ret = patch_writer_put(w, w->positions, 2 * (size_t)count, why);
		if (ret == 0)
			ret = patch_writer_put(w, w->values, (size_t)count * w->width, why);
	}
	w->changed += count;
	w->count = 0;
	g->lengths[g->listed] = (uint32_t)(w->payload - before);
	g->longest = MAX(g->longest, g->lengths[g->listed]);
	g->listed++;
	return ret;
}

int patch_groups_end(struct patch_writer *w, struct why *why)
{
	struct patch_groups *g = w->groups;
	const bool is_long = g->longest > UINT16_MAX;
	uint8_t number[8];
	int ret;

	reach(w, g->count);
	ret = patch_writer_pad(w, why);
	if (ret == 0)
		ret = patch_writer_put(w, g->entries, (size_t)g->count * PATCH_GROUP_ENTRY, why);
	for (uint32_t i = 0; ret == 0 && g->want_hashes && i < g->listed; i++) {
		store_le64(number, g->hashes[i]);
		ret = patch_writer_put(w, number, 8, why);
	}
	for (uint32_t i = 0; ret == 0 && i < g->listed; i++) {
		store_le32(number, g->lengths[i]);
		ret = patch_writer_put(w, number, is_long ? 4 : 2, why);
	}
	if (ret == 0)
		ret = patch_writer_pad(w, why);
	w->front[4] = 1;
	w->front[24] = (uint8_t)((is_long ? PATCH_LONG : 0) | (g->want_hashes ? PATCH_HASHES : 0));
	store_le32(w->front + 28, g->listed);
	return ret;
}

uint64_t patch_bound_rice(unsigned width, uint64_t numel, uint64_t changed)
{
	const uint64_t blocks = patch_blocks(numel);
	const uint64_t groups = blocks / PATCH_GROUP + 1, listed = MIN(changed, blocks);
	uint64_t payload, sum;

	/* All blocks RAW is the bound of the payload; then prefix, hash, length, and two paddings.
	 */
	if (mul_overflows(MIN(changed, numel), 2 + width, &payload) ||
	    add_overflows(payload,
			  PATCH_HEAD + groups * PATCH_GROUP_ENTRY +
				  listed * (PATCH_PREFIX_MAX + 8 + 4) + 14,
			  &sum))
		return UINT64_MAX;
	return sum / 8 * 8;
}
