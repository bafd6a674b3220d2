/* SPDX-License-Identifier: Apache-2.0 */
/* Calls into our own mount, from a thread that does not hold its device. */
#ifndef FS_APART_H
#define FS_APART_H

#include <sys/stat.h>

#include "codec/base.h"

/* Runs fn(ctx) in a thread that has no file descriptors, and waits for it: its result, or -errno
 * where there is no thread to be had.  fn neither logs nor drops what may own a descriptor. */
int apart_run(int (*fn)(void *ctx), void *ctx) MUST_CHECK;
/* stat(2) that way.  -errno. */
int apart_stat(const char *path, struct stat *out) MUST_CHECK;

#endif
