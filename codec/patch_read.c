/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading the patch form: open, apply.  (patch_check.c checks.)
 *
 * patch_apply() trusts nothing: opening a blob has checked its head only, and a mapped file may
 * change after patch_check().  What it reads is bounded by patch_block_at(); what it writes is
 * bounded because
 *	- a block of 65,536 elements wholly inside the range cannot be left by a u16 position: no
 *	  check,
 *	- any other block is cut to the elements wholly inside the range by binary search, and each
 *	  position is compared with those bounds, since in a malformed block the search may have
 *	  answered anything,
 *	- an element that the range cuts is changed byte by byte.
 * So a malformed block gives wrong bytes or -EBADMSG, never a wild access.
 *
 * A RICE block is decoded a piece at a time, each of which is then applied as if it were the block.
 * A BITS block is patch_bits.c's, but for elements that the range cuts.
 *
 * There is one loop per operation and width (the tables at `loops`), because the scatter is what a
 * read of a patched tensor costs over memcpy.
 *
 * No state, no allocation; any number of threads.
 */
#include "codec/patch.h"
#include "codec/patch_block.h"

enum {
	SEARCH_NEAR = 48, /* elements around where a cut block's positions are expected */
};

static int open_head(const uint8_t *head, struct patch *p, struct why *why)
{
	uint64_t bytes;

	if (memcmp(head, PATCH_MAGIC, 4) != 0)
		return why_set(why, EBADMSG, "the patch does not begin with \"WFP\"");
	if (head[4] > 2)
		return why_set(why, ENOTSUP,
			       "the patch has form version %u, this program reads versions 0 to "
			       "2: use a newer weightfs",
			       head[4]);
	if (head[5] < PATCH_SET || head[5] > PATCH_XOR)
		return why_set(why, EBADMSG, "the patch has the unknown operation %u", head[5]);
	if (head[6] != 1 && head[6] != 2 && head[6] != 4 && head[6] != 8)
		return why_set(why, EBADMSG, "the patch has elements of %u bytes, not 1, 2, 4 or 8",
			       head[6]);
	if (head[7] != PATCH_BLOCK_SHIFT)
		return why_set(why, EBADMSG, "the patch has block shift %u, not 16", head[7]);
	if (head[4] != 1 && load_le64(head + 24) != 0)
		return why_set(why, EBADMSG, "the reserved bytes of the patch's head are not zero");
	p->version = head[4];
	p->kernel = patch_kernel(NULL);
	p->op = head[5];
	p->width = head[6];
	p->numel = load_le64(head + 8);
	p->changed = load_le64(head + 16);
	p->blocks = patch_blocks(p->numel);
	if (mul_overflows(p->numel, p->width, &bytes))
		return why_set(why, EBADMSG, "the patch is for a tensor of %llu elements, too many",
			       (unsigned long long)p->numel);
	return 0;
}

int patch_open(const void *blob, uint64_t len, struct patch *out_patch, struct why *why)
{
	const uint8_t *bytes = blob;
	struct patch p = {0};
	uint64_t dir, last, room;
	int ret;

	if (len < PATCH_HEAD)
		return why_set(why, EBADMSG,
			       "the patch is %llu bytes long, shorter than its 32-byte head",
			       (unsigned long long)len);
	ret = open_head(bytes, &p, why);
	if (ret == 0 && p.version == 1)
		ret = patch_groups_open(bytes, len, &p, why);
	if (ret < 0)
		return ret;
	if (p.version == 1) {
		*out_patch = p;
		return 0;
	}
	room = len - PATCH_HEAD;
	dir = 8 * (p.blocks + 1); /* cannot overflow: blocks <= 2^48 */
	if (dir > room)
		return why_set(why, EBADMSG,
			       "the patch's directory of %llu blocks does not fit into its %llu "
			       "bytes: it is cut off or damaged",
			       (unsigned long long)p.blocks, (unsigned long long)len);
	p.dir = bytes + PATCH_HEAD;
	p.payload = p.dir + dir;
	last = load_le64(p.dir + dir - 8);
	p.payload_len = last & PATCH_OFFSET_MAX;
	if (last != p.payload_len)
		return why_set(why, EBADMSG,
			       "the last entry of the patch's directory has a count or a form");
	if (room - dir != ALIGN_UP(p.payload_len, 8))
		return why_set(why, EBADMSG,
			       "the patch's payload should be %llu bytes with padding and is %llu: "
			       "it is cut off or damaged",
			       (unsigned long long)ALIGN_UP(p.payload_len, 8),
			       (unsigned long long)(room - dir));
	*out_patch = p;
	return 0;
}

/* ---- apply ---- */

/* dst is where the block begins. */
PATCH_INLINE void scatter(uint8_t *restrict dst, const struct patch_block *blk, enum patch_op op,
			  unsigned width)
{
	const uint8_t *restrict positions = blk->positions, *restrict values = blk->values;
	size_t i = 0, n = blk->count;

	for (; i + 4 <= n; i += 4) {
		uint64_t four = load_le64(positions + 2 * i);
		const uint8_t *v = values + i * width;

		patch_change(dst + (four & 0xffff) * width, v, op, width);
		patch_change(dst + (four >> 16 & 0xffff) * width, v + width, op, width);
		patch_change(dst + (four >> 32 & 0xffff) * width, v + 2 * width, op, width);
		patch_change(dst + (four >> 48) * width, v + 3 * width, op, width);
	}
	for (; i < n; i++)
		patch_change(dst + (size_t)load_le16(positions + 2 * i) * width, values + i * width,
			     op, width);
}

/* Elements lo ... hi-1 of the block's list; each has to be one of [e0, e1), which begins at dst. */
PATCH_INLINE int scatter_between(uint8_t *restrict dst, const struct patch_block *blk, size_t lo,
				 size_t hi, uint32_t e0, uint32_t e1, enum patch_op op,
				 unsigned width)
{
	for (size_t i = lo; i < hi; i++) {
		uint32_t pos = load_le16(blk->positions + 2 * i) - e0; /* huge when below e0 */

		if (pos >= e1 - e0)
			return -EBADMSG;
		patch_change(dst + (size_t)pos * width, blk->values + i * width, op, width);
	}
	return 0;
}

struct loop {
	void (*whole)(uint8_t *dst, const struct patch_block *blk);
	int (*part)(uint8_t *dst, const struct patch_block *blk, size_t lo, size_t hi, uint32_t e0,
		    uint32_t e1);
	void (*row)(uint8_t *dst, const uint8_t *values, size_t n);
};

#define LOOP(name, op, width)                                                                      \
	static void whole_##name(uint8_t *dst, const struct patch_block *blk)                      \
	{                                                                                          \
		scatter(dst, blk, op, width);                                                      \
	}                                                                                          \
	static int part_##name(uint8_t *dst, const struct patch_block *blk, size_t lo, size_t hi,  \
			       uint32_t e0, uint32_t e1)                                           \
	{                                                                                          \
		return scatter_between(dst, blk, lo, hi, e0, e1, op, width);                       \
	}                                                                                          \
	static void row_##name(uint8_t *dst, const uint8_t *values, size_t n)                      \
	{                                                                                          \
		patch_change_row(dst, values, n, op, width);                                       \
	}
#define LOOPS(op)                                                                                  \
	LOOP(op##_1, op, 1)                                                                        \
	LOOP(op##_2, op, 2)                                                                        \
	LOOP(op##_4, op, 4)                                                                        \
	LOOP(op##_8, op, 8)
#define ENTRY(name) {whole_##name, part_##name, row_##name}
#define ENTRIES(op) {ENTRY(op##_1), ENTRY(op##_2), ENTRY(op##_4), ENTRY(op##_8)}

LOOPS(PATCH_SET)
LOOPS(PATCH_ADD)
LOOPS(PATCH_XOR)

static const struct loop loops[4][4] = {
	[PATCH_SET] = ENTRIES(PATCH_SET),
	[PATCH_ADD] = ENTRIES(PATCH_ADD),
	[PATCH_XOR] = ENTRIES(PATCH_XOR),
};

PATCH_INLINE uint32_t position(const struct patch_block *blk, uint32_t i)
{
	return load_le16(blk->positions + 2 * (size_t)i);
}

/* How many of the block's positions are below e, if they ascend; something in [0, count] if not.
 * Looks first where even density puts e, which is what patch_prefetch() has fetched. */
static uint32_t lower_bound(const struct patch_block *blk, uint32_t e)
{
	uint32_t guess = (uint32_t)((uint64_t)blk->count * e / blk->elements);
	uint32_t lo = guess > SEARCH_NEAR ? guess - SEARCH_NEAR : 0;
	uint32_t hi = MIN(guess + SEARCH_NEAR, blk->count);

	if (lo > 0 && position(blk, lo - 1) >= e) {
		hi = lo - 1;
		lo = 0;
	} else if (hi < blk->count && position(blk, hi) < e) {
		lo = hi + 1;
		hi = blk->count;
	}
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (position(blk, mid) < e)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* The bytes and elements of a block, or of a piece of one, that a range covers. */
struct cut {
	uint32_t b0, b1; /* bytes [b0, b1) of the block, not empty */
	uint32_t e0, e1; /* elements wholly inside: [e0, e1), none when e0 >= e1 */
	uint32_t lo, hi; /* their indices in the block's list (RAW): [lo, hi), none when lo >= hi */
};

static struct cut cut_block(const struct patch *p, const struct patch_block *blk, uint64_t block,
			    uint64_t off, uint64_t end)
{
	uint64_t begin = (block << PATCH_BLOCK_SHIFT) * p->width;
	uint64_t size = (uint64_t)blk->elements * p->width;
	struct cut c = {
		.b0 = (uint32_t)(off > begin ? off - begin : 0),
		.b1 = (uint32_t)MIN(end - begin, size),
	};

	c.e0 = (c.b0 + p->width - 1) / p->width;
	c.e1 = c.b1 / p->width;
	if (blk->form == PATCH_RAW) {
		c.lo = c.e0 == 0 ? 0 : lower_bound(blk, c.e0);
		c.hi = c.e1 == blk->elements ? blk->count : lower_bound(blk, c.e1);
	}
	return c;
}

/* Bytes [from, to) of element e, to which dst belongs; from is 0 for ADD. */
static void apply_bytes(const struct patch *p, const struct patch_block *blk, uint32_t e,
			uint32_t from, uint32_t to, uint8_t *dst)
{
	const uint8_t *value;
	unsigned carry = 0;

	if (blk->form == PATCH_DENSE) {
		value = blk->values + (size_t)e * p->width;
	} else if (blk->form == PATCH_BITS) {
		uint32_t i = patch_bits_rank(blk, e);

		if (i == blk->count || !(blk->positions[e / 8] >> e % 8 & 1))
			return;
		value = blk->values + (size_t)i * p->width;
	} else {
		uint32_t i = lower_bound(blk, e);

		if (i == blk->count || position(blk, i) != e)
			return;
		value = blk->values + (size_t)i * p->width;
	}
	for (uint32_t i = from; i < to; i++, dst++) {
		if (p->op == PATCH_ADD) {
			carry += (unsigned)*dst + value[i];
			*dst = (uint8_t)carry;
			carry >>= 8;
		} else {
			*dst = p->op == PATCH_XOR ? *dst ^ value[i] : value[i];
		}
	}
}

/* dst holds bytes [c.b0, c.b1) of the block. */
static int apply_part(const struct patch *p, const struct patch_block *blk, const struct cut *c,
		      uint8_t *dst)
{
	const struct loop *loop = &loops[p->op][patch_width_log(p->width)];
	uint32_t w = p->width, head = c->b0 / w, tail = c->b1 / w;

	if (c->b0 % w != 0)
		apply_bytes(p, blk, head, c->b0 % w, MIN(w, c->b1 - head * w), dst);
	if (c->b1 % w != 0 && (tail != head || c->b0 % w == 0))
		apply_bytes(p, blk, tail, 0, c->b1 % w, dst + (tail * w - c->b0));
	if (c->e0 >= c->e1)
		return 0;
	dst += c->e0 * w - c->b0;
	if (blk->form == PATCH_BITS)
		return patch_bits_apply(p, blk, c->e0, c->e1, dst);
	if (blk->form == PATCH_RAW)
		return loop->part(dst, blk, c->lo, c->hi, c->e0, c->e1);
	loop->row(dst, blk->values + (size_t)c->e0 * w, c->e1 - c->e0);
	return 0;
}

static bool range_ok(const struct patch *p, uint64_t off, uint64_t len)
{
	uint64_t total = p->numel * p->width;

	return off <= total && len <= total - off;
}

/* The block, or a piece of one, to bytes [off, off + len) of the tensor. */
PATCH_INLINE int apply_block(const struct patch *p, const struct patch_block *blk, uint64_t block,
			     uint64_t off, uint8_t *dst, size_t len)
{
	const unsigned shift = PATCH_BLOCK_SHIFT + patch_width_log(p->width);
	const struct loop *loop = &loops[p->op][patch_width_log(p->width)];
	const uint64_t end = off + len, begin = block << shift;
	struct cut c;

	if (begin >= off && end - begin >= UINT64_C(1) << shift) {
		if (blk->form == PATCH_BITS)
			return patch_bits_apply(p, blk, 0, blk->elements, dst + (begin - off));
		if (blk->form == PATCH_DENSE)
			loop->row(dst + (begin - off), blk->values, blk->count);
		else
			loop->whole(dst + (begin - off), blk);
		return 0;
	}
	c = cut_block(p, blk, block, off, end);
	return apply_part(p, blk, &c, dst + (begin + c.b0 - off));
}

/* Apart from patch_apply(), which need not have this large a frame for other blocks. */
static __attribute__((noinline)) int apply_rice(const struct patch *p,
						const struct patch_block *blk, uint64_t block,
						uint64_t off, uint8_t *dst, size_t len)
{
	struct patch_reader r;
	struct patch_block piece;
	int ret = patch_pieces(p, blk, &r);

	while (ret == 0 && (ret = patch_piece(&r, &piece)) > 0)
		ret = apply_block(p, &piece, block, off, dst, len);
	return ret;
}

int patch_apply(const struct patch *patch, uint64_t off, void *dst, size_t len)
{
	const unsigned shift = PATCH_BLOCK_SHIFT + patch_width_log(patch->width);
	const uint64_t end = off + len;

	if (!range_ok(patch, off, len))
		return -EBADMSG;
	if (patch->op == PATCH_ADD && off % patch->width != 0)
		return -EINVAL;
	for (uint64_t b = off >> shift; len > 0 && b << shift < end; b++) {
		struct patch_block blk;
		int ret = patch_block_at(patch, b, &blk);

		if (ret < 0)
			return ret;
		if (blk.count == 0)
			continue;
		ret = blk.form == PATCH_RICE ? apply_rice(patch, &blk, b, off, dst, len)
					     : apply_block(patch, &blk, b, off, dst, len);
		if (ret < 0)
			return ret;
	}
	return 0;
}

/* Where a cut block's share lies is guessed from even density: looking would be the miss to avoid.
 */
static void prefetch_block(const struct patch *p, const struct patch_block *blk, uint64_t block,
			   uint64_t off, uint64_t end)
{
	uint64_t begin = (block << PATCH_BLOCK_SHIFT) * p->width;
	uint64_t e0 = off > begin ? (off - begin) / p->width : 0;
	uint64_t e1 = MIN((end - begin) / p->width + 1, (uint64_t)blk->elements);
	uint64_t lo = e0, hi = e1;

	if (blk->form == PATCH_RICE) {
		patch_prefetch_bytes(blk->payload, (size_t)blk->payload_len);
		return;
	}
	if (blk->form == PATCH_RAW) {
		lo = blk->count * e0 / blk->elements;
		hi = MIN((uint64_t)blk->count * e1 / blk->elements + SEARCH_NEAR,
			 (uint64_t)blk->count);
		lo -= e0 == 0 ? 0 : MIN(lo, (uint64_t)SEARCH_NEAR);
		patch_prefetch_bytes(blk->positions + 2 * lo, 2 * (hi - lo));
	} else if (blk->form == PATCH_BITS) {
		patch_prefetch_bytes(blk->payload, PATCH_BITS_RANKS);
		patch_prefetch_bytes(blk->positions + e0 / 8, (size_t)(e1 - e0) / 8);
		lo = blk->count * e0 / blk->elements;
		hi = (uint64_t)blk->count * e1 / blk->elements;
	}
	patch_prefetch_bytes(blk->values + lo * p->width, (hi - lo) * p->width);
}

void patch_prefetch(const struct patch *patch, uint64_t off, size_t len)
{
	const unsigned shift = PATCH_BLOCK_SHIFT + patch_width_log(patch->width);
	struct patch_block blk;

	if (len == 0 || !range_ok(patch, off, len))
		return;
	for (uint64_t b = off >> shift; b << shift < off + len; b++)
		if (patch_block_at(patch, b, &blk) == 0 && blk.count > 0)
			prefetch_block(patch, &blk, b, off, off + len);
}

/* Of a part of a BITS block. */
static uint64_t bits_cost(const struct patch_block *blk, uint32_t e0, uint32_t e1, unsigned width)
{
	uint32_t lo, hi;

	if (e0 >= e1)
		return 0;
	lo = patch_bits_rank(blk, e0);
	hi = patch_bits_rank(blk, e1);
	return PATCH_BITS_RANKS + 8 * (patch_bits_words(e1) - e0 / PATCH_BITS_WORD) +
	       (uint64_t)(hi > lo ? hi - lo : 0) * width;
}

uint64_t patch_cost(const struct patch *patch, uint64_t off, size_t len)
{
	const unsigned shift = PATCH_BLOCK_SHIFT + patch_width_log(patch->width);
	uint64_t cost = patch->version != 1 ? 8 : 0; /* the entry that ends the last block */

	if (len == 0 || !range_ok(patch, off, len))
		return 0;
	for (uint64_t b = off >> shift; b << shift < off + len; b++) {
		struct patch_block blk;
		struct cut c;

		if (patch->version != 1)
			cost += 8;
		else if (b == off >> shift || b % PATCH_GROUP == 0)
			cost += PATCH_GROUP_ENTRY + (uint64_t)PATCH_GROUP * patch->length_size;
		if (patch_block_at(patch, b, &blk) < 0 || blk.count == 0)
			continue;
		if (blk.form == PATCH_RICE) {
			cost += blk.payload_len;
			continue;
		}
		c = cut_block(patch, &blk, b, off, off + len);
		if (blk.form == PATCH_DENSE)
			cost += c.b1 - c.b0;
		else if (blk.form == PATCH_BITS)
			cost += bits_cost(&blk, c.e0, c.e1, patch->width);
		else
			cost += (uint64_t)(c.hi > c.lo ? c.hi - c.lo : 0) * (2 + patch->width);
	}
	return cost;
}
