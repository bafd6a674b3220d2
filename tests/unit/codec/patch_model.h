/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of patches share: random numbers from a fixed seed, a sink in memory, and a naive
 * model of a patch (a list of elements and values that is applied one by one).
 */
#ifndef TESTS_PATCH_MODEL_H
#define TESTS_PATCH_MODEL_H

#include "codec/patch.h"

#include <stdlib.h>

static const unsigned widths[] = {1, 2, 4, 8};
static const enum patch_op ops[] = {PATCH_SET, PATCH_ADD, PATCH_XOR};

/* As assert_true(), with the file's `seed` and what else there is to say. */
#define CHECK(cond, ...)                                                                           \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			print_error("seed %llu: ", (unsigned long long)seed);                      \
			print_error(__VA_ARGS__);                                                  \
			print_error("\n");                                                         \
			fail();                                                                    \
		}                                                                                  \
	} while (0)

struct rng {
	uint64_t state;
};

static inline uint64_t rng_next(struct rng *r)
{
	uint64_t z = (r->state += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/* 0 ... below-1; below > 0. */
static inline uint64_t rng_below(struct rng *r, uint64_t below)
{
	return rng_next(r) % below;
}

static inline void rng_fill(struct rng *r, void *dst, size_t len)
{
	uint8_t *p = dst;

	for (size_t i = 0; i < len; i++)
		p[i] = (uint8_t)rng_next(r);
}

/* A sink in memory; fails with `error` at write number fail_at (from 1). */
struct memory {
	uint8_t *bytes;
	size_t len, cap;
	unsigned writes, fail_at;
	int error;
};

static inline int memory_write(void *ctx, uint64_t off, const void *src, size_t len)
{
	struct memory *m = ctx;

	if (++m->writes == m->fail_at)
		return -m->error;
	if (off + len > m->cap) {
		m->cap = (size_t)(off + len) * 2;
		m->bytes = realloc(m->bytes, m->cap);
		if (m->bytes == NULL)
			abort();
	}
	if (off > m->len)
		memset(m->bytes + m->len, 0xee, (size_t)off - m->len);
	memcpy(m->bytes + off, src, len);
	m->len = MAX(m->len, (size_t)off + len);
	return 0;
}

static inline struct sink memory_sink(struct memory *m)
{
	return (struct sink){.write = memory_write, .ctx = m};
}

/* The naive patch. */
struct model {
	enum patch_op op;
	unsigned width;
	uint64_t numel;
	size_t count;
	uint64_t *positions;
	uint8_t *values;
};

/* Each element with probability `density`; below 0: one element. */
static inline struct model model_random(struct rng *r, enum patch_op op, unsigned width,
					uint64_t numel, double density)
{
	struct model m = {.op = op, .width = width, .numel = numel};
	uint64_t one = numel > 0 ? rng_below(r, numel) : 0;

	m.positions = malloc((numel + 1) * sizeof(*m.positions));
	m.values = malloc((numel + 1) * width);
	if (m.positions == NULL || m.values == NULL)
		abort();
	for (uint64_t i = 0; i < numel; i++)
		if (density < 0 ? i == one : (double)(rng_next(r) >> 11) * 0x1p-53 < density)
			m.positions[m.count++] = i;
	rng_fill(r, m.values, m.count * width);
	return m;
}

static inline void model_free(struct model *m)
{
	free(m->positions);
	free(m->values);
}

static inline void model_apply(const struct model *m, uint8_t *tensor)
{
	for (size_t i = 0; i < m->count; i++) {
		uint8_t *at = tensor + m->positions[i] * m->width;
		const uint8_t *value = m->values + i * m->width;
		unsigned carry = 0;

		for (unsigned b = 0; b < m->width; b++) {
			carry += (unsigned)at[b] + value[b];
			at[b] = m->op == PATCH_SET   ? value[b]
				: m->op == PATCH_XOR ? (uint8_t)(at[b] ^ value[b])
						     : (uint8_t)carry;
			carry >>= 8;
		}
	}
}

/* Gives the model to a new writer in pieces of random size, and frees that; err: it could not be
 * made.  The blob's length, 0 on failure. */
static inline uint64_t model_give(const struct model *m, struct rng *r, struct patch_writer *w,
				  int err)
{
	uint64_t len = 0, changed;

	for (size_t i = 0, n; err == 0 && i < m->count; i += n) {
		n = (size_t)rng_below(r, rng_below(r, 4) == 0 ? 3 : m->count - i + 1);
		n = MIN(n, m->count - i);
		err = patch_writer_add(w, m->positions + i, m->values + i * m->width, n, NULL);
	}
	if (err == 0)
		err = patch_writer_end(w, &len, &changed, NULL);
	patch_writer_free(w);
	return err < 0 || changed < m->count ? 0 : len;
}

/* Writes the model at `at`; returns the blob's length, 0 on failure. */
static inline uint64_t model_write(const struct model *m, struct rng *r, struct memory *mem,
				   uint64_t at)
{
	struct sink sink = memory_sink(mem);
	struct patch_writer *w = patch_writer_new(m->op, m->width, m->numel, &sink, at);

	return model_give(m, r, w, w == NULL ? -ENOMEM : 0);
}

#endif
