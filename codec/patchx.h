/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wfp1x: a patch that is smaller than wfp1 (patch.h) and needs bytes of the model to be read.
 *
 * How likely a weight changes in a step of training, and by how much, depends on its size: the
 * chance doubles each time the exponent drops by one.  So the elements of a tensor are sorted into
 * classes by the exponents of a *reference*, a state of the tensor that writer and reader both
 * have, and each class is coded by itself.  About seven bits a change where wfp1 needs ten.  It is
 * for transfer: whoever receives it turns it into a patch of patch.h, once, with the reference at
 * hand.  A published delta's reference is the version it applies to: who follows a run has that,
 * whichever anchors come meanwhile.
 *
 * A tensor's patch is one blob.  Numbers are little-endian; a "number" is unsigned, seven bits a
 * byte, the lowest first, the highest bit of a byte 1 when another one follows, at most five bytes,
 * and the last byte is not 0 unless it is the only one.
 *
 *	offset size
 *	0      4    magic "WFX\0"
 *	4      1    form version, 0
 *	5      1    op: 2 (ADD: new - old, modulo 2^(8*width))
 *	6      1    width: bytes of an element, 1, 2, 4 or 8
 *	7      1    flags: bit 0 HASHES, the others 0
 *	8      8    numel: elements of the tensor
 *	16     8    changed: elements in the patch
 *	24     1    shift, and
 *	25     1    bits: 0 to 11, shift + bits <= 8*width.  An element of the reference, as a
 *		    number of width bytes, has the key (element >> shift) modulo 2^bits.
 *	26     2    0
 *	28     4    listed: blocks of 65,536 elements of the tensor that change
 *	32          spans, one for each 64 blocks (4,194,304 elements; the last one has what is
 *		    left), in order, without gaps; then zeros up to a multiple of 8
 *	...    8*listed   with HASHES: the XXH3-64 of each listed block's bytes (of the tensor)
 *		    after the patch has been applied; here the blob ends
 *
 * A span:
 *
 *	number      size: bytes of the span behind this number.  0: nothing changes in it
 *	8           XXH3-64 of the reference's bytes of the span
 *	1           classes: 1 to 16
 *	number      top (only with two or more classes), below 2^bits
 *	number      for each class but the last: its members
 *	numbers     for each list: count, and where that is not 0 its length in bytes
 *	...         for each list whose count is not 0, in order, without gaps: its bytes
 *
 * An element with key K is in class top - K, but in class 0 where that is negative and in the last
 * class where it is too large.  With one class all elements are in it.  The members of a class are
 * numbered from 0 in the order of their elements; the last class has the members that the others
 * leave of the span.  A class has a list for each 65,536 members, the last one for the rest; lists
 * come in the order of classes.  A list says which of its members change, `count` of them, and by
 * how much, in the Rice form of rice.h, where it is the payload of a block with as many elements as
 * the list has members and of op ADD.
 *
 * The reference is read from its beginning to its end but for spans that do not change.  A span's
 * hash of the reference is compared before the span counts: on other bytes the same code would mean
 * another patch.
 *
 * Decoding needs about 1 MB and a patch writer; encoding holds a span of the reference (8 MiB where
 * width is 2) and its changes.  Sources and sinks may block; nothing else does.  Any number of
 * threads on distinct objects; a struct patchx may be shared.
 */
#ifndef CODEC_PATCHX_H
#define CODEC_PATCHX_H

#include "codec/patch.h"
#include "codec/safetensors.h"

enum {
	PATCHX_HEAD = 32,
	PATCHX_SPAN_BLOCKS = 64,
	PATCHX_SPAN = PATCHX_SPAN_BLOCKS * PATCH_BLOCK, /* elements */
	PATCHX_KEY_BITS = 11,
};

/* A view of one tensor's blob; borrows the bytes. */
struct patchx {
	const uint8_t *spans, *spans_end;
	const uint8_t *hashes; /* listed of 8 bytes, or NULL */
	uint64_t numel, changed;
	uint32_t listed;
	uint8_t width, shift, bits;
};

/* Is this a blob of this form, of whatever version? */
bool patchx_is(const void *blob, uint64_t len);

/* Looks at the head only.  -EBADMSG; -ENOTSUP for a form version that is not known here. */
int patchx_open(const void *blob, uint64_t len, struct patchx *out, struct why *why) MUST_CHECK;

/* Writes the same patch in the form of patch.h (op ADD; with PATCH_CODING_RICE also its hashes) at
 * sink offset `at`, a multiple of 8.  `reference` has the numel * width bytes of the tensor's
 * reference; *out_read is how many of them were read (also on failure).  *out_len 0 and nothing
 * written when nothing changes.  Whatever the blob contains, nothing is read or written beyond what
 * is given: -EBADMSG with a sentence, also when the reference is another one.  -ENOMEM; errors of
 * source and sink. */
int patchx_decode(const struct patchx *x, const struct source *reference,
		  const struct rice_kernel *kernel, enum patch_coding coding,
		  const struct sink *sink, uint64_t at, uint64_t *out_len, uint64_t *out_read,
		  struct why *why) MUST_CHECK;

/* Writes an ADD patch in this form at sink offset `at`; with hashes if the patch has them.  dtype
 * is the tensor's: it says where the exponent is.  Types that have none (and those of less than a
 * byte) get one class.  *out_len is a multiple of 8; 0 and nothing written when nothing changes.
 * -EINVAL for another op; -EBADMSG when the patch is damaged or dtype or reference do not fit it.
 */
int patchx_encode(const struct patch *patch, enum st_dtype dtype, const struct source *reference,
		  const struct sink *sink, uint64_t at, uint64_t *out_len,
		  struct why *why) MUST_CHECK;

#endif
