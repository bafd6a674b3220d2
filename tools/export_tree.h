/* SPDX-License-Identifier: Apache-2.0 */
/* One version of a source as the files of a checkpoint. */
#ifndef TOOLS_EXPORT_TREE_H
#define TOOLS_EXPORT_TREE_H

#include "fs/stack.h"

struct export_options {
	bool force;		   /* replace a checkpoint that is there */
	bool quiet;		   /* no progress and no summary */
	const volatile bool *stop; /* set, from any context: -EINTR soon, and nothing is left */
};

/* Writes a version (NULL: the newest whole one) to `dir`, which appears when it is complete and is
 * compared with the state that was recorded for it.  The stack is of source_only kind and no thread
 * of its own is started.  Blocks.  -ENOENT: no such version. */
int export_version(struct stack *s, const uint64_t *version, const char *dir,
		   const struct export_options *options, uint64_t *out_version,
		   struct why *why) MUST_CHECK;

#endif
