/* SPDX-License-Identifier: Apache-2.0 */
/* Replies to the kernel: the one map from our errors to the ones that programs see, and the buffers
 * that data is read into. */
#ifndef FS_REPLY_H
#define FS_REPLY_H

#include <fuse3/fuse_lowlevel.h>

#include "codec/base.h"

/* The errno (positive) a program sees for one of ours (negative). */
int reply_errno(int err);
/* Answers with an error, err negative. */
void reply_err(fuse_req_t req, int err);
/* Answers a read whose bytes could not be had: EIO, whatever was missing below. */
void reply_read_err(fuse_req_t req, int err);
/* Answers that the number means nothing any more: the kernel looks the name up once more. */
void reply_stale(fuse_req_t req);

/* Sets up the buffers; once, before there are threads.  -errno. */
int reply_init(void) MUST_CHECK;
/* This thread's buffer of at least that many bytes, page-aligned, valid until its next call; NULL:
 * out of memory. */
void *reply_buffer(size_t len);

#endif
