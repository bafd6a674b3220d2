/* SPDX-License-Identifier: Apache-2.0 */
/* Small file helpers: full reads and writes, directories, paths.  All return 0 or -errno, block,
 * and retry EINTR. */
#ifndef CACHE_FILEIO_H
#define CACHE_FILEIO_H

#include <dirent.h>

#include "codec/base.h"
#include "codec/io.h"

struct patch_file_writer;

/* Reads exactly len bytes at off; -ENODATA when the file ends before. */
int file_pread(int fd, void *dst, size_t len, uint64_t off);
int file_pwrite(int fd, const void *src, size_t len, uint64_t off);
/* Creates a directory and its parents (mode 0700 & ~umask for new ones); existing ones are fine. */
int file_mkdirs(const char *path);
/* Opens the directory that dirfd is ("." of it, with a place of its own) or has under that name (no
 * symbolic link); the caller closes it.  NULL: errno. */
DIR *file_opendir(int dirfd, const char *name);
/* Reads a whole file of at most max bytes; *out is malloc'ed and NUL-terminated (not counted).
 * -EFBIG. */
int file_slurp(int dirfd, const char *path, size_t max, char **out, size_t *out_len);
/* Writes a file as temp + fsync + rename + fsync of the directory. */
int file_replace(const char *path, const void *bytes, size_t len);
/* The same without waiting for the disk: after a power cut the file may be the old one, or damaged.
 * For what its reader checks and can do without. */
int file_replace_soon(const char *path, const void *bytes, size_t len);
/* fsync(), in steps, because one that is under way cannot be called off: -ECANCELED as soon as
 * stopped() (NULL: never) says so between two. */
int file_sync(int fd, uint64_t size, bool (*stopped)(void *ctx), void *ctx);
/* malloc'ed "a/b"; a may end in '/'; NULL: out of memory. */
char *path_join(const char *a, const char *b);
/* True for a relative path without empty, "." or ".." components, NUL-free, components ≤ 255 bytes,
 * ≤ 4095 bytes in all. */
bool path_is_safe(const char *path);
/* Source over a file descriptor, which stays the caller's.  size as fstat has it. */
int source_fd(int fd, struct source *out);
/* The descriptor of the file that a source is; -1: it is none. */
int source_fd_of(const struct source *src);
/* Sink over a file descriptor (ctx is the pointer, which must stay valid). */
struct sink sink_fd(const int *fd);
/* patch_file_writer_end() of a writer whose sink is that of this descriptor: what it reads back is
 * the file itself. */
int patch_file_end(struct patch_file_writer *w, int fd, uint64_t *out_size,
		   struct why *why) MUST_CHECK;

#endif
