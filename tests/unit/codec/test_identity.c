/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bit for bit: from two tensors through diff, both codings and wfp1x to the new tensor again, for
 * every width, every density from 0 to 100 %, and elements that are zeros of both signs,
 * infinities, NaNs with payloads, the smallest and the largest numbers.  All kernels give the same
 * bytes at each stage.
 */
#include "codec/diff.h"
#include "codec/patchx.h"
#include "tests/unit/codec/rice_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

enum { ELEMENTS = 900 };

static const struct {
	enum st_dtype dtype;
	unsigned mantissa, exponent; /* bits; the sign is above them */
} floats[] = {
	{ST_F8_E5M2, 2, 5}, {ST_BF16, 7, 8}, {ST_F16, 10, 5}, {ST_F32, 23, 8}, {ST_F64, 52, 11},
};

/* The bits of a number that is not like the others. */
static uint64_t special(struct rng *r, unsigned mantissa, unsigned exponent)
{
	const uint64_t m = (UINT64_C(1) << mantissa) - 1, e = (UINT64_C(1) << exponent) - 1;
	const uint64_t quiet = UINT64_C(1) << (mantissa - 1), any = rng_next(r);
	const uint64_t sign = (any >> 63) << (mantissa + exponent);

	switch (any % 9) {
	case 0: return sign;					      /* 0 and -0 */
	case 1: return sign | e << mantissa;			      /* infinity */
	case 2: return sign | e << mantissa | quiet;		      /* the usual NaN */
	case 3: return sign | e << mantissa | quiet | (any >> 8 & m); /* with a payload */
	case 4: return sign | e << mantissa | 1;		      /* one that signals */
	case 5: return sign | 1;				      /* the smallest */
	case 6: return sign | (e - 1) << mantissa | m;		      /* the largest */
	case 7: return sign | UINT64_C(1) << mantissa; /* the smallest that is normal */
	default: return sign | (any >> 3 & ((e << mantissa) | m));
	}
}

struct tensors {
	uint8_t *old, *new;
	size_t bytes;
	uint64_t changed;
};

static struct tensors make_tensors(struct rng *r, size_t f, unsigned percent)
{
	const unsigned width = st_dtype_width(floats[f].dtype);
	struct tensors t = {.bytes = (size_t)ELEMENTS * width};

	t.old = malloc(t.bytes);
	t.new = malloc(t.bytes);
	assert_true(t.old != NULL && t.new != NULL);
	for (size_t i = 0; i < ELEMENTS; i++) {
		uint64_t a = special(r, floats[f].mantissa, floats[f].exponent), b = a;
		uint8_t le[8];

		if (rng_below(r, 100) < percent)
			b = rng_below(r, 3) == 0
				    ? a ^ 1
				    : special(r, floats[f].mantissa, floats[f].exponent);
		store_le64(le, a);
		memcpy(t.old + i * width, le, width);
		store_le64(le, b);
		memcpy(t.new + i *width, le, width);
		t.changed += a != b;
	}
	return t;
}

static void same(const struct memory *a, const struct memory *b, size_t len, const char *what)
{
	if (memcmp(a->bytes, b->bytes, len) != 0)
		fail_msg("%s: kernels give other bytes", what);
}

/* The stages with one kernel; wfp1 and wfp1x are kept. */
static void through(const struct tensors *t, enum st_dtype dtype, const struct rice_kernel *kernel,
		    struct memory *wfp1, struct memory *wfp1x)
{
	const unsigned width = st_dtype_width(dtype);
	struct source old = source_memory(t->old, t->bytes);
	struct sink sink = memory_sink(wfp1), sink_x = memory_sink(wfp1x), sink_back;
	struct patch_writer *w = patch_writer_new(PATCH_ADD, width, ELEMENTS, &sink, 0);
	struct memory back = {0};
	uint8_t *tensor = malloc(t->bytes);
	struct patch p, q;
	struct patchx x;
	uint64_t len, len_x, len_back, read;
	struct why why = {0};

	assert_true(w != NULL && tensor != NULL);
	assert_int_equal(diff_count(kernel, width, t->old, t->new, ELEMENTS), t->changed);
	assert_int_equal(patch_writer_rice(w, kernel, true, &why), 0);
	assert_int_equal(diff_add(w, kernel, t->old, t->new, 0, ELEMENTS, &why), 0);
	assert_int_equal(patch_writer_end(w, &len, NULL, &why), 0);
	patch_writer_free(w);
	assert_int_equal(patch_open(wfp1->bytes, len, &p, &why), 0);
	p.kernel = kernel;
	assert_int_equal(p.changed, t->changed);
	assert_int_equal(patch_check(&p, &why), 0);
	memcpy(tensor, t->old, t->bytes);
	assert_int_equal(patch_apply(&p, 0, tensor, t->bytes), 0);
	assert_memory_equal(tensor, t->new, t->bytes);
	if (t->changed > 0)
		assert_int_equal(patch_check_result(&p, 0, tensor, &why), 0);
	assert_int_equal(patchx_encode(&p, dtype, &old, &sink_x, 0, &len_x, &why), 0);
	assert_int_equal(len_x > 0, t->changed > 0);
	if (len_x > 0) {
		sink_back = memory_sink(&back);
		assert_int_equal(patchx_open(wfp1x->bytes, len_x, &x, &why), 0);
		if (patchx_decode(&x, &old, kernel, PATCH_CODING_RAW, &sink_back, 0, &len_back,
				  &read, &why) < 0)
			fail_msg("%s: %s", patch_kernel_name(kernel), why.text);
		assert_int_equal(patch_open(back.bytes, len_back, &q, &why), 0);
		assert_int_equal(patch_check(&q, &why), 0);
		memcpy(tensor, t->old, t->bytes);
		assert_int_equal(patch_apply(&q, 0, tensor, t->bytes), 0);
		assert_memory_equal(tensor, t->new, t->bytes);
	}
	free(back.bytes);
	free(tensor);
}

static void test_every_density(void **state)
{
	struct rng r = {41};

	for (size_t f = 0; f < ARRAY_LEN(floats); f++)
		for (unsigned percent = 0; percent <= 100; percent++) {
			struct tensors t = make_tensors(&r, f, percent);
			struct memory first = {0}, first_x = {0};

			through(&t, floats[f].dtype, patch_kernel("portable"), &first, &first_x);
			for (size_t k = 1; k < ARRAY_LEN(kernel_names); k++) {
				const struct rice_kernel *kernel = patch_kernel(kernel_names[k]);
				struct memory wfp1 = {0}, wfp1x = {0};

				if (kernel == NULL)
					continue;
				through(&t, floats[f].dtype, kernel, &wfp1, &wfp1x);
				assert_true(wfp1.len == first.len && wfp1x.len == first_x.len);
				same(&wfp1, &first, first.len, "wfp1");
				same(&wfp1x, &first_x, first_x.len, "wfp1x");
				free(wfp1.bytes);
				free(wfp1x.bytes);
			}
			free(first.bytes);
			free(first_x.bytes);
			free(t.old);
			free(t.new);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_density),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
