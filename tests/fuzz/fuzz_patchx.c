/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: the input is a blob of wfp1x.
 *
 * The reference is as long as the blob says, within bounds, and so that its spans have the hashes
 * that the blob has for them cannot be expected: the target puts the right hash into each span
 * first. Whatever the rest is, decoding stays inside its buffers; what it writes is a patch that
 * passes patch_check(), every kernel gives the same, and encoding that patch again and decoding it
 * gives it once more.
 */
#include "codec/patchx.h"
#include "tests/fuzz/exact.h"

#include <stdlib.h>
#include <xxhash.h>

enum { ELEMENTS_MAX = 300000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const kernels[] = {"portable", "avx2", "avx512"};

/* Keys around the middle, the most frequent first. */
static uint8_t *make_reference(const struct patchx *x)
{
	uint8_t *bytes = malloc((size_t)x->numel * x->width + 1), le[8];

	REQUIRE(bytes != NULL);
	for (uint64_t i = 0; i < x->numel; i++) {
		uint64_t key = (UINT64_C(1) << x->bits) / 2 - (uint64_t)__builtin_ctzll(i | 64);

		store_le64(le, key << (x->shift & 63) ^ (i * 7 & ((UINT64_C(1) << x->shift) - 1)));
		memcpy(bytes + i * x->width, le, x->width);
	}
	return bytes;
}

/* The first span's hash; there is one, since ELEMENTS_MAX is less than a span. */
static void set_hash(uint8_t *blob, size_t size, const struct patchx *x, const uint8_t *reference)
{
	size_t at = PATCHX_HEAD;

	while (at < size && at < PATCHX_HEAD + 5 && blob[at] >= 0x80)
		at++;
	if (at + 9 <= size)
		store_le64(blob + at + 1, XXH3_64bits(reference, (size_t)x->numel * x->width));
}

static int decode(const struct patchx *x, const uint8_t *reference, const char *kernel,
		  struct memory *out, uint64_t *out_len)
{
	struct source src = source_memory(reference, (size_t)x->numel * x->width);
	struct sink sink = {.write = memory_write, .ctx = out};
	struct why why = {0};
	uint64_t read = 0;
	int ret = patchx_decode(x, &src, patch_kernel(kernel), PATCH_CODING_RICE, &sink, 0, out_len,
				&read, &why);

	REQUIRE(ret == 0 || (why.err != 0 && why.text[0] != '\0'));
	return ret;
}

static void again(const struct memory *first, uint64_t len, const struct patchx *x,
		  const uint8_t *reference)
{
	static const enum st_dtype dtypes[] = {
		[1] = ST_F8_E4M3, [2] = ST_BF16, [4] = ST_F32, [8] = ST_F64};
	struct source src = source_memory(reference, (size_t)x->numel * x->width);
	struct memory blob = {0}, back = {0};
	struct sink sink = {.write = memory_write, .ctx = &blob};
	struct patch p;
	struct patchx y;
	uint64_t size, changed, n;

	REQUIRE(patch_open(first->bytes, len, &p, NULL) == 0);
	REQUIRE(patch_check(&p, NULL) == 0);
	if (patchx_encode(&p, dtypes[x->width], &src, &sink, 0, &size, NULL) < 0)
		goto out; /* it has blocks that are listed and add nothing but zeros */
	if (size == 0)
		goto out;
	REQUIRE(patchx_open(blob.bytes, size, &y, NULL) == 0);
	REQUIRE(decode(&y, reference, NULL, &back, &n) == 0);
	changed = y.changed;
	REQUIRE(changed <= x->changed);
	if (changed == x->changed)
		REQUIRE(n == len && memcmp(back.bytes, first->bytes, (size_t)len) == 0);
out:
	free(blob.bytes);
	free(back.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *blob = malloc(size + 1), *reference = NULL;
	struct memory first = {0};
	struct patchx x;
	uint64_t len = 0, other;
	int ret;

	REQUIRE(blob != NULL);
	memcpy(blob, data, size);
	if (patchx_open(blob, size, &x, NULL) < 0 || x.numel > ELEMENTS_MAX)
		goto out;
	reference = make_reference(&x);
	set_hash(blob, size, &x, reference);
	ret = decode(&x, reference, kernels[0], &first, &len);
	for (size_t k = 1; k < ARRAY_LEN(kernels); k++) {
		struct memory m = {0};

		REQUIRE(decode(&x, reference, kernels[k], &m, &other) == ret || ret < 0);
		if (ret == 0)
			REQUIRE(other == len &&
				(len == 0 || memcmp(m.bytes, first.bytes, len) == 0));
		free(m.bytes);
	}
	if (ret == 0 && len > 0)
		again(&first, len, &x, reference);
out:
	free(first.bytes);
	free(reference);
	free(blob);
	return 0;
}
