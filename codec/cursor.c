/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bounds-checked reader.
 *
 * Invariant: at <= end, and at == end once `bad` is set; so after the first read past the end every
 * later one (even of zero bytes) fails too, and a parser that checks `bad` only at the end of a
 * record has seen nothing but zeros since.
 */
#include "codec/cursor.h"

void cursor_init(struct cursor *c, const void *bytes, size_t len)
{
	/* Never NULL, so that NULL from cursor_take() always means "not that many". */
	c->at = bytes != NULL ? bytes : (const void *)"";
	c->end = c->at + (bytes != NULL ? len : 0);
	c->bad = false;
}

size_t cursor_left(const struct cursor *c)
{
	return (size_t)(c->end - c->at);
}

const uint8_t *cursor_take(struct cursor *c, size_t len)
{
	const uint8_t *p = c->at;

	if (c->bad || len > cursor_left(c)) {
		c->bad = true;
		c->at = c->end;
		return NULL;
	}
	c->at += len;
	return p;
}

uint8_t cursor_u8(struct cursor *c)
{
	const uint8_t *p = cursor_take(c, 1);

	return p != NULL ? *p : 0;
}

uint16_t cursor_u16(struct cursor *c)
{
	const uint8_t *p = cursor_take(c, 2);

	return p != NULL ? load_le16(p) : 0;
}

uint32_t cursor_u32(struct cursor *c)
{
	const uint8_t *p = cursor_take(c, 4);

	return p != NULL ? load_le32(p) : 0;
}

uint64_t cursor_u64(struct cursor *c)
{
	const uint8_t *p = cursor_take(c, 8);

	return p != NULL ? load_le64(p) : 0;
}
