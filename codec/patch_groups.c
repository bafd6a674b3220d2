/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading the directory of form version 1: groups of 64 blocks, a length for each listed block, and
 * the prefix that a listed block's payload begins with.
 *
 * Opening looks at the head and at the blob's length only; what the directory says is bounded each
 * time that it is used, since a mapped file may change.
 *
 * No state, no allocation; any number of threads.
 */
#include "codec/patch_block.h"

static uint64_t group_count(const struct patch *p)
{
	return p->blocks / PATCH_GROUP + (p->blocks % PATCH_GROUP != 0);
}

int patch_groups_open(const uint8_t *blob, uint64_t len, struct patch *p, struct why *why)
{
	const uint64_t room = len - PATCH_HEAD, groups = group_count(p) * PATCH_GROUP_ENTRY;
	const unsigned flags = blob[24];
	uint64_t hashes, arrays;

	if (flags & ~(unsigned)(PATCH_LONG | PATCH_HASHES))
		return why_set(why, ENOTSUP,
			       "the patch has flags (%u) that this program does not know: "
			       "use a newer weightfs",
			       flags);
	if (blob[25] != 0 || blob[26] != 0 || blob[27] != 0)
		return why_set(why, EBADMSG, "the reserved bytes of the patch's head are not zero");
	p->listed = load_le32(blob + 28);
	if (p->listed > PATCH_LISTED_MAX || p->listed > p->blocks)
		return why_set(why, EBADMSG, "the patch lists %u blocks, too many", p->listed);
	p->length_size = flags & PATCH_LONG ? 4 : 2;
	hashes = flags & PATCH_HASHES ? 8 * (uint64_t)p->listed : 0;
	/* none of this can overflow: blocks <= 2^48 */
	arrays = ALIGN_UP(hashes + (uint64_t)p->length_size * p->listed, 8);
	if (groups + arrays > room || room % 8 != 0)
		return why_set(why, EBADMSG,
			       "the patch's directory of %llu blocks, of which it lists %u, does "
			       "not fit into its %llu bytes: it is cut off or damaged",
			       (unsigned long long)p->blocks, p->listed, (unsigned long long)len);
	p->payload = blob + PATCH_HEAD;
	p->payload_len = room - groups - arrays;
	p->dir = p->payload + p->payload_len;
	p->hashes = flags & PATCH_HASHES ? p->dir + groups : NULL;
	p->lengths = p->dir + groups + hashes;
	return 0;
}

/* A directory entry. */
struct group {
	uint64_t listed; /* a bit for each block */
	uint64_t offset;
	uint64_t first; /* blocks listed before it */
};

static struct group group_at(const struct patch *p, uint64_t i)
{
	const uint8_t *e = p->dir + PATCH_GROUP_ENTRY * i;
	uint64_t second = load_le64(e + 8);

	return (struct group){
		.listed = load_le64(e),
		.offset = second & PATCH_OFFSET_MAX,
		.first = second >> PATCH_OFFSET_BITS,
	};
}

int64_t patch_groups_index(const struct patch *p, uint64_t block)
{
	struct group g = group_at(p, block / PATCH_GROUP);
	uint64_t bit = UINT64_C(1) << block % PATCH_GROUP, index;

	if (!(g.listed & bit))
		return -1;
	index = g.first + rice_count(g.listed & (bit - 1));
	return index < p->listed ? (int64_t)index : -1;
}

/* Bytes of payload of the `n` blocks from the one with index `first` on. */
static uint64_t lengths_of(const struct patch *p, uint64_t first, uint64_t n)
{
	uint64_t sum = 0;

	if (p->length_size == 2) {
		const uint8_t *lengths = p->lengths + 2 * first;
		uint32_t few = 0; /* at most 64 times 65,535 */

		for (uint64_t i = 0; i < n; i++)
			few += rice_get16(lengths + 2 * i);
		return few;
	}
	for (uint64_t i = 0; i < n; i++)
		sum += load_le32(p->lengths + 4 * (first + i));
	return sum;
}

/* The number that the payload begins with; its bytes, or 0 when it does not end. */
static unsigned prefix(const uint8_t *bytes, uint64_t len, uint32_t *out)
{
	uint32_t v = 0;

	for (unsigned i = 0; i < PATCH_PREFIX_MAX && i < len; i++) {
		v |= (uint32_t)(bytes[i] & 0x7f) << 7 * i;
		if (bytes[i] < 0x80) {
			*out = v;
			return i == 0 || bytes[i] != 0 ? i + 1 : 0;
		}
	}
	return 0;
}

int patch_groups_entry(const struct patch *p, uint64_t block, struct patch_entry *out)
{
	struct group g = group_at(p, block / PATCH_GROUP);
	uint64_t bit = UINT64_C(1) << block % PATCH_GROUP, before, index, len;
	uint32_t number, used;

	out->offset = out->end = 0;
	out->count = 0;
	out->form = PATCH_RAW;
	out->elements = patch_block_elements(p->numel, block);
	if (!(g.listed & bit))
		return 0;
	before = rice_count(g.listed & (bit - 1));
	index = g.first + before;
	if (index >= p->listed)
		return -EBADMSG;
	out->offset = g.offset + lengths_of(p, g.first, before);
	len = patch_length(p, index);
	if (out->offset > p->payload_len || len > p->payload_len - out->offset)
		return -EBADMSG;
	used = prefix(p->payload + out->offset, len, &number);
	if (used == 0)
		return -EBADMSG;
	out->end = out->offset + len;
	out->offset += used;
	out->form = number & ((1 << PATCH_FORM_BITS) - 1);
	out->count = (number >> PATCH_FORM_BITS) + 1;
	return 0;
}

int patch_groups_check(const struct patch *p, struct why *why)
{
	const uint64_t groups = group_count(p);
	uint64_t offset = 0, listed = 0;

	for (uint64_t i = 0; i < groups; i++) {
		struct group g = group_at(p, i);
		uint64_t blocks = MIN(p->blocks - PATCH_GROUP * i, (uint64_t)PATCH_GROUP);
		uint32_t n = rice_count(g.listed);

		if (blocks < PATCH_GROUP && g.listed >> blocks != 0)
			return why_set(why, EBADMSG,
				       "the patch lists blocks beyond its last, number %llu",
				       (unsigned long long)p->blocks - 1);
		if (g.first != listed)
			return why_set(
				why, EBADMSG,
				"group %llu of the patch's directory begins with listed block "
				"%llu instead of %llu",
				(unsigned long long)i, (unsigned long long)g.first,
				(unsigned long long)listed);
		if (n > p->listed - listed)
			return why_set(why, EBADMSG,
				       "the patch's directory lists more than %u blocks",
				       p->listed);
		if (g.offset != offset)
			return why_set(why, EBADMSG,
				       "group %llu of the patch's directory begins at %llu instead "
				       "of %llu",
				       (unsigned long long)i, (unsigned long long)g.offset,
				       (unsigned long long)offset);
		offset += lengths_of(p, listed, n);
		listed += n;
	}
	if (listed != p->listed)
		return why_set(why, EBADMSG,
			       "the patch says that it lists %u blocks and its directory has %llu",
			       p->listed, (unsigned long long)listed);
	if (offset > p->payload_len || p->payload_len - offset >= 8)
		return why_set(why, EBADMSG,
			       "the patch has %llu bytes of payload and its blocks need %llu",
			       (unsigned long long)p->payload_len, (unsigned long long)offset);
	for (; offset < p->payload_len; offset++)
		if (p->payload[offset] != 0)
			return why_set(why, EBADMSG, "the padding of the patch is not zero");
	for (uint64_t i = p->length_size * listed; i % 8 != 0; i++)
		if (p->lengths[i] != 0)
			return why_set(why, EBADMSG, "the padding of the patch is not zero");
	return 0;
}
