/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places: paths that have an inode number of their own: directories of the current view, and
 * directories and objects of the raw view.
 *
 * A place is made when it is first asked for and stays until the table goes, which is what keeps
 * its number the same while versions come and go.  An object is a place per identity: rewritten, it
 * is another place with another number, hence other pages.  Any thread.
 */
#ifndef FS_PLACES_H
#define FS_PLACES_H

#include "fs/node.h"

enum inode_kind {
	INODE_FIXED,
	INODE_VIEW_DIR,	   /* MOUNT and its subdirectories: the current generation's */
	INODE_BUCKET_DIR,  /* below bucket/ */
	INODE_BUCKET_FILE, /* one identity of an object */
	INODE_NODE,
};

/* A path with a number of its own; lives as long as the table. */
struct place {
	uint64_t ino;
	enum inode_kind kind;
	char *path;	      /* within the view or the bucket; "" is its root */
	struct object object; /* INODE_BUCKET_FILE; key is `path` */
};

struct places;					/* opaque */
struct places *places_new(struct nodes *nodes); /* numbers come from there; NULL: out of memory */
void places_free(struct places *t);		/* NULL is fine */

/* The place of that kind and path (and identity of `object`), made when it is new, then with that
 * number (0: a fresh one). Lives as long as the table.  NULL: out of memory. */
const struct place *places_get(struct places *t, enum inode_kind kind, const char *path,
			       const struct object *object, uint64_t number);
/* The place of that number, or NULL. */
const struct place *places_number(struct places *t, uint64_t ino);

#endif
