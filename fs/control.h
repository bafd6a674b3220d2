/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control: the commands of .weightfs/control, one per write.
 *
 *	refresh | pin N | unpin [N] | hold SECONDS | release | prefetch
 */
#ifndef FS_CONTROL_H
#define FS_CONTROL_H

#include "fs/roster.h"

enum { CONTROL_MAX = 4096 }; /* bytes of a command */

/* r not NULL: at the top of several runs, s being the source's.  Runs one command (with or without
 * newline).  Appends one line for people: "ok: ..." or "error:
 * ...". -EINVAL: no such command, or a bad number; -ENOENT: no such version; others as the command
 * failed.  refresh and pin block. */
int control_run(struct stack *s, struct roster *r, const char *command, size_t len,
		struct buf *reply) MUST_CHECK;

#endif
