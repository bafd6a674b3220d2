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

int why_set(struct why *why, int err, const char *fmt, ...)
{
	if (why != NULL) {
		va_list ap;

		why->err = err;
		va_start(ap, fmt);
		vsnprintf(why->text, sizeof(why->text), fmt, ap);
		va_end(ap);
	}
	return -err;
}

int why_prefix(struct why *why, const char *fmt, ...)
{
	char old[sizeof(why->text)];
	va_list ap;
	int n;

	if (why == NULL)
		return -EIO;
	memcpy(old, why->text, sizeof(old));
	va_start(ap, fmt);
	n = vsnprintf(why->text, sizeof(why->text), fmt, ap);
	va_end(ap);
	if (n < 0)
		n = 0;
	if ((size_t)n < sizeof(why->text))
		snprintf(why->text + n, sizeof(why->text) - (size_t)n, ": %s", old);
	return why->err ? -why->err : -EIO;
}

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

const char *printable(char *dst, size_t cap, const char *name, size_t len)
{
	size_t at = 0;

	for (size_t i = 0; i < len;) {
		const unsigned char *s = (const unsigned char *)name + i;
		size_t n = utf8_len(s, len - i);
		char one[5];

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
