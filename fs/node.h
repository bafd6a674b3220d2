/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes: the immutable files and directories that generations are made of, and their numbers.
 *
 * A node's number is its FUSE nodeid and st_ino.  It is given once and never used again for
 * anything else in the life of the process; a node that is in two generations (a companion file
 * that did not change) has one number.  Content, size, mtime never change. Numbers 1 ... NODE_FIRST
 * - 1 are the front's (root, .weightfs and what is in it).
 */
#ifndef FS_NODE_H
#define FS_NODE_H

#include "fs/state.h"

enum { NODE_FIRST = 1024 };
enum node_kind { NODE_WEIGHTS, NODE_BLOB, NODE_BYTES, NODE_DIR };

struct node_entry {
	char *name;
	struct node *node; /* a reference */
};

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
};

struct nodes; /* the registry: number -> node */
struct nodes *nodes_new(void);
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
/* Open handles keep a version from being retired. Call in pairs. */
void node_opened(struct node *n);
void node_closed(struct node *n);

#endif
