/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of .weightfs say, made from snapshots at the moment of asking.  No I/O; any
 * thread. */
#ifndef FS_SPECIAL_H
#define FS_SPECIAL_H

#include "fs/stack.h"

/* Appends the content of the special file of that number (inode.h); nothing for others.  version
 * and newest are empty while there is none. */
void special_text(struct stack *s, uint64_t ino, struct buf *out);

#endif
