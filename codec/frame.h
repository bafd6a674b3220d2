/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One zstd frame inside a source, unpacked as it is asked for.
 *
 * Memory is a few hundred KiB and zstd's own window (at most 128 MiB, what its readers accept by
 * default), whatever comes out.  The size that a frame states may be missing; more than `most`
 * bytes are refused, whether stated or made.
 *
 * The sentences begin with "its zstd frame" or "cannot"; the caller says whose.
 * A frame belongs to one thread.
 */
#ifndef CODEC_FRAME_H
#define CODEC_FRAME_H

#include "codec/base.h"
#include "codec/io.h"

struct frame; /* opaque */

/* Of bytes [at, at + len) of src, which is borrowed as long as the frame lives.  -EBADMSG, -ENOMEM,
 * an error of src->read. */
int frame_open(const struct source *src, uint64_t at, uint64_t len, uint64_t most,
	       struct frame **out, struct why *why) MUST_CHECK;
void frame_free(struct frame *f); /* NULL is fine */
/* Exactly len bytes; -EBADMSG when the frame has less or is damaged, or an error of src->read. */
int frame_exactly(struct frame *f, void *dst, size_t len, struct why *why) MUST_CHECK;
/* Everything has been taken: nothing more may come, of the frame or behind it.  -EBADMSG. */
int frame_end(struct frame *f, struct why *why) MUST_CHECK;

/* Does the source begin as a zstd frame does? */
int frame_probe(const struct source *src, bool *out) MUST_CHECK;
/* The bytes that an object of `size` bytes that is one frame may give: no delta is packed better
 * than that, but a bomb is. */
uint64_t frame_most(uint64_t size);
/* Unpacks a source that is one frame as a whole; at most `most` bytes (-EFBIG).  Also an error of
 * sink->write, as it is, with a sentence of its own. */
int frame_unpack(const struct source *src, uint64_t most, const struct sink *sink,
		 uint64_t *out_size, struct why *why) MUST_CHECK;

#endif
