/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops over a bitmap for CPUs with AVX-512 and its second set of byte instructions (VBMI2).
 *
 * One instruction spreads the next values over the lanes whose bits are one, so what a word costs
 * does not depend on how many ones it has.  As long as there are a word's worth of values, loads do
 * not pass the last of them, however few of them a word takes; the rest is done one by one.
 *
 * No state; any number of threads.
 */
#include "codec/bits_kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET                                                                                     \
	__attribute__((target("avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,"    \
			      "bmi,bmi2,popcnt,lzcnt")))
#define TARGET_INLINE static inline __attribute__((always_inline)) TARGET

/* The next values in the lanes whose bits are one, and in the others what `rest` has there. */
TARGET_INLINE __m512i spread(__m512i rest, uint64_t bits, __m512i values, unsigned width)
{
	switch (width) {
	case 1: return _mm512_mask_expand_epi8(rest, bits, values);
	case 2: return _mm512_mask_expand_epi16(rest, (__mmask32)bits, values);
	case 4: return _mm512_mask_expand_epi32(rest, (__mmask16)bits, values);
	default: return _mm512_mask_expand_epi64(rest, (__mmask8)bits, values);
	}
}

TARGET_INLINE __m512i add(__m512i a, __m512i b, unsigned width)
{
	switch (width) {
	case 1: return _mm512_add_epi8(a, b);
	case 2: return _mm512_add_epi16(a, b);
	case 4: return _mm512_add_epi32(a, b);
	default: return _mm512_add_epi64(a, b);
	}
}

TARGET_INLINE void vector(uint8_t *dst, uint64_t bits, const uint8_t *values, enum patch_op op,
			  unsigned width)
{
	__m512i old = _mm512_loadu_si512(dst), v = _mm512_loadu_si512(values);

	if (op == PATCH_SET) {
		v = spread(old, bits, v, width);
	} else {
		v = spread(_mm512_setzero_si512(), bits, v, width);
		v = op == PATCH_ADD ? add(old, v, width) : _mm512_xor_si512(old, v);
	}
	_mm512_storeu_si512(dst, v);
}

TARGET_INLINE int run(uint8_t *dst, const uint8_t *bitmap, uint32_t words, const uint8_t *values,
		      uint32_t left, enum patch_op op, unsigned width)
{
	const unsigned lanes = BITS_WORD / width;
	const uint64_t lane_bits = lanes < 64 ? (UINT64_C(1) << lanes) - 1 : ~UINT64_C(0);
	const uint32_t all = left;

	for (uint32_t i = 0; i < words; i++, dst += (size_t)BITS_WORD * width) {
		const uint64_t bits = load_le64(bitmap + 8 * (size_t)i);
		const unsigned n = (unsigned)_mm_popcnt_u64(bits);

		if (left < BITS_WORD) {
			if (n > left)
				return -1;
			bits_word(dst, bits, values, op, width);
		} else {
#pragma GCC unroll 8
			for (unsigned v = 0; v < width; v++) {
				const uint64_t before = v == 0 ? 0 : _bzhi_u64(bits, v * lanes);

				vector(dst + (size_t)64 * v, bits >> v * lanes & lane_bits,
				       values + (size_t)_mm_popcnt_u64(before) * width, op, width);
			}
		}
		values += (size_t)n * width;
		left -= n;
	}
	return (int)(all - left);
}

BITS_LOOPS(TARGET, run)

const struct bits_kernel bits_kernel_avx512 = {.least = PATCH_BLOCK / 16, .change = BITS_TABLE};
#endif
