/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blobs in tests/golden/wfp1 are what the encoder (bits-*: the writer of caches) makes of the
 * elements in the texts next to them, with every kernel.  A reader in Python, written from the
 * specification, reads the same blobs (tests/golden/test_wfp1.py), so the specification and the
 * program cannot drift apart.
 *
 * Run from the top of the repository.  `test_wfp1 write` makes the files anew, which is needed only
 * when the encoder chooses otherwise on purpose.
 */
#include "tests/unit/codec/rice_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "tests/unit/codec/golden_text.h"

static const struct golden {
	const char *name;
	enum patch_op op;
	unsigned width;
	uint64_t numel;
	double density;
	enum values kind;
	bool raw; /* PATCH_CODING_RAW */
} goldens[] = {
	{"add-16", PATCH_ADD, 2, 65536 + 4000, .003, VALUES_STEPS},
	{"add-16-edges", PATCH_ADD, 2, 5000, .04, VALUES_EDGES},
	{"add-16-most", PATCH_ADD, 2, 150, .8, VALUES_STEPS},
	{"add-16-all", PATCH_ADD, 2, 90, 1, VALUES_STEPS},
	{"add-8-edges", PATCH_ADD, 1, 400, .3, VALUES_EDGES},
	{"add-32-any", PATCH_ADD, 4, 900, .1, VALUES_ANY},
	{"add-64-edges", PATCH_ADD, 8, 1000, .1, VALUES_EDGES},
	{"xor-16", PATCH_XOR, 2, 65536 * 200, .00001, VALUES_STEPS},
	{"xor-32-most", PATCH_XOR, 4, 120, .7, VALUES_EDGES},
	{"set-16", PATCH_SET, 2, 20000, .01, VALUES_ANY},
	{"set-8-one", PATCH_SET, 1, 65536 * 100, -1, VALUES_ANY},
	{"add-16-nothing", PATCH_ADD, 2, 70000, 0, VALUES_STEPS},
	{"bits-add-16", PATCH_ADD, 2, 1800, .4, VALUES_ANY, true},
	{"bits-set-32", PATCH_SET, 4, 3000, .6, VALUES_ANY, true},
	{"bits-xor-8", PATCH_XOR, 1, 2100, .3, VALUES_ANY, true},
};

static const char *const op_names[] = {"", "SET", "ADD", "XOR"};

static uint64_t write_golden(const struct golden *g, const struct model *m, struct rng *r,
			     struct memory *mem, const struct rice_kernel *kernel)
{
	return g->raw ? model_write(m, r, mem, 0) : model_write_rice(m, r, mem, 0, kernel);
}

static void write_all(void)
{
	for (size_t i = 0; i < ARRAY_LEN(goldens); i++) {
		const struct golden *g = &goldens[i];
		struct rng r = {100 + i};
		struct model m = model_of_kind(&r, g->op, g->width, g->numel, g->density, g->kind);
		struct memory mem = {0};
		uint64_t len = write_golden(g, &m, &r, &mem, NULL);
		FILE *text = golden_open("wfp1", g->name, "txt", "w");
		FILE *blob = golden_open("wfp1", g->name, "wfp1", "wb");

		fprintf(text, "%s %u %llu\n", op_names[g->op], g->width,
			(unsigned long long)g->numel);
		golden_write(text, &m);
		fwrite(mem.bytes, 1, (size_t)len, blob);
		if (fclose(text) != 0 || fclose(blob) != 0)
			fail_msg("%s: cannot be written", g->name);
		model_free(&m);
		free(mem.bytes);
	}
}

/* The elements as the text has them. */
static struct model read_text(const char *name)
{
	FILE *f = golden_open("wfp1", name, "txt", "r");
	unsigned long long numel;
	struct model m = {0};
	char op[4];

	if (fscanf(f, "%3s %u %llu", op, &m.width, &numel) != 3)
		fail_msg("%s.txt: no first line", name);
	m.numel = numel;
	for (m.op = PATCH_SET; strcmp(op, op_names[m.op]) != 0;)
		if (++m.op > PATCH_XOR)
			fail_msg("%s.txt: unknown operation", name);
	golden_read(f, &m);
	fclose(f);
	return m;
}

static void test_encoder_makes_the_committed_blobs(void **state)
{
	static uint8_t want[64 * 1024];

	for (size_t i = 0; i < ARRAY_LEN(goldens); i++) {
		struct model m = read_text(goldens[i].name);
		FILE *blob = golden_open("wfp1", goldens[i].name, "wfp1", "rb");
		size_t want_len = fread(want, 1, sizeof(want), blob);

		fclose(blob);
		assert_true(m.op == goldens[i].op && m.width == goldens[i].width &&
			    m.numel == goldens[i].numel);
		for (size_t k = 0; k < ARRAY_LEN(kernel_names); k++) {
			const struct rice_kernel *kernel = patch_kernel(kernel_names[k]);
			struct rng r = {1};
			struct memory mem = {0};

			if (kernel == NULL)
				continue;
			if (write_golden(&goldens[i], &m, &r, &mem, kernel) != want_len ||
			    memcmp(mem.bytes, want, want_len) != 0)
				fail_msg("%s, %s: not the committed blob", goldens[i].name,
					 kernel_names[k]);
			free(mem.bytes);
		}
		model_free(&m);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_encoder_makes_the_committed_blobs),
	};

	if (argc > 1 && strcmp(argv[1], "write") == 0) {
		write_all();
		return 0;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
