/* SPDX-License-Identifier: Apache-2.0 */
/* A local directory as a store: what its parts (store_dir*.c) share.  Everybody else includes
 * cache/store.h. */
#ifndef CACHE_STORE_DIR_H
#define CACHE_STORE_DIR_H

#include <sys/stat.h>

#include "cache/store.h"

enum {
	DIR_DEPTH_MAX = 32,   /* levels of directories below the root */
	DIR_WATCH_MAX = 1000, /* directories watched */
};

struct dir_store {
	struct store base;
	bool follow;
	char *real;	/* absolute path of the root when it was opened */
	int root_fd;	/* its number never changes; another directory may come behind it */
	int watch_fd;	/* atomic; -1: not made yet */
	unsigned temps; /* atomic; temp files made so far */
};

/* Opens a path below the root: a descriptor or -errno.  -ELOOP when a symbolic link leads out of
 * the root, also with `follow`. */
int store_dir_open_beneath(const struct dir_store *d, const char *path, int flags);
/* The same, but with `follow` links may lead anywhere. */
int store_dir_open_path(const struct dir_store *d, const char *path, int flags);
/* Size, time and identity as fstat has them. */
void store_dir_stat(const struct stat *st, struct object *out);

/* store_dir_list.c */
int store_dir_list(struct store *s, const char *prefix, struct listing *out, struct why *why);
/* store_dir_put.c */
int store_dir_put(struct store *s, const char *key, const struct source *src, struct why *why);
int store_dir_put_if(struct store *s, const char *key, const struct source *src,
		     const struct put_condition *condition, struct why *why);
int store_dir_remove(struct store *s, const char *key, const struct identity *id, struct why *why);
/* store_dir_watch.c */
int store_dir_watch_fd(struct store *s);
void store_dir_watch_drain(struct store *s);
/* Watches what is not watched yet; nothing when nobody has asked for the watch. */
void store_dir_watch_rescan(struct dir_store *d);

#endif
