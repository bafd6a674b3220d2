/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sentences for errors.
 *
 * A sentence is built where the failure is understood and gets its context (which object) put in
 * front on the way up, so that the one place that logs it has nothing to add.  Names that come
 * from input pass through printable() first: a sentence ends up in logs, in `status` and on
 * terminals.
 */
#include "codec/base.h"

#include <stdarg.h>
#include <stdio.h>

/* Length of the valid UTF-8 sequence at s (1 to 4), or 0. */
static size_t utf8_len(const unsigned char *s, size_t left)
{
	size_t n = s[0] < 0x80			  ? 1
		   : s[0] >= 0xc2 && s[0] <= 0xdf ? 2
		   : s[0] >= 0xe0 && s[0] <= 0xef ? 3
		   : s[0] >= 0xf0 && s[0] <= 0xf4 ? 4
						  : 0;

	if (n == 0 || n > left)
		return 0;
	for (size_t i = 1; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
	    (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
		return 0;
	return n;
}

/* Cuts off a character of UTF-8 that a full buffer has left incomplete at the end. */
static void cut_clean(char *text)
{
	size_t len = strlen(text), at = len;

	while (at > 0 && len - at < 3 && ((unsigned char)text[at - 1] & 0xc0) == 0x80)
		at--;
	if (at > 0 && (unsigned char)text[at - 1] >= 0xc0 &&
	    utf8_len((const unsigned char *)text + at - 1, len - at + 1) == 0)
		text[at - 1] = '\0';
}

int why_set(struct why *why, int err, const char *fmt, ...)
{
	if (why != NULL) {
		va_list ap;

		why->err = err;
		va_start(ap, fmt);
		vsnprintf(why->text, sizeof(why->text), fmt, ap);
		va_end(ap);
		cut_clean(why->text);
	}
	return -err;
}

int why_prefix(struct why *why, const char *fmt, ...)
{
	char front[sizeof(why->text) - 2];
	size_t len, keep;
	va_list ap;

	if (why == NULL)
		return -EIO;
	va_start(ap, fmt);
	if (vsnprintf(front, sizeof(front), fmt, ap) < 0)
		front[0] = '\0';
	va_end(ap);
	cut_clean(front);
	len = strlen(front) + 2;
	keep = MIN(strlen(why->text), sizeof(why->text) - 1 - len);
	memmove(why->text + len, why->text, keep);
	why->text[len + keep] = '\0';
	memcpy(why->text, front, len - 2);
	memcpy(why->text + len - 2, ": ", 2);
	cut_clean(why->text);
	return why->err ? -why->err : -EIO;
}

static bool is_plain(unsigned char c)
{
	return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
}

const char *printable(char *dst, size_t cap, const char *name, size_t len)
{
	size_t at = 0;

	for (size_t i = 0; i < len;) {
		const unsigned char *s = (const unsigned char *)name + i;
		size_t n, room = 0;
		char one[5];

		/* Nearly all names are plain ASCII from end to end. */
		while (i + room < len && is_plain(s[room]) && at + room + 5 <= cap)
			room++;
		if (room > 0) {
			memcpy(dst + at, s, room);
			at += room;
			i += room;
			continue;
		}
		n = utf8_len(s, len - i);

		if (n == 0 || (n == 1 && (*s < 0x20 || *s == 0x7f || *s == '"' || *s == '\\')) ||
		    (n == 2 && s[0] == 0xc2 && s[1] < 0xa0)) {
			n = 1;
			snprintf(one, sizeof(one), "\\x%02x", *s);
		} else {
			memcpy(one, s, n);
			one[n] = '\0';
		}
		if (at + strlen(one) + 4 > cap) {
			if (cap > 3)
				memcpy(dst + at, "...", 4);
			return dst;
		}
		memcpy(dst + at, one, strlen(one));
		at += strlen(one);
		i += n;
	}
	if (cap > 0)
		dst[at] = '\0';
	return dst;
}
