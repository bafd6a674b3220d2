/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The difference of two arrays of elements, as a patch that turns the old one into the new one.
 *
 * The operation is ADD: new - old modulo 2^(8*width), of the bit patterns.  So it is exact for any
 * dtype and any value (-0, infinities, NaNs with payloads), and only elements whose bits differ are
 * in it.
 *
 * Nothing here allocates, blocks or keeps a state; several threads may diff parts of one tensor
 * with a writer each.
 */
#ifndef CODEC_DIFF_H
#define CODEC_DIFF_H

#include "codec/patch.h"

/* Adds to a writer of op ADD the elements in which `old` and `new` differ: n elements of the
 * writer's width, the first of which is element `first` of the tensor.  first is a multiple of
 * PATCH_BLOCK, above all elements added before; n is one too unless the tensor ends there.  A
 * writer with hashes gets those of `new`.  -EINVAL for other arguments, and what patch_writer_add()
 * returns. */
int diff_add(struct patch_writer *w, const struct rice_kernel *kernel, const void *old,
	     const void *new, uint64_t first, uint64_t n, struct why *why) MUST_CHECK;

/* How many of n elements differ. */
uint64_t diff_count(const struct rice_kernel *kernel, unsigned width, const void *old,
		    const void *new, uint64_t n);

#endif
