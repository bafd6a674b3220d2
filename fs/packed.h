/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading tensors of packed files (codec/pack.h): the blocks that a range overlaps are fetched,
 * unpacked, checked and copied from.
 *
 * The last few blocks stay unpacked in memory, for the requests that end in the middle of one; who
 * asks for a block that another thread is unpacking waits for it.
 */
#ifndef FS_PACKED_H
#define FS_PACKED_H

#include "cache/blob.h"

/* Exactly len bytes at `off` of a tensor of `bytes` bytes in elements of `width`, whose directory
 * is at `at` in the blob; the range is inside.  -EBADMSG: a block is damaged; -ENOMEM, and errors
 * of the blob.  Blocks. */
int packed_read(struct blob *blob, uint64_t at, uint64_t bytes, unsigned width, uint64_t off,
		void *dst, size_t len) MUST_CHECK;

#endif
