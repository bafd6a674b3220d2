/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What patches cost over memcpy: one line of JSON per row.
 *
 * A bf16 tensor in memory; random windows of 1 MiB and 4 KiB are copied into one buffer, alone and
 * with k stacked ADD patches of 1 % each: one by one as they are published (wfp1), and merged, in
 * the form that is fastest to read ("merged") and in wfp1 ("merged wfp1").  Copies and patched
 * reads alternate window by window, so that noise of the machine falls on both; medians.  "ratio"
 * is against the copy alone.  Merging: million input elements a second of CPU time; "bits" of the
 * result for each element that it changes.
 *
 * As in training it is often the same elements that change: half of all have one chance, a quarter
 * twice as much, and so on.
 *
 * usage: bench_patch [MIB]     (the tensor's size, default 128)
 */
#include "codec/patch.h"
#include "tests/bench/rig.h"

#include <math.h>

enum { STACK = 50, ROUNDS = 400, CHANCES = 9 };

static uint64_t random_state = 1;

static uint64_t random_next(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

/* Microseconds of a clock. */
static double now(clockid_t clock)
{
	return seconds_of(clock) * 1e6;
}

/* The elements of each chance, ascending. */
struct elements {
	uint32_t *v[CHANCES];
	size_t count[CHANCES];
};

static unsigned chance_of(uint64_t i)
{
	uint64_t h = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);

	return MIN((unsigned)__builtin_clzll((h ^ h >> 29) | 1), (unsigned)CHANCES - 1);
}

static void make_elements(struct elements *e, uint64_t numel)
{
	for (unsigned c = 0; c < CHANCES; c++)
		e->v[c] = need(malloc((numel >> c) * sizeof(*e->v[c])));
	for (uint64_t i = 0; i < numel; i++) {
		unsigned c = chance_of(i);

		if (e->count[c] < numel >> c)
			e->v[c][e->count[c]++] = (uint32_t)i;
	}
}

static int16_t random_value(void)
{
	unsigned roll = (unsigned)(random_next() >> 40 & 1023);
	int16_t v = roll < 900 ? 1 : roll < 950 ? 2 : (int16_t)(3 + roll % 20);

	return roll & 1 ? v : (int16_t)-v;
}

static struct patch make_patch(const struct elements *e, uint64_t numel, double density)
{
	uint64_t *touched = need(calloc(numel / 64 + 1, 8));
	const size_t most = (size_t)((double)numel * density * 1.3) + 1000;
	struct memory mem = {.cap = patch_bound_rice(2, numel, most)};
	struct sink sink = memory_sink(&mem);
	struct patch_writer *w = need(patch_writer_new(PATCH_ADD, 2, numel, &sink, 0));
	struct patch p;
	struct why why;
	uint64_t len;

	for (unsigned c = 0; c < CHANCES; c++) {
		/* each kind has as many changes as any other */
		double rate = density * (double)numel / CHANCES / (double)e->count[c];

		for (double at = 0;;) { /* gaps of an even density are geometric */
			double u = (double)(random_next() >> 11) * 0x1p-53;

			at += 1 + floor(log1p(-u) / log1p(-rate));
			if (at > (double)e->count[c])
				break;
			uint32_t i = e->v[c][(size_t)at - 1];

			touched[i / 64] |= UINT64_C(1) << i % 64;
		}
	}
	mem.bytes = need(malloc(mem.cap));
	must(patch_writer_rice(w, NULL, false, &why), &why);
	for (uint64_t word = 0; word <= numel / 64; word++)
		for (uint64_t bits = touched[word]; bits != 0; bits &= bits - 1) {
			uint64_t at = word * 64 + (unsigned)__builtin_ctzll(bits);
			int16_t value = random_value();

			must(patch_writer_add(w, &at, &value, 1, &why), &why);
		}
	must(patch_writer_end(w, &len, NULL, &why), &why);
	must(patch_open(mem.bytes, len, &p, &why), &why);
	patch_writer_free(w);
	free(touched);
	return p;
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

/* `of`: how many patches were merged into these k, or k. */
static void read_row(const uint8_t *base, uint64_t size, const struct patch *patches, size_t k,
		     size_t of, const char *what, size_t window)
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
	       window, of, what, median(copy, ROUNDS), median(read, ROUNDS),
	       median(read, ROUNDS) / median(copy, ROUNDS));
	fflush(stdout);
	free(dst);
}

static struct patch merge_row(const struct patch *patches, size_t k, enum patch_coding coding,
			      struct memory *mem)
{
	const struct patch *views[STACK];
	uint64_t in = 0, changed, len;
	struct sink sink;
	struct patch p;
	struct why why;
	double t0;

	for (size_t i = 0; i < k; i++) {
		views[i] = &patches[i];
		in += patches[i].changed;
	}
	sink = memory_sink(mem);
	t0 = now(CLOCK_THREAD_CPUTIME_ID);
	must(patch_merge_as(coding, views, k, &sink, 0, &len, &changed, &why), &why);
	t0 = now(CLOCK_THREAD_CPUTIME_ID) - t0;
	must(patch_open(mem->bytes, len, &p, &why), &why);
	printf("{\"bench\":\"merge\",\"k\":%zu,\"to\":\"%s\",\"in_me_per_s\":%.0f,"
	       "\"model_gb_per_s\":%.2f,\"kept\":%.3f,\"bits\":%.2f}\n",
	       k, coding == PATCH_CODING_RICE ? "wfp1" : "raw", (double)in / t0,
	       (double)patches[0].numel * 2e-3 / t0, (double)changed / (double)in,
	       8.0 * (double)len / (double)changed);
	fflush(stdout);
	return p;
}

int main(int argc, char **argv)
{
	static const size_t stacks[] = {1, 2, 5, 10, 20, 50}, windows[] = {1 << 20, 4096};
	unsigned long mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 128;
	const uint64_t size = (uint64_t)mib << 20;
	static struct patch patches[STACK];
	static struct elements elements;
	struct memory raw = {0}, rice = {0};
	uint8_t *base;

	if (mib < 8 || mib > 4096) {
		fprintf(stderr, "usage: bench_patch [MIB]    (8 to 4096)\n");
		return 2;
	}
	base = need(malloc(size));
	for (uint64_t i = 0; i < size; i += 8)
		store_le64(base + i, random_next());
	make_elements(&elements, size / 2);
	for (size_t i = 0; i < STACK; i++)
		patches[i] = make_patch(&elements, size / 2, .01);
	raw.cap = rice.cap = patch_bound(2, size / 2, size / 4) + (1 << 20);
	raw.bytes = need(malloc(raw.cap));
	rice.bytes = need(malloc(rice.cap));
	memset(raw.bytes, 1, raw.cap);
	memset(rice.bytes, 1, rice.cap);
	for (size_t s = 0; s < ARRAY_LEN(stacks); s++) {
		struct patch merged = merge_row(patches, stacks[s], PATCH_CODING_RAW, &raw);
		struct patch small = merge_row(patches, stacks[s], PATCH_CODING_RICE, &rice);

		for (size_t w = 0; w < ARRAY_LEN(windows); w++) {
			read_row(base, size, patches, stacks[s], stacks[s], "one by one",
				 windows[w]);
			read_row(base, size, &merged, 1, stacks[s], "merged", windows[w]);
			read_row(base, size, &small, 1, stacks[s], "merged wfp1", windows[w]);
		}
	}
	return 0;
}
