/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preparing: what happens to the newest version besides being shown: it is warmed (--warm), before
 * it becomes current, and written out whole (--materialize).  One thread of its own.
 */
#ifndef FS_PREPARE_H
#define FS_PREPARE_H

#include "fs/stack.h"

struct prepare; /* opaque */

struct prepare_config {
	struct stack *stack;	     /* borrowed; with a history */
	const char *mountpoint;	     /* resolved; borrowed */
	const struct whole_ops *ops; /* NULL: no passthrough, hence no whole files */
	void *ops_ctx;
	int (*push)(void *ctx, uint64_t ino, uint64_t off, const void *data, size_t len);
	void *push_ctx;
	/* Tries whether whole files in that directory can be of use. */
	int (*try)(void *ctx, const char *dir, struct why *why);
	void *try_ctx;
};

/* Before the first version is published: with --warm current waits from now on.  No thread. */
void prepare_gate(struct stack *s);
/* Once the mount can be used.  -ENOTSUP with a sentence: --materialize always cannot be had. */
int prepare_start(const struct prepare_config *config, struct prepare **out,
		  struct why *why) MUST_CHECK;
/* Says that it shall end; does not wait. */
void prepare_cancel(struct prepare *p);
/* Joins it, once the connection has been closed.  NULL is fine, in both. */
void prepare_end(struct prepare *p);

#endif
