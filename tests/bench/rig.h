/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the benchmarks share: ends with a sentence, memory as a sink, the thread's clock, medians.
 */
#ifndef TESTS_BENCH_RIG_H
#define TESTS_BENCH_RIG_H

#include "codec/base.h"
#include "codec/io.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline void *need(void *p)
{
	if (p == NULL) {
		fprintf(stderr, "benchmark: out of memory\n");
		exit(1);
	}
	return p;
}

static inline void must(int ret, const struct why *why)
{
	if (ret < 0) {
		fprintf(stderr, "benchmark: %s\n", why->text);
		exit(1);
	}
}

struct memory {
	uint8_t *bytes;
	size_t cap, len;
};

static inline int memory_write(void *ctx, uint64_t off, const void *src, size_t len)
{
	struct memory *m = ctx;

	if (off + len > m->cap)
		return -ENOSPC;
	memcpy(m->bytes + off, src, len);
	m->len = MAX(m->len, (size_t)off + len);
	return 0;
}

static inline struct sink memory_sink(struct memory *m)
{
	m->len = 0;
	return (struct sink){.write = memory_write, .ctx = m};
}

/* Seconds of a clock; the thread's own does not run while others have the CPU. */
static inline double seconds_of(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline double seconds(void)
{
	return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

static inline int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Sorts them. */
static inline double median(double *v, size_t n)
{
	qsort(v, n, sizeof(*v), compare_doubles);
	return v[n / 2];
}

#endif
