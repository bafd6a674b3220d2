/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The patch form: the one in-memory and on-disk form of a delta.
 *
 * A tensor's patch is one blob that says which elements of the tensor change and how.  It begins
 * with a head:
 *
 *	offset size
 *	0      4    magic "WFP\0"
 *	4      1    form version, 0, 1 or 2
 *	5      1    op: 1 SET (new value), 2 ADD (difference modulo 2^(8*width)), 3 XOR
 *	6      1    width: bytes of an element, 1, 2, 4 or 8
 *	7      1    block shift, 16: blocks of 65,536 elements, blocks = ceil(numel / 65536)
 *	8      8    numel: elements of the tensor
 *	16     8    changed: elements in the patch, the sum of the blocks' counts
 *	24     8    versions 0 and 2: reserved, 0
 *
 * All numbers and values are little-endian.  Positions may go beyond 2^32 elements.
 *
 * Form version 0, the one that is fastest to find things in:
 *
 *	32     8*(blocks+1)  directory
 *	...         payload, then zeros up to a multiple of 8
 *
 * Directory entry: bits 0-39 payload offset (bytes after the directory), bits 40-56 count of
 * changed elements (0 ... 65,536), bits 57-63 form of the block.  The first offset is 0, and a
 * block's payload ends where the next one's begins; the last entry closes the payload and has count
 * 0 and form 0.  Offsets never descend.
 *
 * Form version 1 ("wfp1"), the one that is small: it can be written in one go, and an unchanged
 * block costs two bits.  The head goes on with
 *
 *	24     1    flags: bit 0 LONG, bit 1 HASHES, the others 0
 *	25     3    0
 *	28     4    listed: blocks that change, less than 2^24
 *	32          payload: of the listed blocks, in order, without gaps; then zeros up to a
 *		    multiple of 8
 *	...    16*groups  directory: an entry per group of 64 blocks, groups = ceil(blocks / 64)
 *	...    8*listed   with HASHES: the XXH3-64 of each listed block's bytes (of the tensor)
 *		    after the patch has been applied
 *	...    2*listed, with LONG 4*listed  lengths: bytes of payload of each listed block
 *	...         zeros up to a multiple of 8; here the blob ends
 *
 * Directory entry: 8 bytes of which bit i says that block 64*group + i is listed; then 8 bytes with
 * the offset of the group's payload (bits 0-39, from the blob's byte 32) and the number of blocks
 * listed before the group (bits 40-63).  A listed block's place in the arrays is that number and
 *the ones below its bit; its payload begins at the group's offset and the lengths from the group's
 * first block to the one before it.  Groups without a listed block have the offset and number that
 * come next.
 *
 * A listed block's payload begins with 1 to 3 bytes that say its form (bits 0-1) and its count of
 * changed elements less one (bits 2-17), seven bits a byte, the lowest first; the highest bit of a
 * byte is 1 when another one follows, and the last is not 0 unless it is the only one.
 *
 * Form version 2 is version 0 with blocks that may be BITS, for patches that change much; it stays
 *in a cache, and is not published.
 *
 * Block forms:
 *	0 RAW	count u16 positions within the block, strictly ascending, then count values
 *		(in versions 0 and 2 an unchanged block is RAW with count 0: nothing)
 *	1 DENSE	one value for each of the block's elements, in order; count = elements of the
 *		block.  For ADD and XOR a zero means "unchanged".
 *	2 RICE	version 1 only: see rice.h
 *	3 BITS	version 2 only: 64 ranks, u16; a bitmap of the block's elements in words of 8 bytes,
 *		bit i % 64 of word i / 64 for element i, 0 beyond the last element; then count
 *		values, of the ones in order.  Rank r is the number of ones before element
 *		1024 * r, 0 where there is none
 *
 * A reader of a range touches the blob's head, the directory entries (in version 1 also up to 64
 * lengths) and the payload of the blocks it overlaps, nothing else, so blobs can lie in a
 * memory-mapped file of any size.
 *
 * Nothing here allocates except patch_writer and patch_merge (one block at a time); all functions
 * are thread-safe on distinct objects; a struct patch may be shared by readers.
 */
#ifndef CODEC_PATCH_H
#define CODEC_PATCH_H

#include "codec/base.h"
#include "codec/io.h"

enum patch_op { PATCH_SET = 1, PATCH_ADD = 2, PATCH_XOR = 3 };
enum patch_form { PATCH_RAW = 0, PATCH_DENSE = 1, PATCH_RICE = 2, PATCH_BITS = 3 };

/* What a writer makes: version 0, or 2 where a block is BITS, for speed; or version 1.  Each block
 * has the smallest of the forms that there are. */
enum patch_coding { PATCH_CODING_RAW, PATCH_CODING_RICE };

enum {
	PATCH_HEAD = 32,
	PATCH_BLOCK_SHIFT = 16,
	PATCH_BLOCK = 1 << PATCH_BLOCK_SHIFT, /* elements */
};

/* The inner loops of RICE blocks for one kind of CPU.  All give the same bytes. */
struct rice_kernel;

/* "portable", "avx2" or "avx512"; NULL stands for the best that this CPU has.  NULL when there is
 * no such kernel or this CPU cannot run it. */
const struct rice_kernel *patch_kernel(const char *name);
const char *patch_kernel_name(const struct rice_kernel *kernel);

/* A view of one tensor's blob; borrows the bytes. */
struct patch {
	const uint8_t *dir;	/* versions 0, 2: blocks + 1 entries; version 1: groups */
	const uint8_t *payload; /* payload_len bytes; in version 1 with the zeros that follow */
	uint64_t payload_len;
	uint64_t numel, changed, blocks;
	const uint8_t *hashes;		  /* version 1: listed of 8 bytes, or NULL */
	const uint8_t *lengths;		  /* version 1: listed of length_size bytes */
	const struct rice_kernel *kernel; /* patch_open() sets the best; may be replaced */
	uint32_t listed;
	uint8_t length_size; /* 2, 4 */
	uint8_t op;	     /* enum patch_op */
	uint8_t width;	     /* 1, 2, 4, 8 */
	uint8_t version;
};

/* Checks the head, that the directory fits and (version 0) that `len` is what its last entry says,
 * and makes the view.  Reads 32 bytes and that entry.  -EBADMSG, or -ENOTSUP for a newer form
 * version or a flag of one, with a sentence. */
int patch_open(const void *blob, uint64_t len, struct patch *out_patch, struct why *why) MUST_CHECK;

/* Checks everything else: directory offsets and counts, block sizes, positions strictly ascending
 * and inside the block, `changed` equal to the sum.  Reads the whole blob. */
int patch_check(const struct patch *patch, struct why *why) MUST_CHECK;

/* Compares a block of the tensor after patch_apply(), all bytes of it, with the hash that the patch
 * has for it.  0 when it is the same; -ENODATA when the patch has none (no HASHES, or the block
 * does not change); -EBADMSG with a sentence when it is another: the patch was made for another
 * base. */
int patch_check_result(const struct patch *patch, uint64_t block, const void *bytes,
		       struct why *why) MUST_CHECK;

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

struct patch_writer; /* opaque; holds one block, up to 1 MiB of output and the directory */

/* Starts a blob at sink offset `at` (a multiple of 8).  The sink is borrowed until end or abort.
 * NULL: out of memory. */
struct patch_writer *patch_writer_new(enum patch_op op, unsigned width, uint64_t numel,
				      const struct sink *sink, uint64_t at);

/* Bytes of an element. */
unsigned patch_writer_width(const struct patch_writer *w);

/* Before the first element: makes a blob of version 1, coded by the kernel (NULL: the best), with a
 * hash for each block if `hashes`.  Without this call it is PATCH_CODING_RAW.  -ENOMEM. */
int patch_writer_rice(struct patch_writer *w, const struct rice_kernel *kernel, bool hashes,
		      struct why *why) MUST_CHECK;

/* With hashes: the XXH3-64 of what `block` will hold, after the block's elements and before any of
 * a later one.  A block that changes and has got no hash fails with -EINVAL when it is written; one
 * for a block that does not change is dropped. */
void patch_writer_hash(struct patch_writer *w, uint64_t block, uint64_t hash);

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

/* An upper bound of the blob's length for `changed` elements out of numel; of a blob of version 1
 * with hashes. */
uint64_t patch_bound(unsigned width, uint64_t numel, uint64_t changed);
uint64_t patch_bound_rice(unsigned width, uint64_t numel, uint64_t changed);

/* Merges k patches of the same tensor, oldest first, into one blob with the same effect.  SET then
 * SET keeps the last, SET then ADD/XOR is SET, ADD adds (sums of zero are dropped), XOR likewise;
 * ADD with XOR (without a SET after them) cannot be expressed: -ENOTSUP.  A SET over part of what
 * ADD/XOR changed cannot either: -ENOTSUP.  All must agree in numel and width (-EINVAL);
 * -EBADMSG for a damaged block.  Works block by block: memory is a few MB besides the directory.
 * *out_len 0 and nothing written when nothing is left to change.  PATCH_CODING_RICE keeps hashes
 * when all patches have them; patch_merge() is PATCH_CODING_RAW. */
int patch_merge_as(enum patch_coding coding, const struct patch *const *patches, size_t k,
		   const struct sink *sink, uint64_t at, uint64_t *out_len, uint64_t *out_changed,
		   struct why *why) MUST_CHECK;
int patch_merge(const struct patch *const *patches, size_t k, const struct sink *sink, uint64_t at,
		uint64_t *out_len, uint64_t *out_changed, struct why *why) MUST_CHECK;

#endif
