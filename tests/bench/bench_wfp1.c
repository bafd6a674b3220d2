/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What wfp1 costs, against what it could cost and what others do: one line of JSON per row.
 *
 * A model of eight kinds of tensors makes optimizer steps with learning rates of 1e-6 and 3e-6, as
 * AdamW makes them in the middle of a run: masters in fp32 anywhere in the interval that rounds to
 * their bf16 value, moments as they are after many steps, gradients of noise and a direction that
 * stays.  The step that counts is the third.
 *
 * "size": bits for each changed element; the floor is the entropy of the positions, for each tensor
 * apart, and of the differences.  TRL v1 (48), TRL v3 (32), the XOR of all weights with zstd -1,
 * and PULSE's rows, columns and values with zstd -1 are made of the same step. "coding": million
 * changed elements a second, into and out of lists of positions and values. "diff": of two bf16
 * arrays, alone and with encoding, as a share of memcpy of the new one.
 *
 * Rows that are compared alternate, and the clock is the thread's, so that others' noise falls on
 * all of them; medians.
 *
 * usage: bench_wfp1 [MEGAELEMENTS]     (of the model, default 48)
 */
#include "codec/diff.h"
#include "codec/rice.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <zstd.h>

enum { TENSORS = 8, STEPS = 3, ROUNDS = 15, COLUMNS = 2048, SAMPLE = 200000 };

static const char *const kernels[] = {"portable", "avx2", "avx512"};

struct memory {
	uint8_t *bytes;
	size_t cap, len;
};

struct model {
	uint64_t numel; /* of each tensor */
	uint8_t *old[TENSORS], *new[TENSORS];
	uint64_t changed[TENSORS], all_changed;
};

static void *need(void *p)
{
	if (p == NULL) {
		fprintf(stderr, "bench_wfp1: out of memory\n");
		exit(1);
	}
	return p;
}

static void must(int ret, const struct why *why)
{
	if (ret < 0) {
		fprintf(stderr, "bench_wfp1: %s\n", why->text);
		exit(1);
	}
}

static int memory_write(void *ctx, uint64_t off, const void *src, size_t len)
{
	struct memory *m = ctx;

	if (off + len > m->cap)
		return -ENOSPC;
	memcpy(m->bytes + off, src, len);
	m->len = MAX(m->len, (size_t)off + len);
	return 0;
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v)
{
	qsort(v, ROUNDS, sizeof(*v), compare);
	return v[ROUNDS / 2];
}

/* ---- the trainer ---- */

static uint32_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return (uint32_t)(x >> 32);
}

/* About a standard normal: the sum of four bytes, and something to fill the steps between. */
static float normal(uint64_t key)
{
	uint32_t h = mix(key * 2 + 1), fill = h * 0x9e3779b1u;
	int sum = (int)(h & 255) + (int)(h >> 8 & 255) + (int)(h >> 16 & 255) + (int)(h >> 24);

	return ((float)(sum - 510) + (float)(fill >> 8) * 0x1p-24f - .5f) * (1.0f / 147.8f);
}

static uint16_t to_bf16(float value)
{
	uint32_t u;

	memcpy(&u, &value, sizeof(u));
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* A weight of tensor t: scales from .08 to .005, one of them heavy-tailed, one near 1. */
static float weight(unsigned t, uint64_t key)
{
	static const float scales[TENSORS] = {.08f, .04f, .02f, .02f, .02f, .01f, .005f, .02f};
	float x = normal(key * 8) * scales[t], square = .05f;

	if (t == TENSORS - 1)
		return 1.0f + x;
	if (t != 3)
		return x;
	for (unsigned i = 1; i <= 4; i++) /* Student's, of four degrees of freedom */
		square += normal(key * 8 + i) * normal(key * 8 + i) / 4;
	return x / sqrtf(square);
}

/* The fp32 master of the bf16 value of w: anywhere in the interval that rounds to it. */
static float master(float w, uint32_t hash)
{
	uint32_t u = (uint32_t)to_bf16(w) << 16;

	if (u << 1 == 0)
		return w;
	u += hash >> 16;
	u -= 0x8000;
	memcpy(&w, &u, sizeof(w));
	return w;
}

static void train_tensor(struct model *m, unsigned t, float rate)
{
	const float mean_scale = 0.2294f; /* of the first moment: sqrt((1 - .9) / (1 + .9)) */

	for (uint64_t i = 0; i < m->numel; i++) {
		uint64_t row = (i / COLUMNS) << 8 | t, key = (i << 8 | t) * 16;
		float scale = exp2f(normal(row) * .5f);
		float drift = normal(key) * .05f;
		float p = master(weight(t, key + 1), mix(key + 2));
		float mean = (normal(key + 3) * mean_scale + drift) * scale;
		float variance = scale * scale;

		for (unsigned step = 0; step < STEPS; step++) {
			float swing = exp2f(normal(row + ((uint64_t)(step + 1) << 50)) * .3f);
			float g = (normal(key + 4 + step) + drift) * scale * swing;

			mean += .1f * (g - mean);
			variance += .001f * (g * g - variance);
			if (step == STEPS - 1)
				store_le16(m->old[t] + 2 * i, to_bf16(p));
			p -= rate * mean / (sqrtf(variance) + 1e-8f);
		}
		store_le16(m->new[t] + 2 * i, to_bf16(p));
	}
	m->changed[t] = diff_count(patch_kernel(NULL), 2, m->old[t], m->new[t], m->numel);
	m->all_changed += m->changed[t];
}

/* ---- size ---- */

static double floor_bits(const struct model *m)
{
	uint64_t *seen = need(calloc(65536, sizeof(*seen)));
	double bits = 0;

	for (unsigned t = 0; t < TENSORS; t++) {
		double n = (double)m->numel, c = (double)m->changed[t];

		if (c > 0 && c < n)
			bits += c * log2(n / c) + (n - c) * log2(n / (n - c));
		for (uint64_t i = 0; i < m->numel; i++)
			seen[(uint16_t)(load_le16(m->new[t] + 2 * i) -
					load_le16(m->old[t] + 2 * i))]++;
	}
	for (unsigned d = 1; d < 65536; d++)
		if (seen[d] > 0)
			bits += (double)seen[d] * log2((double)m->all_changed / (double)seen[d]);
	free(seen);
	return bits;
}

static void write_patch(const struct model *m, unsigned t, const struct rice_kernel *kernel,
			struct memory *mem)
{
	struct sink sink = {.write = memory_write, .ctx = mem};
	struct patch_writer *w = need(patch_writer_new(PATCH_ADD, 2, m->numel, &sink, 0));
	struct why why;
	uint64_t len;

	mem->len = 0;
	must(patch_writer_rice(w, kernel, false, &why), &why);
	must(diff_add(w, kernel, m->old[t], m->new[t], 0, m->numel, &why), &why);
	must(patch_writer_end(w, &len, NULL, &why), &why);
	patch_writer_free(w);
}

static size_t zstd_size(const void *bytes, size_t len)
{
	size_t cap = ZSTD_compressBound(len);
	void *out = need(malloc(cap));
	size_t size = ZSTD_compress(out, cap, bytes, len, 1);

	free(out);
	return size;
}

/* The formats of others, in bytes, without their headers. */
struct others {
	uint64_t v1, v3, xor_zstd, pulse;
};

static void count_others(const struct model *m, struct others *o)
{
	uint8_t *all = need(malloc(2 * m->numel)), *rows = need(malloc(m->numel + 1));
	uint8_t *columns = need(malloc(2 * m->numel)), *values = need(malloc(2 * m->numel));

	for (unsigned t = 0; t < TENSORS; t++) {
		uint64_t n = 0, row = 0;

		for (uint64_t i = 0; i < m->numel; i++) {
			uint16_t a = load_le16(m->old[t] + 2 * i), b = load_le16(m->new[t] + 2 * i);

			store_le16(all + 2 * i, a ^ b);
			if (a == b)
				continue;
			rows[n] = (uint8_t)(i / COLUMNS - row);
			row = i / COLUMNS;
			store_le16(columns + 2 * n, (uint16_t)(i % COLUMNS));
			store_le16(values + 2 * n, b);
			n++;
		}
		o->v1 += 6 * n;
		o->v3 += 4 * n;
		o->xor_zstd += zstd_size(all, 2 * m->numel);
		o->pulse +=
			zstd_size(rows, n) + zstd_size(columns, 2 * n) + zstd_size(values, 2 * n);
	}
	free(all);
	free(rows);
	free(columns);
	free(values);
}

static void size_row(const struct model *m, double rate, const struct memory *blobs)
{
	const double c = (double)m->all_changed, low = floor_bits(m);
	struct others o = {0};
	double bits = 0;

	for (unsigned t = 0; t < TENSORS; t++)
		bits += 8.0 * (double)blobs[t].len;
	count_others(m, &o);
	printf("{\"bench\":\"wfp1 size\",\"lr\":%g,\"density\":%.5f,\"floor_bits\":%.2f,"
	       "\"wfp1_bits\":%.2f,\"ratio\":%.3f,\"trl_v1_bits\":%.1f,\"trl_v3_bits\":%.1f,"
	       "\"xor_zstd_bits\":%.1f,\"pulse_bits\":%.1f}\n",
	       rate, c / (double)(m->numel * TENSORS), low / c, bits / c, bits / low,
	       8.0 * (double)o.v1 / c, 8.0 * (double)o.v3 / c, 8.0 * (double)o.xor_zstd / c,
	       8.0 * (double)o.pulse / c);
	fflush(stdout);
}

/* ---- speed ---- */

/* Lists of blocks with changes, spread over the model: what an encoder gets and a decoder gives. As
 * many as stay in a cache from round to round: what is measured is the coding. */
struct lists {
	uint8_t *positions, *values; /* with RICE_SLACK behind each block's */
	uint8_t **codes;
	size_t *sizes, *at;
	uint32_t *counts;
	size_t blocks;
	uint64_t elements;
};

static void make_lists(const struct model *m, struct lists *l)
{
	const struct rice_kernel *kernel = patch_kernel(NULL);
	const size_t most = (size_t)TENSORS * (m->numel / PATCH_BLOCK);
	struct rice_encoder *e = need(rice_encoder_new(kernel));
	size_t used = 0, room = (size_t)m->all_changed + most * RICE_SLACK;

	l->blocks = 0;
	l->elements = 0;
	l->positions = need(malloc(2 * room));
	l->values = need(malloc(2 * room));
	l->codes = need(calloc(most, sizeof(*l->codes)));
	l->sizes = need(calloc(most, sizeof(*l->sizes)));
	l->at = need(calloc(most, sizeof(*l->at)));
	l->counts = need(calloc(most, sizeof(*l->counts)));
	for (size_t i = 0; i < most && l->elements < SAMPLE; i++) {
		size_t b = i * 257 % most; /* a prime: all come once, in another order */
		unsigned t = (unsigned)(b / (m->numel / PATCH_BLOCK));
		size_t from = b % (m->numel / PATCH_BLOCK) * PATCH_BLOCK * 2;
		uint32_t n = kernel->diff[1](m->old[t] + from, m->new[t] + from, PATCH_BLOCK,
					     l->positions + 2 * used, l->values + 2 * used);
		size_t j = l->blocks;

		if (n == 0)
			continue;
		l->counts[j] = n;
		l->at[j] = used;
		l->sizes[j] = rice_plan(e, PATCH_ADD, 2, l->positions + 2 * used,
					l->values + 2 * used, n, PATCH_BLOCK);
		l->codes[j] = need(malloc(l->sizes[j] + 8));
		rice_write(e, l->codes[j]);
		used += n + RICE_SLACK;
		l->elements += n;
		l->blocks++;
	}
	rice_encoder_free(e);
}

static void free_lists(struct lists *l)
{
	for (size_t i = 0; i < l->blocks; i++)
		free(l->codes[i]);
	free(l->positions);
	free(l->values);
	free(l->codes);
	free(l->sizes);
	free(l->at);
	free(l->counts);
}

static double encode_all(const struct lists *l, const struct rice_kernel *kernel)
{
	static uint8_t code[PATCH_BLOCK * 4];
	struct rice_encoder *e = need(rice_encoder_new(kernel));
	double t = seconds();

	for (size_t i = 0; i < l->blocks; i++) {
		rice_plan(e, PATCH_ADD, 2, l->positions + 2 * l->at[i], l->values + 2 * l->at[i],
			  l->counts[i], PATCH_BLOCK);
		rice_write(e, code);
	}
	t = seconds() - t;
	rice_encoder_free(e);
	return t;
}

static double decode_all(const struct lists *l, const struct rice_kernel *kernel)
{
	struct rice_reader r;
	uint64_t seen = 0;
	double t = seconds();

	for (size_t i = 0; i < l->blocks; i++) {
		int n = rice_open(&r, kernel, l->codes[i], l->sizes[i], PATCH_ADD, 2, l->counts[i],
				  PATCH_BLOCK);

		for (; n == 0 && (n = rice_next(&r)) > 0; n = 0)
			seen += (unsigned)n;
	}
	t = seconds() - t;
	for (size_t i = 0; i < l->blocks; i++)
		seen -= l->counts[i];
	if (seen != 0) {
		fprintf(stderr, "bench_wfp1: not all elements came back\n");
		exit(1);
	}
	return t;
}

static void coding_rows(const struct model *m, double rate)
{
	double encode[ARRAY_LEN(kernels)][ROUNDS], decode[ARRAY_LEN(kernels)][ROUNDS];
	struct lists l;

	make_lists(m, &l);
	for (unsigned r = 0; r < ROUNDS; r++) {
		for (unsigned k = 0; k < ARRAY_LEN(kernels); k++) {
			const struct rice_kernel *kernel = patch_kernel(kernels[k]);

			if (kernel == NULL)
				continue;
			encode[k][r] = encode_all(&l, kernel);
			decode[k][r] = decode_all(&l, kernel);
		}
	}
	for (unsigned k = 0; k < ARRAY_LEN(kernels); k++)
		if (patch_kernel(kernels[k]) != NULL)
			printf("{\"bench\":\"wfp1 coding\",\"lr\":%g,\"kernel\":\"%s\","
			       "\"encode_me_per_s\":%.0f,\"decode_me_per_s\":%.0f}\n",
			       rate, kernels[k], (double)l.elements * 1e-6 / median(encode[k]),
			       (double)l.elements * 1e-6 / median(decode[k]));
	fflush(stdout);
	free_lists(&l);
}

static double copy_all(const struct model *m, uint8_t *dst)
{
	double t = seconds();

	for (unsigned i = 0; i < TENSORS; i++) {
		memcpy(dst, m->new[i], 2 * m->numel);
		__asm__ volatile("" : : "r"(dst) : "memory");
	}
	return seconds() - t;
}

static double diff_all(const struct model *m, const struct rice_kernel *kernel)
{
	double t = seconds();

	for (unsigned i = 0; i < TENSORS; i++)
		if (diff_count(kernel, 2, m->old[i], m->new[i], m->numel) != m->changed[i])
			exit(1);
	return seconds() - t;
}

static double publish_all(const struct model *m, const struct rice_kernel *kernel,
			  struct memory *blobs)
{
	double t = seconds();

	for (unsigned i = 0; i < TENSORS; i++)
		write_patch(m, i, kernel, &blobs[i]);
	return seconds() - t;
}

static void diff_rows(const struct model *m, double rate, struct memory *blobs)
{
	const double gb = 2e-9 * (double)(m->numel * TENSORS);
	double copy[ROUNDS], diff[ARRAY_LEN(kernels)][ROUNDS], both[ARRAY_LEN(kernels)][ROUNDS];
	uint8_t *dst = need(malloc(2 * m->numel));
	double copied;

	memset(dst, 1, 2 * m->numel);
	for (unsigned r = 0; r < ROUNDS; r++) {
		copy[r] = copy_all(m, dst);
		for (unsigned k = 0; k < ARRAY_LEN(kernels); k++) {
			const struct rice_kernel *kernel = patch_kernel(kernels[k]);

			if (kernel == NULL)
				continue;
			diff[k][r] = diff_all(m, kernel);
			both[k][r] = publish_all(m, kernel, blobs);
		}
	}
	copied = median(copy);
	for (unsigned k = 0; k < ARRAY_LEN(kernels); k++)
		if (patch_kernel(kernels[k]) != NULL)
			printf("{\"bench\":\"wfp1 diff\",\"lr\":%g,\"kernel\":\"%s\","
			       "\"memcpy_gb_per_s\":%.1f,\"diff\":%.2f,\"diff_encode\":%.2f}\n",
			       rate, kernels[k], gb / copied, copied / median(diff[k]),
			       copied / median(both[k]));
	fflush(stdout);
	free(dst);
}

int main(int argc, char **argv)
{
	static const double rates[] = {1e-6, 3e-6};
	unsigned long mega = argc > 1 ? strtoul(argv[1], NULL, 10) : 48;
	struct memory blobs[TENSORS];
	struct model m;

	if (mega < 1 || mega > 4096) {
		fprintf(stderr, "usage: bench_wfp1 [MEGAELEMENTS]    (1 to 4096)\n");
		return 2;
	}
	m.numel = ((uint64_t)mega << 20) / TENSORS;
	for (unsigned t = 0; t < TENSORS; t++) {
		m.old[t] = need(malloc(2 * m.numel));
		m.new[t] = need(malloc(2 * m.numel));
		blobs[t].cap = patch_bound_rice(2, m.numel, m.numel / 4);
		blobs[t].bytes = need(calloc(1, blobs[t].cap));
	}
	for (size_t i = 0; i < ARRAY_LEN(rates); i++) {
		m.all_changed = 0;
		for (unsigned t = 0; t < TENSORS; t++) {
			train_tensor(&m, t, (float)rates[i]);
			write_patch(&m, t, patch_kernel(NULL), &blobs[t]);
		}
		size_row(&m, rates[i], blobs);
		coding_rows(&m, rates[i]);
		diff_rows(&m, rates[i], blobs);
	}
	for (unsigned t = 0; t < TENSORS; t++) {
		free(m.old[t]);
		free(m.new[t]);
		free(blobs[t].bytes);
	}
	return 0;
}
