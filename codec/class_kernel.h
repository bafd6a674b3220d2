/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inner loops of wfp1x (patchx.h), as a table of functions for each kind of CPU, as
 * rice_kernel.h has them for the Rice coder: which class each element is of, and how many members
 * of each class go by.
 *
 * What costs time is to go through all elements of a model, not the few that change.  So elements
 * are taken in groups of 64: how many of each class are among them is counted with vectors, and
 * only where a member that counts is among the 64 it is looked for.
 *
 * Here are the plain forms, always inlined.  No state; any number of threads.  Not for modules
 * other than patchx and the kernels.
 */
#ifndef CODEC_CLASS_KERNEL_H
#define CODEC_CLASS_KERNEL_H

#include "codec/rice_kernel.h"

enum {
	CLASS_GROUP = 64,   /* elements */
	CLASS_ABSENT = 255, /* the class of what is behind a block's last element */
	CLASSES = 16,
};

struct class_key {
	unsigned shift, bits; /* see patchx.h */
	unsigned top, classes;
};

struct class_kernel {
	/* The class of each of n elements, and CLASS_ABSENT up to a multiple of CLASS_GROUP. */
	void (*classes[4])(const struct class_key *key, const uint8_t *elements, uint32_t n,
			   uint8_t *out);
	/* Groups from element `at` on, up to `end`: the members of each class in a group are taken
	 * off its left[], until a class has more of them than are left.  Returns where that group
	 * begins, with left[] as it was before it and what it has in counts[], or where the last
	 * one ends. */
	uint32_t (*pass)(const uint8_t *classes, uint32_t at, uint32_t end, unsigned n,
			 uint32_t left[CLASSES], uint32_t counts[CLASSES]);
	/* How many of a group are of each of n classes. */
	void (*count)(const uint8_t *group, unsigned n, uint32_t counts[CLASSES]);
	/* Bit i: element i of the group is of class c. */
	uint64_t (*mask)(const uint8_t *group, unsigned c);
	/* The place of the n-th one, from 0; mask has more than n. */
	unsigned (*select)(uint64_t mask, unsigned n);
};

extern const struct class_kernel class_kernel_portable;
#if defined(__x86_64__)
extern const struct class_kernel class_kernel_avx2, class_kernel_avx512;
#endif

/* ---- the plain forms ---- */

RICE_INLINE uint8_t class_of(const struct class_key *k, uint64_t element)
{
	int key = (int)(element >> k->shift & rice_mask(k->bits));
	int c = (int)k->top - key, last = (int)k->classes - 1;

	c = MAX(c, 0);
	return (uint8_t)MIN(c, last);
}

RICE_INLINE void class_classes(const struct class_key *key, const uint8_t *restrict elements,
			       uint32_t n, uint8_t *restrict out, unsigned width)
{
	const struct class_key k = *key;

	if (k.classes == 1) {
		memset(out, 0, n);
	} else if (width == 2) { /* in lanes of 16 bits */
		const int16_t top = (int16_t)k.top, last = (int16_t)(k.classes - 1);
		const uint16_t mask = (uint16_t)rice_mask(k.bits);

		for (uint32_t i = 0; i < n; i++) {
			uint16_t v = (uint16_t)(rice_get16(elements + 2 * (size_t)i) >> k.shift);
			int16_t c = (int16_t)(top - (int16_t)(v & mask));

			c = MAX(c, 0);
			out[i] = (uint8_t)MIN(c, last);
		}
	} else {
		for (uint32_t i = 0; i < n; i++)
			out[i] = class_of(&k, rice_get(elements + (size_t)i * width, width));
	}
	memset(out + n, CLASS_ABSENT, ALIGN_UP(n, CLASS_GROUP) - n);
}

typedef uint8_t class_bytes __attribute__((vector_size(16)));

struct class_group {
	class_bytes v[4];
};

RICE_INLINE struct class_group class_group_of(const uint8_t *group)
{
	struct class_group g;

	memcpy(&g, group, CLASS_GROUP);
	return g;
}

RICE_INLINE uint32_t class_count(const struct class_group *g, unsigned c)
{
	const class_bytes v = (class_bytes){0} + (uint8_t)c;
	/* equal bytes are -1; the sums are at most 4 in each */
	class_bytes sum = (class_bytes){0} - (class_bytes)(g->v[0] == v) -
			  (class_bytes)(g->v[1] == v) - (class_bytes)(g->v[2] == v) -
			  (class_bytes)(g->v[3] == v);
	uint64_t half[2];

	memcpy(half, &sum, 16);
	return (uint32_t)((half[0] + half[1]) * UINT64_C(0x0101010101010101) >> 56);
}

RICE_INLINE uint64_t class_mask(const uint8_t *group, unsigned c)
{
	const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f);
	uint64_t mask = 0;

	for (unsigned i = 0; i < CLASS_GROUP / 8; i++) {
		uint64_t x = rice_get(group + 8 * (size_t)i, 8) ^ UINT64_C(0x0101010101010101) * c;
		uint64_t zero = ~(((x & low) + low) | x | low); /* bit 7 of bytes that are 0 */

		mask |= (zero >> 7) * UINT64_C(0x0102040810204080) >> 56 << 8 * i;
	}
	return mask;
}

RICE_INLINE unsigned class_select(uint64_t mask, unsigned n)
{
	for (unsigned at = 0; at < 64; at += 8) {
		unsigned byte = mask >> at & 0xff;

		if (n < rice_counts[byte])
			return at + rice_places[byte][n];
		n -= rice_counts[byte];
	}
	return 63; /* it had not */
}

/* ---- made of them, for one kind of CPU ---- */

#define CLASSES_OF_WIDTH(target, width)                                                            \
	target static void classes_##width(const struct class_key *key, const uint8_t *elements,   \
					   uint32_t n, uint8_t *out)                               \
	{                                                                                          \
		class_classes(key, elements, n, out, width);                                       \
	}

#define CLASSES_OF_ALL(target)                                                                     \
	CLASSES_OF_WIDTH(target, 1)                                                                \
	CLASSES_OF_WIDTH(target, 2)                                                                \
	CLASSES_OF_WIDTH(target, 4)                                                                \
	CLASSES_OF_WIDTH(target, 8)

/* pass() and count() of a type for a group, a function that loads one, and one that counts a class.
 * What is left is in one of two arrays, so that a group in which something is found has changed
 * nothing; all of it goes number by number, since a vector would have to wait for its parts. */
#define PASS(target, group_type, load, count_one)                                                  \
	target static uint32_t pass(const uint8_t *classes, uint32_t at, uint32_t end, unsigned n, \
				    uint32_t left[CLASSES], uint32_t counts[CLASSES])              \
	{                                                                                          \
		uint32_t both[2][CLASSES], *now = both[0], *next = both[1];                        \
                                                                                                   \
		for (unsigned c = 0; c < CLASSES; c++) {                                           \
			now[c] = left[c];                                                          \
			counts[c] = 0;                                                             \
		}                                                                                  \
		for (; at < end; at += CLASS_GROUP) {                                              \
			const group_type g = load(classes + at);                                   \
			uint32_t below = 0, *other; /* the highest bit: a difference is */         \
                                                                                                   \
			for (unsigned c = 0; c < n; c++) {                                         \
				counts[c] = count_one(&g, c);                                      \
				next[c] = now[c] - counts[c];                                      \
				below |= next[c];                                                  \
			}                                                                          \
			if (below >> 31 != 0)                                                      \
				break;                                                             \
			other = now;                                                               \
			now = next;                                                                \
			next = other;                                                              \
		}                                                                                  \
		for (unsigned c = 0; c < n; c++)                                                   \
			left[c] = now[c];                                                          \
		return at;                                                                         \
	}                                                                                          \
	target static void count(const uint8_t *group, unsigned n, uint32_t counts[CLASSES])       \
	{                                                                                          \
		const group_type g = load(group);                                                  \
                                                                                                   \
		for (unsigned c = 0; c < n; c++)                                                   \
			counts[c] = count_one(&g, c);                                              \
	}

#endif
