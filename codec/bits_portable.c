/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops over a bitmap that run on every CPU: one after the other, by the lowest one that is
 * left of a word.
 *
 * No state; any number of threads.
 */
#include "codec/bits_kernel.h"

#define PORTABLE

PATCH_INLINE int run(uint8_t *dst, const uint8_t *bitmap, uint32_t words, const uint8_t *values,
		     uint32_t left, enum patch_op op, unsigned width)
{
	const uint32_t all = left;

	for (uint32_t i = 0; i < words; i++, dst += (size_t)BITS_WORD * width) {
		const uint64_t bits = load_le64(bitmap + 8 * (size_t)i);
		const unsigned n = (unsigned)__builtin_popcountll(bits);

		if (n > left)
			return -1;
		bits_word(dst, bits, values, op, width);
		values += (size_t)n * width;
		left -= n;
	}
	return (int)(all - left);
}

BITS_LOOPS(PORTABLE, run)

const struct bits_kernel bits_kernel_portable = {.least = PATCH_BLOCK / 6, .change = BITS_TABLE};
