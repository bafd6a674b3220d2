/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing an object into a directory store.
 *
 * The bytes go to a dotfile beside the object, which no listing shows, and take the object's name
 * by rename once they are on disk; the directory is synced after that.  So a reader sees the old
 * object, nothing, or all of the new one, also after a crash.  A kill leaves at most the dotfile,
 * and who puts something into the same directory a day later removes that.
 *
 * Several threads and processes may put at once: temp names carry the process and a count, and are
 * made with O_EXCL.
 *
 * Under a condition: "absent" is a rename that does not replace (or a hard link, where the file
 * system does not know that).  "Replace this one" compares and renames under a lock on the dotfile
 * ".NAME.lock", which stays there; so of several that have seen the same object one wins, on one
 * machine or on several that share the file system.  A put without a condition asks no lock.
 */
#include "cache/store_dir.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "cache/fileio.h"
#include "codec/io.h"

enum {
	DAY_S = 86400,
	WINDOW = 1 << 20,
	NAME_SHOWN = 200 /* of the object's name in the temp name */
};

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

/* Takes the name unless somebody has it: -EEXIST. */
static int take_name(int dirfd, const char *temp, const char *name)
{
	if (renameat2(dirfd, temp, dirfd, name, RENAME_NOREPLACE) == 0)
		return 0;
	if (errno != EINVAL && errno != ENOSYS)
		return -errno;
	if (linkat(dirfd, temp, dirfd, name, 0) < 0)
		return -errno;
	unlinkat(dirfd, temp, 0);
	return 0;
}

/* -ESTALE unless the file of that name is the one meant. */
static int check_identity(int dirfd, const char *name, const struct identity *id)
{
	struct object now = {0};
	struct stat st;

	if (fstatat(dirfd, name, &st, 0) < 0)
		return errno == ENOENT ? -ESTALE : -errno;
	store_dir_stat(&st, &now);
	return identity_equal(&now.id, id) ? 0 : -ESTALE;
}

static int replace_name(int dirfd, const char *temp, const char *name, const struct identity *id)
{
	char lock[NAME_MAX + 1];
	int fd, rc;

	snprintf(lock, sizeof(lock), ".%.*s.lock", NAME_SHOWN, name);
	fd = openat(dirfd, lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
	if (fd < 0)
		return -errno;
	do
		rc = flock(fd, LOCK_EX) == 0 ? 0 : -errno;
	while (rc == -EINTR);
	if (rc == 0)
		rc = check_identity(dirfd, name, id);
	if (rc == 0 && renameat(dirfd, temp, dirfd, name) < 0)
		rc = -errno;
	close(fd);
	return rc;
}

/* Is it a name of open_temp()'s? */
static bool is_temp(const char *name)
{
	const char *digits = "0123456789", *at = NULL;

	for (const char *p = name; name[0] == '.' && (p = strstr(p, ".tmp.")) != NULL;)
		at = p += 5;
	if (at == NULL || strspn(at, digits) == 0)
		return false;
	at += strspn(at, digits);
	return *at == '.' && at[1] != '\0' && strspn(at + 1, digits) == strlen(at + 1);
}

/* What killed writers left a day before `now`, by the file system's clock; best effort. */
static void sweep_temps(int dirfd, time_t now)
{
	DIR *dir = file_opendir(dirfd, ".");
	struct dirent *e;
	struct stat st;

	while (dir != NULL && (e = readdir(dir)) != NULL)
		if (is_temp(e->d_name) &&
		    fstatat(dirfd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		    S_ISREG(st.st_mode) && st.st_mtim.tv_sec < now - DAY_S)
			unlinkat(dirfd, e->d_name, 0);
	if (dir != NULL)
		closedir(dir);
}

/* condition: NULL for none */
static int put_into(struct dir_store *d, int dirfd, const char *name, const struct source *src,
		    const struct put_condition *condition)
{
	char temp[NAME_MAX + 1];
	int fd = open_temp(d, dirfd, name, temp), rc;
	struct stat st;

	if (fd < 0)
		return fd;
	rc = copy_source(fd, src);
	if (rc == 0 && fstat(fd, &st) == 0)
		sweep_temps(dirfd, st.st_mtim.tv_sec);
	if (close(fd) < 0 && rc == 0)
		rc = -errno;
	if (rc == 0 && condition != NULL && condition->absent)
		rc = take_name(dirfd, temp, name);
	else if (rc == 0 && condition != NULL && condition->replace != NULL)
		rc = replace_name(dirfd, temp, name, condition->replace);
	else if (rc == 0 && renameat(dirfd, temp, dirfd, name) < 0)
		rc = -errno;
	if (rc == 0)
		return sync_dir(dirfd);
	unlinkat(dirfd, temp, 0);
	return rc;
}

static int put_failed(const char *key, int err, struct why *why)
{
	char shown[256];

	printable(shown, sizeof(shown), key, strlen(key));
	switch (err) {
	case EEXIST: return why_set(why, err, "'%s' is there already", shown);
	case ESTALE: return why_set(why, err, "'%s' has been replaced meanwhile", shown);
	default:
		return why_set(why, err, "'%s' cannot be written: %s", shown, strerrordesc_np(err));
	}
}

int store_dir_put_if(struct store *s, const char *key, const struct source *src,
		     const struct put_condition *condition, struct why *why)
{
	struct dir_store *d = (struct dir_store *)s;
	const char *slash = strrchr(key, '/');
	int dirfd = open_parents(d, key, slash != NULL ? slash : key), rc;

	if (dirfd < 0) {
		rc = dirfd;
	} else {
		rc = put_into(d, dirfd, slash != NULL ? slash + 1 : key, src, condition);
		close(dirfd);
	}
	return rc == 0 ? 0 : put_failed(key, -rc, why);
}

int store_dir_put(struct store *s, const char *key, const struct source *src, struct why *why)
{
	return store_dir_put_if(s, key, src, NULL, why);
}

/* The directories that an object was alone in go with it, but not those at the top. */
static void remove_parents(struct dir_store *d, const char *key)
{
	char path[PATH_MAX];
	char *slash;

	if (strlen(key) >= sizeof(path))
		return;
	memcpy(path, key, strlen(key) + 1);
	while ((slash = strrchr(path, '/')) != NULL) {
		*slash = '\0';
		if (strchr(path, '/') == NULL || unlinkat(d->root_fd, path, AT_REMOVEDIR) < 0)
			return;
	}
}

static int remove_failed(const char *key, int err, struct why *why)
{
	switch (err) {
	case ENOENT: return why_set(why, err, "'%s' is not there", SHOWN(key));
	case ESTALE: return why_set(why, err, "'%s' has been replaced meanwhile", SHOWN(key));
	default:
		return why_set(why, err, "'%s' cannot be deleted: %s", SHOWN(key),
			       strerrordesc_np(err));
	}
}

/* What writers of this object left when they were killed.  True: there was something. */
static bool remove_temps(int dirfd, const char *name)
{
	char prefix[NAME_MAX + 1];
	int len = snprintf(prefix, sizeof(prefix), ".%.*s.tmp.", NAME_SHOWN, name);
	DIR *dir = file_opendir(dirfd, ".");
	struct dirent *e;
	bool any = false;

	while (dir != NULL && (e = readdir(dir)) != NULL)
		if (strncmp(e->d_name, prefix, (size_t)len) == 0)
			any |= unlinkat(dirfd, e->d_name, 0) == 0;
	if (dir != NULL)
		closedir(dir);
	return any;
}

int store_dir_remove(struct store *s, const char *key, const struct identity *id, struct why *why)
{
	struct dir_store *d = (struct dir_store *)s;
	const char *slash = strrchr(key, '/'), *name = slash != NULL ? slash + 1 : key;
	char parent[PATH_MAX] = ".";
	struct stat st;
	int dirfd, rc = 0;

	if (slash != NULL && (size_t)(slash - key) < sizeof(parent)) {
		memcpy(parent, key, (size_t)(slash - key));
		parent[slash - key] = '\0';
	}
	dirfd = slash != NULL ? store_dir_open_path(d, parent, O_RDONLY | O_DIRECTORY)
			      : openat(d->root_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dirfd < 0)
		return remove_failed(key, slash != NULL ? -dirfd : errno, why);
	if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		rc = -errno;
	else if (id != NULL)
		rc = check_identity(dirfd, name, id);
	if (rc == 0 && unlinkat(dirfd, name, 0) < 0)
		rc = -errno;
	if (id == NULL && remove_temps(dirfd, name) && rc == -ENOENT)
		rc = 0;
	if (rc == 0)
		rc = sync_dir(dirfd);
	close(dirfd);
	if (rc < 0)
		return remove_failed(key, -rc, why);
	remove_parents(d, key);
	return 0;
}
