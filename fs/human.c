/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers as people read them: three digits that matter and a unit.
 *
 * Not for scripts: JSON and metrics have the plain numbers.  Pure; the texts do not depend on
 * locale or time zone, so that two machines that look at one run print the same.
 */
#include "fs/human.h"

#include "cache/clock.h"

#include <time.h>

void human_time(struct buf *b, int64_t ns)
{
	long long s = ns > 0 ? (long long)(ns / NSEC_PER_SEC) : 0;

	if (s < 120)
		buf_addf(b, "%lld s", s);
	else if (s < 120 * 60)
		buf_addf(b, "%lld min", s / 60);
	else if (s < 48 * 3600)
		buf_addf(b, "%lld h", s / 3600);
	else
		buf_addf(b, "%lld d", s / 86400);
}

/* One decimal below 100, none above, rounded; a value that rounds up to 1000 takes the next unit.
 */
static void scaled(struct buf *b, uint64_t n, const char *one, const char *const units[])
{
	double v = (double)n;
	size_t unit = 0;

	if (n < 1000) {
		buf_addf(b, "%llu%s", (unsigned long long)n, one);
		return;
	}
	for (v /= 1000; v >= 999.5 && units[unit + 1] != NULL; unit++)
		v /= 1000;
	buf_addf(b, "%.*f %s", v < 99.95 ? 1 : 0, v, units[unit]);
}

void human_bytes(struct buf *b, uint64_t bytes)
{
	static const char *const units[] = {"kB", "MB", "GB", "TB", "PB", "EB", NULL};

	scaled(b, bytes, " B", units);
}

void human_count(struct buf *b, uint64_t n)
{
	static const char *const units[] = {"k", "M", "G", "T", "P", "E", NULL};

	scaled(b, n, "", units);
}

void human_date(struct buf *b, int64_t real_ns)
{
	struct timespec ts = clock_timespec(real_ns);
	struct tm tm;
	char text[64];

	if (gmtime_r(&ts.tv_sec, &tm) == NULL ||
	    strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &tm) == 0)
		buf_addf(b, "%lld", (long long)ts.tv_sec);
	else
		buf_addstr(b, text);
}
