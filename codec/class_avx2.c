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

struct group {
	__m256i low, high;
};

TARGET_INLINE struct group load(const uint8_t *group)
{
	return (struct group){_mm256_loadu_si256((const __m256i *)group),
			      _mm256_loadu_si256((const __m256i *)(group + 32))};
}

TARGET_INLINE uint64_t mask_of(const struct group *g, unsigned c)
{
	const __m256i v = _mm256_set1_epi8((char)c);
	uint32_t low = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(g->low, v));
	uint32_t high = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(g->high, v));

	return (uint64_t)high << 32 | low;
}

TARGET_INLINE uint32_t count_one(const struct group *g, unsigned c)
{
	return (uint32_t)_mm_popcnt_u64(mask_of(g, c));
}

CLASSES_OF_ALL(TARGET)
PASS(TARGET, struct group, load, count_one)

TARGET static uint64_t mask(const uint8_t *group, unsigned c)
{
	const struct group g = load(group);

	return mask_of(&g, c);
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
