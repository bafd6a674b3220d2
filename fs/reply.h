/* SPDX-License-Identifier: Apache-2.0 */
/* Replies to the kernel: the one map from our errors to the ones that programs see, and the buffers
 * that data is read into. */
#ifndef FS_REPLY_H
#define FS_REPLY_H

#include <fuse_lowlevel.h>

#include "codec/base.h"

/* The errno (positive) a program sees for one of ours (negative). */
int reply_errno(int err);
/* Answers with an error, err negative. */
void reply_err(fuse_req_t req, int err);
/* Answers a read whose bytes could not be had: EIO, whatever was missing below. */
void reply_read_err(fuse_req_t req, int err);
/* Answers that the number means nothing any more: the kernel looks the name up once more. */
void reply_stale(fuse_req_t req);

/* Sets up the buffers; once, before there are threads. */
void reply_init(void);
/* A buffer of at least that many bytes, page-aligned, until it is given back after the reply; NULL:
 * out of memory. */
struct reply_buffer {
	void *data;
	size_t cap;
	struct reply_buffer *next; /* private */
};
struct reply_buffer *reply_buffer_take(size_t len);
void reply_buffer_give(struct reply_buffer *b); /* NULL is fine */

#endif
