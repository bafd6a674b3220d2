/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel of classes for CPUs with AVX2 and BMI2.
 *
 * Two compares give the mask of a class in a group, and its ones are the count.  Which classes the
 * elements are of is left to the compiler.
 *
 * No state; any number of threads.
 */
#include "codec/class_kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET	      __attribute__((target("avx2,bmi,bmi2,popcnt,lzcnt")))
#define TARGET_INLINE static inline __attribute__((always_inline)) TARGET

TARGET_INLINE void count_group(const uint8_t *group, unsigned n, uint32_t counts[CLASSES])
{
	const __m256i a = _mm256_loadu_si256((const __m256i *)group);
	const __m256i b = _mm256_loadu_si256((const __m256i *)(group + 32));

	for (unsigned c = 0; c < n; c++) {
		const __m256i v = _mm256_set1_epi8((char)c);
		uint32_t low = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(a, v));
		uint32_t high = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(b, v));

		counts[c] = (uint32_t)_mm_popcnt_u64((uint64_t)high << 32 | low);
	}
}

CLASSES_OF_ALL(TARGET)
PASS(TARGET, pass, count_group)

TARGET static void count(const uint8_t *group, unsigned n, uint32_t counts[CLASSES])
{
	count_group(group, n, counts);
}

TARGET static uint64_t mask(const uint8_t *group, unsigned c)
{
	const __m256i a = _mm256_loadu_si256((const __m256i *)group);
	const __m256i b = _mm256_loadu_si256((const __m256i *)(group + 32));
	const __m256i v = _mm256_set1_epi8((char)c);

	return (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(b, v)) << 32 |
	       (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(a, v));
}

TARGET static unsigned select_one(uint64_t m, unsigned n)
{
	return (unsigned)_tzcnt_u64(_pdep_u64(UINT64_C(1) << n, m)) & 63;
}

const struct class_kernel class_kernel_avx2 = {
	.classes = {classes_1, classes_2, classes_4, classes_8},
	.pass = pass,
	.count = count,
	.mask = mask,
	.select = select_one,
};
#endif
