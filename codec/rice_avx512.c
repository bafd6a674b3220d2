/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel for CPUs with AVX-512 and its second set of byte instructions (VBMI2).
 *
 * A list is decoded in two passes over a chunk: the places of the unary part's ones come out of a
 * 64-bit word with one compress, then 32 low parts at a time are brought into 16-bit lanes (permute
 * bytes, shift bits), added up across the lanes and joined with the places.  All arithmetic is
 * modulo 65,536, which is exact for a valid list.
 *
 * Loads that may pass the end of a stream are masked, and rice_load() is bounded, so nothing
 * outside of it is ever touched.
 *
 * No state; any number of threads.
 */
#include "codec/class_kernel.h"
#include "codec/rice_kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET                                                                                     \
	__attribute__((target("avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,"    \
			      "bmi,bmi2,popcnt,lzcnt")))
#define TARGET_INLINE static inline __attribute__((always_inline)) TARGET

enum { LANES = 32 }; /* u16 of a vector */

static const uint8_t counting[64] __attribute__((aligned(64))) = {
	0,  1,	2,  3,	4,  5,	6,  7,	8,  9,	10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
	22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
	44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63,
};

TARGET_INLINE __m512i count16(void)
{
	return _mm512_cvtepu8_epi16(_mm256_load_si256((const __m256i *)counting));
}

/* The n lowest bits. */
TARGET_INLINE uint64_t lowest(uint64_t n)
{
	return _bzhi_u64(~UINT64_C(0), MIN(n, UINT64_C(64)));
}

/* 64 bytes at `byte`, zeros beyond the end. */
TARGET_INLINE __m512i load64(const uint8_t *bits, size_t bytes, uint64_t byte)
{
	uint64_t left = byte < bytes ? bytes - byte : 0;

	return _mm512_maskz_loadu_epi8(lowest(left), bits + (left > 0 ? byte : 0));
}

/* ---- decoding ---- */

/* Whole bytes are read 64 bits at a time; in the first of them, bits before the list's are not its
 * own. */
TARGET_INLINE int ones(const struct rice_list *l, uint32_t want, uint8_t *places,
		       uint64_t *out_bits)
{
	const __m512i count = _mm512_load_si512(counting);
	const uint8_t *bits = l->bits;
	const size_t bytes = l->bytes, whole = bytes >= 8 ? bytes - 7 : 0;
	const unsigned before = l->unary % 8;
	__m512i base = _mm512_set1_epi16((short)-before);
	uint64_t clear = ~UINT64_C(0) << before, from = 0 - (uint64_t)before;
	size_t at = (size_t)(l->unary / 8);
	uint32_t n = 0;

	for (;; at += 8, from += 64, clear = ~UINT64_C(0)) {
		__m512i p, lo, hi;
		uint64_t w;

		if (RICE_LIKELY(at < whole))
			w = rice_get(bits + at, 8) & clear;
		else if (at < bytes)
			w = rice_load(bits, bytes, at) & clear;
		else
			return -EBADMSG;
		p = _mm512_maskz_compress_epi8(w, count);
		lo = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(p));
		hi = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(p, 1));
		_mm512_storeu_si512(places + 2 * (size_t)n, _mm512_add_epi16(base, lo));
		_mm512_storeu_si512(places + 2 * (size_t)n + 64, _mm512_add_epi16(base, hi));
		base = _mm512_add_epi16(base, _mm512_set1_epi16(64));
		n += (uint32_t)_mm_popcnt_u64(w);
		if (n >= want)
			break;
	}
	*out_bits = from + (uint16_t)(rice_get16(places + 2 * (size_t)want - 2) - from) + 1;
	return 0;
}

/* How 64 bytes with 32 fields of k bits, the first of them at bit `shift`, become 16-bit lanes:
 * the bytes that each four lanes are taken from, and the bits of those where each lane's two bytes
 * begin. */
struct unpack {
	__m512i bytes, shifts, mask;
};

TARGET_INLINE struct unpack unpack_of(unsigned k, unsigned shift)
{
	/* the lowest byte of each 64 bits into all of them */
	const __m512i spread = _mm512_set4_epi32(0x08080808, 0x08080808, 0, 0);
	const uint64_t lanes = (uint64_t)k << 16 | (uint64_t)k << 33 | (uint64_t)(3 * k) << 48;
	__m512i first = _mm512_add_epi64(_mm512_mul_epu32(_mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7),
							  _mm512_set1_epi64(4 * (int)k)),
					 _mm512_set1_epi64((int)shift));
	__m512i byte = _mm512_shuffle_epi8(_mm512_srli_epi64(first, 3), spread);
	__m512i bit = _mm512_shuffle_epi8(_mm512_and_si512(first, _mm512_set1_epi64(7)), spread);
	struct unpack u;

	u.bytes = _mm512_add_epi8(byte, _mm512_set1_epi64(0x0706050403020100));
	u.shifts = _mm512_add_epi8(
		bit, _mm512_set1_epi64((long long)((lanes | lanes << 8) + 0x0800080008000800)));
	u.mask = _mm512_set1_epi16((short)rice_mask(k));
	return u;
}

/* What the eighths before each eighth add up to; x has sums within the eighths. */
TARGET_INLINE __m512i sums_before(__m512i x)
{
	const __m512i last = _mm512_set4_epi32(0x0f0e0f0e, 0x0f0e0f0e, 0x07060706, 0x07060706);
	const __m512i one = _mm512_setr_epi64(0, 0, 1, 2, 3, 4, 5, 6);
	const __m512i two = _mm512_setr_epi64(0, 0, 0, 1, 2, 3, 4, 5);
	const __m512i four = _mm512_setr_epi64(0, 0, 0, 0, 0, 1, 2, 3);
	__m512i t = _mm512_shuffle_epi8(x, last);

	t = _mm512_maskz_permutexvar_epi64(0xfe, one, t);
	t = _mm512_add_epi16(t, _mm512_maskz_permutexvar_epi64(0xfc, one, t));
	t = _mm512_add_epi16(t, _mm512_maskz_permutexvar_epi64(0xf8, two, t));
	return _mm512_add_epi16(t, _mm512_maskz_permutexvar_epi64(0xe0, four, t));
}

/* The same where the sum of an eighth fits into a byte: those before are brought together, and
 * there is an instruction that adds up bytes. */
TARGET_INLINE __m512i small_sums_before(__m512i x)
{
	const __m512i eighths = _mm512_set1_epi64(0x3e362e261e160e06);
	const __m512i spread = _mm512_set4_epi32(0x09080908, 0x09080908, 0x01000100, 0x01000100);
	__m512i t = _mm512_maskz_permutexvar_epi8(UINT64_C(0x7f3f1f0f07030100), eighths, x);

	return _mm512_shuffle_epi8(_mm512_sad_epu8(t, _mm512_setzero_si512()), spread);
}

struct sums {
	__m512i k, sum, step;
};

/* 32 entries.  Entry i is ((place - i) << k) + i + the sum of low parts; what of that depends on i
 * alone goes into one vector with the sum so far. */
TARGET_INLINE void values(const struct unpack *u, struct sums *s, __m512i bits, bool small,
			  uint8_t *out)
{
	const __m512i last = _mm512_set1_epi16(LANES - 1);
	__m512i high = _mm512_add_epi16(_mm512_sllv_epi16(_mm512_loadu_si512(out), s->k), s->sum);
	__m512i x = _mm512_permutexvar_epi8(u->bytes, bits);

	x = _mm512_and_si512(_mm512_multishift_epi64_epi8(u->shifts, x), u->mask);
	/* shifts by bits, since those by bytes all take the port of the permutations */
	x = _mm512_add_epi16(x, _mm512_slli_epi64(x, 16));
	x = _mm512_add_epi16(x, _mm512_slli_epi64(x, 32));
	x = _mm512_add_epi16(x, small ? small_sums_before(x) : sums_before(x));
	_mm512_storeu_si512(out, _mm512_add_epi16(high, x));
	s->sum = _mm512_add_epi16(_mm512_add_epi16(s->sum, s->step),
				  _mm512_permutexvar_epi16(last, x));
}

/* From places to values, in place. */
TARGET_INLINE void all_values(const struct rice_list *l, uint32_t want, const struct unpack *u,
			      bool small, uint8_t *out)
{
	const uint8_t *bits = l->bits;
	const size_t bytes = l->bytes, whole = bytes >= 64 ? bytes - 63 : 0;
	const size_t step = 4 * (size_t)l->k;
	struct sums s = {.k = _mm512_set1_epi16((short)l->k),
			 .step = _mm512_set1_epi16((short)(LANES - (LANES << l->k)))};
	size_t byte = (size_t)(l->low / 8);
	uint32_t i = 0;

	s.sum = _mm512_sub_epi16(count16(), _mm512_sllv_epi16(count16(), s.k));
	s.sum = _mm512_add_epi16(s.sum, _mm512_set1_epi16((short)l->next));
	for (; i < want && byte < whole; i += LANES, byte += step)
		values(u, &s, _mm512_loadu_si512(bits + byte), small, out + 2 * (size_t)i);
	for (; i < want; i += LANES, byte += step)
		values(u, &s, load64(bits, bytes, byte), small, out + 2 * (size_t)i);
}

TARGET static int list(struct rice_list *l, uint8_t *out, uint32_t want)
{
	/* first, so that it is ready when it is needed */
	const struct unpack u = unpack_of(l->k, l->low % 8);
	uint64_t bits;

	if (ones(l, want, out, &bits) < 0)
		return -EBADMSG;
	if (l->k <= 6) /* 4 * 63 < 256 */
		all_values(l, want, &u, true, out);
	else if (l->k < 15)
		all_values(l, want, &u, false, out);
	else /* four fields are more than 56 bits */
		rice_values(l, want, out);
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

/* 32 at a time; what is behind the last goes to the place of more[] that is nobody's. */
TARGET static uint32_t spread(struct rice_spread *s)
{
	const __m512i from = _mm512_set1_epi16((short)s->from);
	const __m512i n = _mm512_set1_epi16((short)s->n);
	const __m512i nobody = _mm512_set1_epi16(RICE_MORE - 1);
	uint8_t *more = s->more;
	uint32_t at = 0, many = s->many;

	for (uint32_t i = 0; !s->more_is_set && i < s->n; i += 64)
		_mm512_storeu_si512(more + i, _mm512_setzero_si512());
	while (at < s->count) {
		const uint8_t *nibbles = s->nibbles + at;
		__m256i b = _mm256_loadu_si256((const __m256i *)nibbles);
		__m512i x = _mm512_sub_epi16(_mm512_loadu_si512(s->odds + 2 * (size_t)at), from);
		uint32_t below = _mm512_cmplt_epu16_mask(x, n), high;
		uint32_t take = MIN((uint32_t)_tzcnt_u32(~below), s->count - at);
		uint16_t i[LANES] __attribute__((aligned(64)));

		below = _bzhi_u32(~UINT32_C(0), take);
		high = _mm256_mask_cmpgt_epu8_mask(below, b, _mm256_set1_epi8(14));
		_mm512_storeu_si512(s->later + 2 * (size_t)many,
				    _mm512_maskz_compress_epi16(high, x));
		many += (uint32_t)_mm_popcnt_u32(high);
		_mm512_store_si512(i, _mm512_mask_mov_epi16(nobody, below, x));
		for (uint32_t j = 0; j < take; j += 4) {
			more[i[j]] = nibbles[j];
			more[i[j + 1]] = nibbles[j + 1];
			more[i[j + 2]] = nibbles[j + 2];
			more[i[j + 3]] = nibbles[j + 3];
		}
		at += take;
		if (take < LANES)
			break;
	}
	s->many = many;
	return at;
}

TARGET static void values_1(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t n,
			    const uint8_t *more, uint8_t *out)
{
	for (uint32_t i = 0; i < n; i += 32) {
		__mmask32 minus = (__mmask32)rice_word(bits, bytes, at + i);
		__m256i x = _mm256_add_epi8(_mm256_loadu_si256((const __m256i *)(more + i)),
					    _mm256_set1_epi8(1));

		_mm256_storeu_si256((__m256i *)(out + i),
				    _mm256_mask_sub_epi8(x, minus, _mm256_setzero_si256(), x));
	}
}

TARGET static void values_2(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t n,
			    const uint8_t *more, uint8_t *out)
{
	const size_t whole = bytes >= 8 ? bytes - 7 : 0;
	const unsigned shift = at % 8;
	size_t byte = (size_t)(at / 8);

	for (uint32_t i = 0; i < n; i += 32, byte += 4) {
		uint64_t w = RICE_LIKELY(byte < whole) ? rice_get(bits + byte, 8)
						       : rice_load(bits, bytes, byte);
		__mmask32 minus = (__mmask32)(w >> shift);
		__m512i x = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(more + i)));

		x = _mm512_add_epi16(x, _mm512_set1_epi16(1));
		_mm512_storeu_si512(out + 2 * (size_t)i,
				    _mm512_mask_sub_epi16(x, minus, _mm512_setzero_si512(), x));
	}
}

TARGET static void values_4(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t n,
			    const uint8_t *more, uint8_t *out)
{
	for (uint32_t i = 0; i < n; i += 16) {
		__mmask16 minus = (__mmask16)rice_word(bits, bytes, at + i);
		__m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(more + i)));

		x = _mm512_add_epi32(x, _mm512_set1_epi32(1));
		_mm512_storeu_si512(out + 4 * (size_t)i,
				    _mm512_mask_sub_epi32(x, minus, _mm512_setzero_si512(), x));
	}
}

TARGET static void values_8(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t n,
			    const uint8_t *more, uint8_t *out)
{
	for (uint32_t i = 0; i < n; i += 8) {
		__mmask8 minus = (__mmask8)rice_word(bits, bytes, at + i);
		__m512i x = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)(more + i)));

		x = _mm512_add_epi64(x, _mm512_set1_epi64(1));
		_mm512_storeu_si512(out + 8 * (size_t)i,
				    _mm512_mask_sub_epi64(x, minus, _mm512_setzero_si512(), x));
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

/* 16 at a time: the ones' places are sums of gap >> k plus one. */
TARGET static void put_unary(struct rice_bits *b, const uint16_t *g, uint32_t n, unsigned k)
{
	const __m128i shift = _mm_cvtsi32_si128((int)k);
	const __m512i one = _mm512_set1_epi64(1);
	uint32_t i = 0;

	for (; i + 16 <= n; i += 16) {
		__m256i q = _mm256_srl_epi16(_mm256_loadu_si256((const __m256i *)(g + i)), shift);
		__m256i x = _mm256_adds_epu16(q, _mm256_set1_epi16(1)), t;
		__m512i bits;
		uint32_t end;

		x = _mm256_adds_epu16(x, _mm256_slli_si256(x, 2));
		x = _mm256_adds_epu16(x, _mm256_slli_si256(x, 4));
		x = _mm256_adds_epu16(x, _mm256_slli_si256(x, 8));
		t = _mm256_shuffle_epi8(x, _mm256_set1_epi16(0x0f0e));
		x = _mm256_adds_epu16(x, _mm256_permute2x128_si256(t, t, 0x08));
		end = (uint32_t)_mm256_extract_epi16(x, 15) & 0xffff;
		if (end > RICE_WORD) {
			for (uint32_t j = i; j < i + 16; j++)
				rice_put_zeros_one(b, (uint32_t)g[j] >> k);
			continue;
		}
		x = _mm256_sub_epi16(x, _mm256_set1_epi16(1));
		bits = _mm512_or_si512(
			_mm512_sllv_epi64(one, _mm512_cvtepu16_epi64(_mm256_castsi256_si128(x))),
			_mm512_sllv_epi64(one,
					  _mm512_cvtepu16_epi64(_mm256_extracti128_si256(x, 1))));
		rice_put(b, (uint64_t)_mm512_reduce_or_epi64(bits), end);
	}
	rice_put_unary(b, g + i, n - i, k);
}

TARGET static void signs_2(struct rice_bits *b, const uint8_t *v, uint32_t n)
{
	uint32_t i = 0;

	for (; i + LANES <= n; i += LANES)
		rice_put(b, _mm512_movepi16_mask(_mm512_loadu_si512(v + 2 * (size_t)i)), LANES);
	rice_put_signs(b, v + 2 * (size_t)i, n - i, 2);
}

TARGET static uint32_t odd_2(const uint8_t *v, uint32_t n, uint64_t unit, uint8_t *out)
{
	const __m512i one = _mm512_set1_epi16(1), other = _mm512_set1_epi16((short)unit);
	__m512i index = count16();
	uint32_t m = 0;

	for (uint32_t i = 0; i < n; i += LANES) {
		__mmask32 in = (__mmask32)lowest(n - i);
		__m512i x = _mm512_maskz_loadu_epi16(in, v + 2 * (size_t)i);
		__mmask32 odd = _mm512_mask_cmpneq_epi16_mask(in, x, one) &
				_mm512_cmpneq_epi16_mask(x, other);

		_mm512_storeu_si512(out + 2 * (size_t)m, _mm512_maskz_compress_epi16(odd, index));
		m += (uint32_t)_mm_popcnt_u32(odd);
		index = _mm512_add_epi16(index, _mm512_set1_epi16(LANES));
	}
	return m;
}

#define PLAIN(width)                                                                               \
	TARGET static void signs_##width(struct rice_bits *b, const uint8_t *v, uint32_t n)        \
	{                                                                                          \
		rice_put_signs(b, v, n, width);                                                    \
	}                                                                                          \
	TARGET static uint32_t odd_##width(const uint8_t *v, uint32_t n, uint64_t unit,            \
					   uint8_t *out)                                           \
	{                                                                                          \
		return rice_odd(v, n, unit, out, width);                                           \
	}

PLAIN(1)
PLAIN(4)
PLAIN(8)

/* ---- diff: every vector the same work, whatever has changed ---- */

TARGET static uint32_t diff_1(const uint8_t *old, const uint8_t *new, uint32_t n,
			      uint8_t *positions, uint8_t *out)
{
	__m512i index = count16();
	uint32_t m = 0;

	for (uint32_t i = 0; i < n; i += 32) {
		__mmask32 in = (__mmask32)lowest(n - i);
		__m256i a = _mm256_maskz_loadu_epi8(in, old + i);
		__m256i b = _mm256_maskz_loadu_epi8(in, new + i);
		__mmask32 ne = _mm256_cmpneq_epi8_mask(a, b);

		rice_ahead(old + i, new + i);
		_mm512_storeu_si512(positions + 2 * (size_t)m,
				    _mm512_maskz_compress_epi16(ne, index));
		_mm256_storeu_si256((__m256i *)(out + m),
				    _mm256_maskz_compress_epi8(ne, _mm256_sub_epi8(b, a)));
		m += (uint32_t)_mm_popcnt_u32(ne);
		index = _mm512_add_epi16(index, _mm512_set1_epi16(32));
	}
	return m;
}

TARGET static uint32_t diff_2(const uint8_t *old, const uint8_t *new, uint32_t n,
			      uint8_t *positions, uint8_t *out)
{
	__m512i index = count16();
	uint32_t m = 0;

	for (uint32_t i = 0; i < n; i += 32) {
		__mmask32 in = (__mmask32)lowest(n - i);
		__m512i a = _mm512_maskz_loadu_epi16(in, old + 2 * (size_t)i);
		__m512i b = _mm512_maskz_loadu_epi16(in, new + 2 * (size_t)i);
		__mmask32 ne = _mm512_cmpneq_epi16_mask(a, b);

		rice_ahead(old + 2 * (size_t)i, new + 2 * (size_t)i);
		_mm512_storeu_si512(positions + 2 * (size_t)m,
				    _mm512_maskz_compress_epi16(ne, index));
		_mm512_storeu_si512(out + 2 * (size_t)m,
				    _mm512_maskz_compress_epi16(ne, _mm512_sub_epi16(b, a)));
		m += (uint32_t)_mm_popcnt_u32(ne);
		index = _mm512_add_epi16(index, _mm512_set1_epi16(32));
	}
	return m;
}

TARGET static uint32_t diff_4(const uint8_t *old, const uint8_t *new, uint32_t n,
			      uint8_t *positions, uint8_t *out)
{
	__m256i index = _mm512_castsi512_si256(count16());
	uint32_t m = 0;

	for (uint32_t i = 0; i < n; i += 16) {
		__mmask16 in = (__mmask16)lowest(n - i);
		__m512i a = _mm512_maskz_loadu_epi32(in, old + 4 * (size_t)i);
		__m512i b = _mm512_maskz_loadu_epi32(in, new + 4 * (size_t)i);
		__mmask16 ne = _mm512_cmpneq_epi32_mask(a, b);

		rice_ahead(old + 4 * (size_t)i, new + 4 * (size_t)i);
		_mm256_storeu_si256((__m256i *)(positions + 2 * (size_t)m),
				    _mm256_maskz_compress_epi16(ne, index));
		_mm512_storeu_si512(out + 4 * (size_t)m,
				    _mm512_maskz_compress_epi32(ne, _mm512_sub_epi32(b, a)));
		m += (uint32_t)_mm_popcnt_u32(ne);
		index = _mm256_add_epi16(index, _mm256_set1_epi16(16));
	}
	return m;
}

TARGET static uint32_t diff_8(const uint8_t *old, const uint8_t *new, uint32_t n,
			      uint8_t *positions, uint8_t *out)
{
	__m128i index = _mm512_castsi512_si128(count16());
	uint32_t m = 0;

	for (uint32_t i = 0; i < n; i += 8) {
		__mmask8 in = (__mmask8)lowest(n - i);
		__m512i a = _mm512_maskz_loadu_epi64(in, old + 8 * (size_t)i);
		__m512i b = _mm512_maskz_loadu_epi64(in, new + 8 * (size_t)i);
		__mmask8 ne = _mm512_cmpneq_epi64_mask(a, b);

		rice_ahead(old + 8 * (size_t)i, new + 8 * (size_t)i);
		_mm_storeu_si128((__m128i *)(positions + 2 * (size_t)m),
				 _mm_maskz_compress_epi16(ne, index));
		_mm512_storeu_si512(out + 8 * (size_t)m,
				    _mm512_maskz_compress_epi64(ne, _mm512_sub_epi64(b, a)));
		m += (uint32_t)_mm_popcnt_u32(ne);
		index = _mm_add_epi16(index, _mm_set1_epi16(8));
	}
	return m;
}

const struct rice_kernel rice_kernel_avx512 = {
	.name = "avx512",
	.list = list,
	.skip = skip,
	.spread = spread,
	.values = {values_1, values_2, values_4, values_8},
	.gaps = gaps,
	.quotients = quotients,
	.put_lows = put_lows,
	.put_unary = put_unary,
	.put_signs = {signs_1, signs_2, signs_4, signs_8},
	.odd = {odd_1, odd_2, odd_4, odd_8},
	.diff = {diff_1, diff_2, diff_4, diff_8},
	.classes = &class_kernel_avx512,
};
#endif
