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
	bool gone;			/* atomic */
	int refs;			/* atomic */
	const struct inodes_runs *runs; /* atomic; borrowed */
};

/* These leave out->of to the caller. */
int inode_of_place(const struct place *p, struct inode *out); /* NULL: -ENOMEM */
/* The place of a name in a directory. */
int place_below(struct inodes *t, const struct place *dir, const char *name, enum inode_kind kind,
		const struct object *object, struct inode *out) MUST_CHECK;

/* The inode of a number of this run. */
int inode_of_number(struct inodes *t, uint64_t ino, struct inode *out) MUST_CHECK;
char *path_below(const struct place *dir, const char *name); /* "a/b"; NULL: out of memory */
bool listing_has_dir(const struct listing *l, const char *path);

/* Those below, when there are several; or NULL. */
const struct inodes_runs *inodes_runs(const struct inodes *t);

/* inode_many.c: directories above the runs.  The child may be another run's: then out->of is set.
 */
int many_child(struct inodes *t, const struct place *dir, const char *name,
	       struct inode *out) MUST_CHECK;
int many_each(struct inodes *t, const struct place *dir, inode_each_fn fn, void *ctx) MUST_CHECK;
int many_attr(struct inodes *t, const struct place *dir) MUST_CHECK; /* -ENOENT: not listed */

/* inode_raw.c: the objects as they are. */
int raw_child(struct inodes *t, const struct place *dir, const char *name,
	      struct inode *out) MUST_CHECK;
int raw_each(struct inodes *t, const struct place *dir, inode_each_fn fn, void *ctx) MUST_CHECK;

#endif
