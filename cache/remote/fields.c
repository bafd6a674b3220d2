/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of header fields.
 *
 * Each parser takes the whole value or nothing, but for blanks around it: a header that is half
 * understood is a wrong range or a wrong wait.  Numbers are checked for overflow.  The calendar is
 * computed here (days of the proleptic Gregorian one), so that no locale or time zone of the
 * process has a part in it.
 *
 * Pure, no state.
 */
#include "cache/remote/fields.h"

#include <stdlib.h>
#include <strings.h>

static const char *skip_blanks(const char *s)
{
	while (*s == ' ' || *s == '\t')
		s++;
	return s;
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Digits at *s; moves it behind them.  -EINVAL: none; -ERANGE. */
static int take_u64(const char **s, uint64_t *out)
{
	uint64_t v = 0;

	if (!is_digit(**s))
		return -EINVAL;
	for (; is_digit(**s); (*s)++)
		if (mul_overflows(v, 10, &v) || add_overflows(v, (uint64_t)(**s - '0'), &v))
			return -ERANGE;
	*out = v;
	return 0;
}

int field_u64(const char *value, uint64_t *out)
{
	const char *s = skip_blanks(value);
	uint64_t v;
	int rc = take_u64(&s, &v);

	if (rc < 0)
		return rc;
	if (*skip_blanks(s) != '\0')
		return -EINVAL;
	*out = v;
	return 0;
}

int field_content_range(const char *value, struct content_range *out)
{
	const char *s = skip_blanks(value);
	struct content_range r = {.first = 1, .last = 0, .total = UINT64_MAX};

	if (strncasecmp(s, "bytes", 5) != 0 || (s[5] != ' ' && s[5] != '\t'))
		return -EINVAL;
	s = skip_blanks(s + 5);
	if (*s == '*') {
		s++;
	} else {
		if (take_u64(&s, &r.first) < 0 || *s++ != '-' || take_u64(&s, &r.last) < 0)
			return -EINVAL;
		if (r.first > r.last || r.last == UINT64_MAX)
			return -EINVAL;
	}
	if (*s++ != '/')
		return -EINVAL;
	if (*s == '*')
		s++;
	else if (take_u64(&s, &r.total) < 0)
		return -EINVAL;
	if (*skip_blanks(s) != '\0' || (r.first <= r.last && r.last >= r.total))
		return -EINVAL;
	*out = r;
	return 0;
}

/* Days from 1970-01-01 (Howard Hinnant's algorithm). */
static int64_t days_from_civil(int64_t y, unsigned m, unsigned d)
{
	int64_t era, yoe, doy, doe;

	y -= m <= 2;
	era = (y >= 0 ? y : y - 399) / 400;
	yoe = y - era * 400;
	doy = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
	doe = yoe * 365 + yoe / 4 - yoe / 100 + doy;
	return era * 146097 + doe - 719468;
}

static bool valid_date(unsigned y, unsigned m, unsigned d)
{
	static const unsigned char days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
	bool leap = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;

	return m >= 1 && m <= 12 && d >= 1 && d <= days[m - 1] + (m == 2 && leap ? 1u : 0u);
}

/* Exactly n digits. */
static bool take_digits(const char **s, int n, unsigned *out)
{
	unsigned v = 0;

	for (int i = 0; i < n; i++, (*s)++) {
		if (!is_digit(**s))
			return false;
		v = v * 10 + (unsigned)(**s - '0');
	}
	*out = v;
	return true;
}

static bool take(const char **s, char c)
{
	if (**s != c)
		return false;
	(*s)++;
	return true;
}

/* "hh:mm:ss" to seconds of the day; a leap second counts as the one before. */
static bool take_time(const char **s, int64_t *out)
{
	unsigned h, m, sec;

	if (!take_digits(s, 2, &h) || !take(s, ':') || !take_digits(s, 2, &m) || !take(s, ':') ||
	    !take_digits(s, 2, &sec) || h > 23 || m > 59 || sec > 60)
		return false;
	*out = (int64_t)h * 3600 + m * 60 + MIN(sec, 59);
	return true;
}

int field_http_date(const char *value, int64_t *out_s)
{
	static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
	const char *s = skip_blanks(value), *month;
	unsigned y, m, d;
	int64_t t;

	s += strcspn(s, ","); /* the day's name is redundant */
	if (!take(&s, ',') || !take(&s, ' ') || !take_digits(&s, 2, &d) || !take(&s, ' '))
		return -EINVAL;
	for (m = 1, month = months; m <= 12 && strncmp(s, month, 3) != 0; m++)
		month += 3;
	if (m > 12)
		return -EINVAL;
	s += 3;
	if (!take(&s, ' ') || !take_digits(&s, 4, &y) || !take(&s, ' ') || !take_time(&s, &t) ||
	    strcmp(s, " GMT") != 0 || !valid_date(y, m, d))
		return -EINVAL;
	*out_s = days_from_civil(y, m, d) * 86400 + t;
	return 0;
}

/* "Z", "+hh:mm", "-hhmm" to seconds east of Greenwich. */
static bool take_zone(const char **s, int64_t *out)
{
	bool west = **s == '-';
	unsigned h, m;

	*out = 0;
	if (take(s, 'Z') || take(s, 'z'))
		return true;
	if (!take(s, '+') && !take(s, '-'))
		return false;
	if (!take_digits(s, 2, &h))
		return false;
	(void)take(s, ':');
	if (!take_digits(s, 2, &m) || h > 23 || m > 59)
		return false;
	*out = ((int64_t)h * 3600 + m * 60) * (west ? -1 : 1);
	return true;
}

int field_iso_time(const char *value, int64_t *out_ns)
{
	const char *s = skip_blanks(value);
	int64_t t, zone, ns = 0, scale = 100000000, seconds;
	unsigned y, m, d;

	if (!take_digits(&s, 4, &y) || !take(&s, '-') || !take_digits(&s, 2, &m) ||
	    !take(&s, '-') || !take_digits(&s, 2, &d) || !valid_date(y, m, d))
		return -EINVAL;
	if (!take(&s, 'T') && !take(&s, 't') && !take(&s, ' '))
		return -EINVAL;
	if (!take_time(&s, &t))
		return -EINVAL;
	if (take(&s, '.')) {
		if (!is_digit(*s))
			return -EINVAL;
		for (; is_digit(*s); s++, scale /= 10)
			ns += (*s - '0') * scale;
	}
	if (!take_zone(&s, &zone) || *skip_blanks(s) != '\0')
		return -EINVAL;
	seconds = days_from_civil(y, m, d) * 86400 + t - zone;
	if (__builtin_mul_overflow(seconds, INT64_C(1000000000), &seconds) ||
	    __builtin_add_overflow(seconds, ns, out_ns))
		return -EINVAL;
	return 0;
}

int64_t field_retry_after_ms(const char *value, int64_t now_real_s)
{
	uint64_t seconds;
	int64_t date;
	int rc;

	if (value == NULL)
		return -1;
	rc = field_u64(value, &seconds);
	if (rc == 0 || rc == -ERANGE)
		return (int64_t)MIN(rc == 0 ? seconds : UINT64_MAX, 31536000u) * 1000;
	if (field_http_date(value, &date) < 0)
		return -1;
	return date <= now_real_s ? 0 : MIN(date - now_real_s, 31536000) * 1000;
}

/* "k=N" of a list of parameters that are separated by ';'; -1: not there. */
static int64_t parameter(const char *s, char key)
{
	while ((s = strchr(s, ';')) != NULL) {
		uint64_t v;

		s = skip_blanks(s + 1);
		if (s[0] != key || s[1] != '=')
			continue;
		s += 2;
		if (take_u64(&s, &v) == 0 && v <= INT64_MAX)
			return (int64_t)v;
	}
	return -1;
}

bool field_rate_limit(const char *value, struct rate_limit *out)
{
	struct rate_limit r = {.remaining = -1, .reset_s = -1, .quota = -1, .window_s = -1};
	size_t n;

	*out = r;
	if (value == NULL)
		return false;
	value = skip_blanks(value);
	r.remaining = parameter(value, 'r');
	r.reset_s = parameter(value, 't');
	if (r.remaining < 0 && r.reset_s < 0)
		return false;
	if (*value == '"')
		value++;
	n = MIN(strcspn(value, "\"; "), sizeof(r.name) - 1);
	printable(r.name, sizeof(r.name), value, n);
	*out = r;
	return true;
}

bool field_rate_limit_policy(const char *value, struct rate_limit *io)
{
	int64_t quota, window;

	if (value == NULL)
		return false;
	quota = parameter(value, 'q');
	window = parameter(value, 'w');
	if (quota < 0 && window < 0)
		return false;
	io->quota = quota;
	io->window_s = window;
	return true;
}

/* Does a link's parameters (behind '>') name the relation?  Ends at the next link. */
static bool names_relation(const char *s, const char *rel)
{
	size_t len = strlen(rel);

	while (*s == ';') {
		bool quoted;
		size_t n;

		s = skip_blanks(s + 1);
		if (strncasecmp(s, "rel=", 4) != 0) {
			while (*s != '\0' && *s != ';' && *s != ',') {
				if (*s == '"')
					s += 1 + strcspn(s + 1, "\"");
				if (*s != '\0')
					s++;
			}
			continue;
		}
		s += 4;
		quoted = *s == '"';
		s += quoted;
		n = strcspn(s, quoted ? "\"" : ";, ");
		/* Several relations may stand in the quotes. */
		for (const char *word = s; word < s + n;) {
			size_t w = strcspn(word, " \",;");

			if (w == len && strncasecmp(word, rel, len) == 0)
				return true;
			word += w + 1;
		}
		s += n + (quoted && s[n] == '"');
		s = skip_blanks(s);
	}
	return false;
}

int field_link(const char *value, const char *rel, char **out)
{
	while (true) {
		const char *open = strchr(value, '<'), *close, *behind;

		if (open == NULL)
			return -ENOENT;
		close = strchr(open, '>');
		if (close == NULL)
			return -EINVAL;
		behind = skip_blanks(close + 1);
		if (names_relation(behind, rel)) {
			*out = strndup(open + 1, (size_t)(close - open - 1));
			return *out != NULL ? 0 : -ENOMEM;
		}
		value = behind;
	}
}
