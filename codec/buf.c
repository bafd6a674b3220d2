/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The growable byte buffer.
 *
 * Invariants: len < cap whenever data is not NULL, so that buf_str() can always put its NUL behind
 * the contents without growing; once `failed` is set nothing is appended any more and the bytes
 * that got in before stay until buf_release().  Capacity doubles, so n appended bytes cost O(n).
 *
 * Not a string class: contents may hold NULs and need not be text.  A buffer belongs to one thread.
 */
#include "codec/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Makes room for `more` bytes and one NUL; false when the buffer has failed, now or before. */
static bool buf_reserve(struct buf *b, size_t more)
{
	size_t need, cap;
	char *data;

	if (b->failed)
		return false;
	if (more > SIZE_MAX / 2 - 1 - b->len)
		goto fail;
	need = b->len + more + 1;
	if (need <= b->cap)
		return true;
	cap = MAX(b->cap, (size_t)64);
	while (cap < need)
		cap *= 2;
	data = realloc(b->data, cap);
	if (data == NULL)
		goto fail;
	b->data = data;
	b->cap = cap;
	return true;
fail:
	b->failed = true;
	return false;
}

void buf_add(struct buf *b, const void *bytes, size_t len)
{
	if (len == 0 || !buf_reserve(b, len))
		return;
	memcpy(b->data + b->len, bytes, len);
	b->len += len;
}

void buf_addstr(struct buf *b, const char *s)
{
	buf_add(b, s, strlen(s));
}

void buf_addf(struct buf *b, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	if (n < 0) {
		b->failed = true;
		return;
	}
	if (!buf_reserve(b, (size_t)n))
		return;
	va_start(ap, fmt);
	vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
	va_end(ap);
	b->len += (size_t)n;
}

void buf_fill(struct buf *b, int byte, size_t count)
{
	if (count == 0 || !buf_reserve(b, count))
		return;
	memset(b->data + b->len, byte, count);
	b->len += count;
}

/* What follows the backslash for a byte that JSON has a short escape for, or 0. */
static char short_escape(char c)
{
	switch (c) {
	case '"': return '"';
	case '\\': return '\\';
	case '\b': return 'b';
	case '\f': return 'f';
	case '\n': return 'n';
	case '\r': return 'r';
	case '\t': return 't';
	default: return 0;
	}
}

void buf_addjson(struct buf *b, const char *s, size_t len)
{
	size_t plain = 0; /* start of the run that needs no escape */

	buf_add(b, "\"", 1);
	for (size_t i = 0; i < len; i++) {
		char esc = short_escape(s[i]);

		if (esc == 0 && (unsigned char)s[i] >= 0x20)
			continue;
		buf_add(b, s + plain, i - plain);
		plain = i + 1;
		if (esc != 0)
			buf_add(b, (char[2]){'\\', esc}, 2);
		else
			buf_addf(b, "\\u%04x", (unsigned)(unsigned char)s[i]);
	}
	buf_add(b, s + plain, len - plain);
	buf_add(b, "\"", 1);
}

const char *buf_str(struct buf *b)
{
	if (b->failed || b->data == NULL)
		return "";
	b->data[b->len] = '\0';
	return b->data;
}

/* NULL for a buffer that failed (its bytes are dropped) and for one that never got a byte. */
char *buf_detach(struct buf *b, size_t *out_len)
{
	char *data = NULL;
	size_t len = 0;

	if (!b->failed) {
		data = b->data;
		len = b->len;
		b->data = NULL;
	}
	if (out_len != NULL)
		*out_len = len;
	buf_release(b);
	return data;
}

void buf_release(struct buf *b)
{
	free(b->data);
	*b = (struct buf){0};
}
