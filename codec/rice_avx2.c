/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel for CPUs with AVX2 and BMI2.
 *
 * A list is decoded in two passes over a chunk, as in the kernel for AVX-512: the places of the
 * unary part's ones come from a table, a byte of it at a time; then 16 low parts at a time are
 * brought into 16-bit lanes, added up across the lanes and joined with the places.
 *
 * A vector load that would pass the end of a stream goes through a copy on the stack, so nothing
 * outside of it is ever touched.
 *
 * No state; any number of threads.
 */
#include "codec/class_kernel.h"
#include "codec/rice_kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET	      __attribute__((target("avx2,bmi,bmi2,popcnt,lzcnt")))
#define TARGET_INLINE static inline __attribute__((always_inline)) TARGET

enum { LANES = 16 }; /* u16 of a vector */

/* 16 bytes at `byte`, zeros beyond the end. */
TARGET_INLINE __m128i load16(const uint8_t *bits, size_t bytes, uint64_t byte)
{
	uint8_t copy[16] = {0};

	if (RICE_LIKELY(byte < bytes && bytes - byte >= 16))
		return _mm_loadu_si128((const __m128i *)(bits + byte));
	if (byte < bytes)
		memcpy(copy, bits + byte, bytes - byte);
	return _mm_loadu_si128((const __m128i *)copy);
}

/* ---- decoding ---- */

TARGET_INLINE int ones(const struct rice_list *l, uint32_t want, uint8_t *places,
		       uint64_t *out_bits)
{
	__m128i base = _mm_setzero_si128();
	uint64_t at = l->unary, from = 0;
	uint32_t n = 0;

	do {
		uint64_t w = rice_word(l->bits, l->bytes, at) & rice_mask(RICE_WORD);

		if (at / 8 >= l->bytes)
			return -EBADMSG;
		for (unsigned i = 0; i < RICE_WORD / 8; i++, w >>= 8) {
			__m128i p = _mm_cvtepu8_epi16(
				_mm_loadl_epi64((const __m128i *)rice_places[w & 0xff]));

			_mm_storeu_si128((__m128i *)(places + 2 * (size_t)n),
					 _mm_add_epi16(p, base));
			base = _mm_add_epi16(base, _mm_set1_epi16(8));
			n += (uint32_t)_mm_popcnt_u32((uint32_t)w & 0xff);
		}
		from = at - l->unary;
		at += RICE_WORD;
	} while (n < want);
	*out_bits = from + (uint16_t)(rice_get16(places + 2 * (size_t)want - 2) - from) + 1;
	return 0;
}

/* How four fields of k bits, the first at bit `shift` of 16 bytes, become 32-bit lanes. */
struct unpack {
	__m256i bytes, shifts; /* of the first four, and of the next four */
	uint32_t second;       /* bytes from the first four's to the next four's */
};

TARGET_INLINE struct unpack unpack_of(unsigned k, unsigned shift)
{
	const unsigned next = (4 * k + shift) % 8;
	const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3);
	__m256i first = _mm256_setr_epi32((int)shift, (int)shift, (int)shift, (int)shift, (int)next,
					  (int)next, (int)next, (int)next);
	struct unpack u = {.second = (4 * k + shift) / 8};

	first = _mm256_add_epi32(first, _mm256_mullo_epi32(lane, _mm256_set1_epi32((int)k)));
	u.shifts = _mm256_and_si256(first, _mm256_set1_epi32(7));
	u.bytes = _mm256_add_epi8(
		_mm256_mullo_epi32(_mm256_srli_epi32(first, 3), _mm256_set1_epi32(0x01010101)),
		_mm256_set1_epi32(0x03020100));
	return u;
}

TARGET_INLINE __m256i fields(const struct rice_list *l, const struct unpack *u, uint64_t byte)
{
	__m256i x = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(l->bits, l->bytes, byte)),
					    load16(l->bits, l->bytes, byte + u->second), 1);

	return _mm256_srlv_epi32(_mm256_shuffle_epi8(x, u->bytes), u->shifts);
}

/* Eight 32-bit lanes each of a and b (a's first) become 16 in order, cut to the mask. */
TARGET_INLINE __m256i join(__m256i a, __m256i b, __m256i mask)
{
	__m256i x = _mm256_packus_epi32(_mm256_and_si256(a, mask), _mm256_and_si256(b, mask));

	return _mm256_permute4x64_epi64(x, 0xd8);
}

TARGET_INLINE __m256i prefix_sums(__m256i x)
{
	__m256i t;

	x = _mm256_add_epi16(x, _mm256_slli_si256(x, 2));
	x = _mm256_add_epi16(x, _mm256_slli_si256(x, 4));
	x = _mm256_add_epi16(x, _mm256_slli_si256(x, 8));
	t = _mm256_shuffle_epi8(x, _mm256_set1_epi16(0x0f0e));
	return _mm256_add_epi16(x, _mm256_permute2x128_si256(t, t, 0x08));
}

/* From places to values, in place.  Entry i is ((place - i) << k) + i + the sum of low parts; what
 * of that depends on i alone goes into one vector with the sum so far. */
TARGET_INLINE void values(const struct rice_list *l, uint32_t want, uint8_t *out)
{
	const struct unpack u = unpack_of(l->k, l->low % 8);
	const __m256i mask = _mm256_set1_epi32((int)rice_mask(l->k));
	const __m256i step = _mm256_set1_epi16((short)(LANES - (LANES << l->k)));
	const __m128i k = _mm_cvtsi32_si128((int)l->k);
	const __m256i count =
		_mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	__m256i sum = _mm256_sub_epi16(count, _mm256_sll_epi16(count, k));
	uint64_t byte = l->low / 8;

	sum = _mm256_add_epi16(sum, _mm256_set1_epi16((short)l->next));
	for (uint32_t i = 0; i < want; i += LANES, byte += 2 * l->k, out += 2 * LANES) {
		__m256i x = join(fields(l, &u, byte), fields(l, &u, byte + l->k), mask);
		__m256i place = _mm256_loadu_si256((const __m256i *)out);
		__m256i high = _mm256_add_epi16(_mm256_sll_epi16(place, k), sum), all;

		x = prefix_sums(x);
		_mm256_storeu_si256((__m256i *)out, _mm256_add_epi16(high, x));
		all = _mm256_shuffle_epi8(_mm256_permute4x64_epi64(x, 0xff),
					  _mm256_set1_epi16(0x0f0e));
		sum = _mm256_add_epi16(_mm256_add_epi16(sum, step), all);
	}
}

TARGET static int list(struct rice_list *l, uint8_t *out, uint32_t want)
{
	uint64_t bits;

	if (ones(l, want, out, &bits) < 0)
		return -EBADMSG;
	values(l, want, out);
	rice_advance(l, want, out, bits);
	return 0;
}

TARGET static uint64_t skip(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t n)
{
	uint64_t w = 0;

	if (n == 0)
		return at;
	for (;; at += RICE_WORD) {
		if (at / 8 >= bytes)
			return UINT64_MAX;
		w = rice_word(bits, bytes, at) & rice_mask(RICE_WORD);
		if ((uint64_t)_mm_popcnt_u64(w) >= n)
			break;
		n -= (uint32_t)_mm_popcnt_u64(w);
	}
	return at + _tzcnt_u64(_pdep_u64(UINT64_C(1) << (n - 1), w)) + 1;
}

TARGET static void units_2(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t n, uint8_t *out)
{
	const __m256i bit = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048,
					      4096, 8192, 16384, -32768);

	for (uint32_t i = 0; i < n; i += LANES) {
		short w = (short)rice_word(bits, bytes, at + i);
		__m256i set = _mm256_and_si256(_mm256_set1_epi16(w), bit);

		_mm256_storeu_si256(
			(__m256i *)(out + 2 * (size_t)i),
			_mm256_or_si256(_mm256_cmpeq_epi16(set, bit), _mm256_set1_epi16(1)));
	}
}

/* ---- encoding ---- */

TARGET static void gaps(const uint8_t *positions, uint32_t n, uint16_t *out)
{
	rice_gaps(positions, n, out);
}

TARGET static void quotients(const uint16_t *g, uint32_t n, unsigned k, uint32_t sums[3])
{
	rice_quotients(g, n, k, sums);
}

TARGET static void put_lows(struct rice_bits *b, const uint16_t *g, uint32_t n, unsigned k)
{
	const uint64_t fields = rice_mask(k) * UINT64_C(0x0001000100010001);
	uint32_t i = 0;

	if (k == 0)
		return;
	for (; k <= 7 && i + 8 <= n; i += 8)
		rice_put(b,
			 _pext_u64(rice_get((const uint8_t *)(g + i), 8), fields) |
				 _pext_u64(rice_get((const uint8_t *)(g + i + 4), 8), fields)
					 << 4 * k,
			 8 * k);
	for (; k <= 14 && i + 4 <= n; i += 4)
		rice_put(b, _pext_u64(rice_get((const uint8_t *)(g + i), 8), fields), 4 * k);
	rice_put_lows(b, g + i, n - i, k);
}

TARGET_INLINE __m256i ones_at(__m128i places)
{
	return _mm256_sllv_epi64(_mm256_set1_epi64x(1), _mm256_cvtepu16_epi64(places));
}

/* Eight at a time: the ones' places are sums of gap >> k plus one. */
TARGET static void put_unary(struct rice_bits *b, const uint16_t *g, uint32_t n, unsigned k)
{
	const __m128i shift = _mm_cvtsi32_si128((int)k);
	uint32_t i = 0;

	for (; i + 8 <= n; i += 8) {
		__m128i q = _mm_srl_epi16(_mm_loadu_si128((const __m128i *)(g + i)), shift);
		__m128i x = _mm_adds_epu16(q, _mm_set1_epi16(1)), half;
		__m256i bits;
		uint32_t end;

		x = _mm_adds_epu16(x, _mm_slli_si128(x, 2));
		x = _mm_adds_epu16(x, _mm_slli_si128(x, 4));
		x = _mm_adds_epu16(x, _mm_slli_si128(x, 8));
		end = (uint32_t)_mm_extract_epi16(x, 7) & 0xffff;
		if (end > RICE_WORD) {
			for (uint32_t j = i; j < i + 8; j++)
				rice_put_zeros_one(b, (uint32_t)g[j] >> k);
			continue;
		}
		x = _mm_sub_epi16(x, _mm_set1_epi16(1));
		bits = _mm256_or_si256(ones_at(x), ones_at(_mm_srli_si128(x, 8)));
		half = _mm_or_si128(_mm256_castsi256_si128(bits),
				    _mm256_extracti128_si256(bits, 1));
		half = _mm_or_si128(half, _mm_unpackhi_epi64(half, half));
		rice_put(b, (uint64_t)_mm_cvtsi128_si64(half), end);
	}
	rice_put_unary(b, g + i, n - i, k);
}

TARGET static void signs_2(struct rice_bits *b, const uint8_t *v, uint32_t n)
{
	uint32_t i = 0;

	for (; i + 32 <= n; i += 32) {
		const __m256i *p = (const __m256i *)(v + 2 * (size_t)i);
		__m256i x = _mm256_packs_epi16(_mm256_loadu_si256(p), _mm256_loadu_si256(p + 1));

		x = _mm256_permute4x64_epi64(x, 0xd8);
		rice_put(b, (uint32_t)_mm256_movemask_epi8(x), 32);
	}
	rice_put_signs(b, v + 2 * (size_t)i, n - i, 2);
}

TARGET static uint32_t odd_2(const uint8_t *v, uint32_t n, uint64_t unit, uint8_t *out)
{
	const __m128i one = _mm_set1_epi16(1), other = _mm_set1_epi16((short)unit);
	uint32_t i = 0, m = 0;

	for (; i + 8 <= n; i += 8) {
		__m128i x = _mm_loadu_si128((const __m128i *)(v + 2 * (size_t)i));
		__m128i even = _mm_or_si128(_mm_cmpeq_epi16(x, one), _mm_cmpeq_epi16(x, other));
		uint32_t bits = ~(uint32_t)_mm_movemask_epi8(_mm_packs_epi16(even, even)) & 0xff;
		__m128i p = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)rice_places[bits]));

		_mm_storeu_si128((__m128i *)(out + 2 * (size_t)m),
				 _mm_add_epi16(p, _mm_set1_epi16((short)i)));
		m += (uint32_t)_mm_popcnt_u32(bits);
	}
	for (; i < n; i++) {
		uint64_t x = rice_get16(v + 2 * (size_t)i);

		rice_set16(out + 2 * (size_t)m, (uint16_t)i);
		m += (x != 1) & (x != unit);
	}
	return m;
}

#define PLAIN_UNITS(width)                                                                         \
	TARGET static void units_##width(const uint8_t *bits, size_t bytes, uint64_t at,           \
					 uint32_t n, uint8_t *out)                                 \
	{                                                                                          \
		rice_units(bits, bytes, at, n, out, width);                                        \
	}
#define PLAIN_SIGNS(width)                                                                         \
	TARGET static void signs_##width(struct rice_bits *b, const uint8_t *v, uint32_t n)        \
	{                                                                                          \
		rice_put_signs(b, v, n, width);                                                    \
	}
#define PLAIN_ODD(width)                                                                           \
	TARGET static uint32_t odd_##width(const uint8_t *v, uint32_t n, uint64_t unit,            \
					   uint8_t *out)                                           \
	{                                                                                          \
		return rice_odd(v, n, unit, out, width);                                           \
	}

PLAIN_UNITS(1)
PLAIN_UNITS(4)
PLAIN_UNITS(8)
PLAIN_SIGNS(1)
PLAIN_SIGNS(4)
PLAIN_SIGNS(8)
PLAIN_ODD(1)
PLAIN_ODD(4)
PLAIN_ODD(8)

/* ---- diff: 64 bytes at a time, and only what differs in them one by one ---- */

/* Which of the 64 bytes are in elements that differ: all bits of an element are the same. */
TARGET_INLINE uint64_t differing(const uint8_t *old, const uint8_t *new, unsigned width)
{
	uint64_t mask = 0;

	for (unsigned i = 0; i < 2; i++) {
		__m256i a = _mm256_loadu_si256((const __m256i *)(old + 32 * i));
		__m256i b = _mm256_loadu_si256((const __m256i *)(new + 32 * i)), eq;

		switch (width) {
		case 1: eq = _mm256_cmpeq_epi8(a, b); break;
		case 2: eq = _mm256_cmpeq_epi16(a, b); break;
		case 4: eq = _mm256_cmpeq_epi32(a, b); break;
		default: eq = _mm256_cmpeq_epi64(a, b);
		}
		mask |= (uint64_t)(~(uint32_t)_mm256_movemask_epi8(eq)) << 32 * i;
	}
	return mask;
}

TARGET_INLINE uint32_t diff(const uint8_t *old, const uint8_t *new, uint32_t n, uint8_t *positions,
			    uint8_t *out, unsigned width)
{
	static const uint64_t one_bit_each[9] = {
		[1] = ~UINT64_C(0),
		[2] = UINT64_C(0x5555555555555555),
		[4] = UINT64_C(0x1111111111111111),
		[8] = UINT64_C(0x0101010101010101),
	};
	const uint32_t step = 64 / width;
	uint32_t i = 0, m = 0;

	for (; i + step <= n; i += step) {
		const size_t at = (size_t)i * width;
		uint64_t bits = differing(old + at, new + at, width) & one_bit_each[width];

		rice_ahead(old + at, new + at);
		for (; bits != 0; bits = _blsr_u64(bits)) {
			uint32_t j = i + (uint32_t)_tzcnt_u64(bits) / width;

			m = rice_diff_one(old, new, j, m, positions, out, width);
		}
	}
	for (; i < n; i++)
		m = rice_diff_one(old, new, i, m, positions, out, width);
	return m;
}

#define DIFF(width)                                                                                \
	TARGET static uint32_t diff_##width(const uint8_t *old, const uint8_t *new, uint32_t n,    \
					    uint8_t *positions, uint8_t *out)                      \
	{                                                                                          \
		return diff(old, new, n, positions, out, width);                                   \
	}

DIFF(1)
DIFF(2)
DIFF(4)
DIFF(8)

const struct rice_kernel rice_kernel_avx2 = {
	.name = "avx2",
	.list = list,
	.skip = skip,
	.units = {units_1, units_2, units_4, units_8},
	.gaps = gaps,
	.quotients = quotients,
	.put_lows = put_lows,
	.put_unary = put_unary,
	.put_signs = {signs_1, signs_2, signs_4, signs_8},
	.odd = {odd_1, odd_2, odd_4, odd_8},
	.diff = {diff_1, diff_2, diff_4, diff_8},
	.classes = &class_kernel_avx2,
};
#endif
