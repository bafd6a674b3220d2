/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The patch form: the one in-memory and on-disk form of a delta.
 *
 * A tensor's patch is one blob that says which elements of the tensor change and how:
 *
 *	offset size
 *	0      4    magic "WFP\0"
 *	4      1    form version, 0
 *	5      1    op: 1 SET (new value), 2 ADD (difference modulo 2^width), 3 XOR
 *	6      1    width: bytes of an element, 1, 2, 4 or 8
 *	7      1    block shift, 16: blocks of 65,536 elements
 *	8      8    numel: elements of the tensor
 *	16     8    changed: elements in the patch, the sum of the blocks' counts
 *	24     8    reserved, 0
 *	32     8*(blocks+1)  directory, blocks = ceil(numel / 65536)
 *	...         payload, then zeros up to a multiple of 8
 *
 * Directory entry: bits 0-39 payload offset (bytes after the directory), bits 40-56 count of
 * changed elements (0 ... 65,536), bits 57-63 form of the block.  The first offset is 0, and a
 * block's payload ends where the next one's begins; the last entry closes the payload and has count
 * 0 and form 0.  Offsets never descend.
 *
 * Block forms:
 *	0 RAW	count u16 positions within the block, strictly ascending, then count values
 *		(an unchanged block is RAW with count 0: nothing)
 *	1 DENSE	one value for each of the block's elements, in order; count = elements of the
 *		block.  For ADD and XOR a zero means "unchanged".
 *
 * All numbers and values are little-endian.  Positions may go beyond 2^32 elements.
 *
 * A reader of a range touches the blob's directory entries and payload of the blocks it overlaps,
 * nothing else, so blobs can lie in a memory-mapped file of any size.
 *
 * Nothing here allocates except patch_writer and patch_merge (one block at a time); all functions
 * are thread-safe on distinct objects; a struct patch may be shared by readers.
 */
#ifndef CODEC_PATCH_H
#define CODEC_PATCH_H

#include "codec/base.h"
#include "codec/io.h"

enum patch_op { PATCH_SET = 1, PATCH_ADD = 2, PATCH_XOR = 3 };
enum patch_form { PATCH_RAW = 0, PATCH_DENSE = 1 };

enum {
	PATCH_HEAD = 32,
	PATCH_BLOCK_SHIFT = 16,
	PATCH_BLOCK = 1 << PATCH_BLOCK_SHIFT, /* elements */
};

/* A view of one tensor's blob; borrows the bytes. */
struct patch {
	const uint8_t *dir;	/* blocks + 1 entries */
	const uint8_t *payload; /* payload_len bytes */
	uint64_t payload_len;
	uint64_t numel, changed, blocks;
	uint8_t op;    /* enum patch_op */
	uint8_t width; /* 1, 2, 4, 8 */
};

/* Checks the head, that the directory fits and that `len` is what its last entry says, and makes
 * the view.  Reads 32 bytes and that entry.  -EBADMSG, or -ENOTSUP for a newer form version, with a
 * sentence. */
int patch_open(const void *blob, uint64_t len, struct patch *out_patch, struct why *why) MUST_CHECK;

/* Checks everything else: directory offsets and counts, block sizes, positions strictly ascending
 * and inside the block, `changed` equal to the sum.  Reads the whole blob. */
int patch_check(const struct patch *patch, struct why *why) MUST_CHECK;

/* Applies the patch to bytes [off, off + len) of the tensor, which dst holds.  The range may start
 * or end inside an element; for ADD it may only end inside one, since the sum's upper bytes need
 * the lower ones: -EINVAL unless off is a multiple of the width (a caller rounds its read down to
 * an element).  Writes only inside dst[0..len), whatever the blob contains; -EBADMSG when a block
 * is malformed (dst then unspecified) or the range is not inside the tensor.  Does not look for
 * everything that patch_check() does: an unchecked blob may give wrong bytes.  Does not allocate or
 * block. */
int patch_apply(const struct patch *patch, uint64_t off, void *dst, size_t len) MUST_CHECK;

/* Hints the CPU to fetch what patch_apply() of this range will touch.  A reader of a stack is
 * fastest block by block (at multiples of PATCH_BLOCK elements): prefetch for all patches, copy,
 * apply all. */
void patch_prefetch(const struct patch *patch, uint64_t off, size_t len);

/* Bytes of directory and payload that patch_apply() of this range reads (for counters and bounds),
 * without the few that its binary search in a cut block looks at.  0 when the range is empty or not
 * inside the tensor. */
uint64_t patch_cost(const struct patch *patch, uint64_t off, size_t len);

/* ---- making one ---- */

struct patch_writer; /* opaque; holds one block, 256 KiB of output and the directory */

/* Starts a blob at sink offset `at` (a multiple of 8).  The sink is borrowed until end or abort.
 * NULL: out of memory. */
struct patch_writer *patch_writer_new(enum patch_op op, unsigned width, uint64_t numel,
				      const struct sink *sink, uint64_t at);

/* Adds n elements: positions strictly ascending, also across calls, and below numel; values n*width
 * bytes.  -EBADMSG with a sentence that has the position otherwise; -EFBIG when the blob would pass
 * 1 TiB; a sink's error is passed on.  After an error only free is allowed. */
int patch_writer_add(struct patch_writer *w, const uint64_t *positions, const void *values,
		     size_t n, struct why *why) MUST_CHECK;

/* Writes what is left and the directory; *out_len is the blob's length (a multiple of 8),
 * *out_changed may be NULL. */
int patch_writer_end(struct patch_writer *w, uint64_t *out_len, uint64_t *out_changed,
		     struct why *why) MUST_CHECK;
void patch_writer_free(struct patch_writer *w); /* NULL is fine */

/* An upper bound of the blob's length for `changed` elements out of numel. */
uint64_t patch_bound(unsigned width, uint64_t numel, uint64_t changed);

/* Merges k patches of the same tensor, oldest first, into one blob with the same effect.  SET then
 * SET keeps the last, SET then ADD/XOR is SET, ADD adds (sums of zero are dropped), XOR likewise;
 * ADD with XOR (without a SET after them) cannot be expressed: -ENOTSUP.  A SET over part of what
 * ADD/XOR changed cannot either: -ENOTSUP.  All must agree in numel and width (-EINVAL);
 * -EBADMSG for a damaged block.  Works block by block: memory is a few MB besides the directory.
 * *out_len 0 and nothing written when nothing is left to change. */
int patch_merge(const struct patch *const *patches, size_t k, const struct sink *sink, uint64_t at,
		uint64_t *out_len, uint64_t *out_changed, struct why *why) MUST_CHECK;

#endif
