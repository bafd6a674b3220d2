/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers as people write them in options: sizes ("5GB", "1.5GiB"), times ("500ms", "2m") and
 * counts.
 *
 * One parser for all: a decimal number with an optional fraction and a unit out of a table.  What
 * does not come out as a whole number of bytes or nanoseconds is rounded down; what does not fit
 * is refused.  Pure.
 */
#include "fs/opts.h"

#include <stdlib.h>

struct unit {
	const char *name; /* lower case */
	uint64_t factor;
};

/* A decimal number with an optional fraction and a unit, as value * factor rounded down.  A
 * fraction without a unit that could take it (bytes, nanoseconds) is refused. */
static int parse_scaled(const char *text, const struct unit *units, size_t count, uint64_t max,
			uint64_t *out)
{
	uint64_t whole = 0, fraction = 0, scale = 1;
	const char *p = text;
	size_t digits = 0;

	for (; *p >= '0' && *p <= '9'; p++, digits++)
		if (mul_overflows(whole, 10, &whole) ||
		    add_overflows(whole, (uint64_t)(*p - '0'), &whole))
			return -EINVAL;
	if (*p == '.') {
		for (p++; *p >= '0' && *p <= '9'; p++, digits++) {
			if (scale >= UINT64_C(1000000000))
				continue;
			fraction = fraction * 10 + (uint64_t)(*p - '0');
			scale *= 10;
		}
	}
	if (digits == 0)
		return -EINVAL;
	while (*p == ' ')
		p++;
	for (size_t i = 0; i < count; i++) {
		unsigned __int128 v;

		if (strcasecmp(p, units[i].name) != 0)
			continue;
		if (units[i].factor == 1 && fraction != 0)
			return -EINVAL;
		v = (unsigned __int128)whole * units[i].factor +
		    (unsigned __int128)fraction * units[i].factor / scale;
		if (v > max)
			return -EINVAL;
		*out = (uint64_t)v;
		return 0;
	}
	return -EINVAL;
}

int parse_size(const char *text, uint64_t *out)
{
	static const struct unit units[] = {
		{"", 1},
		{"b", 1},
		{"k", UINT64_C(1) << 10},
		{"kib", UINT64_C(1) << 10},
		{"kb", 1000},
		{"m", UINT64_C(1) << 20},
		{"mib", UINT64_C(1) << 20},
		{"mb", 1000000},
		{"g", UINT64_C(1) << 30},
		{"gib", UINT64_C(1) << 30},
		{"gb", 1000000000},
		{"t", UINT64_C(1) << 40},
		{"tib", UINT64_C(1) << 40},
		{"tb", UINT64_C(1000000000000)},
	};

	return parse_scaled(text, units, ARRAY_LEN(units), INT64_MAX, out);
}

int parse_duration_ns(const char *text, int64_t *out)
{
	static const struct unit units[] = {
		{"", 1000000000},     {"s", 1000000000},     {"ms", 1000000},
		{"us", 1000},	      {"m", 60000000000},    {"min", 60000000000},
		{"h", 3600000000000}, {"d", 86400000000000},
	};
	uint64_t ns;

	if (parse_scaled(text, units, ARRAY_LEN(units), INT64_MAX, &ns) < 0)
		return -EINVAL;
	*out = (int64_t)ns;
	return 0;
}

int parse_count(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
	static const struct unit units[] = {{"", 1}};
	uint64_t v;

	if (parse_scaled(text, units, 1, max, &v) < 0 || v < min)
		return -EINVAL;
	*out = v;
	return 0;
}
