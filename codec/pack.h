/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed weights: a safetensors file whose tensors are compressed, readable block by block.
 *
 * A packed file is an ordinary safetensors file itself.  Each tensor of the original that has any
 * bytes is a U8 tensor of one dimension and the same name, in the same order.  "__metadata__" has
 * "format" "weightfs-packed", "packed_version" "1", "original_size" the bytes of the original file,
 * and "header" that file's header as it is: its JSON text with the spaces at its end, without the
 * eight bytes before it.  So the original file can be made again to the last byte.
 *
 * The bytes of a tensor are cut into elements of `width` bytes, 1, 2, 4 or 8 as its dtype has them
 * (1 where an element has less than a byte), and those into blocks of 65,536.  Numbers are
 * little-endian.
 *
 *	16*(blocks+1)  directory: for each block 8 bytes with the XXH3-64 of its original bytes, and
 *		       8 with its offset behind the directory; last an entry with 0 and the offset
 *		       of the end.  The first offset is 0.
 *	...	       the blocks, in order, without gaps, up to the end of the tensor
 *
 * A block:
 *
 *	4*width	       for each plane its length in bytes
 *	...	       the planes, in order, without gaps
 *
 * Plane p has byte p of each element, in order.  A plane as long as the block has elements is as it
 * is; a shorter one is a frame of zstd that says its content's size.  None is longer.
 *
 * Of bf16 the low bytes hardly compress and the high ones, sign and exponent, do to a third.
 *
 * Sizes are bounded before anything is decompressed, into a buffer of the block's size: a frame
 *that says another size is refused.  Whatever the bytes, nothing is written or read beyond what is
 *given.
 *
 * Functions are pure; a packer belongs to one thread.
 */
#ifndef CODEC_PACK_H
#define CODEC_PACK_H

#include "codec/buf.h"
#include "codec/safetensors.h"

#define PACK_FORMAT "weightfs-packed"

enum { PACK_BLOCK = 1 << 16, PACK_ENTRY = 16, PACK_LENGTH = 4 };

/* Is this the header of a packed file, of whatever version? */
bool pack_is(const struct st_header *header);

/* The original's header of a packed file's, and its JSON text (out_json may be NULL; malloc'ed,
 * out_header->length bytes).  Checks that both have the same tensors and that each of the packed
 * ones has room for its directory.  -EBADMSG, -ENOTSUP an unknown version, -ENOMEM. */
int pack_header(const struct st_header *packed, struct st_header **out_header, char **out_json,
		struct why *why) MUST_CHECK;

uint64_t pack_blocks(uint64_t bytes, unsigned width);
/* Bytes of a block of a tensor of `bytes`. */
uint32_t pack_block_bytes(uint64_t bytes, unsigned width, uint64_t block);
/* The most that a block of so many bytes has when it is packed. */
uint32_t pack_bound(uint32_t bytes, unsigned width);

/* Two neighbouring directory entries, 32 bytes: where the block is behind the directory.  -EBADMSG
 * when it is longer than pack_bound() or the offsets descend. */
int pack_entry(const uint8_t *entries, uint32_t bytes, unsigned width, uint64_t *out_offset,
	       uint32_t *out_len, uint64_t *out_hash) MUST_CHECK;

/* Unpacks a block into dst[bytes]; scratch has as many.  -EBADMSG when it is malformed or does not
 * have the hash; dst is unspecified then. */
int pack_decode(const uint8_t *packed, size_t len, unsigned width, uint64_t hash, uint8_t *dst,
		uint32_t bytes, uint8_t *scratch) MUST_CHECK;

/* ---- making one ---- */

struct packer; /* opaque: a context of zstd, and a block */

struct packer *packer_new(void);    /* NULL: out of memory */
void packer_free(struct packer *p); /* NULL is fine */
/* Packs a block of at most PACK_BLOCK elements into dst, which has pack_bound() bytes; returns how
 * many it takes, and its hash. */
size_t packer_block(struct packer *p, const uint8_t *bytes, uint32_t len, unsigned width,
		    uint8_t *dst, uint64_t *out_hash);

/* The header of the packed file of an original: 8 + N bytes appended to out.  sizes[i] are the
 * bytes of tensor i of header->tensors as packed (ignored where the original has none); NULL: the
 * longest that they can be, to find out how much room the header needs (min_size 0).  -ENOMEM,
 * -EMSGSIZE. */
int pack_compose(const struct st_header *header, const char *json, const uint64_t *sizes,
		 size_t min_size, struct buf *out, struct why *why) MUST_CHECK;

#endif
