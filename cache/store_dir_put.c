/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing an object into a directory store.
 *
 * The bytes go to a dotfile beside the object, which no listing shows, and take the object's name
 * by rename once they are on disk; the directory is synced after that.  So a reader sees the old
 * object, nothing, or all of the new one, also after a crash.  A kill leaves at most the dotfile.
 *
 * Several threads and processes may put at once: temp names carry the process and a count, and are
 * made with O_EXCL.
 */
#include "cache/store_dir.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cache/fileio.h"
#include "codec/io.h"

enum { WINDOW = 1 << 20, NAME_SHOWN = 200 /* of the object's name in the temp name */ };

static int sync_dir(int fd)
{
	/* Some file systems cannot sync a directory and say EINVAL. */
	return fsync(fd) == 0 || errno == EINVAL ? 0 : -errno;
}

/* Opens a directory below the root, making it and its parents when they are missing. */
static int open_parents(struct dir_store *d, const char *key, const char *end)
{
	const int flags = O_RDONLY | O_DIRECTORY;
	int fd = openat(d->root_fd, ".", flags | O_CLOEXEC);
	char path[PATH_MAX];

	if (fd < 0)
		return -errno;
	for (const char *p = key, *slash; p < end; p = slash + 1) {
		int next, rc = 0;

		slash = memchr(p, '/', (size_t)(end - p) + 1);
		memcpy(path, key, (size_t)(slash - key));
		path[slash - key] = '\0';
		next = store_dir_open_path(d, path, flags);
		if (next == -ENOENT) {
			if (mkdirat(fd, path + (p - key), 0777) < 0 && errno != EEXIST)
				rc = -errno;
			if (rc == 0)
				rc = sync_dir(fd);
			next = rc < 0 ? rc : store_dir_open_path(d, path, flags);
		}
		close(fd);
		if (next < 0)
			return next;
		fd = next;
	}
	return fd;
}

static int open_temp(struct dir_store *d, int dirfd, const char *name, char temp[NAME_MAX + 1])
{
	for (int tries = 0; tries < 1000; tries++) {
		unsigned n = __atomic_add_fetch(&d->temps, 1, __ATOMIC_RELAXED);
		int fd;

		snprintf(temp, NAME_MAX + 1, ".%.*s.tmp.%ld.%u", NAME_SHOWN, name, (long)getpid(),
			 n);
		fd = openat(dirfd, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		if (fd >= 0)
			return fd;
		if (errno != EEXIST)
			return -errno;
	}
	return -EEXIST;
}

static int copy_source(int fd, const struct source *src)
{
	char *window = malloc(WINDOW);
	int rc = window != NULL ? 0 : -ENOMEM;

	for (uint64_t off = 0; rc == 0 && off < src->size; off += WINDOW) {
		size_t len = (size_t)MIN((uint64_t)WINDOW, src->size - off);

		rc = source_read(src, off, window, len);
		if (rc == 0)
			rc = file_pwrite(fd, window, len, off);
	}
	if (rc == 0 && fsync(fd) < 0)
		rc = -errno;
	free(window);
	return rc;
}

static int put_into(struct dir_store *d, int dirfd, const char *name, const struct source *src)
{
	char temp[NAME_MAX + 1];
	int fd = open_temp(d, dirfd, name, temp), rc;

	if (fd < 0)
		return fd;
	rc = copy_source(fd, src);
	if (close(fd) < 0 && rc == 0)
		rc = -errno;
	if (rc == 0 && renameat(dirfd, temp, dirfd, name) < 0)
		rc = -errno;
	if (rc == 0)
		return sync_dir(dirfd);
	unlinkat(dirfd, temp, 0);
	return rc;
}

int store_dir_put(struct store *s, const char *key, const struct source *src, struct why *why)
{
	struct dir_store *d = (struct dir_store *)s;
	const char *slash = strrchr(key, '/');
	char shown[256];
	int dirfd = open_parents(d, key, slash != NULL ? slash : key), rc;

	if (dirfd < 0) {
		rc = dirfd;
	} else {
		rc = put_into(d, dirfd, slash != NULL ? slash + 1 : key, src);
		close(dirfd);
	}
	if (rc == 0)
		return 0;
	return why_set(why, -rc, "'%s' cannot be written: %s",
		       printable(shown, sizeof(shown), key, strlen(key)), strerrordesc_np(-rc));
}
