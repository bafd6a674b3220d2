/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel for CPUs with AVX2 and BMI2.
 *
 * The places of a list's ones come from a table, a byte of its unary part at a time; then 16 low
 * parts at a time are brought into 16-bit lanes, added up across the lanes and joined with the
 * places, as in the kernel for AVX-512.
 *
 * A vector load that would pass the end of a stream goes through a copy on the stack, so nothing
 * outside of it is ever touched.
 *
 * No state; any number of threads.
 */
#include "codec/bits_kernel.h"
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

/* The places of a byte's ones, as u16, with `base` added; returns where the next go. */
TARGET_INLINE uint8_t *put_ones(uint64_t byte, __m128i base, uint8_t *out)
{
	__m128i p;

	__asm__("" : "+r"(byte)); /* or else it is taken from the word once for each use */
	p = _mm_load_si128((const __m128i *)rice_wide_places[byte]);
	_mm_storeu_si128((__m128i *)out, _mm_add_epi16(p, base));
	return out + 2 * _mm_popcnt_u64(byte);
}

/* Whole bytes are read 64 bits at a time; in the first of them, bits before the list's are not its
 * own. */
TARGET static int places(struct rice_list *l, uint8_t *out, uint32_t want)
{
	const uint8_t *at = l->bits + l->unary / 8, *end = out + 2 * (size_t)want;
	const unsigned before = l->unary % 8;
	size_t left = l->bytes - (size_t)(l->unary / 8);
	uint64_t w = rice_load(at, left, 0) & ~UINT64_C(0) << before;
	__m128i base = _mm_set1_epi16((short)-before);

	for (;; at += 8, left -= 8) {
		uint64_t bytes = w;

#pragma GCC unroll 8
		for (unsigned i = 0; i < 8; i++, bytes >>= 8) {
			out = put_ones(bytes & 0xff, base, out);
			base = _mm_add_epi16(base, _mm_set1_epi16(8));
		}
		if (out >= end) {
			uint64_t last = (uint64_t)_mm_popcnt_u64(w) - 1 - (size_t)(out - end) / 2;

			w = _pdep_u64(UINT64_C(1) << last, w);
			l->unary = 8 * (uint64_t)(at - l->bits) + _tzcnt_u64(w) + 1;
			return 0;
		}
		if (RICE_LIKELY(left >= 16))
			w = rice_get(at + 8, 8);
		else if (left > 8)
			w = rice_load(at + 8, left - 8, 0);
		else
			return -EBADMSG;
	}
}

/* How 16 fields of k bits, the first at bit `shift`, become 16-bit lanes. */
struct unpack {
	__m256i bytes, shifts; /* WIDE: of four fields and of the next four */
	__m256i factors, mask;
	__m128i down;
	uint32_t second; /* WIDE: bytes from four fields to the next four */
};

enum { NARROW = 9 }; /* bits that are in two bytes, wherever they begin */

/* For up to NARROW bits, eight fields from 16 bytes: the two bytes that each is in, and the factor
 * that moves it to the top of these. */
TARGET_INLINE void unpack_narrow(struct unpack *u, unsigned k, unsigned shift)
{
	const __m256i lane = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
	const __m256i powers = _mm256_set_epi64x(0, (long long)0x8040201008040201, 0,
						 (long long)0x8040201008040201);
	const __m256i both = _mm256_set1_epi16(0x0101);
	__m256i first = _mm256_mullo_epi16(lane, _mm256_set1_epi16((short)k)), up;

	first = _mm256_add_epi16(first, _mm256_set1_epi16((short)shift));
	up = _mm256_sub_epi16(_mm256_set1_epi16((short)(16 - k)),
			      _mm256_and_si256(first, _mm256_set1_epi16(7)));
	/* two to the power of `up`, from a table for the low byte and for the high one */
	up = _mm256_sub_epi16(_mm256_mullo_epi16(up, both), _mm256_set1_epi16(0x0800));
	u->factors = _mm256_shuffle_epi8(powers, up);
	u->bytes = _mm256_add_epi16(_mm256_mullo_epi16(_mm256_srli_epi16(first, 3), both),
				    _mm256_set1_epi16(0x0100));
	u->down = _mm_cvtsi32_si128((int)(16 - k));
	u->mask = _mm256_set1_epi16((short)rice_mask(k));
}

/* For more, four fields from 16 bytes into 32-bit lanes. */
TARGET_INLINE void unpack_wide(struct unpack *u, unsigned k, unsigned shift)
{
	const unsigned next = (4 * k + shift) % 8;
	const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3);
	__m256i first = _mm256_setr_epi32((int)shift, (int)shift, (int)shift, (int)shift, (int)next,
					  (int)next, (int)next, (int)next);

	first = _mm256_add_epi32(first, _mm256_mullo_epi32(lane, _mm256_set1_epi32((int)k)));
	u->shifts = _mm256_and_si256(first, _mm256_set1_epi32(7));
	u->bytes = _mm256_add_epi8(
		_mm256_mullo_epi32(_mm256_srli_epi32(first, 3), _mm256_set1_epi32(0x01010101)),
		_mm256_set1_epi32(0x03020100));
	u->second = (4 * k + shift) / 8;
}

TARGET_INLINE __m256i two(__m128i low, __m128i high)
{
	return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

TARGET_INLINE __m256i fields_wide(const struct rice_list *l, const struct unpack *u, uint64_t byte)
{
	__m256i x =
		two(load16(l->bits, l->bytes, byte), load16(l->bits, l->bytes, byte + u->second));

	return _mm256_srlv_epi32(_mm256_shuffle_epi8(x, u->bytes), u->shifts);
}

/* 16 fields of more than NARROW bits at `byte`. */
TARGET_INLINE __m256i wide(const struct rice_list *l, const struct unpack *u, uint64_t byte)
{
	const __m256i mask = _mm256_set1_epi32((int)rice_mask(l->k));
	__m256i x = _mm256_packus_epi32(_mm256_andnot_si256(fields_wide(l, u, byte), mask),
					_mm256_andnot_si256(fields_wide(l, u, byte + l->k), mask));

	return _mm256_permute4x64_epi64(x, 0xd8);
}

TARGET_INLINE __m256i narrow(const struct unpack *u, __m256i x)
{
	x = _mm256_mullo_epi16(_mm256_shuffle_epi8(x, u->bytes), u->factors);
	return _mm256_xor_si256(_mm256_srl_epi16(x, u->down), u->mask);
}

/* From places to values, 16 of them in place; x has what their low parts lack to 2^k - 1 each.
 * Entry i is (place << k) plus `sum`, less what all low parts up to it lack. */
TARGET_INLINE __m256i values(__m256i x, __m256i sum, __m128i k, uint8_t *out)
{
	const __m256i last = _mm256_set1_epi16(0x0f0e);
	const __m256i upper = _mm256_setr_epi64x(0, 0, -1, -1);
	__m256i place = _mm256_sll_epi16(_mm256_loadu_si256((const __m256i *)out), k), t, other;

	x = _mm256_add_epi16(x, _mm256_slli_epi64(x, 16));
	x = _mm256_add_epi16(x, _mm256_slli_epi64(x, 32));
	t = _mm256_shuffle_epi8(x,
				_mm256_setr_epi64x(-1, 0x0706070607060706, -1, 0x0706070607060706));
	x = _mm256_add_epi16(x, t);
	t = _mm256_shuffle_epi8(x, last);
	other = _mm256_permute4x64_epi64(t, 0x4e);
	x = _mm256_add_epi16(x, _mm256_and_si256(other, upper));
	_mm256_storeu_si256((__m256i *)out, _mm256_add_epi16(place, _mm256_sub_epi16(sum, x)));
	return _mm256_sub_epi16(sum, _mm256_add_epi16(t, other));
}

TARGET_INLINE __m256i sum_before(const struct rice_list *l)
{
	return _mm256_set1_epi16((short)(l->next + rice_mask(l->k)));
}

TARGET_INLINE void values_narrow(const struct rice_list *l, uint32_t want, uint8_t *out)
{
	const uint8_t *bits = l->bits, *end = out + 2 * (size_t)want;
	const size_t bytes = l->bytes, k = l->k, room = 16 + k;
	const size_t whole = bytes >= room ? bytes - room + 1 : 0;
	const __m128i shift = _mm_cvtsi32_si128((int)l->k);
	__m256i sum = sum_before(l);
	size_t byte = (size_t)(l->low / 8);
	struct unpack u;

	unpack_narrow(&u, l->k, l->low % 8);
	for (; out < end && byte < whole; out += 2 * LANES, byte += 2 * k) {
		__m256i x = two(_mm_loadu_si128((const __m128i *)(bits + byte)),
				_mm_loadu_si128((const __m128i *)(bits + byte + k)));

		sum = values(narrow(&u, x), sum, shift, out);
	}
	for (; out < end; out += 2 * LANES, byte += 2 * k) {
		__m256i x = two(load16(bits, bytes, byte), load16(bits, bytes, byte + k));

		sum = values(narrow(&u, x), sum, shift, out);
	}
}

TARGET_INLINE void values_wide(const struct rice_list *l, uint32_t want, uint8_t *out)
{
	const uint8_t *end = out + 2 * (size_t)want;
	const __m128i shift = _mm_cvtsi32_si128((int)l->k);
	__m256i sum = sum_before(l);
	uint64_t byte = l->low / 8;
	struct unpack u;

	unpack_wide(&u, l->k, l->low % 8);
	for (; out < end; out += 2 * LANES, byte += 2 * l->k)
		sum = values(wide(l, &u, byte), sum, shift, out);
}

TARGET static void entries(struct rice_list *l, uint8_t *out, uint32_t want)
{
	if (l->k <= NARROW)
		values_narrow(l, want, out);
	else
		values_wide(l, want, out);
	rice_advance(l, want, out);
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

/* Appends those of eight u16 whose bit is set. */
TARGET_INLINE uint32_t gather(__m128i eight, uint32_t bits, uint8_t *out, uint32_t n)
{
	__m128i p = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)rice_places[bits]));

	p = _mm_add_epi16(_mm_mullo_epi16(p, _mm_set1_epi16(0x0202)), _mm_set1_epi16(0x0100));
	_mm_storeu_si128((__m128i *)(out + 2 * (size_t)n), _mm_shuffle_epi8(eight, p));
	return n + (uint32_t)_mm_popcnt_u32(bits);
}

TARGET static uint64_t nibbles(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t n,
			       unsigned width, uint8_t *out)
{
	const uint64_t low = UINT64_C(0x0f0f0f0f0f0f0f0f), twos = UINT64_C(0x0202020202020202);
	uint64_t of_byte = 0, of_value = 0;
	uint32_t i = 0;

	for (; i < n; i += 8)
		rice_set(out + i,
			 _pdep_u64(rice_word(bits, bytes, at + 4 * (uint64_t)i), low) + twos, 8);
	for (i = 0; i < n; i += 32) {
		uint32_t in = _bzhi_u32(~UINT32_C(0), MIN(n - i, 32));
		__m256i f = _mm256_loadu_si256((const __m256i *)(out + i));
		__m256i byte = _mm256_cmpeq_epi8(f, _mm256_set1_epi8(RICE_BYTE));
		__m256i value = _mm256_cmpeq_epi8(f, _mm256_set1_epi8(RICE_VALUE));

		of_byte += (uint32_t)_mm_popcnt_u32(in & (uint32_t)_mm256_movemask_epi8(byte));
		of_value += (uint32_t)_mm_popcnt_u32(in & (uint32_t)_mm256_movemask_epi8(value));
	}
	return of_byte + of_value * width;
}

/* 16 at a time. */
TARGET static uint32_t spread(struct rice_spread *s)
{
	const __m256i from = _mm256_set1_epi16((short)s->from);
	const __m256i most = _mm256_set1_epi16((short)(s->n - 1));
	const uint32_t count = s->count;
	uint32_t many = s->many, took = count;

	if (!s->is_set)
		for (uint8_t *f = s->factors; f < s->factors + s->n; f += 32)
			_mm256_storeu_si256((__m256i *)f, _mm256_set1_epi8(1));
	for (uint32_t at = 0; at < count && took == count; at += LANES) {
		uint32_t in = _bzhi_u32(0xffff, MIN(count - at, (uint32_t)LANES)), bits;
		__m128i f = _mm_loadu_si128((const __m128i *)(s->odd_factors + at));
		__m256i x = _mm256_loadu_si256((const __m256i *)(s->odds + 2 * (size_t)at)), below;

		x = _mm256_sub_epi16(x, from);
		below = _mm256_cmpeq_epi16(_mm256_min_epu16(x, most), x);
		bits = (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(
			_mm256_castsi256_si128(below), _mm256_extracti128_si256(below, 1)));
		/* a branch, since it is foreseen and what is counted has to be waited for */
		if (!RICE_LIKELY((bits & in) == in)) {
			took = at + (uint32_t)_tzcnt_u32(~bits);
			in = _bzhi_u32(in, took - at);
		}
		bits = in &
		       (uint32_t)_mm_movemask_epi8(_mm_cmpgt_epi8(f, _mm_set1_epi8(RICE_BYTE - 1)));
		many = gather(_mm256_castsi256_si128(x), bits & 0xff, s->later, many);
		many = gather(_mm256_extracti128_si256(x, 1), bits >> 8, s->later, many);
	}
	s->many = many;
	rice_spread_factors(s, took);
	return took;
}

TARGET_INLINE void signed_2(const uint8_t *factors, uint32_t minus, uint8_t *out)
{
	const __m256i bit = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048,
					      4096, 8192, 16384, -32768);
	__m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)factors));
	__m256i set = _mm256_and_si256(_mm256_set1_epi16((short)minus), bit);

	set = _mm256_cmpeq_epi16(set, bit);
	x = _mm256_sub_epi16(_mm256_xor_si256(x, set), set);
	_mm256_storeu_si256((__m256i *)out, x);
}

TARGET static void values_2(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t n,
			    const uint8_t *factors, uint8_t *out)
{
	const size_t whole = bytes >= 8 ? bytes - 7 : 0;
	const uint8_t *end = factors + n;
	const unsigned shift = at % 8;
	size_t byte = (size_t)(at / 8);

	for (; factors < end; byte += 4, factors += 32, out += 64) {
		uint64_t w = RICE_LIKELY(byte < whole) ? rice_get(bits + byte, 8)
						       : rice_load(bits, bytes, byte);

		w >>= shift;
		signed_2(factors, (uint32_t)w, out);
		signed_2(factors + 16, (uint32_t)w >> 16, out + 32);
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

#define PLAIN_VALUES(width)                                                                        \
	TARGET static void values_##width(const uint8_t *bits, size_t bytes, uint64_t at,          \
					  uint32_t n, const uint8_t *factors, uint8_t *out)        \
	{                                                                                          \
		rice_signed(bits, bytes, at, n, factors, out, width);                              \
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

PLAIN_VALUES(1)
PLAIN_VALUES(4)
PLAIN_VALUES(8)
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
	.places = places,
	.entries = entries,
	.skip = skip,
	.nibbles = nibbles,
	.spread = spread,
	.values = {values_1, values_2, values_4, values_8},
	.gaps = gaps,
	.quotients = quotients,
	.put_lows = put_lows,
	.put_unary = put_unary,
	.put_signs = {signs_1, signs_2, signs_4, signs_8},
	.odd = {odd_1, odd_2, odd_4, odd_8},
	.diff = {diff_1, diff_2, diff_4, diff_8},
	.classes = &class_kernel_avx2,
	.bits = &bits_kernel_avx2,
};
#endif
