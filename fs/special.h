/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of .weightfs say, made from snapshots at the moment of asking.  No I/O; any
 * thread. */
#ifndef FS_SPECIAL_H
#define FS_SPECIAL_H

#include "fs/stack.h"

enum {
	INO_ROOT = 1, /* a view directory, with the empty path */
	INO_WEIGHTFS,
	INO_VERSIONS,
	INO_BUCKET, /* a bucket directory, with the empty path */
	INO_VERSION,
	INO_NEWEST,
	INO_STATUS,
	INO_STATUS_JSON,
	INO_METRICS,
	INO_CONTROL,
	INO_CURRENT, /* symbolic link */
	INO_FIXED_END,
};

/* Appends the content of the special file of that number; nothing for others.  version
 * and newest are empty while there is none. */
void special_text(struct stack *s, uint64_t ino, struct buf *out);

#endif
