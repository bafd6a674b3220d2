/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of a patch: one as a number, and how one changes another.  Inside the patch form only.
 */
#ifndef CODEC_PATCH_CHANGE_H
#define CODEC_PATCH_CHANGE_H

#include "codec/patch.h"

#define PATCH_INLINE static inline __attribute__((always_inline))

/* One element as a number; width is a constant where this is inlined into a loop. */
PATCH_INLINE uint64_t patch_load(const uint8_t *p, unsigned width)
{
	switch (width) {
	case 1: return *p;
	case 2: return load_le16(p);
	case 4: return load_le32(p);
	default: return load_le64(p);
	}
}

PATCH_INLINE void patch_store(uint8_t *p, uint64_t v, unsigned width)
{
	switch (width) {
	case 1: *p = (uint8_t)v; break;
	case 2: store_le16(p, (uint16_t)v); break;
	case 4: store_le32(p, (uint32_t)v); break;
	default: store_le64(p, v);
	}
}

/* Changes the element at dst by the value, as op says. */
PATCH_INLINE void patch_change(uint8_t *dst, const uint8_t *value, enum patch_op op, unsigned width)
{
	uint64_t v = patch_load(value, width);

	if (op == PATCH_ADD)
		v += patch_load(dst, width);
	else if (op == PATCH_XOR)
		v ^= patch_load(dst, width);
	patch_store(dst, v, width);
}

/* Changes n elements in a row. */
PATCH_INLINE void patch_change_row(uint8_t *restrict dst, const uint8_t *restrict values, size_t n,
				   enum patch_op op, unsigned width)
{
	if (op == PATCH_SET) {
		memcpy(dst, values, n * width);
	} else if (op == PATCH_XOR) {
		for (size_t i = 0; i < n * width; i++)
			dst[i] ^= values[i];
	} else {
		for (size_t i = 0; i < n; i++)
			patch_change(dst + i * width, values + i * width, op, width);
	}
}

/* 0 ... 3 for widths 1, 2, 4, 8: the column of the tables of loops. */
PATCH_INLINE unsigned patch_width_log(unsigned width)
{
	return (unsigned)__builtin_ctz(width);
}

#endif
