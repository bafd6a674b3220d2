/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A growable byte buffer.  All functions are no-ops after an allocation has failed, so a caller may
 * append many times and look at `failed` once.  Zero-initialise (`struct buf b = {0}`) before use.
 */
#ifndef CODEC_BUF_H
#define CODEC_BUF_H

#include "codec/base.h"

struct buf {
	char *data; /* owned; NULL while empty; buf_str() for a NUL-terminated view */
	size_t len, cap;
	bool failed; /* an allocation failed: data is incomplete */
};

void buf_add(struct buf *b, const void *bytes, size_t len);
void buf_addstr(struct buf *b, const char *s);
void buf_addf(struct buf *b, const char *fmt, ...) PRINTF(2, 3);
void buf_fill(struct buf *b, int byte, size_t count);
/* Appends s as a JSON string with its quotes; s is len bytes of valid UTF-8. */
void buf_addjson(struct buf *b, const char *s, size_t len);
/* NUL-terminated contents ("" when empty or failed); valid until the next change. */
const char *buf_str(struct buf *b);
/* Hands the (malloc'ed) bytes to the caller and leaves the buffer empty. */
char *buf_detach(struct buf *b, size_t *out_len);
void buf_release(struct buf *b);

#endif
