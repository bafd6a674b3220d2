/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bounds-checked reader over input bytes: the only way the codec touches input in memory.
 * A read past the end sets `bad`, returns zeros (or NULL) and leaves the position at the end, so a
 * parser may read a whole record and check `bad` once.  Numbers are little-endian.
 */
#ifndef CODEC_CURSOR_H
#define CODEC_CURSOR_H

#include "codec/base.h"

struct cursor {
	const uint8_t *at, *end;
	bool bad;
};

void cursor_init(struct cursor *c, const void *bytes, size_t len);
size_t cursor_left(const struct cursor *c);
uint8_t cursor_u8(struct cursor *c);
uint16_t cursor_u16(struct cursor *c);
uint32_t cursor_u32(struct cursor *c);
uint64_t cursor_u64(struct cursor *c);
/* A view of the next len bytes (borrowed from the input), or NULL when there are not that many. */
const uint8_t *cursor_take(struct cursor *c, size_t len);

#endif
