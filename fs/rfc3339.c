/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RFC 3339, as weightfs.json and leases have their times.
 *
 * Input comes from a bucket and may be anything: every field has its digits and its range, and
 * nothing may follow.  A leap second counts as the second before.  What is written is always UTC,
 * so that texts of equal length sort as their times do.
 */
#include "fs/rfc3339.h"

#include <stdio.h>
#include <time.h>

#define NS INT64_C(1000000000)

void rfc3339_format(int64_t ns, char out[RFC3339_LEN])
{
	time_t seconds = (time_t)(ns / NS - (ns % NS < 0));
	long rest = (long)(ns - (int64_t)seconds * NS);
	int decimals = rest == 0 ? 0 : rest % 1000000 == 0 ? 3 : rest % 1000 == 0 ? 6 : 9;
	struct tm tm;
	size_t at;

	if (gmtime_r(&seconds, &tm) == NULL)
		tm = (struct tm){.tm_year = 70, .tm_mday = 1};
	at = strftime(out, RFC3339_LEN, "%Y-%m-%dT%H:%M:%S", &tm);
	if (decimals > 0) {
		char digits[12];

		snprintf(digits, sizeof(digits), "%09ld", rest);
		at += (size_t)snprintf(out + at, RFC3339_LEN - at, ".%.*s", decimals, digits);
	}
	snprintf(out + at, RFC3339_LEN - at, "Z");
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Exactly n digits, then `end` unless that is NUL. */
static bool take(const char **s, int n, char end, int *out)
{
	*out = 0;
	for (int i = 0; i < n; i++, (*s)++) {
		if (!is_digit(**s))
			return false;
		*out = *out * 10 + (**s - '0');
	}
	if (end == '\0')
		return true;
	return *(*s)++ == end;
}

static bool take_decimals(const char **s, int64_t *out_ns)
{
	int64_t scale = NS / 10;

	*out_ns = 0;
	if (**s != '.')
		return true;
	(*s)++;
	if (!is_digit(**s))
		return false;
	for (; is_digit(**s); (*s)++, scale /= 10) {
		if (scale == 0)
			return false;
		*out_ns += scale * (**s - '0');
	}
	return true;
}

static bool take_zone(const char **s, int64_t *out_s)
{
	int sign, hours, minutes;

	*out_s = 0;
	if (**s == 'Z') {
		(*s)++;
		return true;
	}
	if (**s != '+' && **s != '-')
		return false;
	sign = *(*s)++ == '-' ? -1 : 1;
	if (!take(s, 2, ':', &hours) || !take(s, 2, '\0', &minutes) || hours > 23 || minutes > 59)
		return false;
	*out_s = (int64_t)sign * (hours * 3600 + minutes * 60);
	return true;
}

int rfc3339_parse(const char *text, int64_t *out_ns)
{
	static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
	const char *s = text;
	int year, month, day, hour, minute, second, most;
	int64_t fraction, zone;
	struct tm tm;

	if (!take(&s, 4, '-', &year) || !take(&s, 2, '-', &month) || !take(&s, 2, 'T', &day) ||
	    !take(&s, 2, ':', &hour) || !take(&s, 2, ':', &minute) || !take(&s, 2, '\0', &second) ||
	    !take_decimals(&s, &fraction) || !take_zone(&s, &zone) || *s != '\0')
		return -EINVAL;
	if (year < 1970 || year > 2200 || month < 1 || month > 12 || hour > 23 || minute > 59 ||
	    second > 60)
		return -EINVAL;
	most = days[month - 1] +
	       (month == 2 && year % 4 == 0 && (year % 100 != 0 || year % 400 == 0));
	if (day < 1 || day > most)
		return -EINVAL;
	tm = (struct tm){.tm_year = year - 1900,
			 .tm_mon = month - 1,
			 .tm_mday = day,
			 .tm_hour = hour,
			 .tm_min = minute,
			 .tm_sec = MIN(second, 59)};
	*out_ns = ((int64_t)timegm(&tm) - zone) * NS + fraction;
	return 0;
}
