/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the codec sees bytes that are not in memory.  The codec does no I/O of its own: the caller
 * hands in functions that read or write at an offset.
 */
#ifndef CODEC_IO_H
#define CODEC_IO_H

#include <stddef.h>
#include <stdint.h>

/* Bytes that can be read at any offset.  read() fills dst completely and returns 0, or returns
 * -errno (never a short read); it may block; off + len never exceeds size. */
struct source {
	int (*read)(void *ctx, uint64_t off, void *dst, size_t len);
	void *ctx;
	uint64_t size;
	const int *file; /* the descriptor of the file that this is all of, for whoever can give a
			  * file to somebody else; NULL: it is none, or nobody says */
};

/* A place that can be written at any offset; offsets are not always ascending.  Returns 0 or
 * -errno. */
struct sink {
	int (*write)(void *ctx, uint64_t off, const void *src, size_t len);
	void *ctx;
};

/* A source over bytes in memory, which are borrowed for as long as the source is used. */
struct source source_memory(const void *bytes, size_t len);

/* A sink into memory that grows; zero-initialise, free(bytes).  -ENOMEM. */
struct grown {
	uint8_t *bytes; /* owned */
	size_t len, cap;
};
struct sink sink_grown(struct grown *g);

/* Checked read: -EBADMSG when [off, off + len) is not inside the source. */
int source_read(const struct source *src, uint64_t off, void *dst, size_t len);

#endif
