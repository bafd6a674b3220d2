/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops over the bitmap of a BITS block (patch.h), for one kind of CPU each.
 *
 * bits_portable.c, bits_avx2.c and bits_avx512.c give the same bytes for the same input, also for a
 * malformed one.
 */
#ifndef CODEC_BITS_KERNEL_H
#define CODEC_BITS_KERNEL_H

#include "codec/patch_change.h"

enum { BITS_WORD = 64 }; /* elements of a word of the bitmap */

/* Changes the elements of `words` whole words of the bitmap, of which dst holds all, by the values
 * in order.  Returns how many values it took; -1 when there are more ones than the `left` values
 * (dst is then changed in part). */
typedef int bits_loop(uint8_t *dst, const uint8_t *bitmap, uint32_t words, const uint8_t *values,
		      uint32_t left);

struct bits_kernel {
	/* Of PATCH_BLOCK elements, how many have to change for a bitmap to be quicker than
	 * positions. */
	uint32_t least;
	bits_loop *change[4][4]; /* by enum patch_op and patch_width_log() */
};

extern const struct bits_kernel bits_kernel_portable;
#if defined(__x86_64__)
extern const struct bits_kernel bits_kernel_avx2;
extern const struct bits_kernel bits_kernel_avx512;
#endif

/* The elements of the ones of a word, of which dst is the first. */
PATCH_INLINE void bits_word(uint8_t *restrict dst, uint64_t bits, const uint8_t *restrict values,
			    enum patch_op op, unsigned width)
{
	for (; bits != 0; bits &= bits - 1, values += width)
		patch_change(dst + (size_t)(unsigned)__builtin_ctzll(bits) * width, values, op,
			     width);
}

/* A loop per operation and width, from an inline function with those as its last arguments, and
 * the table of them. */
#define BITS_LOOP(target, run, op, width)                                                          \
	target static int loop_##op##_##width(uint8_t *dst, const uint8_t *bitmap, uint32_t words, \
					      const uint8_t *values, uint32_t left)                \
	{                                                                                          \
		return run(dst, bitmap, words, values, left, op, width);                           \
	}
#define BITS_LOOPS_OF(target, run, op)                                                             \
	BITS_LOOP(target, run, op, 1)                                                              \
	BITS_LOOP(target, run, op, 2)                                                              \
	BITS_LOOP(target, run, op, 4)                                                              \
	BITS_LOOP(target, run, op, 8)
#define BITS_LOOPS(target, run)                                                                    \
	BITS_LOOPS_OF(target, run, PATCH_SET)                                                      \
	BITS_LOOPS_OF(target, run, PATCH_ADD)                                                      \
	BITS_LOOPS_OF(target, run, PATCH_XOR)
#define BITS_ENTRIES(op) [op] = {loop_##op##_1, loop_##op##_2, loop_##op##_4, loop_##op##_8}
#define BITS_TABLE	 {BITS_ENTRIES(PATCH_SET), BITS_ENTRIES(PATCH_ADD), BITS_ENTRIES(PATCH_XOR)}

#endif
