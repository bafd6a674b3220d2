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

TARGET_INLINE void count_group(const uint8_t *group, unsigned n, uint32_t counts[CLASSES])
{
	const __m512i v = _mm512_loadu_si512(group);

	for (unsigned c = 0; c < n; c++)
		counts[c] = (uint32_t)_mm_popcnt_u64(
			_mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8((char)c)));
}

CLASSES_OF_ALL(TARGET)
PASS(TARGET, pass, count_group)

TARGET static void count(const uint8_t *group, unsigned n, uint32_t counts[CLASSES])
{
	count_group(group, n, counts);
}

TARGET static uint64_t mask(const uint8_t *group, unsigned c)
{
	return _mm512_cmpeq_epi8_mask(_mm512_loadu_si512(group), _mm512_set1_epi8((char)c));
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
