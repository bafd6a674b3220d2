/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blobs in tests/golden/wfp1x are what the encoder makes of the elements in the texts next to
 * them, with every kernel, on a reference that a formula gives; the decoder makes the patch of them
 * again.  A reader in Python reads the same blobs (tests/golden/test_wfp1x.py).
 *
 * Run from the top of the repository.  `test_wfp1x write` makes the files anew, which is needed
 * only when the encoder chooses otherwise on purpose.
 */
#include "codec/patchx.h"
#include "tests/unit/codec/rice_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "tests/unit/codec/golden_text.h"

static const struct golden {
	const char *name;
	enum st_dtype dtype;
	unsigned shift, bits; /* of the key, for the formula */
	uint64_t numel;
	double density;
	enum values kind;
} goldens[] = {
	{"bf16", ST_BF16, 7, 8, 9000, .06, VALUES_STEPS},
	{"bf16-edges", ST_BF16, 7, 8, 3000, .1, VALUES_EDGES},
	{"bf16-all", ST_BF16, 7, 8, 700, 1, VALUES_STEPS},
	{"bf16-one", ST_BF16, 7, 8, 100000, -1, VALUES_STEPS},
	{"f16-most", ST_F16, 10, 5, 900, .8, VALUES_STEPS},
	{"f32", ST_F32, 23, 8, 4000, .1, VALUES_STEPS},
	{"f64-any", ST_F64, 52, 11, 1000, .2, VALUES_ANY},
	{"f8-e4m3", ST_F8_E4M3, 3, 4, 150000, .004, VALUES_STEPS},
	{"i16", ST_I16, 0, 0, 70000, .004, VALUES_STEPS},
	{"u8-spans", ST_U8, 0, 0, PATCHX_SPAN *UINT64_C(2) + 5, .00001, VALUES_ANY},
};

/* Element i: its low bits are those of i, its key is one less than half for every power of two that
 * i is a multiple of. */
static uint8_t *make_reference(const struct golden *g)
{
	const unsigned width = st_dtype_width(g->dtype);
	uint8_t *bytes = malloc((size_t)g->numel * width), le[8];

	if (bytes == NULL)
		abort();
	for (uint64_t i = 0; i < g->numel; i++) {
		uint64_t half = g->bits > 0 ? UINT64_C(1) << (g->bits - 1) : 0;
		uint64_t down = (uint64_t)__builtin_ctzll(i | 4096);
		uint64_t low = i & ((UINT64_C(1) << g->shift) - 1);

		if (g->bits == 0)
			low = i;
		store_le64(le, low | (half > down ? half - down : 0) << g->shift);
		memcpy(bytes + i * width, le, width);
	}
	return bytes;
}

/* The model in the form version 1, and in wfp1x. */
static void encode(const struct golden *g, const struct model *m, const struct rice_kernel *kernel,
		   struct memory *wfp1, struct memory *wfp1x)
{
	uint8_t *reference = make_reference(g);
	struct source src = source_memory(reference, (size_t)g->numel * m->width);
	struct sink sink = memory_sink(wfp1x);
	struct rng r = {1};
	struct why why = {0};
	uint64_t len = model_write_rice(m, &r, wfp1, 0, kernel);
	struct patch p;

	assert_true(len > 0);
	assert_int_equal(patch_open(wfp1->bytes, len, &p, &why), 0);
	p.kernel = kernel;
	if (patchx_encode(&p, g->dtype, &src, &sink, 0, &len, &why) < 0)
		fail_msg("%s: %s", g->name, why.text);
	assert_int_equal(len, wfp1x->len);
	free(reference);
}

static void decode(const struct golden *g, const struct rice_kernel *kernel,
		   const struct memory *wfp1x, struct memory *wfp1)
{
	const unsigned width = st_dtype_width(g->dtype);
	uint8_t *reference = make_reference(g);
	struct source src = source_memory(reference, (size_t)g->numel * width);
	struct sink sink = memory_sink(wfp1);
	struct why why = {0};
	struct patchx x;
	uint64_t len, read;

	if (patchx_open(wfp1x->bytes, wfp1x->len, &x, &why) < 0 ||
	    patchx_decode(&x, &src, kernel, PATCH_CODING_RICE, &sink, 0, &len, &read, &why) < 0)
		fail_msg("%s: %s", g->name, why.text);
	free(reference);
}

static void write_all(void)
{
	for (size_t i = 0; i < ARRAY_LEN(goldens); i++) {
		const struct golden *g = &goldens[i];
		struct rng r = {200 + i};
		struct model m = model_of_kind(&r, PATCH_ADD, st_dtype_width(g->dtype), g->numel,
					       g->density, g->kind);
		struct memory wfp1 = {0}, wfp1x = {0};
		FILE *text = golden_open("wfp1x", g->name, "txt", "w");
		FILE *blob = golden_open("wfp1x", g->name, "wfp1x", "wb");

		for (size_t j = 0; j < m.count; j++)
			if (golden_bits(&m, j) == 0)
				m.values[j * m.width] = 1; /* what adds nothing is not kept */
		encode(g, &m, patch_kernel(NULL), &wfp1, &wfp1x);
		fprintf(text, "%u %llu %u %u\n", m.width, (unsigned long long)g->numel, g->shift,
			g->bits);
		golden_write(text, &m);
		fwrite(wfp1x.bytes, 1, wfp1x.len, blob);
		if (fclose(text) != 0 || fclose(blob) != 0)
			fail_msg("%s: cannot be written", g->name);
		model_free(&m);
		free(wfp1.bytes);
		free(wfp1x.bytes);
	}
}

/* The elements as the text has them. */
static struct model read_text(const struct golden *g)
{
	FILE *f = golden_open("wfp1x", g->name, "txt", "r");
	struct model m = {.op = PATCH_ADD, .numel = g->numel};
	unsigned long long numel;
	unsigned shift, bits;

	if (fscanf(f, "%u %llu %u %u", &m.width, &numel, &shift, &bits) != 4 || numel != m.numel ||
	    m.width != st_dtype_width(g->dtype) || shift != g->shift || bits != g->bits)
		fail_msg("%s.txt: another first line", g->name);
	golden_read(f, &m);
	fclose(f);
	return m;
}

static void test_the_committed_blobs(void **state)
{
	static uint8_t want[64 * 1024];

	for (size_t i = 0; i < ARRAY_LEN(goldens); i++) {
		const struct golden *g = &goldens[i];
		struct model m = read_text(g);
		FILE *blob = golden_open("wfp1x", g->name, "wfp1x", "rb");
		size_t want_len = fread(want, 1, sizeof(want), blob);

		fclose(blob);
		for (size_t k = 0; k < ARRAY_LEN(kernel_names); k++) {
			const struct rice_kernel *kernel = patch_kernel(kernel_names[k]);
			struct memory wfp1 = {0}, wfp1x = {0}, back = {0};

			if (kernel == NULL)
				continue;
			encode(g, &m, kernel, &wfp1, &wfp1x);
			if (wfp1x.len != want_len || memcmp(wfp1x.bytes, want, want_len) != 0)
				fail_msg("%s, %s: not the committed blob", g->name,
					 kernel_names[k]);
			decode(g, kernel, &wfp1x, &back);
			assert_int_equal(back.len, wfp1.len);
			assert_memory_equal(back.bytes, wfp1.bytes, back.len);
			free(wfp1.bytes);
			free(wfp1x.bytes);
			free(back.bytes);
		}
		model_free(&m);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_committed_blobs),
	};

	if (argc > 1 && strcmp(argv[1], "write") == 0) {
		write_all();
		return 0;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
