/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel that runs on every CPU: the plain loops of rice_kernel.h as they are.
 *
 * It is also what the other kernels are measured against in tests: same bytes out for same bytes
 * in, also for malformed streams as far as lengths go.
 *
 * No state; any number of threads.
 */
#include "codec/bits_kernel.h"
#include "codec/class_kernel.h"
#include "codec/rice_kernel.h"

/* How many ones b has below place i, and the place of its j-th one, as constants. */
#define BIT(b, i)   ((b) >> (i) & 1)
#define RANK(b, i)  __builtin_popcount((b) & ((1 << (i)) - 1))
#define AT(b, i, j) (BIT(b, i) && RANK(b, i) == (j) ? (i) : 0)
#define PLACE(b, j)                                                                                \
	(AT(b, 1, j) + AT(b, 2, j) + AT(b, 3, j) + AT(b, 4, j) + AT(b, 5, j) + AT(b, 6, j) +       \
	 AT(b, 7, j))
#define PLACES(b)                                                                                  \
	{PLACE(b, 0), PLACE(b, 1), PLACE(b, 2), PLACE(b, 3),                                       \
	 PLACE(b, 4), PLACE(b, 5), PLACE(b, 6), PLACE(b, 7)}
#define PLACES4(b)  PLACES(b), PLACES((b) + 1), PLACES((b) + 2), PLACES((b) + 3)
#define PLACES16(b) PLACES4(b), PLACES4((b) + 4), PLACES4((b) + 8), PLACES4((b) + 12)
#define PLACES64(b) PLACES16(b), PLACES16((b) + 16), PLACES16((b) + 32), PLACES16((b) + 48)

const uint8_t rice_places[256][8] = {PLACES64(0), PLACES64(64), PLACES64(128), PLACES64(192)};

#undef PLACES
#define PLACES(b)                                                                                  \
	{PLACE(b, 0), 0, PLACE(b, 1), 0, PLACE(b, 2), 0, PLACE(b, 3), 0,                           \
	 PLACE(b, 4), 0, PLACE(b, 5), 0, PLACE(b, 6), 0, PLACE(b, 7), 0}

const uint8_t rice_wide_places[256][16]
	__attribute__((aligned(16))) = {PLACES64(0), PLACES64(64), PLACES64(128), PLACES64(192)};

#define COUNTS4(b)  RANK(b, 8), RANK((b) + 1, 8), RANK((b) + 2, 8), RANK((b) + 3, 8)
#define COUNTS16(b) COUNTS4(b), COUNTS4((b) + 4), COUNTS4((b) + 8), COUNTS4((b) + 12)
#define COUNTS64(b) COUNTS16(b), COUNTS16((b) + 16), COUNTS16((b) + 32), COUNTS16((b) + 48)

const uint8_t rice_counts[256] = {COUNTS64(0), COUNTS64(64), COUNTS64(128), COUNTS64(192)};

static int places(struct rice_list *l, uint8_t *out, uint32_t want)
{
	return rice_list_places(l, want, out);
}

static void entries(struct rice_list *l, uint8_t *out, uint32_t want)
{
	rice_list_values(l, want, out);
	rice_advance(l, want, out);
}

static uint64_t skip(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t ones)
{
	return rice_skip(bits, bytes, at, ones);
}

static uint64_t nibbles(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t n, unsigned width,
			uint8_t *out)
{
	return rice_nibbles(bits, bytes, at, n, width, out);
}

static uint32_t spread(struct rice_spread *s)
{
	return rice_spread(s);
}

static void gaps(const uint8_t *list_, uint32_t n, uint16_t *out)
{
	rice_gaps(list_, n, out);
}

static void quotients(const uint16_t *g, uint32_t n, unsigned k, uint32_t sums[3])
{
	rice_quotients(g, n, k, sums);
}

static void put_lows(struct rice_bits *b, const uint16_t *g, uint32_t n, unsigned k)
{
	rice_put_lows(b, g, n, k);
}

static void put_unary(struct rice_bits *b, const uint16_t *g, uint32_t n, unsigned k)
{
	rice_put_unary(b, g, n, k);
}

#define OF_WIDTH(width)                                                                            \
	static void values_##width(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t n,     \
				   const uint8_t *factors, uint8_t *out)                           \
	{                                                                                          \
		rice_signed(bits, bytes, at, n, factors, out, width);                              \
	}                                                                                          \
	static void signs_##width(struct rice_bits *b, const uint8_t *values, uint32_t n)          \
	{                                                                                          \
		rice_put_signs(b, values, n, width);                                               \
	}                                                                                          \
	static uint32_t odd_##width(const uint8_t *values, uint32_t n, uint64_t unit,              \
				    uint8_t *out)                                                  \
	{                                                                                          \
		return rice_odd(values, n, unit, out, width);                                      \
	}                                                                                          \
	static uint32_t diff_##width(const uint8_t *old, const uint8_t *new, uint32_t n,           \
				     uint8_t *positions, uint8_t *values)                          \
	{                                                                                          \
		return rice_diff(old, new, n, positions, values, width);                           \
	}

OF_WIDTH(1)
OF_WIDTH(2)
OF_WIDTH(4)
OF_WIDTH(8)

const struct rice_kernel rice_kernel_portable = {
	.name = "portable",
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
	.classes = &class_kernel_portable,
	.bits = &bits_kernel_portable,
};
