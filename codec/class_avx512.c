/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel of classes for CPUs with AVX-512.
 *
 * A compare gives the mask of a class in a group, and its ones are the count.  Which classes the
 * elements are of is left to the compiler.
 *
 * No state; any number of threads.
 */
#include "codec/class_kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET                                                                                     \
	__attribute__((target("avx2,avx512f,avx512bw,avx512dq,avx512vl,bmi,bmi2,popcnt,lzcnt")))
#define TARGET_INLINE static inline __attribute__((always_inline)) TARGET

TARGET_INLINE __m512i load(const uint8_t *group)
{
	return _mm512_loadu_si512(group);
}

TARGET_INLINE uint64_t mask_of(const __m512i *g, unsigned c)
{
	return _mm512_cmpeq_epi8_mask(*g, _mm512_set1_epi8((char)c));
}

TARGET_INLINE uint32_t count_one(const __m512i *g, unsigned c)
{
	return (uint32_t)_mm_popcnt_u64(mask_of(g, c));
}

CLASSES_OF_ALL(TARGET)
PASS(TARGET, __m512i, load, count_one)

TARGET static uint64_t mask(const uint8_t *group, unsigned c)
{
	const __m512i g = load(group);

	return mask_of(&g, c);
}

TARGET static unsigned select_one(uint64_t m, unsigned n)
{
	return (unsigned)_tzcnt_u64(_pdep_u64(UINT64_C(1) << n, m)) & 63;
}

const struct class_kernel class_kernel_avx512 = {
	.classes = {classes_1, classes_2, classes_4, classes_8},
	.pass = pass,
	.count = count,
	.mask = mask,
	.select = select_one,
};
#endif
