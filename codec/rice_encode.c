/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making the Rice form of a block.
 *
 * rice_plan() finds out everything that decides the length, which is then exact: which list is sent
 * (the changed elements or the others), its parameter, whether the values are coded, which of them
 * are odd and how many bytes those need.  rice_write() then only puts bits.
 *
 * The length of a list is n * (k + 1) + the sum of gap >> k.  That is convex in k, so a walk from a
 * guess to where it no longer falls ends at the shortest.
 *
 * What is chosen depends on the elements only, never on the kernel.  An encoder belongs to one
 * thread.
 */
#include "codec/rice.h"

#include <stdlib.h>

enum {
	INVERTED = 0x10,
	CODED = 0x20,
	K_MAX = 15,
	NIBBLE_MAX = 13,
	NIBBLE_BYTE = 14,
	NIBBLE_VALUE = 15,
	BYTE_FIRST = 16, /* what byte 0 stands for */
};

struct list_plan {
	uint16_t *gaps;
	uint32_t n;
	unsigned k;
	uint64_t bits;
};

struct rice_encoder {
	const struct rice_kernel *kernel;
	struct list_plan list, odd; /* with owned gaps[], PATCH_BLOCK + RICE_SLACK each */
	uint8_t *holes;		    /* owned: u16 */
	uint8_t *odds;		    /* owned: u16 indices of the odd values */
	uint8_t *nibbles;	    /* owned: one byte each */
	uint16_t *later;	    /* owned: which of the odd values need the tail */
	uint32_t later_n;
	const uint8_t *values; /* borrowed */
	uint32_t count;
	unsigned width;
	uint64_t bits, tail; /* length of the stream, in bits, and of the tail, in bytes */
	bool inverted, coded, signs;
};

struct rice_encoder *rice_encoder_new(const struct rice_kernel *kernel)
{
	const size_t room = 2 * (size_t)(PATCH_BLOCK + RICE_SLACK);
	struct rice_encoder *e = calloc(1, sizeof(*e));

	if (e == NULL)
		return NULL;
	e->kernel = kernel;
	e->list.gaps = malloc(room);
	e->odd.gaps = malloc(room);
	e->holes = malloc(room);
	e->odds = malloc(room);
	e->nibbles = malloc(PATCH_BLOCK);
	e->later = malloc(room);
	if (e->list.gaps == NULL || e->odd.gaps == NULL || e->holes == NULL || e->odds == NULL ||
	    e->nibbles == NULL || e->later == NULL) {
		rice_encoder_free(e);
		return NULL;
	}
	return e;
}

void rice_encoder_free(struct rice_encoder *e)
{
	if (e == NULL)
		return;
	free(e->list.gaps);
	free(e->odd.gaps);
	free(e->holes);
	free(e->odds);
	free(e->nibbles);
	free(e->later);
	free(e);
}

/* ---- planning ---- */

static void plan_list(const struct rice_encoder *e, struct list_plan *l, const uint8_t *list,
		      uint32_t n)
{
	uint32_t mean, sums[3];
	unsigned k = 0, best;

	l->n = n;
	l->k = 0;
	l->bits = 0;
	if (n == 0)
		return;
	e->kernel->gaps(list, n, l->gaps);
	/* of gap + 1; the best k is about log2(mean * ln 2) */
	mean = (rice_get16(list + 2 * (size_t)n - 2) + 1U) / n;
	while (k < K_MAX - 2 && mean * 11 / 16 >> (k + 2) > 0)
		k++;
	/* k, k + 1 and k + 2, until the shortest is not at an end beyond which there are more */
	for (;;) {
		e->kernel->quotients(l->gaps, n, k, sums);
		best = 0;
		for (unsigned i = 1; i < 3; i++)
			if ((uint64_t)n * i + sums[i] < (uint64_t)n * best + sums[best])
				best = i;
		if (best == 2 && k < K_MAX - 2)
			k++;
		else if (best == 0 && k > 0)
			k--;
		else
			break;
	}
	l->k = k + best;
	l->bits = (uint64_t)n * (l->k + 1) + sums[best];
}

/* The elements that are not in the list. */
static uint32_t list_holes(uint8_t *restrict holes, const uint8_t *positions, uint32_t count,
			   uint32_t elements)
{
	uint32_t next = 0, n = 0;

	for (uint32_t i = 0; i <= count; i++) {
		uint32_t end = i < count ? rice_get16(positions + 2 * (size_t)i) : elements;

		for (; next < end; next++)
			rice_set16(holes + 2 * (size_t)n++, (uint16_t)next);
		next = end + 1;
	}
	return n;
}

/* The nibble of each odd value and which of them need the tail, without a branch, since that cannot
 * be predicted; returns how many bytes of tail they need. */
RICE_INLINE uint64_t plan_nibbles(struct rice_encoder *e, unsigned width)
{
	const uint64_t top = UINT64_C(1) << (8 * width - 1), all = top | (top - 1);
	const uint64_t minus = e->signs ? top : 0;
	uint32_t later = 0, wide = 0;

	for (uint32_t i = 0; i < e->odd.n; i++) {
		size_t at = rice_get16(e->odds + 2 * (size_t)i);
		uint64_t v = rice_get(e->values + at * width, width);
		uint64_t m = v & minus ? (0 - v) & all : v;
		bool far = m - 2 > NIBBLE_MAX, farther = width == 1 || m - BYTE_FIRST > UINT8_MAX;

		e->nibbles[i] = far ? (uint8_t)(NIBBLE_BYTE + farther) : (uint8_t)(m - 2);
		e->later[later] = (uint16_t)i;
		later += far;
		wide += far & farther;
	}
	e->later_n = later;
	return later + (uint64_t)wide * (width - 1);
}

static unsigned count_bits(uint32_t count)
{
	return 32 - (unsigned)__builtin_clz(count);
}

/* Coded values where that is shorter. */
static void plan_values(struct rice_encoder *e, enum patch_op op)
{
	const unsigned column = (unsigned)__builtin_ctz(e->width);
	const uint64_t plain = (uint64_t)e->count * e->width;
	uint64_t bits, tail;

	e->tail = plain;
	e->coded = op != PATCH_SET;
	e->signs = op == PATCH_ADD;
	if (!e->coded)
		return;
	e->odd.n = e->kernel->odd[column](
		e->values, e->count, e->signs ? UINT64_MAX >> (64 - 8 * e->width) : 1, e->odds);
	switch (e->width) {
	case 1: tail = plan_nibbles(e, 1); break;
	case 2: tail = plan_nibbles(e, 2); break;
	case 4: tail = plan_nibbles(e, 4); break;
	default: tail = plan_nibbles(e, 8);
	}
	plan_list(e, &e->odd, e->odds, e->odd.n);
	bits = count_bits(e->count) + (e->odd.n > 0 ? 4 : 0) + (e->signs ? e->count : 0) +
	       4 * (uint64_t)e->odd.n + e->odd.bits;
	e->coded = bits + 8 * tail < 8 * plain;
	if (!e->coded)
		return;
	e->bits += bits;
	e->tail = tail;
}

size_t rice_plan(struct rice_encoder *e, enum patch_op op, unsigned width, const uint8_t *positions,
		 const uint8_t *values, uint32_t count, uint32_t elements)
{
	uint32_t n = count;

	e->values = values;
	e->count = count;
	e->width = width;
	e->inverted = count > elements / 2;
	if (e->inverted) {
		n = list_holes(e->holes, positions, count, elements);
		positions = e->holes;
	}
	plan_list(e, &e->list, positions, n);
	e->bits = 8 + e->list.bits;
	plan_values(e, op);
	return (size_t)((e->bits + 7) / 8 + e->tail);
}

/* ---- writing ---- */

static void put_tail(const struct rice_encoder *e, uint8_t *tail)
{
	const unsigned width = e->width;

	if (!e->coded) {
		memcpy(tail, e->values, (size_t)e->count * width);
		return;
	}
	for (uint32_t i = 0; i < e->later_n; i++) {
		size_t at = rice_get16(e->odds + 2 * (size_t)e->later[i]);
		uint64_t v = rice_get(e->values + at * width, width);
		bool byte = e->nibbles[e->later[i]] == NIBBLE_BYTE;
		bool minus = e->signs && v >> (8 * width - 1) != 0;

		/* of this only so many bytes count */
		rice_set(tail, byte ? (minus ? 0 - v : v) - BYTE_FIRST : v, 8);
		tail += byte ? 1 : width;
	}
}

void rice_write(struct rice_encoder *e, uint8_t *dst)
{
	const struct rice_kernel *kernel = e->kernel;
	struct rice_bits b = {.dst = dst};

	rice_put(&b, e->list.k | (e->inverted ? INVERTED : 0) | (e->coded ? CODED : 0), 8);
	if (e->coded) {
		rice_put(&b, e->odd.n, count_bits(e->count));
		if (e->odd.n > 0)
			rice_put(&b, e->odd.k, 4);
		if (e->signs)
			kernel->put_signs[__builtin_ctz(e->width)](&b, e->values, e->count);
		rice_put_nibbles(&b, e->nibbles, e->odd.n);
		kernel->put_lows(&b, e->odd.gaps, e->odd.n, e->odd.k);
	}
	kernel->put_lows(&b, e->list.gaps, e->list.n, e->list.k);
	if (e->coded)
		kernel->put_unary(&b, e->odd.gaps, e->odd.n, e->odd.k);
	kernel->put_unary(&b, e->list.gaps, e->list.n, e->list.k);
	put_tail(e, dst + (e->bits + 7) / 8);
}
