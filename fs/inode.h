/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inodes of the mount: what each number stands for, what its children are, and its attributes.
 *
 * Three families, in each run.  Fixed ones (numbers below NODE_FIRST): root, .weightfs and what is
 * in it.
 * Places: directories of the current view and everything under bucket/; a place has its number for
 * ever and is looked up afresh in the current generation or the last listing.  Nodes: the immutable
 * files and trees of generations, in the registry. All answers come from memory.  Any thread.
 */
#ifndef FS_INODE_H
#define FS_INODE_H

#include <sys/stat.h>

#include "fs/places.h"
#include "fs/special.h"
#include "fs/stack.h"

struct inode {
	uint64_t ino; /* the kernel's number; st_ino but for a node that has two */
	enum inode_kind kind;
	const struct place *place;
	struct node *node; /* a reference */
	int viewer;	   /* process for whom a view directory is looked at; 0: anybody */
	struct inodes *of; /* a reference: the run it belongs to */
};

struct inodes; /* opaque: the inodes of one run, counted */
/* NULL: out of memory. */
struct inodes *inodes_new(struct stack *stack, uint64_t run);
struct inodes *inodes_ref(struct inodes *t);
void inodes_unref(struct inodes *t); /* NULL is fine; frees nothing */
/* Has nobody a reference but whoever made it?  Nobody gets one then who does not ask its maker. */
bool inodes_idle(const struct inodes *t);
void inodes_free(struct inodes *t); /* idle; NULL is fine */
struct stack *inodes_stack(const struct inodes *t);

/* The runs below the inodes of a source that may hold several; the answers are the roster's. */
struct inodes_runs {
	void *ctx;
	/* Are there several?  Once there are, there always will be. */
	bool (*several)(void *ctx);
	/* The source's listing, with a reference, or NULL; and its store. */
	struct listing_ref *(*listing)(void *ctx);
	struct store *(*store)(void *ctx);
	/* 1: a run of that path is shown, *out is a reference; -ENOENT: there is one that is not
	 * to be seen yet; 0: it is none, or still a directory like any. */
	int (*look)(void *ctx, const char *path, struct inodes **out);
	/* A run by its number, with a reference; NULL: it is gone. */
	struct inodes *(*run)(void *ctx, uint64_t run);
	/* Content of a special file at the top. */
	void (*text)(void *ctx, uint64_t ino, struct buf *out);
};

/* Borrowed; NULL: there are none any more. */
void inodes_set_runs(struct inodes *t, const struct inodes_runs *runs);
/* The run is not shown any more; what is open of it goes on. */
void inodes_set_gone(struct inodes *t);
bool inodes_are_gone(const struct inodes *t);
/* Are there several? */
bool inodes_are_several(const struct inodes *t);
/* The last listing that the raw view shows, with a reference, or NULL; and whose objects they are.
 */
struct listing_ref *inodes_listing(struct inodes *t);
struct store *inodes_store(struct inodes *t);

/* What a number stands for; -ESTALE when it is gone. `top` is the mount's. */
int inode_get(struct inodes *top, uint64_t ino, struct inode *out) MUST_CHECK;
/* Gives back what inode_get() and inode_child() took. */
void inode_put(struct inode *inode);
/* A child by name: -ENOENT, -ENOTDIR, -ENOMEM. */
int inode_child(const struct inode *dir, const char *name, struct inode *out) MUST_CHECK;
/* Calls fn for each name of a directory, without "." and ".."; stops when it returns an error,
 * which is returned. */
typedef int (*inode_each_fn)(void *ctx, const char *name, uint64_t ino, mode_t type);
int inode_each(const struct inode *dir, inode_each_fn fn, void *ctx) MUST_CHECK;
/* Attributes; -ENOENT when a directory of the view is not in the current generation. */
int inode_attr(const struct inode *inode, struct stat *out) MUST_CHECK;
/* Attributes and content that never change? */
bool inode_immutable(const struct inode *inode);
/* Is the name of this child of the directory bound to the same number for as long as the directory
 * is reachable? */
bool inode_name_fixed(const struct inode *dir, const struct inode *child);

/* Generation (reference) and node (borrowed from it) that a view directory shows now to its viewer;
 * -ENOENT. */
int inode_view(const struct inode *dir, struct generation **out_g,
	       struct node **out_node) MUST_CHECK;
/* What a symbolic link leads to: "versions/N", or empty when no version is current. */
void inode_target(const struct inode *link, struct buf *out);
/* Appends the content of a special file. */
void inode_text(const struct inodes *t, uint64_t ino, struct buf *out);

#endif
