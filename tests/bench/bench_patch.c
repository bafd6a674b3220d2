/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What patches cost over memcpy: one line of JSON per row.
 *
 * A 256 MiB bf16 tensor in memory; random windows of 1 MiB and 4 KiB are copied into one buffer,
 * alone and with k stacked SET patches of 1 % each, one by one and merged.  Copies and patched
 * reads alternate window by window, so that noise of the machine falls on both; medians.  "ratio"
 * is against the copy alone.  Merging: million input elements a second
 * of CPU time.
 *
 * usage: bench_patch [MIB]     (the tensor's size, default 256)
 */
#include "codec/patch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { STACK = 50, ROUNDS = 600 };

struct memory {
	uint8_t *bytes;
	size_t cap;
};

static uint64_t random_state = 1;

static uint64_t random_next(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

static void *need(void *p)
{
	if (p == NULL) {
		fprintf(stderr, "bench_patch: out of memory\n");
		exit(1);
	}
	return p;
}

static void must(int ret, const struct why *why)
{
	if (ret < 0) {
		fprintf(stderr, "bench_patch: %s\n", why->text);
		exit(1);
	}
}

static int memory_write(void *ctx, uint64_t off, const void *src, size_t len)
{
	struct memory *m = ctx;

	if (off + len > m->cap)
		return -ENOSPC;
	memcpy(m->bytes + off, src, len);
	return 0;
}

/* Microseconds of a clock. */
static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static struct patch make_patch(uint64_t numel, double density)
{
	size_t want = (size_t)((double)numel * density * 1.1) + 100, n = 0;
	uint64_t *positions = need(malloc(want * sizeof(*positions))), at = 0;
	uint16_t *values = need(malloc(want * sizeof(*values)));
	struct memory mem = {.cap = patch_bound(2, numel, want)};
	struct sink sink = {.write = memory_write, .ctx = &mem};
	struct patch_writer *w = need(patch_writer_new(PATCH_SET, 2, numel, &sink, 0));
	struct patch p;
	struct why why;
	uint64_t len;

	mem.bytes = need(malloc(mem.cap));
	for (; n < want; n++) { /* gaps between the elements of an even density are geometric */
		double u = (double)(random_next() >> 11) * 0x1p-53;

		at += (uint64_t)(log1p(-u) / log1p(-density)) + (n > 0);
		if (at >= numel)
			break;
		positions[n] = at;
		values[n] = (uint16_t)random_next();
	}
	must(patch_writer_add(w, positions, values, n, &why), &why);
	must(patch_writer_end(w, &len, NULL, &why), &why);
	must(patch_open(mem.bytes, len, &p, &why), &why);
	patch_writer_free(w);
	free(positions);
	free(values);
	return p;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, size_t n)
{
	qsort(v, n, sizeof(*v), compare);
	return v[n / 2];
}

/* As a reader of a stack should do it: block by block, so that what was copied is still near when
 * it is patched; and the payload of all patches is on its way before the first is applied. */
static void patched_read(const uint8_t *base, const struct patch *patches, size_t k, uint64_t off,
			 uint8_t *dst, size_t len)
{
	const uint64_t block = 2 * PATCH_BLOCK;

	for (size_t done = 0, n; done < len; done += n) {
		uint64_t at = off + done;

		n = (size_t)MIN(len - done, block - at % block);
		for (size_t p = 0; p < k; p++)
			patch_prefetch(&patches[p], at, n);
		memcpy(dst + done, base + at, n);
		for (size_t p = 0; p < k; p++)
			if (patch_apply(&patches[p], at, dst + done, n) < 0)
				abort();
	}
}

static void read_row(const uint8_t *base, uint64_t size, const struct patch *patches, size_t k,
		     const char *what, size_t window)
{
	static double copy[ROUNDS], read[ROUNDS];
	uint8_t *dst = need(aligned_alloc(4096, window));

	for (size_t i = 0; i < ROUNDS; i++) {
		uint64_t off = random_next() % (size - window) & ~UINT64_C(4095), other;
		double t0, t1, t2, t3;

		other = random_next() % (size - window) & ~UINT64_C(4095);
		t0 = now(CLOCK_MONOTONIC);
		memcpy(dst, base + other, window);
		t1 = now(CLOCK_MONOTONIC);
		__asm__ volatile("" : : "r"(dst) : "memory");
		t2 = now(CLOCK_MONOTONIC);
		patched_read(base, patches, k, off, dst, window);
		t3 = now(CLOCK_MONOTONIC);
		copy[i] = t1 - t0;
		read[i] = t3 - t2;
	}
	printf("{\"bench\":\"patched read\",\"window\":%zu,\"k\":%zu,\"stack\":\"%s\","
	       "\"memcpy_us\":%.2f,\"read_us\":%.2f,\"ratio\":%.2f}\n",
	       window, k, what, median(copy, ROUNDS), median(read, ROUNDS),
	       median(read, ROUNDS) / median(copy, ROUNDS));
	fflush(stdout);
	free(dst);
}

static struct patch merge_row(const struct patch *patches, size_t k, uint64_t *out_len)
{
	const struct patch *views[STACK];
	uint64_t in = 0, changed;
	struct memory mem = {0};
	struct sink sink = {.write = memory_write, .ctx = &mem};
	struct patch p;
	struct why why;
	double t0;

	for (size_t i = 0; i < k; i++) {
		views[i] = &patches[i];
		in += patches[i].changed;
	}
	mem.cap = patch_bound(2, patches[0].numel, in);
	mem.bytes = need(calloc(1, mem.cap));
	for (size_t i = 0; i < mem.cap; i += 4096)
		mem.bytes[i] = 1;
	t0 = now(CLOCK_THREAD_CPUTIME_ID);
	must(patch_merge(views, k, &sink, 0, out_len, &changed, &why), &why);
	t0 = now(CLOCK_THREAD_CPUTIME_ID) - t0;
	must(patch_open(mem.bytes, *out_len, &p, &why), &why);
	printf("{\"bench\":\"merge\",\"k\":%zu,\"in_me_per_s\":%.0f,\"model_gb_per_s\":%.2f,"
	       "\"kept\":%.3f}\n",
	       k, (double)in / t0, (double)patches[0].numel * 2e-3 / t0,
	       (double)changed / (double)in);
	fflush(stdout);
	return p;
}

int main(int argc, char **argv)
{
	static const size_t stacks[] = {1, 2, 5, 10, 20, 50}, windows[] = {1 << 20, 4096};
	unsigned long mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 256;
	uint64_t size = (uint64_t)mib << 20, len;
	static struct patch patches[STACK];
	uint8_t *base;

	if (mib < 2 || mib > 65536) {
		fprintf(stderr, "usage: bench_patch [MIB]    (2 to 65536)\n");
		return 2;
	}
	base = need(malloc(size));
	for (uint64_t i = 0; i < size; i += 8)
		store_le64(base + i, random_next());
	for (size_t i = 0; i < STACK; i++)
		patches[i] = make_patch(size / 2, .01);
	for (size_t s = 0; s < ARRAY_LEN(stacks); s++) {
		struct patch merged = merge_row(patches, stacks[s], &len);

		for (size_t w = 0; w < ARRAY_LEN(windows); w++) {
			read_row(base, size, patches, stacks[s], "one by one", windows[w]);
			read_row(base, size, &merged, 1, "merged", windows[w]);
		}
		free((void *)(uintptr_t)(merged.dir - PATCH_HEAD));
	}
	return 0;
}
