/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three states of a model in bf16 for the benchmarks of the codec: an old and a new one, a step of
 * training apart, and a reference some steps before, as a run's anchor is.
 *
 * weights_simulate(): eight kinds of tensors make optimizer steps with a learning rate, as AdamW
 * makes them in the middle of a run: masters in fp32 anywhere in the interval that rounds to their
 * bf16 value, moments as they are after many steps, gradients of noise and a direction that stays.
 * weights_load(): from files that a real trainer has written (tests/bench/bench_codec.py).
 */
#ifndef TESTS_BENCH_WEIGHTS_H
#define TESTS_BENCH_WEIGHTS_H

#include "tests/bench/rig.h"

#include <math.h>

enum { TENSORS_MAX = 256, SIM_TENSORS = 8, SIM_STEPS = 6, SIM_COLUMNS = 2048 };

struct tensor {
	uint64_t numel, columns;
	uint8_t *old, *new, *reference;
	uint64_t changed;
};

struct weights {
	struct tensor t[TENSORS_MAX];
	unsigned tensors;
	uint64_t numel, changed;
};

static inline void tensor_alloc(struct tensor *t, uint64_t numel, uint64_t columns)
{
	t->numel = numel;
	t->columns = columns;
	t->old = need(malloc(2 * numel));
	t->new = need(malloc(2 * numel));
	t->reference = need(malloc(2 * numel));
}

static inline void weights_free(struct weights *w)
{
	for (unsigned i = 0; i < w->tensors; i++) {
		free(w->t[i].old);
		free(w->t[i].new);
		free(w->t[i].reference);
	}
}

static inline void weights_count(struct weights *w)
{
	w->numel = w->changed = 0;
	for (unsigned i = 0; i < w->tensors; i++) {
		struct tensor *t = &w->t[i];

		t->changed = 0;
		for (uint64_t e = 0; e < t->numel; e++)
			t->changed += load_le16(t->old + 2 * e) != load_le16(t->new + 2 * e);
		w->numel += t->numel;
		w->changed += t->changed;
	}
}

/* ---- the pretended trainer ---- */

static inline uint32_t sim_mix(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return (uint32_t)(x >> 32);
}

/* About a standard normal: the sum of four bytes, and something to fill the steps between. */
static inline float sim_normal(uint64_t key)
{
	uint32_t h = sim_mix(key * 2 + 1), fill = h * 0x9e3779b1u;
	int sum = (int)(h & 255) + (int)(h >> 8 & 255) + (int)(h >> 16 & 255) + (int)(h >> 24);

	return ((float)(sum - 510) + (float)(fill >> 8) * 0x1p-24f - .5f) * (1.0f / 147.8f);
}

static inline uint16_t sim_bf16(float value)
{
	uint32_t u;

	memcpy(&u, &value, sizeof(u));
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* A weight of tensor t: scales from .08 to .005, one of them heavy-tailed, one near 1. */
static inline float sim_weight(unsigned t, uint64_t key)
{
	static const float scales[SIM_TENSORS] = {.08f, .04f, .02f, .02f, .02f, .01f, .005f, .02f};
	float x = sim_normal(key * 8) * scales[t], square = .05f;

	if (t == SIM_TENSORS - 1)
		return 1.0f + x;
	if (t != 3)
		return x;
	for (unsigned i = 1; i <= 4; i++) /* Student's, of four degrees of freedom */
		square += sim_normal(key * 8 + i) * sim_normal(key * 8 + i) / 4;
	return x / sqrtf(square);
}

/* The fp32 master of the bf16 value of w: anywhere in the interval that rounds to it. */
static inline float sim_master(float w, uint32_t hash)
{
	uint32_t u = (uint32_t)sim_bf16(w) << 16;

	if (u << 1 == 0)
		return w;
	u += hash >> 16;
	u -= 0x8000;
	memcpy(&w, &u, sizeof(w));
	return w;
}

static inline void sim_tensor(struct tensor *out, unsigned t, float rate)
{
	const float mean_scale = 0.2294f; /* of the first moment: sqrt((1 - .9) / (1 + .9)) */

	for (uint64_t i = 0; i < out->numel; i++) {
		uint64_t row = (i / SIM_COLUMNS) << 8 | t, key = (i << 8 | t) * 16;
		float scale = exp2f(sim_normal(row) * .5f);
		float drift = sim_normal(key) * .05f;
		float p = sim_master(sim_weight(t, key + 1), sim_mix(key + 2));
		float mean = (sim_normal(key + 3) * mean_scale + drift) * scale;
		float variance = scale * scale;

		store_le16(out->reference + 2 * i, sim_bf16(p));
		for (unsigned step = 0; step < SIM_STEPS; step++) {
			float swing = exp2f(sim_normal(row + ((uint64_t)(step + 1) << 50)) * .3f);
			float g = (sim_normal(key + 4 + step) + drift) * scale * swing;

			mean += .1f * (g - mean);
			variance += .001f * (g * g - variance);
			if (step == SIM_STEPS - 1)
				store_le16(out->old + 2 * i, sim_bf16(p));
			p -= rate * mean / (sqrtf(variance) + 1e-8f);
		}
		store_le16(out->new + 2 * i, sim_bf16(p));
	}
}

static inline void weights_simulate(struct weights *w, uint64_t numel, double rate)
{
	w->tensors = SIM_TENSORS;
	for (unsigned t = 0; t < SIM_TENSORS; t++) {
		tensor_alloc(&w->t[t], numel / SIM_TENSORS, SIM_COLUMNS);
		sim_tensor(&w->t[t], t, (float)rate);
	}
	weights_count(w);
}

/* ---- from files ---- */

static inline void read_state(const char *dir, unsigned tensor, const char *state, uint8_t *dst,
			      uint64_t numel)
{
	char path[1024];
	FILE *f;

	snprintf(path, sizeof(path), "%.900s/%u.%s", dir, tensor, state);
	f = fopen(path, "rb");
	if (f == NULL || fread(dst, 2, (size_t)numel, f) != numel) {
		fprintf(stderr, "benchmark: %s cannot be read\n", path);
		exit(1);
	}
	fclose(f);
}

/* DIR/list has a line "numel columns" for each tensor; tensor i is in i.old, i.new, i.reference. */
static inline void weights_load(struct weights *w, const char *dir)
{
	char path[1024];
	unsigned long long numel, columns;
	FILE *f;

	snprintf(path, sizeof(path), "%.900s/list", dir);
	f = fopen(path, "r");
	w->tensors = 0;
	while (f != NULL && w->tensors < TENSORS_MAX &&
	       fscanf(f, "%llu %llu", &numel, &columns) == 2) {
		struct tensor *t = &w->t[w->tensors];

		tensor_alloc(t, numel, columns);
		read_state(dir, w->tensors, "old", t->old, numel);
		read_state(dir, w->tensors, "new", t->new, numel);
		read_state(dir, w->tensors++, "reference", t->reference, numel);
	}
	if (w->tensors == 0) {
		fprintf(stderr, "benchmark: there are no tensors in %s\n", dir);
		exit(1);
	}
	fclose(f);
	weights_count(w);
}

#endif
