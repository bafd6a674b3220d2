/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel for CPUs with AVX-512 and its second set of byte instructions (VBMI2).
 *
 * The places of a list's ones come out of a 64-bit word of its unary part with one compress.  Then
 * 32 low parts at a time are brought into 16-bit lanes (permute bytes, shift bits), added up across
 * the lanes and joined with the places.  All arithmetic is modulo 65,536, which is exact for a
 * valid list.
 *
 * On Intel's CPUs all permutations of 512 bits go through one port, and no more than six operations
 * are begun in a cycle; a list has some twelve permutations and forty operations for 32 entries.
 * So what can be done by shifts, by sums of products or through memory is not done by permutations.
 *
 * Loads that may pass the end of a stream are masked, and rice_load() is bounded, so nothing
 * outside of it is ever touched.
 *
 * No state; any number of threads.
 */
#include "codec/bits_kernel.h"
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

/* The places of a word's ones, as u16, with `base` added. */
TARGET_INLINE void put_ones(uint64_t w, __m512i base, uint8_t *out)
{
	uint8_t half[32] __attribute__((aligned(32)));
	__m512i p = _mm512_maskz_compress_epi8(w, _mm512_load_si512(counting)), lo, hi;

	/* through memory, since the port of the permutations is what all wait for */
	_mm256_store_si256((__m256i *)half, _mm512_extracti64x4_epi64(p, 1));
	__asm__("" : "+m"(half));
	lo = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(p));
	hi = _mm512_cvtepu8_epi16(_mm256_load_si256((const __m256i *)half));
	_mm512_storeu_si512(out, _mm512_add_epi16(base, lo));
	_mm512_storeu_si512(out + 64, _mm512_add_epi16(base, hi));
}

/* Whole bytes are read 64 bits at a time; in the first of them, bits before the list's are not its
 * own. */
TARGET static int places(struct rice_list *l, uint8_t *out, uint32_t want)
{
	const uint8_t *at = l->bits + l->unary / 8, *end = out + 2 * (size_t)want;
	const unsigned before = l->unary % 8;
	size_t left = l->bytes - (size_t)(l->unary / 8);
	uint64_t w = rice_load(at, left, 0) & ~UINT64_C(0) << before;
	__m512i base = _mm512_set1_epi16((short)-before);

	for (;; at += 8, left -= 8) {
		uint64_t here = (uint64_t)_mm_popcnt_u64(w);

		put_ones(w, base, out);
		out += 2 * here;
		if (out >= end) {
			w = _pdep_u64(UINT64_C(1) << (here - 1 - (size_t)(out - end) / 2), w);
			l->unary = 8 * (uint64_t)(at - l->bits) + _tzcnt_u64(w) + 1;
			return 0;
		}
		base = _mm512_add_epi16(base, _mm512_set1_epi16(64));
		if (RICE_LIKELY(left >= 16))
			w = rice_get(at + 8, 8);
		else if (left > 8)
			w = rice_load(at + 8, left - 8, 0);
		else
			return -EBADMSG;
	}
}

/* How 64 bytes with 32 fields of k bits, the first of them at bit `shift`, become 16-bit lanes:
 * the bytes that each four lanes are taken from, and the bits of those where each lane's two bytes
 * begin.  Of up to SMALL bits, a lane's upper byte is the field before, or zero in each first lane
 * of four. */
struct unpack {
	__m512i bytes, shifts, mask;
};

enum { SMALL = 6 }; /* four fields add up to less than 256 */

TARGET_INLINE struct unpack unpack_of(unsigned k, unsigned shift)
{
	/* the lowest byte of each 64 bits into all of them */
	const __m512i spread = _mm512_set4_epi32(0x08080808, 0x08080808, 0, 0);
	const uint64_t lanes = (uint64_t)k << 16 | (uint64_t)k << 33 | (uint64_t)(3 * k) << 48;
	const uint64_t upper = k <= SMALL ? lanes << 24 : (lanes << 8) + 0x0800080008000800;
	const uint64_t ones = k <= SMALL ? 0x0101010101010001 : 0x0001000100010001;
	__m512i first = _mm512_add_epi64(_mm512_mul_epu32(_mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7),
							  _mm512_set1_epi64(4 * (int)k)),
					 _mm512_set1_epi64((int)shift));
	__m512i byte = _mm512_shuffle_epi8(_mm512_srli_epi64(first, 3), spread);
	__m512i bit = _mm512_shuffle_epi8(_mm512_and_si512(first, _mm512_set1_epi64(7)), spread);
	struct unpack u;

	u.bytes = _mm512_add_epi8(byte, _mm512_set1_epi64(0x0706050403020100));
	u.shifts = _mm512_add_epi8(bit, _mm512_set1_epi64((long long)(lanes + upper)));
	u.mask = _mm512_set1_epi64((long long)(ones * rice_mask(k)));
	return u;
}

/* The sums up to and with each eighth; x has sums within the eighths. */
TARGET_INLINE __m512i sums(__m512i x)
{
	const __m512i last = _mm512_or_si512(count16(), _mm512_set1_epi16(3));

	x = _mm512_add_epi16(
		x, _mm512_maskz_permutexvar_epi16(0xfffffff0,
						  _mm512_sub_epi16(last, _mm512_set1_epi16(4)), x));
	x = _mm512_add_epi16(
		x, _mm512_maskz_permutexvar_epi16(0xffffff00,
						  _mm512_sub_epi16(last, _mm512_set1_epi16(8)), x));
	return _mm512_add_epi16(
		x, _mm512_maskz_permutexvar_epi16(
			   0xffff0000, _mm512_sub_epi16(last, _mm512_set1_epi16(16)), x));
}

/* What the eighths before each eighth add up to, where that of an eighth fits into a byte: those
 * before are brought together, and there is an instruction that adds up bytes. */
TARGET_INLINE __m512i small_sums_before(__m512i x)
{
	const __m512i eighths = _mm512_set1_epi64(0x3e362e261e160e06);
	const __m512i spread = _mm512_set4_epi32(0x09080908, 0x09080908, 0x01000100, 0x01000100);
	__m512i t = _mm512_maskz_permutexvar_epi8(UINT64_C(0x7f3f1f0f07030100), eighths, x);

	return _mm512_shuffle_epi8(_mm512_sad_epu8(t, _mm512_setzero_si512()), spread);
}

/* 32 entries.  Entry i is (place << k) plus `sum`, less what the low parts up to it lack to 2^k - 1
 * each. */
TARGET_INLINE __m512i values(const struct unpack *u, __m512i sum, __m512i k, __m512i bits,
			     bool small, uint8_t *out)
{
	__m512i x =
		_mm512_multishift_epi64_epi8(u->shifts, _mm512_permutexvar_epi8(u->bytes, bits));

	x = _mm512_andnot_si512(x, u->mask);
	x = small ? _mm512_maddubs_epi16(x, _mm512_set1_epi8(1))
		  : _mm512_add_epi16(x, _mm512_slli_epi64(x, 16));
	/* a shift by bits, since those by bytes take the port of the permutations */
	x = _mm512_add_epi16(x, _mm512_slli_epi64(x, 32));
	if (small)
		sum = _mm512_sub_epi16(_mm512_sub_epi16(sum, x), small_sums_before(x));
	else
		sum = _mm512_sub_epi16(sum, sums(x));
	x = _mm512_sllv_epi16(_mm512_loadu_si512(out), k);
	_mm512_storeu_si512(out, _mm512_add_epi16(x, sum));
	return _mm512_permutexvar_epi16(_mm512_set1_epi16(LANES - 1), sum);
}

/* From places to values, in place. */
TARGET_INLINE void all_values(const struct rice_list *l, uint32_t want, const struct unpack *u,
			      bool small, uint8_t *out)
{
	const uint8_t *bits = l->bits, *end = out + 2 * (size_t)want;
	const size_t bytes = l->bytes, whole = bytes >= 64 ? bytes - 63 : 0;
	const size_t step = 4 * (size_t)l->k;
	const __m512i k = _mm512_set1_epi16((short)l->k);
	__m512i sum = _mm512_set1_epi16((short)(l->next + rice_mask(l->k)));
	size_t byte = (size_t)(l->low / 8);

	for (; out < end && byte < whole; out += 2 * LANES, byte += step)
		sum = values(u, sum, k, _mm512_loadu_si512(bits + byte), small, out);
	for (; out < end; out += 2 * LANES, byte += step)
		sum = values(u, sum, k, load64(bits, bytes, byte), small, out);
}

TARGET static void entries(struct rice_list *l, uint8_t *out, uint32_t want)
{
	const struct unpack u = unpack_of(l->k, l->low % 8);

	if (l->k <= SMALL)
		all_values(l, want, &u, true, out);
	else if (l->k < 15)
		all_values(l, want, &u, false, out);
	else /* four fields are more than 56 bits */
		rice_list_values(l, want, out);
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

TARGET static uint64_t nibbles(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t n,
			       unsigned width, uint8_t *out)
{
	/* four bytes and the one behind them into each eighth */
	const __m512i count = _mm512_load_si512(counting);
	const __m512i half = _mm512_and_si512(_mm512_srli_epi64(count, 1), _mm512_set1_epi8(0x1c));
	const __m512i from = _mm512_sub_epi8(count, half);
	const __m512i shifts = _mm512_add_epi8(_mm512_set1_epi64(0x1c1814100c080400),
					       _mm512_set1_epi8((char)(at % 8)));
	const __m512i low = _mm512_set1_epi8(15), two = _mm512_set1_epi8(2);
	uint64_t of_byte = 0, of_value = 0;
	size_t byte = (size_t)(at / 8);

	for (uint32_t i = 0; i < n; i += 64, byte += 32) {
		uint64_t in = lowest(n - i);
		__m512i x = _mm512_permutexvar_epi8(from, load64(bits, bytes, byte));

		x = _mm512_multishift_epi64_epi8(shifts, x);
		x = _mm512_add_epi8(_mm512_and_si512(x, low), two);
		_mm512_storeu_si512(out + i, x);
		of_byte += _mm_popcnt_u64(_mm512_mask_cmpeq_epu8_mask(in, x, _mm512_set1_epi8(16)));
		of_value +=
			_mm_popcnt_u64(_mm512_mask_cmpeq_epu8_mask(in, x, _mm512_set1_epi8(17)));
	}
	return of_byte + of_value * width;
}

TARGET static uint32_t spread(struct rice_spread *s)
{
	const __m512i from = _mm512_set1_epi16((short)s->from);
	const __m512i n = _mm512_set1_epi16((short)s->n);
	const uint8_t *odds = s->odds, *odd_factors = s->odd_factors, *end = s->factors + s->n;
	const uint32_t count = s->count;
	uint8_t *later = s->later;
	uint32_t many = s->many, took = count;

	if (!s->is_set)
		for (uint8_t *f = s->factors; f < end; f += 64)
			_mm512_storeu_si512(f, _mm512_set1_epi8(1));
	for (uint32_t at = 0; at < count && took == count; at += LANES) {
		uint32_t in = (uint32_t)lowest(count - at), high;
		__m256i f = _mm256_loadu_si256((const __m256i *)(odd_factors + at));
		__m512i x = _mm512_sub_epi16(_mm512_loadu_si512(odds + 2 * (size_t)at), from);
		uint32_t below = _mm512_mask_cmplt_epu16_mask(in, x, n);

		/* a branch, since it is foreseen and what is counted has to be waited for */
		if (!RICE_LIKELY(below == in)) {
			took = at + (uint32_t)_tzcnt_u32(~below);
			in = _bzhi_u32(in, took - at);
		}
		high = _mm256_mask_cmpgt_epu8_mask(in, f, _mm256_set1_epi8(15));
		_mm512_storeu_si512(later + 2 * (size_t)many, _mm512_maskz_compress_epi16(high, x));
		many += (uint32_t)_mm_popcnt_u32(high);
	}
	s->many = many;
	rice_spread_factors(s, took);
	return took;
}

TARGET static void values_1(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t n,
			    const uint8_t *factors, uint8_t *out)
{
	for (uint32_t i = 0; i < n; i += 32) {
		__mmask32 minus = (__mmask32)rice_word(bits, bytes, at + i);
		__m256i x = _mm256_loadu_si256((const __m256i *)(factors + i));

		_mm256_storeu_si256((__m256i *)(out + i),
				    _mm256_mask_sub_epi8(x, minus, _mm256_setzero_si256(), x));
	}
}

TARGET_INLINE void signed_2(const uint8_t *factors, uint32_t minus, uint8_t *out)
{
	__m512i x = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)factors));

	_mm512_storeu_si512(out, _mm512_mask_sub_epi16(x, minus, _mm512_setzero_si512(), x));
}

TARGET static void values_2(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t n,
			    const uint8_t *factors, uint8_t *out)
{
	const uint8_t *end = factors + n;
	const unsigned shift = at % 8;
	size_t byte = (size_t)(at / 8);

	for (; bytes >= 12 && byte < bytes - 11 && factors < end;
	     byte += 8, factors += 64, out += 128) {
		signed_2(factors, (uint32_t)(rice_get(bits + byte, 8) >> shift), out);
		signed_2(factors + 32, (uint32_t)(rice_get(bits + byte + 4, 8) >> shift), out + 64);
	}
	for (; factors < end; byte += 4, factors += 32, out += 64)
		signed_2(factors, (uint32_t)(rice_load(bits, bytes, byte) >> shift), out);
}

TARGET static void values_4(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t n,
			    const uint8_t *factors, uint8_t *out)
{
	for (uint32_t i = 0; i < n; i += 16) {
		__mmask16 minus = (__mmask16)rice_word(bits, bytes, at + i);
		__m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(factors + i)));

		_mm512_storeu_si512(out + 4 * (size_t)i,
				    _mm512_mask_sub_epi32(x, minus, _mm512_setzero_si512(), x));
	}
}

TARGET static void values_8(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t n,
			    const uint8_t *factors, uint8_t *out)
{
	for (uint32_t i = 0; i < n; i += 8) {
		__mmask8 minus = (__mmask8)rice_word(bits, bytes, at + i);
		__m512i x = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)(factors + i)));

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
	.classes = &class_kernel_avx512,
	.bits = &bits_kernel_avx512,
};
#endif
