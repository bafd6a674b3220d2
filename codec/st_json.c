/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokenizer of header JSON.
 *
 * A header can be 100 MB with a million tensors, and its bytes come from the network; hence no
 * tree, no recursion and no copy of the text.  A string is checked completely (UTF-8, escapes,
 * surrogate pairs, control bytes) when it is passed, so that unescaping it later cannot fail.
 *
 * JSON that no header can hold (floats, negative numbers, true, false, null, nesting) is refused
 * at its first byte rather than parsed: nothing in a header is skipped unseen.  st_json_skip() is
 * for other texts; it checks what it passes as completely, and remembers in a bit for each level
 * whether that is an object or an array.
 */
#include "codec/st_json.h"

#include <stdio.h>

void st_json_init(struct st_json *j, const char *text, size_t len, struct why *why)
{
	*j = (struct st_json){
		.begin = text, .at = text, .end = text + len, .why = why, .what = "header"};
}

static int bad_at(struct st_json *j, const char *at, const char *what)
{
	return why_set(j->why, EBADMSG, "byte %zu of the %s: %s", (size_t)(at - j->begin), j->what,
		       what);
}

static int unexpected(struct st_json *j, const char *expected)
{
	char one[8];

	if (j->at == j->end)
		return why_set(j->why, EBADMSG, "byte %zu of the %s: expected %s, found its end",
			       (size_t)(j->at - j->begin), j->what, expected);
	return why_set(j->why, EBADMSG, "byte %zu of the %s: expected %s, found '%s'",
		       (size_t)(j->at - j->begin), j->what, expected,
		       printable(one, sizeof(one), j->at, 1));
}

size_t st_json_pos(struct st_json *j)
{
	while (j->at < j->end &&
	       (*j->at == ' ' || *j->at == '\n' || *j->at == '\t' || *j->at == '\r'))
		j->at++;
	return (size_t)(j->at - j->begin);
}

int st_json_punct(struct st_json *j, char c)
{
	char expected[4] = {'\'', c, '\'', '\0'};

	st_json_pos(j);
	if (j->at == j->end || *j->at != c)
		return unexpected(j, expected);
	j->at++;
	return 0;
}

int st_json_next(struct st_json *j, char close, bool first)
{
	st_json_pos(j);
	if (j->at < j->end && *j->at == close) {
		j->at++;
		return 0;
	}
	if (first)
		return 1;
	if (j->at == j->end || *j->at != ',')
		return unexpected(j, close == '}' ? "',' or '}'" : "',' or ']'");
	j->at++;
	return 1;
}

/* Four hexadecimal digits as a number, or -1. */
static int hex4(const char *at, const char *end)
{
	int value = 0;

	if (end - at < 4)
		return -1;
	for (int i = 0; i < 4; i++) {
		char c = at[i];

		if (c >= '0' && c <= '9')
			value = value << 4 | (c - '0');
		else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
			value = value << 4 | ((c | 0x20) - 'a' + 10);
		else
			return -1;
	}
	return value;
}

static bool is_high(int unit)
{
	return unit >= 0xd800 && unit <= 0xdbff;
}

static bool is_low(int unit)
{
	return unit >= 0xdc00 && unit <= 0xdfff;
}

/* Passes the escape that starts with the backslash at p. */
static int pass_escape(struct st_json *j, const char *p, const char **out_next)
{
	int unit;

	if (j->end - p < 2)
		return bad_at(j, p, "the string does not end");
	if (p[1] != 'u') {
		if (p[1] == '\0' || strchr("\"\\/bfnrt", p[1]) == NULL)
			return bad_at(j, p, "not an escape that JSON has");
		*out_next = p + 2;
		return 0;
	}
	unit = hex4(p + 2, j->end);
	if (unit < 0)
		return bad_at(j, p, "\\u needs four hexadecimal digits");
	*out_next = p + 6;
	if (is_low(unit))
		return bad_at(j, p, "a lone low surrogate is not a character");
	if (!is_high(unit))
		return 0;
	if (j->end - p < 12 || p[6] != '\\' || p[7] != 'u' || !is_low(hex4(p + 8, j->end)))
		return bad_at(j, p, "a lone high surrogate is not a character");
	*out_next = p + 12;
	return 0;
}

/* Length of the UTF-8 sequence (2 to 4 bytes) at p, or 0 when it is not valid. */
static size_t utf8_sequence(const char *p, const char *end)
{
	const unsigned char *s = (const unsigned char *)p;
	unsigned low = 0x80, high = 0xbf;
	size_t n;

	if (s[0] < 0xc2 || s[0] > 0xf4)
		return 0;
	n = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
	if ((size_t)(end - p) < n)
		return 0;
	/* Only the second byte's range depends on the first: no overlong forms, no surrogates,
	 * nothing above U+10FFFF. */
	if (s[0] == 0xe0)
		low = 0xa0;
	else if (s[0] == 0xed)
		high = 0x9f;
	else if (s[0] == 0xf0)
		low = 0x90;
	else if (s[0] == 0xf4)
		high = 0x8f;
	if (s[1] < low || s[1] > high)
		return 0;
	for (size_t i = 2; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	return n;
}

/* The first byte at or after p that is not a plain ASCII character of a string, or end.  Eight at a
 * time: most of a header is such characters. */
static const char *skip_plain(const char *p, const char *end)
{
	const uint64_t ones = UINT64_MAX / 255, highs = ones << 7;

	while (end - p >= 8) {
		uint64_t v = load_le64(p), quote = v ^ ones * '"', slash = v ^ ones * '\\';

		/* Sets the high bit of bytes that are >= 0x80, < 0x20, a quote or a backslash; a
		 * borrow may also mark a byte behind such a one, which stops here all the same. */
		if ((v | (v - ones * 0x20) | (quote - ones) | (slash - ones)) & highs)
			break;
		p += 8;
	}
	while (p < end && (unsigned char)*p >= 0x20 && (unsigned char)*p < 0x80 && *p != '"' &&
	       *p != '\\')
		p++;
	return p;
}

int st_json_string(struct st_json *j, struct st_json_str *out_str)
{
	struct st_json_str str = {0};
	const char *p;
	int rc;

	st_json_pos(j);
	if (j->at == j->end || *j->at != '"')
		return unexpected(j, "a string");
	str.raw = j->at + 1;
	for (p = skip_plain(str.raw, j->end); p < j->end && *p != '"'; p = skip_plain(p, j->end)) {
		unsigned char c = (unsigned char)*p;

		if (c == '\\') {
			str.escaped = true;
			rc = pass_escape(j, p, &p);
			if (rc < 0)
				return rc;
		} else if (c < 0x20) {
			return bad_at(j, p, "a control character inside a string must be escaped");
		} else {
			size_t n = utf8_sequence(p, j->end);

			if (n == 0)
				return bad_at(j, p, "not valid UTF-8");
			p += n;
		}
	}
	if (p == j->end)
		return bad_at(j, str.raw - 1, "the string does not end");
	str.len = (size_t)(p - str.raw);
	j->at = p + 1;
	*out_str = str;
	return 0;
}

int st_json_key(struct st_json *j, struct st_json_str *out_str)
{
	int rc = st_json_string(j, out_str);

	return rc < 0 ? rc : st_json_punct(j, ':');
}

/* Refuses the number at j->at with its text in the sentence. */
static int bad_number(struct st_json *j, const char *what)
{
	size_t len = 0;
	char text[40];

	while (j->at + len < j->end && j->at[len] != '\0' &&
	       strchr("+-.0123456789eE", j->at[len]) != NULL)
		len++;
	return why_set(j->why, EBADMSG, "byte %zu of the %s: number %s %s",
		       (size_t)(j->at - j->begin), j->what,
		       printable(text, sizeof(text), j->at, len), what);
}

static int take_integer(struct st_json *j, uint64_t most, uint64_t *out_value)
{
	uint64_t value = 0;
	const char *p;

	st_json_pos(j);
	if (j->at < j->end && *j->at == '-')
		return bad_number(j, "is negative");
	if (j->at == j->end || *j->at < '0' || *j->at > '9')
		return unexpected(j, "a number");
	for (p = j->at; p < j->end && *p >= '0' && *p <= '9'; p++) {
		if (p == j->at + 1 && *j->at == '0')
			return bad_number(j, "has a leading zero");
		if (mul_overflows(value, 10, &value) ||
		    add_overflows(value, (uint64_t)(*p - '0'), &value) || value > most)
			return bad_number(j, most == INT64_MAX ? "is not below 2^63"
							       : "is not below 2^64");
	}
	if (p < j->end && (*p == '.' || *p == 'e' || *p == 'E'))
		return bad_number(j, "is not a plain integer");
	j->at = p;
	*out_value = value;
	return 0;
}

int st_json_uint(struct st_json *j, uint64_t *out_value)
{
	return take_integer(j, INT64_MAX, out_value);
}

int st_json_u64(struct st_json *j, uint64_t *out_value)
{
	return take_integer(j, UINT64_MAX, out_value);
}

/* ---- what is passed over ---- */

static bool take_word(struct st_json *j, const char *word)
{
	const size_t len = strlen(word);

	st_json_pos(j);
	if ((size_t)(j->end - j->at) < len || memcmp(j->at, word, len) != 0)
		return false;
	j->at += len;
	return true;
}

bool st_json_null(struct st_json *j)
{
	return take_word(j, "null");
}

static const char *pass_digits(const char *p, const char *end)
{
	while (p < end && *p >= '0' && *p <= '9')
		p++;
	return p;
}

static int skip_number(struct st_json *j)
{
	const char *p = j->at + (*j->at == '-'), *digits = p;

	p = pass_digits(p, j->end);
	if (p == digits || (*digits == '0' && p > digits + 1))
		return bad_number(j, "is none that JSON has");
	if (p < j->end && *p == '.') {
		digits = p + 1;
		p = pass_digits(digits, j->end);
		if (p == digits)
			return bad_number(j, "is none that JSON has");
	}
	if (p < j->end && (*p == 'e' || *p == 'E')) {
		p++;
		p += p < j->end && (*p == '-' || *p == '+');
		digits = p;
		p = pass_digits(digits, j->end);
		if (p == digits)
			return bad_number(j, "is none that JSON has");
	}
	j->at = p;
	return 0;
}

static int skip_scalar(struct st_json *j)
{
	struct st_json_str str;
	const char c = *j->at;

	if (c == '"')
		return st_json_string(j, &str);
	if (c == '-' || (c >= '0' && c <= '9'))
		return skip_number(j);
	if (take_word(j, "true") || take_word(j, "false") || take_word(j, "null"))
		return 0;
	return unexpected(j, "a value");
}

/* One value, or what opens one.  *out_opened: '{', '[' or 0. */
static int skip_step(struct st_json *j, char *out_opened)
{
	*out_opened = 0;
	st_json_pos(j);
	if (j->at == j->end)
		return unexpected(j, "a value");
	if (*j->at != '{' && *j->at != '[')
		return skip_scalar(j);
	*out_opened = *j->at++;
	return 0;
}

int st_json_skip(struct st_json *j)
{
	uint64_t objects = 0; /* a bit for each level: is it an object? */
	unsigned depth = 0;
	bool first = false;

	for (;;) {
		struct st_json_str key;
		char opened;
		int rc;

		if (depth > 0) {
			rc = st_json_next(j, objects & 1 ? '}' : ']', first);
			if (rc < 0)
				return rc;
			first = false;
			if (rc == 0) {
				objects >>= 1;
				if (--depth == 0)
					return 0;
				continue;
			}
			rc = objects & 1 ? st_json_key(j, &key) : 0;
			if (rc < 0)
				return rc;
		}
		rc = skip_step(j, &opened);
		if (rc < 0 || (opened == 0 && depth == 0))
			return rc;
		if (opened == 0)
			continue;
		if (depth++ == 64)
			return bad_at(j, j->at - 1, "nested more than 64 deep");
		objects = objects << 1 | (opened == '{');
		first = true;
	}
}

static size_t utf8_put(char *dst, unsigned cp)
{
	if (cp < 0x80) {
		dst[0] = (char)cp;
		return 1;
	}
	if (cp < 0x800) {
		dst[0] = (char)(0xc0 | cp >> 6);
		dst[1] = (char)(0x80 | (cp & 0x3f));
		return 2;
	}
	if (cp < 0x10000) {
		dst[0] = (char)(0xe0 | cp >> 12);
		dst[1] = (char)(0x80 | (cp >> 6 & 0x3f));
		dst[2] = (char)(0x80 | (cp & 0x3f));
		return 3;
	}
	dst[0] = (char)(0xf0 | cp >> 18);
	dst[1] = (char)(0x80 | (cp >> 12 & 0x3f));
	dst[2] = (char)(0x80 | (cp >> 6 & 0x3f));
	dst[3] = (char)(0x80 | (cp & 0x3f));
	return 4;
}

size_t st_json_unescape(const struct st_json_str *str, char *dst)
{
	const char *p = str->raw, *end = str->raw + str->len;
	char *to = dst;

	if (!str->escaped) {
		memcpy(dst, str->raw, str->len);
		return str->len;
	}
	while (p < end) {
		int unit;

		if (*p != '\\') {
			*to++ = *p++;
			continue;
		}
		p += 2;
		switch (p[-1]) {
		case 'b': *to++ = '\b'; continue;
		case 'f': *to++ = '\f'; continue;
		case 'n': *to++ = '\n'; continue;
		case 'r': *to++ = '\r'; continue;
		case 't': *to++ = '\t'; continue;
		case 'u': break;
		default: *to++ = p[-1]; continue; /* quote, backslash, slash */
		}
		unit = hex4(p, end);
		p += 4;
		if (is_high(unit)) {
			unit = 0x10000 + ((unit - 0xd800) << 10) + (hex4(p + 2, end) - 0xdc00);
			p += 6;
		}
		to += utf8_put(to, (unsigned)unit);
	}
	return (size_t)(to - dst);
}

bool st_json_is(const struct st_json_str *str, const char *word)
{
	size_t len = strlen(word);
	char plain[40 * 6]; /* every byte may be written as \uXXXX */

	if (!str->escaped)
		return str->len == len && memcmp(str->raw, word, len) == 0;
	if (str->len > sizeof(plain) || str->len > len * 6)
		return false;
	return st_json_unescape(str, plain) == len && memcmp(plain, word, len) == 0;
}
