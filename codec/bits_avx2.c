/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops over a bitmap for CPUs with AVX2 and BMI2.
 *
 * Eight elements at a time: depositing 0, 1, 2 ... over the ones of a byte gives for each of its
 * lanes which of the next values it takes, and a shuffle brings them there.  As long as there are a
 * word's worth of values, loads do not pass the last of them; the rest is done one by one, as are
 * elements of 8 bytes.
 *
 * No state; any number of threads.
 */
#include "codec/bits_kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET	      __attribute__((target("avx2,bmi,bmi2,popcnt,lzcnt")))
#define TARGET_INLINE static inline __attribute__((always_inline)) TARGET

#define EACH_BYTE UINT64_C(0x0101010101010101)
#define COUNTING  UINT64_C(0x0706050403020100)

TARGET_INLINE __m128i from64(uint64_t v)
{
	return _mm_cvtsi64_si128((long long)v);
}

/* Eight elements of one byte. */
TARGET_INLINE void eight_1(uint8_t *dst, uint64_t lanes, const uint8_t *values, enum patch_op op)
{
	const __m128i old = _mm_loadl_epi64((const __m128i *)dst);
	__m128i v = from64(_pdep_u64(load_le64(values), lanes));

	if (op == PATCH_SET)
		v = _mm_or_si128(v, _mm_andnot_si128(from64(lanes), old));
	else
		v = op == PATCH_ADD ? _mm_add_epi8(old, v) : _mm_xor_si128(old, v);
	_mm_storel_epi64((__m128i *)dst, v);
}

TARGET_INLINE void eight_2(uint8_t *dst, uint64_t lanes, uint64_t which, const uint8_t *values,
			   enum patch_op op)
{
	const __m128i old = _mm_loadu_si128((const __m128i *)dst);
	const __m128i mask = _mm_cvtepi8_epi16(from64(lanes));
	__m128i v, at = _mm_mullo_epi16(_mm_cvtepu8_epi16(from64(which)), _mm_set1_epi16(0x0202));

	at = _mm_or_si128(at, _mm_set1_epi16(0x0100));
	v = _mm_and_si128(_mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)values), at), mask);
	if (op == PATCH_SET)
		v = _mm_or_si128(v, _mm_andnot_si128(mask, old));
	else
		v = op == PATCH_ADD ? _mm_add_epi16(old, v) : _mm_xor_si128(old, v);
	_mm_storeu_si128((__m128i *)dst, v);
}

TARGET_INLINE void eight_4(uint8_t *dst, uint64_t lanes, uint64_t which, const uint8_t *values,
			   enum patch_op op)
{
	const __m256i old = _mm256_loadu_si256((const __m256i *)dst);
	const __m256i mask = _mm256_cvtepi8_epi32(from64(lanes));
	__m256i v = _mm256_loadu_si256((const __m256i *)values);

	v = _mm256_permutevar8x32_epi32(v, _mm256_cvtepu8_epi32(from64(which)));
	v = _mm256_and_si256(v, mask);
	if (op == PATCH_SET)
		v = _mm256_or_si256(v, _mm256_andnot_si256(mask, old));
	else
		v = op == PATCH_ADD ? _mm256_add_epi32(old, v) : _mm256_xor_si256(old, v);
	_mm256_storeu_si256((__m256i *)dst, v);
}

TARGET_INLINE void eight(uint8_t *dst, uint64_t byte, const uint8_t *values, enum patch_op op,
			 unsigned width)
{
	const uint64_t lanes = _pdep_u64(byte, EACH_BYTE) * 0xff;
	const uint64_t which = _pdep_u64(COUNTING, lanes);

	switch (width) {
	case 1: eight_1(dst, lanes, values, op); break;
	case 2: eight_2(dst, lanes, which, values, op); break;
	default: eight_4(dst, lanes, which, values, op);
	}
}

TARGET_INLINE int run(uint8_t *dst, const uint8_t *bitmap, uint32_t words, const uint8_t *values,
		      uint32_t left, enum patch_op op, unsigned width)
{
	const uint32_t all = left;

	for (uint32_t i = 0; i < words; i++, dst += (size_t)BITS_WORD * width) {
		const uint64_t bits = load_le64(bitmap + 8 * (size_t)i);
		const unsigned n = (unsigned)_mm_popcnt_u64(bits);

		if (width == 8 || left < BITS_WORD) {
			if (n > left)
				return -1;
			bits_word(dst, bits, values, op, width);
		} else {
#pragma GCC unroll 8
			for (unsigned b = 0; b < 8; b++) {
				const uint64_t before = b == 0 ? 0 : _bzhi_u64(bits, 8 * b);

				eight(dst + (size_t)8 * b * width, bits >> 8 * b & 0xff,
				      values + (size_t)_mm_popcnt_u64(before) * width, op, width);
			}
		}
		values += (size_t)n * width;
		left -= n;
	}
	return (int)(all - left);
}

BITS_LOOPS(TARGET, run)

const struct bits_kernel bits_kernel_avx2 = {.least = PATCH_BLOCK / 6, .change = BITS_TABLE};
#endif
