/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside wfp1x (patchx.h): the classes of elements, and counting their members.
 *
 * What costs time is to go through all elements of a model, not the few that change.  So elements
 * are taken 64 at a time: how many of each class are among them is counted with vectors, and only
 * where a member that counts is among the 64 it is looked for.
 *
 * No state; any number of threads.  Not for other modules.
 */
#ifndef CODEC_PATCHX_CLASS_H
#define CODEC_PATCHX_CLASS_H

#include "codec/patchx.h"
#include "codec/rice_kernel.h"

enum {
	PATCHX_GROUP = 64,   /* elements */
	PATCHX_ABSENT = 255, /* the class of what is behind a span's last element */
	PATCHX_LISTS = PATCHX_SPAN_BLOCKS + PATCHX_CLASSES,
};

struct patchx_key {
	unsigned shift, bits; /* see patchx.h */
	unsigned top, classes;
};

RICE_INLINE uint8_t patchx_class_of(const struct patchx_key *k, uint64_t element)
{
	int key = (int)(element >> k->shift & rice_mask(k->bits));
	int c = (int)k->top - key, last = (int)k->classes - 1;

	c = c < 0 ? 0 : c;
	return (uint8_t)(c > last ? last : c);
}

/* As many as there are, and PATCHX_ABSENT up to a multiple of PATCHX_GROUP. */
RICE_INLINE void patchx_classes(const struct patchx_key *key, const uint8_t *elements, uint32_t n,
				unsigned width, uint8_t *out)
{
	const struct patchx_key k = *key;

	if (k.classes == 1)
		memset(out, 0, n);
	else if (width == 1)
		for (uint32_t i = 0; i < n; i++)
			out[i] = patchx_class_of(&k, elements[i]);
	else if (width == 2)
		for (uint32_t i = 0; i < n; i++) {
			int v = rice_get16(elements + 2 * (size_t)i) >> k.shift &
				((1 << k.bits) - 1);
			int c = (int)k.top - v;

			c = MAX(c, 0);
			out[i] = (uint8_t)MIN(c, (int)k.classes - 1);
		}
	else
		for (uint32_t i = 0; i < n; i++)
			out[i] = patchx_class_of(&k, rice_get(elements + (size_t)i * width, width));
	memset(out + n, PATCHX_ABSENT, ALIGN_UP(n, PATCHX_GROUP) - n);
}

typedef uint8_t patchx_bytes __attribute__((vector_size(16)));

/* How many of a group are of each class; counts of classes that there are not stay. */
RICE_INLINE void patchx_count(const uint8_t *group, unsigned classes,
			      uint32_t counts[PATCHX_CLASSES])
{
	patchx_bytes a, b, c, d;

	memcpy(&a, group, 16);
	memcpy(&b, group + 16, 16);
	memcpy(&c, group + 32, 16);
	memcpy(&d, group + 48, 16);
	for (unsigned i = 0; i < classes; i++) {
		const patchx_bytes v = (patchx_bytes){0} + (uint8_t)i;
		/* equal bytes are -1; the sums are at most 4 in each */
		patchx_bytes sum = (patchx_bytes){0} - (patchx_bytes)(a == v) -
				   (patchx_bytes)(b == v) - (patchx_bytes)(c == v) -
				   (patchx_bytes)(d == v);
		uint64_t half[2];

		memcpy(half, &sum, 16);
		counts[i] = (uint32_t)((half[0] + half[1]) * UINT64_C(0x0101010101010101) >> 56);
	}
}

/* Bit i: element i of the group is of class c. */
RICE_INLINE uint64_t patchx_mask(const uint8_t *group, unsigned c)
{
	const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f);
	uint64_t mask = 0;

	for (unsigned i = 0; i < PATCHX_GROUP / 8; i++) {
		uint64_t x = rice_get(group + 8 * i, 8) ^ UINT64_C(0x0101010101010101) * c;
		uint64_t zero = ~(((x & low) + low) | x | low); /* bit 7 of bytes that are 0 */

		mask |= (zero >> 7) * UINT64_C(0x0102040810204080) >> 56 << 8 * i;
	}
	return mask;
}

/* The place of the n-th one, from 0; mask has more than n. */
RICE_INLINE unsigned patchx_select(uint64_t mask, unsigned n)
{
	for (unsigned at = 0; at < 64; at += 8) {
		unsigned byte = mask >> at & 0xff;

		if (n < rice_counts[byte])
			return at + rice_places[byte][n];
		n -= rice_counts[byte];
	}
	return 63; /* it had not */
}

#endif
