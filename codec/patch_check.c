/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checking a patch: everything that patch_open() has not looked at, with a sentence for each thing
 * that can be wrong; and a block of the tensor against the hash that the patch has for it.
 *
 * The whole blob is read once.  What passes is applied, merged and decoded without an error; what
 * does not is only safe to read.
 *
 * No state, no allocation; any number of threads.
 */
#include "codec/patch_block.h"

#include <xxhash.h>

/* The index of the first position that is not above the one before it, or count. */
static uint32_t first_unsorted(const uint8_t *positions, uint32_t count)
{
	unsigned bad = 0;

	for (uint32_t i = 1; i < count; i++)
		bad |= load_le16(positions + 2 * i) <= load_le16(positions + 2 * i - 2);
	if (!bad)
		return count;
	for (uint32_t i = 1; i < count; i++)
		if (load_le16(positions + 2 * i) <= load_le16(positions + 2 * i - 2))
			return i;
	return count;
}

static int check_positions(const struct patch *p, uint64_t block, const struct patch_entry *e,
			   struct why *why)
{
	const uint8_t *positions = p->payload + e->offset;
	uint32_t i = first_unsorted(positions, e->count);

	if (i < e->count)
		return why_set(why, EBADMSG,
			       "block %llu of the patch: position %u follows position %u",
			       (unsigned long long)block, load_le16(positions + 2 * i),
			       load_le16(positions + 2 * i - 2));
	if (e->count > 0 && load_le16(positions + 2 * e->count - 2) >= e->elements)
		return why_set(
			why, EBADMSG,
			"block %llu of the patch: position %u is beyond the block's %u elements",
			(unsigned long long)block, load_le16(positions + 2 * e->count - 2),
			e->elements);
	return 0;
}

static int check_rice(const struct patch *p, uint64_t block, const struct patch_entry *e,
		      struct why *why)
{
	int ret = rice_check(p->kernel, p->payload + e->offset, (size_t)(e->end - e->offset), p->op,
			     p->width, e->count, e->elements, why);

	if (ret < 0)
		why_prefix(why, "block %llu of the patch", (unsigned long long)block);
	return ret;
}

static int check_bits(const struct patch *p, uint64_t block, const struct patch_entry *e,
		      struct why *why)
{
	struct patch_block blk;
	int ret = patch_block_of(p, e, &blk), wrong = ret < 0 ? 0 : patch_bits_check(&blk);

	if (wrong < 0)
		return 0;
	if (wrong < PATCH_BITS_RANKS / 2)
		return why_set(why, EBADMSG,
			       "block %llu of the patch: rank %d is not the number of ones before "
			       "it",
			       (unsigned long long)block, wrong);
	return why_set(why, EBADMSG,
		       "block %llu of the patch changes %u elements and its bitmap has others",
		       (unsigned long long)block, e->count);
}

/* A block of the directory, if it is one of version 1, whose lengths are known to add up. */
static int entry_of(const struct patch *p, uint64_t block, struct patch_entry *e, struct why *why)
{
	if (p->version != 1) {
		*e = patch_entry_at(p, block);
		return 0;
	}
	if (patch_groups_entry(p, block, e) < 0)
		return why_set(why, EBADMSG,
			       "block %llu of the patch does not begin with its form and count",
			       (unsigned long long)block);
	return 0;
}

static int check_block(const struct patch *p, uint64_t block, uint32_t *out_count, struct why *why)
{
	struct patch_entry e;
	unsigned long long b = block;
	int ret = entry_of(p, block, &e, why);

	if (ret < 0)
		return ret;
	if (p->version != 1 && block == 0 && e.offset != 0)
		return why_set(why, EBADMSG, "the patch's first block begins at %llu, not at 0",
			       (unsigned long long)e.offset);
	if (!patch_form_known(p, e.form))
		return why_set(why, EBADMSG, "block %llu of the patch has the unknown form %u", b,
			       e.form);
	if (e.count > e.elements)
		return why_set(why, EBADMSG,
			       "block %llu of the patch changes %u elements and has only %u", b,
			       e.count, e.elements);
	if (e.form == PATCH_DENSE && e.count != e.elements)
		return why_set(why, EBADMSG,
			       "block %llu of the patch is dense with %u elements instead of %u", b,
			       e.count, e.elements);
	if (e.end < e.offset || e.end > p->payload_len)
		return why_set(why, EBADMSG,
			       "block %llu of the patch ends at %llu, before its beginning or "
			       "behind the payload",
			       b, (unsigned long long)e.end);
	*out_count = e.count;
	if (e.form == PATCH_RICE)
		return check_rice(p, block, &e, why);
	if (e.end - e.offset != patch_block_size(&e, p->width))
		return why_set(why, EBADMSG,
			       "block %llu of the patch has %llu bytes of payload instead of %llu",
			       b, (unsigned long long)(e.end - e.offset),
			       (unsigned long long)patch_block_size(&e, p->width));
	if (e.form == PATCH_BITS)
		return check_bits(p, block, &e, why);
	return e.form == PATCH_RAW ? check_positions(p, block, &e, why) : 0;
}

int patch_check(const struct patch *patch, struct why *why)
{
	uint64_t changed = 0;
	int ret = patch->version == 1 ? patch_groups_check(patch, why) : 0;

	if (ret < 0)
		return ret;
	for (uint64_t b = 0; b < patch->blocks; b++) {
		uint32_t count = 0;

		ret = check_block(patch, b, &count, why);
		if (ret < 0)
			return ret;
		changed += count;
	}
	if (patch->version != 1 && patch->blocks == 0 && patch->payload_len != 0)
		return why_set(why, EBADMSG, "the patch has payload but no blocks");
	if (changed != patch->changed)
		return why_set(why, EBADMSG,
			       "the patch says that it changes %llu elements and its blocks have "
			       "%llu",
			       (unsigned long long)patch->changed, (unsigned long long)changed);
	for (uint64_t i = patch->payload_len; patch->version != 1 && i % 8 != 0; i++)
		if (patch->payload[i] != 0)
			return why_set(why, EBADMSG, "the padding of the patch is not zero");
	return 0;
}

int patch_check_result(const struct patch *patch, uint64_t block, const void *bytes,
		       struct why *why)
{
	int64_t i = patch->hashes != NULL && block < patch->blocks
			    ? patch_groups_index(patch, block)
			    : -1;
	size_t len;

	if (i < 0)
		return -ENODATA;
	len = (size_t)patch_block_elements(patch->numel, block) * patch->width;
	if (XXH3_64bits(bytes, len) != load_le64(patch->hashes + 8 * (uint64_t)i))
		return why_set(why, EBADMSG,
			       "block %llu of the tensor does not have the hash that the patch has "
			       "for it: the patch was made for other bytes",
			       (unsigned long long)block);
	return 0;
}
