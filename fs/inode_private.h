/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of inode share. */
#ifndef FS_INODE_PRIVATE_H
#define FS_INODE_PRIVATE_H

#include "fs/inode.h"

struct inodes {
	struct stack *stack; /* borrowed */
	uint64_t run;
	struct places *places;
	uid_t uid;
	gid_t gid;
	int refs; /* atomic */
};

/* These leave out->of to the caller. */
int inode_of_place(const struct place *p, struct inode *out); /* NULL: -ENOMEM */
/* The place of a name in a directory. */
int place_below(struct inodes *t, const struct place *dir, const char *name, enum inode_kind kind,
		const struct object *object, struct inode *out) MUST_CHECK;

/* inode_raw.c: the objects as they are. */
int raw_child(struct inodes *t, const struct place *dir, const char *name,
	      struct inode *out) MUST_CHECK;
int raw_each(struct inodes *t, const struct place *dir, inode_each_fn fn, void *ctx) MUST_CHECK;

#endif
