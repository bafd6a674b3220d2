/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the Rice form share on top of patch_model.h: values as training makes them,
 * the awkward ones, and a writer of form version 1.
 */
#ifndef TESTS_RICE_MODEL_H
#define TESTS_RICE_MODEL_H

#include "tests/unit/codec/patch_model.h"

static const char *const kernel_names[] = {"portable", "avx2", "avx512"};

/* STEPS: mostly 1 or -1, some larger; EDGES: around every limit of the coding and the bit patterns
 * of zeros, infinities and NaNs; ANY: any; ONES: all 1. */
enum values { VALUES_STEPS, VALUES_EDGES, VALUES_ANY, VALUES_ONES, VALUES_KINDS };

static inline uint64_t value_of_kind(struct rng *r, enum values kind)
{
	static const uint64_t edges[] = {
		0,	   1,	       2,	   14,	       15,
		16,	   17,	       127,	   128,	       255,
		256,	   270,	       271,	   272,	       273,
		0x7f80,	   0x7fc1,     0xff80,	   0x8000,     0x7fff,
		65535,	   0x7f800000, 0x80000000, 0xffffffff, 0x7ff8000000000001,
		INT64_MIN,
	};
	uint64_t v = edges[rng_below(r, ARRAY_LEN(edges))], roll = rng_below(r, 1000);

	switch (kind) {
	case VALUES_STEPS:
		v = roll < 876 ? 1 : roll < 928 ? 2 : roll < 980 ? 3 + roll % 6 : 9 + roll % 37;
		break;
	case VALUES_ANY: return rng_next(r);
	case VALUES_ONES: return 1;
	default: break;
	}
	return rng_next(r) & 1 ? 0 - v : v;
}

static inline void model_values(struct rng *r, struct model *m, enum values kind)
{
	for (size_t i = 0; i < m->count; i++) {
		uint8_t le[8];

		store_le64(le, value_of_kind(r, kind));
		memcpy(m->values + i * m->width, le, m->width);
	}
}

static inline struct model model_of_kind(struct rng *r, enum patch_op op, unsigned width,
					 uint64_t numel, double density, enum values kind)
{
	struct model m = model_random(r, op, width, numel, density);

	model_values(r, &m, kind);
	return m;
}

/* As model_write(), form version 1. */
static inline uint64_t model_write_rice(const struct model *m, struct rng *r, struct memory *mem,
					uint64_t at, const struct rice_kernel *kernel)
{
	struct sink sink = memory_sink(mem);
	struct patch_writer *w = patch_writer_new(m->op, m->width, m->numel, &sink, at);
	int err = w == NULL ? -ENOMEM : patch_writer_rice(w, kernel, false, NULL);

	return model_give(m, r, w, err);
}

#endif
