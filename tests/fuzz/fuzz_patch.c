/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: the input is a blob of the patch form.
 *
 * Whatever it is, applying it to several ranges and merging it stay inside their buffers, which are
 * exactly as long as they have to be.  When the blob passes patch_check(), all of that succeeds,
 * every kernel gives the same bytes, and the merge of the patch with itself, in both codings,
 * passes too and does what applying it twice does.
 */
#include "codec/patch.h"
#include "tests/fuzz/exact.h"

#include <stdlib.h>

enum { WINDOW = 64 * 1024 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t *fresh(size_t len)
{
	uint8_t *p = malloc(len > 0 ? len : 1);

	REQUIRE(p != NULL);
	memset(p, 0xa7, len);
	return p;
}

/* The last kernel is NULL: the best one, which may be one of those before it. */
static const char *const kernels[] = {"portable", "avx2", "avx512", NULL};

static void apply_range(struct patch *p, bool valid, uint64_t off, uint64_t len)
{
	uint64_t total = p->numel * p->width;
	uint8_t *first = NULL;

	off = MIN(off, total);
	len = MIN(len, total - off);
	for (size_t k = 0; k < ARRAY_LEN(kernels); k++) {
		uint8_t *dst;
		int ret;

		p->kernel = patch_kernel(kernels[k]);
		if (p->kernel == NULL)
			continue;
		dst = fresh((size_t)len);
		patch_prefetch(p, off, (size_t)len);
		patch_cost(p, off, (size_t)len);
		ret = patch_apply(p, off, dst, (size_t)len);
		if (p->op == PATCH_ADD && off % p->width != 0)
			REQUIRE(ret == -EINVAL);
		else if (valid)
			REQUIRE(ret == 0);
		else
			REQUIRE(ret == 0 || ret == -EBADMSG);
		if (first == NULL) {
			first = dst;
			continue;
		}
		REQUIRE(!valid || memcmp(first, dst, (size_t)len) == 0);
		free(dst);
	}
	free(first);
}

static void merge_twice(const struct patch *p, bool valid, enum patch_coding coding)
{
	const struct patch *twice[] = {p, p};
	struct memory mem = {0};
	struct sink sink = {.write = memory_write, .ctx = &mem};
	size_t total = (size_t)MIN(p->numel * p->width, (uint64_t)3 * WINDOW);
	uint64_t len = 0;
	struct patch merged;
	uint8_t *a, *b;
	int ret = patch_merge_as(coding, twice, 2, &sink, 0, &len, NULL, NULL);

	REQUIRE(!valid || ret == 0 || ret == -ENOSPC);
	if (valid && ret == 0) {
		a = fresh(total);
		b = fresh(total);
		REQUIRE(patch_apply(p, 0, a, total) == 0 && patch_apply(p, 0, a, total) == 0);
		if (len > 0) {
			REQUIRE(len == mem.len);
			REQUIRE(patch_open(mem.bytes, len, &merged, NULL) == 0);
			REQUIRE(patch_check(&merged, NULL) == 0);
			REQUIRE(patch_apply(&merged, 0, b, total) == 0);
		}
		REQUIRE(total == 0 || memcmp(a, b, total) == 0);
		free(a);
		free(b);
	}
	free(mem.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *blob = malloc(size > 0 ? size : 1);
	struct why why = {0};
	struct patch p;
	uint64_t total, block;
	bool valid;
	int ret;

	REQUIRE(blob != NULL);
	if (size > 0)
		memcpy(blob, data, size);
	ret = patch_open(blob, size, &p, &why);
	if (ret < 0) {
		REQUIRE(why.err == -ret && why.text[0] != '\0');
		goto out;
	}
	ret = patch_check(&p, &why);
	REQUIRE(ret == 0 || (why.err == -ret && why.text[0] != '\0'));
	valid = ret == 0;
	total = p.numel * p.width;
	block = (uint64_t)PATCH_BLOCK * p.width;
	apply_range(&p, valid, 0, 3 * WINDOW);
	apply_range(&p, valid, total - MIN(total, (uint64_t)WINDOW + 3), WINDOW + 3);
	apply_range(&p, valid, block - 5, 11);
	apply_range(&p, valid, block - 8, block + 13);
	for (uint64_t i = 0; i < 8; i++)
		apply_range(&p, valid, i * (total / 8) + i, 1 + i * 5);
	if (p.blocks > 4)
		goto out;
	merge_twice(&p, valid, PATCH_CODING_RAW);
	merge_twice(&p, valid, PATCH_CODING_RICE);
out:
	free(blob);
	return 0;
}
