/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Diff: a block of both arrays at a time goes through the kernel straight into the writer's block,
 * and from there into its coding while it is still near.  The loops themselves, one per CPU and
 * width, are in rice_kernel.h and the kernels.
 *
 * The hash of the new bytes is taken for blocks that change, after the kernel has brought them into
 * the cache.
 *
 * No state; any number of threads.
 */
#include "codec/diff.h"
#include "codec/patch_block.h"

#include <xxhash.h>

int diff_add(struct patch_writer *w, const struct rice_kernel *kernel, const void *old,
	     const void *new, uint64_t first, uint64_t n, struct why *why)
{
	const unsigned column = patch_width_log(w->width);
	const uint8_t *a = old, *b = new;
	int ret;

	if (first % PATCH_BLOCK != 0 || first > w->numel || n > w->numel - first ||
	    (n % PATCH_BLOCK != 0 && n != w->numel - first) || w->op != PATCH_ADD)
		return why_set(why, EINVAL,
			       "a diff of elements %llu + %llu of %llu does not fit into the patch",
			       (unsigned long long)first, (unsigned long long)n,
			       (unsigned long long)w->numel);
	if (first < w->floor)
		return why_set(why, EINVAL, "a diff of element %llu comes after that of %llu",
			       (unsigned long long)first, (unsigned long long)w->floor - 1);
	ret = patch_writer_block(w, w->block, w->count, why);
	for (uint64_t done = 0; ret == 0 && done < n;) {
		uint64_t block = (first + done) >> PATCH_BLOCK_SHIFT;
		uint32_t part = (uint32_t)MIN(n - done, (uint64_t)PATCH_BLOCK);
		const size_t bytes = (size_t)part * w->width;
		uint32_t count = kernel->diff[column](a, b, part, w->positions, w->values);

		if (count > 0 && w->groups != NULL && w->groups->want_hashes)
			patch_writer_hash(w, block, XXH3_64bits(b, bytes));
		ret = patch_writer_block(w, block, count, why);
		w->block = block;
		w->floor = first + done + part;
		done += part;
		a += bytes;
		b += bytes;
	}
	return ret;
}

uint64_t diff_count(const struct rice_kernel *kernel, unsigned width, const void *old,
		    const void *new, uint64_t n)
{
	enum { STEP = 1024 };
	uint8_t positions[2 * (STEP + RICE_SLACK)], values[8 * (STEP + RICE_SLACK)];
	const uint8_t *a = old, *b = new;
	uint64_t count = 0;

	for (uint64_t done = 0; done < n; done += STEP) {
		uint32_t part = (uint32_t)MIN(n - done, (uint64_t)STEP);

		count += kernel->diff[patch_width_log(width)](a, b, part, positions, values);
		a += (size_t)part * width;
		b += (size_t)part * width;
	}
	return count;
}
