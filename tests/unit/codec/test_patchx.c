/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wfp1x: what goes in comes out, for every type, density and kind of value and reference, with
 * every kernel; another reference is refused, and damage never does more than fail.
 *
 * "The same patch" is the strictest there is: the blob in form version 1 that the decoder writes
 * has the bytes of the one that was encoded.
 */
#include "codec/patchx.h"
#include "tests/unit/codec/rice_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>
#include <xxhash.h>

/* Weights around .02 in powers of two; random bytes; all the same; zeros. */
enum references { REF_WEIGHTS, REF_ANY, REF_SAME, REF_ZERO, REF_KINDS };

struct lab {
	struct rng r;
	struct model m;
	uint8_t *reference;
	size_t bytes;
	struct memory wfp1, wfp1x, back;
	struct patch patch;
	uint64_t len;
};

static uint64_t weight_bits(struct rng *r, enum st_dtype dtype)
{
	/* about geometric: half of them have the largest exponent */
	unsigned down = (unsigned)__builtin_ctzll(rng_next(r) | UINT64_C(1) << 40);
	uint64_t any = rng_next(r), sign = rng_next(r) & 1;

	switch (dtype) {
	case ST_BF16: return sign << 15 | (uint64_t)(121 - down) << 7 | (any & 0x7f);
	case ST_F32: return sign << 31 | (uint64_t)(121 - down) << 23 | (any & 0x7fffff);
	case ST_F64: return sign << 63 | (uint64_t)(1017 - down) << 52 | any >> 12;
	case ST_F16: return sign << 15 | (uint64_t)(9 - MIN(down, 9U)) << 10 | (any & 0x3ff);
	default: return any >> (down & 7);
	}
}

static void lab_make(struct lab *l, uint64_t seed, enum st_dtype dtype, uint64_t numel,
		     double density, enum values kind, enum references ref, bool hashes)
{
	const unsigned width = st_dtype_width(dtype);
	struct sink sink = memory_sink(&l->wfp1);
	struct patch_writer *w;
	struct why why = {0};

	*l = (struct lab){.r = {seed}, .bytes = (size_t)numel * width};
	sink = memory_sink(&l->wfp1);
	l->reference = calloc(l->bytes + 1, 1);
	assert_non_null(l->reference);
	for (uint64_t i = 0; i < numel; i++) {
		uint64_t v = ref == REF_WEIGHTS ? weight_bits(&l->r, dtype)
			     : ref == REF_ANY	? rng_next(&l->r)
			     : ref == REF_SAME	? UINT64_C(0x3c3c3c3c3c3c3c3c)
						: 0;
		uint8_t le[8];

		store_le64(le, v);
		memcpy(l->reference + i * width, le, width);
	}
	l->m = model_of_kind(&l->r, PATCH_ADD, width, numel, density, kind);
	for (size_t i = 0; i < l->m.count; i++) /* a change changes something */
		if (memcmp(l->m.values + i * width, (uint8_t[8]){0}, width) == 0)
			l->m.values[i * width] = 1;
	w = patch_writer_new(PATCH_ADD, width, numel, &sink, 0);
	assert_non_null(w);
	assert_int_equal(patch_writer_rice(w, NULL, hashes, NULL), 0);
	for (size_t i = 0; i < l->m.count; i++) {
		uint64_t at = l->m.positions[i];

		assert_int_equal(patch_writer_add(w, &at, l->m.values + i * width, 1, &why), 0);
		patch_writer_hash(w, at / PATCH_BLOCK, at / PATCH_BLOCK * 77 + seed);
	}
	assert_int_equal(patch_writer_end(w, &l->len, NULL, &why), 0);
	patch_writer_free(w);
	assert_int_equal(patch_open(l->wfp1.bytes, l->len, &l->patch, &why), 0);
	assert_int_equal(patch_check(&l->patch, &why), 0);
}

static void lab_free(struct lab *l)
{
	model_free(&l->m);
	free(l->reference);
	free(l->wfp1.bytes);
	free(l->wfp1x.bytes);
	free(l->back.bytes);
}

static uint64_t encode(struct lab *l, enum st_dtype dtype)
{
	struct source src = source_memory(l->reference, l->bytes);
	struct sink sink = memory_sink(&l->wfp1x);
	struct why why = {0};
	uint64_t len = 1;
	int ret = patchx_encode(&l->patch, dtype, &src, &sink, 0, &len, &why);

	if (ret < 0)
		fail_msg("encode: %s", why.text);
	assert_int_equal(len % 8, 0);
	return len;
}

static int decode(struct lab *l, const void *blob, uint64_t len, const char *kernel,
		  uint64_t *out_len, struct why *why)
{
	struct source src = source_memory(l->reference, l->bytes);
	struct sink sink = memory_sink(&l->back);
	struct patchx x;
	uint64_t read = 0;
	int ret = patchx_open(blob, len, &x, why);

	if (ret == 0)
		ret = patchx_decode(&x, &src, patch_kernel(kernel), PATCH_CODING_RICE, &sink, 0,
				    out_len, &read, why);
	assert_true(read <= l->bytes);
	return ret;
}

static void there_and_back(struct lab *l, enum st_dtype dtype)
{
	uint64_t len = encode(l, dtype), back;
	struct why why = {0};

	if (l->m.count == 0) {
		assert_int_equal(len, 0);
		return;
	}
	assert_true(patchx_is(l->wfp1x.bytes, len));
	for (size_t k = 0; k < ARRAY_LEN(kernel_names); k++) {
		if (patch_kernel(kernel_names[k]) == NULL)
			continue;
		l->patch.kernel = patch_kernel(kernel_names[k]);
		assert_int_equal(encode(l, dtype), len);
		if (decode(l, l->wfp1x.bytes, len, kernel_names[k], &back, &why) < 0)
			fail_msg("decode: %s", why.text);
		assert_int_equal(back, l->len);
		assert_memory_equal(l->back.bytes, l->wfp1.bytes, (size_t)back);
	}
}

static void test_all_kinds(void **state)
{
	static const enum st_dtype dtypes[] = {ST_BF16,	   ST_F32,     ST_F16, ST_F64, ST_U8,
					       ST_F8_E4M3, ST_F8_E5M2, ST_I32, ST_I64, ST_F4};
	static const double densities[] = {-1, .001, .01, .1, .3, .5, .7, .97, 1};
	struct lab l;
	unsigned turn = 0;

	for (size_t t = 0; t < ARRAY_LEN(dtypes); t++)
		for (size_t d = 0; d < ARRAY_LEN(densities); d++) {
			enum values kind = turn % VALUES_KINDS;
			enum references ref = turn / VALUES_KINDS % REF_KINDS;
			uint64_t numel = 1 + turn++ * 131 % 3000;

			if (turn % 9 == 0)
				numel += PATCH_BLOCK;
			lab_make(&l, turn, dtypes[t], numel, densities[d], kind, ref,
				 turn % 2 == 0);
			there_and_back(&l, dtypes[t]);
			lab_free(&l);
		}
}

static void test_every_density(void **state)
{
	struct lab l;

	for (unsigned percent = 0; percent <= 100; percent += 4) {
		lab_make(&l, percent, ST_BF16, 5000, percent / 100.0, VALUES_STEPS, REF_WEIGHTS,
			 true);
		there_and_back(&l, ST_BF16);
		lab_free(&l);
	}
}

static void test_several_spans(void **state)
{
	struct lab l;

	lab_make(&l, 5, ST_U8, PATCHX_SPAN * UINT64_C(2) + 70000, .00002, VALUES_STEPS, REF_ZERO,
		 true);
	there_and_back(&l, ST_U8);
	lab_free(&l);
	lab_make(&l, 6, ST_U8, PATCHX_SPAN * UINT64_C(3), -1, VALUES_STEPS, REF_ZERO, false);
	there_and_back(&l, ST_U8);
	lab_free(&l);
	lab_make(&l, 7, ST_BF16, 0, 0, VALUES_STEPS, REF_ZERO, false);
	assert_int_equal(encode(&l, ST_BF16), 0);
	lab_free(&l);
}

/* The point of it: against wfp1, on weights whose chance to change doubles as they get smaller. */
static void test_smaller(void **state)
{
	const uint64_t numel = 4 * PATCH_BLOCK;
	struct sink sink;
	struct lab l;
	struct patch_writer *w;
	uint64_t len;

	lab_make(&l, 9, ST_BF16, numel, 0, VALUES_ONES, REF_WEIGHTS, false);
	sink = memory_sink(&l.back);
	w = patch_writer_new(PATCH_ADD, 2, numel, &sink, 0);
	assert_non_null(w);
	assert_int_equal(patch_writer_rice(w, NULL, false, NULL), 0);
	for (uint64_t i = 0; i < numel; i++) {
		unsigned exponent = load_le16(l.reference + 2 * i) >> 7 & 0xff;

		if (rng_below(&l.r, UINT64_C(512) >> MIN(121 - exponent, 9U)) == 0)
			assert_int_equal(patch_writer_add(w, &i, (uint8_t[]){1, 0}, 1, NULL), 0);
	}
	assert_int_equal(patch_writer_end(w, &len, NULL, NULL), 0);
	patch_writer_free(w);
	assert_int_equal(patch_open(l.back.bytes, len, &l.patch, NULL), 0);
	assert_true(encode(&l, ST_BF16) * 10 < len * 8);
	lab_free(&l);
}

static void test_another_reference(void **state)
{
	struct why why = {0};
	uint64_t len, back;
	struct lab l;

	lab_make(&l, 11, ST_BF16, 70000, .01, VALUES_STEPS, REF_WEIGHTS, true);
	len = encode(&l, ST_BF16);
	l.reference[2 * 69999] ^= 1;
	assert_int_equal(decode(&l, l.wfp1x.bytes, len, NULL, &back, &why), -EBADMSG);
	assert_non_null(strstr(why.text, "reference"));
	l.bytes -= 2;
	assert_int_equal(decode(&l, l.wfp1x.bytes, len, NULL, &back, &why), -EBADMSG);
	lab_free(&l);
}

/* Cut off anywhere, and with any byte changed: it fails, or it is a patch of this tensor. */
static void test_damage(void **state)
{
	static const struct {
		uint64_t numel;
		double density;
		enum values kind;
	} cases[] = {{300, .2, VALUES_EDGES}, {66000, .001, VALUES_STEPS}, {200, .9, VALUES_ANY}};
	struct why why = {0};
	uint64_t back;
	struct lab l;

	for (size_t c = 0; c < ARRAY_LEN(cases); c++) {
		uint64_t len;

		lab_make(&l, 20 + c, ST_BF16, cases[c].numel, cases[c].density, cases[c].kind,
			 REF_WEIGHTS, c == 0);
		len = encode(&l, ST_BF16);
		for (uint64_t cut = 0; cut < len; cut += 1 + len / 60) {
			uint8_t *exact = malloc((size_t)cut + 1); /* so that ASan sees its end */

			memcpy(exact, l.wfp1x.bytes, (size_t)cut);
			assert_true(decode(&l, exact, cut, NULL, &back, &why) < 0);
			free(exact);
		}
		for (uint64_t i = 0; i < 300; i++) {
			uint64_t at = rng_below(&l.r, len);
			uint8_t *exact = malloc((size_t)len), old = l.wfp1x.bytes[at];
			struct patch p;

			memcpy(exact, l.wfp1x.bytes, (size_t)len);
			exact[at] = (uint8_t)rng_next(&l.r);
			if (exact[at] != old &&
			    decode(&l, exact, len, kernel_names[i % 3], &back, &why) == 0) {
				assert_int_equal(patch_open(l.back.bytes, back, &p, &why), 0);
				assert_int_equal(patch_check(&p, &why), 0);
				assert_int_equal(p.numel, cases[c].numel);
			}
			free(exact);
		}
		lab_free(&l);
	}
}

static void test_unknown_versions(void **state)
{
	uint8_t blob[40] = "WFX\0\1\2\2";
	struct why why = {0};
	struct patchx x;

	assert_int_equal(patchx_open(blob, sizeof(blob), &x, &why), -ENOTSUP);
	assert_non_null(strstr(why.text, "newer weightfs"));
	blob[4] = 0;
	assert_int_equal(patchx_open(blob, sizeof(blob), &x, &why), 0);
	assert_int_equal(patchx_open(blob, 24, &x, &why), -EBADMSG);
	for (size_t at = 5; at < 28; at += at == 7 ? 17 : 1) { /* op, width, flags, key */
		uint8_t old = blob[at];

		blob[at] = 77;
		assert_int_equal(patchx_open(blob, sizeof(blob), &x, &why), -EBADMSG);
		blob[at] = old;
	}
}

static void test_failing_sink(void **state)
{
	struct why why = {0};
	struct source src;
	struct sink sink;
	struct lab l;
	uint64_t len;

	lab_make(&l, 31, ST_BF16, 70000, .01, VALUES_STEPS, REF_WEIGHTS, true);
	src = source_memory(l.reference, l.bytes);
	l.wfp1x.error = ENOSPC;
	sink = memory_sink(&l.wfp1x);
	for (unsigned i = 1; i <= 6; i++) {
		l.wfp1x.writes = 0;
		l.wfp1x.fail_at = i;
		assert_int_equal(patchx_encode(&l.patch, ST_BF16, &src, &sink, 0, &len, &why),
				 -ENOSPC);
		assert_int_equal(len, 0);
	}
	lab_free(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_kinds),	  cmocka_unit_test(test_every_density),
		cmocka_unit_test(test_several_spans),	  cmocka_unit_test(test_smaller),
		cmocka_unit_test(test_another_reference), cmocka_unit_test(test_damage),
		cmocka_unit_test(test_unknown_versions),  cmocka_unit_test(test_failing_sink),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
