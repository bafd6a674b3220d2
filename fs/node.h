/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes: the immutable files and directories that generations are made of, and their numbers.
 *
 * A node's number is its FUSE nodeid and st_ino.  It is given once and never used again for
 * anything else in the life of the process; a node that is in two generations (a companion file
 * that did not change) has one number.  Content, size, mtime never change. Numbers 1 ... NODE_FIRST
 * - 1 are the front's (root, .weightfs and what is in it).
 *
 * A file of weights may get a second number: while its bytes also lie in a plain file (a whole
 * one), the kernel is given that number instead, since it cannot read one inode in both ways at
 * once. Both are the same node and have the same st_ino.
 */
#ifndef FS_NODE_H
#define FS_NODE_H

#include "fs/state.h"

enum { NODE_FIRST = 1024 };
/* A number is the index of its run among all that this process has shown, and a number within the
 * run.  Index 0 is the source as a whole, which is the run where there is one only. */
#define NODE_RUN_SHIFT 40

static inline uint64_t node_run(uint64_t ino)
{
	return ino >> NODE_RUN_SHIFT;
}

static inline uint64_t node_within(uint64_t ino)
{
	return ino & ((UINT64_C(1) << NODE_RUN_SHIFT) - 1);
}

enum node_kind { NODE_WEIGHTS, NODE_BLOB, NODE_BYTES, NODE_DIR };

struct node_entry {
	char *name;
	struct node *node; /* a reference */
};

struct whole;
struct serving;

struct node {
	uint64_t ino;
	enum node_kind kind;
	int refs; /* atomic */
	struct nodes *nodes;
	uint64_t size;
	int64_t mtime_ns;
	struct state *state; /* WEIGHTS: content.  DIR: the version it belongs to (for counting
				opens), or NULL */
	uint32_t file;	     /* WEIGHTS: index into state->layout->files */
	struct blob *blob;   /* BLOB */
	char *bytes;	     /* BYTES: size bytes, owned */
	struct node_entry *entries; /* DIR: by name, strcmp order */
	size_t entry_count;
	/* WEIGHTS; guarded by the registry's lock */
	struct whole *whole; /* a reference, or NULL */
	uint64_t *others;    /* second numbers that were ever given out */
	unsigned other_count;
};

/* The bytes of a file of weights as a plain file that the kernel reads by itself. */
struct whole {
	int refs;	 /* atomic */
	uint64_t ino;	 /* the second number; 0 until it is attached */
	unsigned opens;	 /* guarded by the registry's lock */
	int fd;		 /* owned; its lock keeps the file from being removed */
	int32_t backing; /* under which the kernel knows fd */
	uint64_t size;
	struct serving *serving;     /* counts it; borrowed, or NULL */
	const struct whole_ops *ops; /* borrowed; outlive it */
	void *ctx;
};

struct whole_ops { /* the front's */
	int (*backing_open)(void *ctx, int fd, int32_t *out);
	void (*backing_close)(void *ctx, int32_t backing);
};

struct nodes;		       /* the registry: number -> node */
struct nodes *nodes_new(void); /* of run 0 */
struct nodes *nodes_new_in(uint64_t run);
void nodes_free(struct nodes *n);
/* A number for the front's own use (directories of the current view, bucket objects). */
uint64_t nodes_number(struct nodes *n);
/* The node of that number with a reference, or NULL (never existed or gone). */
struct node *nodes_get(struct nodes *n, uint64_t ino);

/* Each takes references on what it is given (bytes: takes the malloc'ed buffer); NULL: out of
 * memory. */
struct node *node_weights(struct nodes *n, struct state *state, uint32_t file, int64_t mtime_ns);
struct node *node_blob(struct nodes *n, struct blob *blob, int64_t mtime_ns);
struct node *node_bytes(struct nodes *n, char *bytes, size_t size, int64_t mtime_ns);
struct node *node_dir(struct nodes *n, struct state *state, int64_t mtime_ns);
/* While a tree is being made: puts a file at a path ("1_Pooling/config.json"), making directories;
 * -EEXIST. Takes a reference. */
int node_put(struct node *root, const char *path, struct node *file) MUST_CHECK;
/* Sorts all directories of the tree; call once when it is complete. */
void node_seal(struct node *root);

struct node *node_ref(struct node *n);
void node_unref(struct node *n); /* NULL is fine */
/* Child of a directory (borrowed, lives as long as dir), or NULL. */
struct node *node_child(const struct node *dir, const char *name);
/* Node at a path relative to dir ("" is dir itself), borrowed, or NULL. */
struct node *node_walk(struct node *dir, const char *path);

/* Reads from a file node: exactly len bytes, clipped by the caller to size. */
int node_read(struct node *n, uint64_t off, void *dst, size_t len) MUST_CHECK;
/* The same bytes as they lie in memory, for the kernel only (blob_lend()); any error: read them.
 */
int node_lend(struct node *n, uint64_t off, size_t len, struct blob_loan *out) MUST_CHECK;
/* Registers fd (taken over, also on failure) with the kernel. */
int whole_new(int fd, uint64_t size, const struct whole_ops *ops, void *ctx,
	      struct serving *serving, struct whole **out) MUST_CHECK;
void whole_unref(struct whole *w); /* NULL is fine */
/* Makes it the node's (takes the reference over in any case); -EEXIST: it has one. */
int node_attach(struct node *n, struct whole *w) MUST_CHECK;
/* Takes it away, so that the node is known by its first number again; false: it is open, or there
 * is none. */
bool node_detach(struct node *n);
/* From now on files may become whole ones, so a number is not all that a name can mean. */
void nodes_allow_whole(struct nodes *n);
bool node_may_be_whole(const struct node *n);
/* Has it one? */
bool node_is_whole(const struct node *n);
/* The number by which the kernel should know it now. */
uint64_t node_number(const struct node *n);
/* To be called by an open of `number`: the whole file with a reference when it is to be read from
 * there, or NULL.  whole_closed() gives it back. */
struct whole *node_open_whole(struct node *n, uint64_t number);
void whole_closed(struct nodes *nodes, struct whole *w); /* NULL is fine */

/* Open handles keep a version from being retired. Call in pairs. */
void node_opened(struct node *n);
void node_closed(struct node *n);

#endif
