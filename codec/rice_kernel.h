/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inner loops of the Rice coder (rice.h) and of diff.h, as a table of functions: one table per
 * kind of CPU, chosen at run time.  All tables give the same bytes.
 *
 * Here are the plain forms of the loops, always inlined: rice_portable.c compiles them as they are,
 * the other kernels compile some of them for their CPU and write the rest by hand.
 *
 * Bit i of a stream is bit i % 8 of byte i / 8.  Elements in memory, and lists of u16, are
 * little-endian bytes whatever the machine's own order; gaps[] are the machine's.
 *
 * No state; any number of threads.  Not for modules other than rice, diff and the kernels.
 */
#ifndef CODEC_RICE_KERNEL_H
#define CODEC_RICE_KERNEL_H

#include "codec/base.h"

#define RICE_INLINE    static inline __attribute__((always_inline))
#define RICE_LIKELY(x) __builtin_expect(!!(x), 1)

enum {
	RICE_CHUNK = 2048, /* most entries of a list decoded at a time */
	RICE_SLACK = 64,   /* elements behind an output's last that a loop may overwrite */
	RICE_BYTE = 16,	   /* the factor of nibble 14, to which a byte of the tail is added, */
	RICE_VALUE = 17,   /* and what stands for nibble 15, whose value is in the tail */
	RICE_WORD = 56,	   /* bits of a stream that one load is sure to bring, at any bit offset */
	RICE_AHEAD = 4096, /* bytes that a diff has on their way: two streams, beyond their pages */
};

/* A Rice-coded list of ascending numbers below 65,536 that is being decoded. */
struct rice_list {
	const uint8_t *bits; /* the stream, `bytes` long; what is beyond reads as zeros */
	size_t bytes;
	uint64_t low;	/* in bits: where the next entry's low part is */
	uint64_t unary; /* in bits: where the next entry's unary part begins */
	uint32_t left;	/* entries to come */
	uint32_t next;	/* the least value the next entry can have; modulo 65,536 */
	unsigned k;	/* 0 ... 15 */
};

/* Bits being written; dst has at least 8 bytes more than are needed. */
struct rice_bits {
	uint8_t *dst;
	uint64_t word; /* of which `fill` bits, fewer than 8, are to be written at dst */
	unsigned fill;
};

/* Where the factors of odd values go (m in rice.h), for a chunk of `n` values of which the first
 * has the index `from` in the block. */
struct rice_spread {
	const uint8_t *odds;	    /* u16: indices in the block; RICE_SLACK */
	const uint8_t *odd_factors; /* of each, as nibbles() gives them; RICE_SLACK */
	uint32_t count, from, n;
	uint8_t *factors; /* of each value; RICE_SLACK */
	uint8_t *later; /* u16: indices in the chunk of those that go on in the tail; RICE_SLACK */
	uint32_t many;	/* of later[] */
	bool is_set;	/* factors[], by an earlier call, or else it begins with ones */
};

struct bits_kernel;
struct class_kernel;

/* Tables indexed [4] are for elements of 1, 2, 4 and 8 bytes. */
struct rice_kernel {
	const char *name;

	/* The next `want` (1 ... RICE_CHUNK, at most left) entries of a list, in two steps: what
	 * their unary part says goes to out, which has room for RICE_SLACK more, and becomes them.
	 * -EBADMSG when the stream ends before.  Entries of a malformed list may have any values.
	 */
	int (*places)(struct rice_list *l, uint8_t *out, uint32_t want);
	void (*entries)(struct rice_list *l, uint8_t *out, uint32_t want);
	/* The bit offset behind the `ones`-th one at or after bit `at`; UINT64_MAX when there are
	 * fewer. */
	uint64_t (*skip)(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t ones);
	/* n nibbles from bit `at` on, each plus two; RICE_SLACK.  Returns how many bytes they have
	 * in the tail, where values are of `width` bytes. */
	uint64_t (*nibbles)(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t n,
			    unsigned width, uint8_t *out);
	/* Writes factors[] for the odd values of this chunk, up to the first that is not below n;
	 * returns how many there are.  All arithmetic is modulo 65,536. */
	uint32_t (*spread)(struct rice_spread *s);
	/* n elements, each factors[i] or, where the bit (from bit `at` on) is one, the negative of
	 * that; RICE_SLACK, of factors[] as well.  No factor is above 17. */
	void (*values[4])(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t n,
			  const uint8_t *factors, uint8_t *out);

	/* gaps[i] = list[i] - list[i-1] - 1; the first is list[0]. */
	void (*gaps)(const uint8_t *list, uint32_t n, uint16_t *gaps);
	/* The sums of gaps[i] >> k, >> (k + 1) and >> (k + 2). */
	void (*quotients)(const uint16_t *gaps, uint32_t n, unsigned k, uint32_t sums[3]);
	void (*put_lows)(struct rice_bits *b, const uint16_t *gaps, uint32_t n, unsigned k);
	void (*put_unary)(struct rice_bits *b, const uint16_t *gaps, uint32_t n, unsigned k);
	/* The highest bit of each value. */
	void (*put_signs[4])(struct rice_bits *b, const uint8_t *values, uint32_t n);
	/* The indices of values that are neither 1 nor `unit` (a value of that width), as u16;
	 * returns how many.  RICE_SLACK. */
	uint32_t (*odd[4])(const uint8_t *values, uint32_t n, uint64_t unit, uint8_t *out);

	/* The elements 0 ... n-1 (n at most 65,536) in which two arrays differ, as u16, and new -
	 * old for each; returns how many.  RICE_SLACK. */
	uint32_t (*diff[4])(const uint8_t *old, const uint8_t *new, uint32_t n, uint8_t *positions,
			    uint8_t *values);

	const struct class_kernel *classes; /* class_kernel.h, for the same kind of CPU */
	const struct bits_kernel *bits;	    /* bits_kernel.h, likewise */
};

/* For each byte the places of its ones, ascending, also as u16, and how many they are. */
extern const uint8_t rice_places[256][8];
extern const uint8_t rice_wide_places[256][16];
extern const uint8_t rice_counts[256];

extern const struct rice_kernel rice_kernel_portable;
#if defined(__x86_64__)
extern const struct rice_kernel rice_kernel_avx2;   /* AVX2, BMI2 */
extern const struct rice_kernel rice_kernel_avx512; /* those, and VBMI2 of AVX-512 */
#endif

/* ---- elements, in a way that compilers turn into vector loads ---- */

#define RICE_BE (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)

RICE_INLINE uint16_t rice_get16(const uint8_t *p)
{
	uint16_t v;

	memcpy(&v, p, 2);
	return RICE_BE ? __builtin_bswap16(v) : v;
}

RICE_INLINE uint64_t rice_get(const uint8_t *p, unsigned width)
{
	uint32_t v32;
	uint64_t v64;

	switch (width) {
	case 1: return *p;
	case 2: return rice_get16(p);
	case 4: memcpy(&v32, p, 4); return RICE_BE ? __builtin_bswap32(v32) : v32;
	default: memcpy(&v64, p, 8); return RICE_BE ? __builtin_bswap64(v64) : v64;
	}
}

RICE_INLINE void rice_set16(uint8_t *p, uint16_t v)
{
	v = RICE_BE ? __builtin_bswap16(v) : v;
	memcpy(p, &v, 2);
}

RICE_INLINE void rice_set(uint8_t *p, uint64_t v, unsigned width)
{
	uint32_t v32 = RICE_BE ? __builtin_bswap32((uint32_t)v) : (uint32_t)v;
	uint64_t v64 = RICE_BE ? __builtin_bswap64(v) : v;

	switch (width) {
	case 1: *p = (uint8_t)v; break;
	case 2: rice_set16(p, (uint16_t)v); break;
	case 4: memcpy(p, &v32, 4); break;
	default: memcpy(p, &v64, 8);
	}
}

/* ---- reading bits ---- */

/* Eight bytes at `byte`; zeros beyond the end. */
RICE_INLINE uint64_t rice_load(const uint8_t *bits, size_t bytes, uint64_t byte)
{
	uint64_t v = 0;

	if (RICE_LIKELY(byte < bytes && bytes - byte >= 8))
		return rice_get(bits + byte, 8);
	for (unsigned i = 0; byte + i < bytes && i < 8; i++)
		v |= (uint64_t)bits[byte + i] << 8 * i;
	return v;
}

/* RICE_WORD bits and perhaps more from bit `at` on. */
RICE_INLINE uint64_t rice_word(const uint8_t *bits, size_t bytes, uint64_t at)
{
	return rice_load(bits, bytes, at / 8) >> at % 8;
}

RICE_INLINE uint64_t rice_mask(unsigned n)
{
	return (UINT64_C(1) << n) - 1; /* n < 64 */
}

/* How many ones; without a library's help where the CPU has no instruction for it. */
RICE_INLINE uint32_t rice_count(uint64_t v)
{
	v -= v >> 1 & UINT64_C(0x5555555555555555);
	v = (v & UINT64_C(0x3333333333333333)) + (v >> 2 & UINT64_C(0x3333333333333333));
	v = (v + (v >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
	return (uint32_t)(v * UINT64_C(0x0101010101010101) >> 56);
}

/* places[i] = bits before the i-th one, counted from l->unary, modulo 65,536. */
RICE_INLINE int rice_list_places(struct rice_list *l, uint32_t want, uint8_t *places)
{
	const uint64_t ones = UINT64_C(0x0001000100010001);
	const uint8_t *bits = l->bits;
	const size_t bytes = l->bytes;
	uint64_t at = l->unary, from = 0;
	uint32_t n = 0;

	do {
		uint64_t w = rice_word(bits, bytes, at) & rice_mask(RICE_WORD);

		if (at / 8 >= bytes)
			return -EBADMSG;
		from = at - l->unary;
		for (uint64_t base = from; base < from + RICE_WORD; base += 8, w >>= 8) {
			const uint8_t *p = rice_wide_places[w & 0xff];
			uint8_t *out = places + 2 * (size_t)n;

			n += rice_counts[w & 0xff];
			if (RICE_LIKELY((uint16_t)base <= UINT16_MAX - 7)) {
				rice_set(out, rice_get(p, 8) + (uint16_t)base * ones, 8);
				rice_set(out + 8, rice_get(p + 8, 8) + (uint16_t)base * ones, 8);
				continue;
			}
			for (unsigned j = 0; j < 16; j += 2)
				rice_set16(out + j, (uint16_t)(base + p[j]));
		}
		at += RICE_WORD;
	} while (n < want);
	l->unary += from + (uint16_t)(rice_get16(places + 2 * (size_t)want - 2) - from) + 1;
	return 0;
}

/* From places to values, in place; entry i is ((place - i) << k) + i + the sum of low parts, and
 * what does not depend on the place is added up as it comes. */
RICE_INLINE void rice_list_values(const struct rice_list *l, uint32_t want, uint8_t *out)
{
	const unsigned k = l->k, step = k < 15 ? 4 : 1;
	const uint32_t mask = (uint32_t)rice_mask(k);
	const uint8_t *bits = l->bits;
	const size_t bytes = l->bytes;
	uint32_t sum = l->next;
	uint64_t at = l->low;

	for (uint32_t i = 0; i < want; i += step, at += step * k) {
		uint64_t w = rice_word(bits, bytes, at);

		for (uint32_t j = 0; j < step; j++, w >>= k, out += 2) {
			sum += (uint32_t)w & mask;
			rice_set16(out, (uint16_t)(((uint32_t)rice_get16(out) << k) + sum));
			sum -= mask;
		}
	}
}

/* After that many entries have come to out. */
RICE_INLINE void rice_advance(struct rice_list *l, uint32_t want, const uint8_t *out)
{
	l->low += (uint64_t)want * l->k;
	l->left -= want;
	l->next = rice_get16(out + 2 * (size_t)want - 2) + 1U;
}

RICE_INLINE uint64_t rice_skip(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t ones)
{
	uint64_t w = 0;
	uint32_t here = 0;

	if (ones == 0)
		return at;
	for (;; at += RICE_WORD) {
		if (at / 8 >= bytes)
			return UINT64_MAX;
		w = rice_word(bits, bytes, at) & rice_mask(RICE_WORD);
		here = rice_count(w);
		if (here >= ones)
			break;
		ones -= here;
	}
	while (--ones > 0)
		w &= w - 1;
	return at + (uint64_t)__builtin_ctzll(w) + 1;
}

RICE_INLINE void rice_signed(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t n,
			     const uint8_t *factors, uint8_t *out, unsigned width)
{
	const uint64_t ones = UINT64_C(0x0001000100010001);

	for (uint32_t i = 0; i < n; i += 32) {
		uint64_t w = rice_word(bits, bytes, at + i);

		/* Of two bytes, four at a time: the product has bit j at bit 16*j, among others. */
		for (uint32_t j = 0; width == 2 && j < 32; j += 4, w >>= 4) {
			uint64_t minus = (w & 15) * UINT64_C(0x0000200040008001) & ones;
			uint64_t x = rice_get(factors + i + j, 4);

			x = (x | x << 16) & UINT64_C(0x0000ffff0000ffff);
			x = (x | x << 8) & UINT64_C(0x00ff00ff00ff00ff);
			/* no carry: no lane is 0 */
			rice_set(out + 2 * (size_t)(i + j), (x ^ minus * 0xffff) + minus, 8);
		}
		for (uint32_t j = 0; width != 2 && j < 32; j++) {
			uint64_t x = factors[i + j], minus = w >> j & 1;

			rice_set(out + (size_t)(i + j) * width, (x ^ (0 - minus)) + minus, width);
		}
	}
}

/* Those of the first `took` odd values, whose indices are below n; in the first chunk nothing has
 * to be subtracted. */
RICE_INLINE void rice_spread_factors(const struct rice_spread *s, uint32_t took)
{
	const uint8_t *odds = s->odds, *odd_factors = s->odd_factors;
	const uint32_t from = s->from;
	uint8_t *factors = s->factors;
	uint32_t at = 0;

	for (; from == 0 && at + 4 <= took; at += 4, odds += 8, odd_factors += 4)
		for (unsigned j = 0; j < 4; j++)
			factors[rice_get16(odds + 2 * j)] = odd_factors[j];
	for (; at < took; at++, odds += 2, odd_factors++)
		factors[(uint16_t)(rice_get16(odds) - from)] = *odd_factors;
}

/* Which factors go on in the tail cannot be predicted, so these are gathered without a branch. */
RICE_INLINE uint32_t rice_spread(struct rice_spread *s)
{
	const uint8_t *odds = s->odds, *odd_factors = s->odd_factors;
	const uint32_t count = s->count, n = s->n, from = s->from;
	uint8_t *factors = s->factors, *later = s->later;
	uint32_t at = 0, many = s->many;

	if (!s->is_set)
		memset(factors, 1, n + RICE_SLACK / 2);
	for (; at < count; at++) {
		uint16_t i = (uint16_t)(rice_get16(odds + 2 * (size_t)at) - from);

		if (i >= n)
			break;
		factors[i] = odd_factors[at];
		rice_set16(later + 2 * (size_t)many, i);
		many += odd_factors[at] >= RICE_BYTE;
	}
	s->many = many;
	return at;
}

/* The sum of 16 nibbles. */
RICE_INLINE uint32_t rice_sum_of_nibbles(uint64_t w)
{
	const uint64_t low = UINT64_C(0x0f0f0f0f0f0f0f0f);

	return (uint32_t)(((w & low) + (w >> 4 & low)) * UINT64_C(0x0101010101010101) >> 56);
}

/* The tail's bytes that n nibbles ask for.  Those of some words are counted together, place by
 * place, as long as a nibble holds the number. */
RICE_INLINE uint64_t rice_tail(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t n,
			       unsigned width)
{
	const uint64_t ones = UINT64_C(0x1111111111111111);
	const uint32_t nibbles = RICE_WORD / 4; /* of a word */
	uint64_t tail = 0;

	while (n > 0) {
		uint64_t of_byte = 0, of_value = 0;

		for (unsigned i = 0; i < 15 && n > 0; i++, at += RICE_WORD) {
			uint32_t many = MIN(n, nibbles);
			uint64_t w = rice_word(bits, bytes, at) & rice_mask(4 * many);
			uint64_t high = w >> 1 & w >> 2 & w >> 3 & ones;

			of_byte += high & ~w;
			of_value += high & w;
			n -= many;
		}
		tail += rice_sum_of_nibbles(of_byte) +
			(uint64_t)rice_sum_of_nibbles(of_value) * width;
	}
	return tail;
}

RICE_INLINE uint64_t rice_nibbles(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t n,
				  unsigned width, uint8_t *out)
{
	for (uint32_t i = 0; i < n; i += 8) {
		uint64_t x = rice_word(bits, bytes, at + 4 * (uint64_t)i) & 0xffffffff;

		x = (x | x << 16) & UINT64_C(0x0000ffff0000ffff);
		x = (x | x << 8) & UINT64_C(0x00ff00ff00ff00ff);
		x = (x | x << 4) & UINT64_C(0x0f0f0f0f0f0f0f0f);
		rice_set(out + i, x + UINT64_C(0x0202020202020202), 8);
	}
	return rice_tail(bits, bytes, at, n, width);
}

/* ---- writing bits ---- */

/* len <= RICE_WORD; v has no other bits. */
RICE_INLINE void rice_put(struct rice_bits *b, uint64_t v, unsigned len)
{
	uint64_t word = b->word | v << b->fill;
	unsigned fill = b->fill + len;

	rice_set(b->dst, word, 8);
	b->dst += fill / 8;
	b->word = word >> fill / 8 * 8;
	b->fill = fill % 8;
}

RICE_INLINE void rice_gaps(const uint8_t *restrict list, uint32_t n, uint16_t *restrict gaps)
{
	if (n > 0)
		gaps[0] = rice_get16(list);
	for (uint32_t i = 1; i < n; i++)
		gaps[i] = (uint16_t)(rice_get16(list + 2 * (size_t)i) -
				     rice_get16(list + 2 * (size_t)i - 2) - 1);
}

RICE_INLINE void rice_quotients(const uint16_t *gaps, uint32_t n, unsigned k, uint32_t sums[3])
{
	uint32_t a = 0, b = 0, c = 0; /* the gaps of a block add up to less than 65,536 */

	for (uint32_t i = 0; i < n; i++) {
		uint16_t q = (uint16_t)(gaps[i] >> k);

		a += q;
		b += (uint32_t)q >> 1;
		c += (uint32_t)q >> 2;
	}
	sums[0] = a;
	sums[1] = b;
	sums[2] = c;
}

RICE_INLINE void rice_put_lows(struct rice_bits *b, const uint16_t *gaps, uint32_t n, unsigned k)
{
	const uint64_t mask = rice_mask(k);
	uint32_t i = 0;

	if (k == 0)
		return;
	for (; k <= 7 && i + 8 <= n; i += 8) {
		const uint16_t *g = gaps + i;

		rice_put(b,
			 (g[0] & mask) | (g[1] & mask) << k | (g[2] & mask) << 2 * k |
				 (g[3] & mask) << 3 * k | (g[4] & mask) << 4 * k |
				 (g[5] & mask) << 5 * k | (g[6] & mask) << 6 * k |
				 (g[7] & mask) << 7 * k,
			 8 * k);
	}
	for (; k <= 14 && i + 4 <= n; i += 4) {
		const uint16_t *g = gaps + i;

		rice_put(b,
			 (g[0] & mask) | (g[1] & mask) << k | (g[2] & mask) << 2 * k |
				 (g[3] & mask) << 3 * k,
			 4 * k);
	}
	for (; i < n; i++)
		rice_put(b, gaps[i] & mask, k);
}

RICE_INLINE void rice_put_zeros_one(struct rice_bits *b, uint32_t zeros)
{
	for (; zeros >= RICE_WORD; zeros -= RICE_WORD)
		rice_put(b, 0, RICE_WORD);
	rice_put(b, UINT64_C(1) << zeros, zeros + 1);
}

RICE_INLINE void rice_put_unary(struct rice_bits *b, const uint16_t *gaps, uint32_t n, unsigned k)
{
	enum { TOGETHER = 8 };
	uint32_t i = 0;

	while (i < n) {
		const uint16_t *g = gaps + i;
		uint32_t end = 0;
		uint64_t v = 0;

		/* Where the ones of the next few come; mostly they fit into one word. */
		if (n - i >= TOGETHER) {
			for (unsigned j = 0; j < TOGETHER; j++) {
				end += (uint32_t)g[j] >> k;
				v |= UINT64_C(1) << (end + j) % 64;
			}
			if (RICE_LIKELY(end + TOGETHER <= RICE_WORD)) {
				rice_put(b, v, end + TOGETHER);
				i += TOGETHER;
				continue;
			}
		}
		rice_put_zeros_one(b, (uint32_t)g[0] >> k);
		i++;
	}
}

RICE_INLINE void rice_put_signs(struct rice_bits *b, const uint8_t *values, uint32_t n,
				unsigned width)
{
	const uint8_t *top = values + width - 1;

	for (uint32_t i = 0; i < n; i += 32) {
		unsigned many = MIN(n - i, 32U);
		uint64_t v = 0;

		for (unsigned j = 0; j < many; j++)
			v |= (uint64_t)(top[(size_t)(i + j) * width] >> 7) << j;
		rice_put(b, v, many);
	}
}

RICE_INLINE uint32_t rice_odd(const uint8_t *restrict values, uint32_t n, uint64_t unit,
			      uint8_t *restrict out, unsigned width)
{
	uint32_t m = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t v = rice_get(values + (size_t)i * width, width);

		rice_set16(out + 2 * (size_t)m, (uint16_t)i);
		m += (v != 1) & (v != unit);
	}
	return m;
}

/* Bytes below 16 as nibbles. */
RICE_INLINE void rice_put_nibbles(struct rice_bits *b, const uint8_t *nibbles, uint32_t n)
{
	uint32_t i = 0;

	for (; i + 8 <= n; i += 8) {
		uint64_t x = rice_get(nibbles + i, 8);

		x = (x | x >> 4) & UINT64_C(0x00ff00ff00ff00ff);
		x = (x | x >> 8) & UINT64_C(0x0000ffff0000ffff);
		rice_put(b, (x | x >> 16) & 0xffffffff, 32);
	}
	for (; i < n; i++)
		rice_put(b, nibbles[i], 4);
}

/* ---- diff ---- */

/* One element; returns m, or m + 1 when it differs. */
RICE_INLINE uint32_t rice_diff_one(const uint8_t *old, const uint8_t *new, uint32_t i, uint32_t m,
				   uint8_t *positions, uint8_t *values, unsigned width)
{
	uint64_t a = rice_get(old + (size_t)i * width, width);
	uint64_t b = rice_get(new + (size_t)i *width, width);

	rice_set16(positions + 2 * (size_t)m, (uint16_t)i);
	rice_set(values + (size_t)m * width, b - a, width);
	return m + (a != b);
}

/* A diff is as fast as memory; the CPU's own prefetch stops at the end of a page. */
RICE_INLINE void rice_ahead(const uint8_t *old, const uint8_t *new)
{
	__builtin_prefetch((const void *)((uintptr_t)old + RICE_AHEAD));
	__builtin_prefetch((const void *)((uintptr_t) new + RICE_AHEAD));
}

RICE_INLINE uint32_t rice_diff(const uint8_t *old, const uint8_t *new, uint32_t n,
			       uint8_t *positions, uint8_t *values, unsigned width)
{
	const uint32_t step = 64 / width;
	uint32_t i = 0, m = 0;

	for (; i + step <= n; i += step) {
		const uint8_t *a = old + (size_t)i * width, *b = new + (size_t)i *width;

		rice_ahead(a, b);
		for (uint32_t j = i; j < i + step; j += 8 / width, a += 8, b += 8) {
			if (RICE_LIKELY(rice_get(a, 8) == rice_get(b, 8)))
				continue;
			for (uint32_t e = j; e < j + 8 / width; e++)
				m = rice_diff_one(old, new, e, m, positions, values, width);
		}
	}
	for (; i < n; i++)
		m = rice_diff_one(old, new, i, m, positions, values, width);
	return m;
}

#endif
