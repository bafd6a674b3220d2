/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small file helpers.
 *
 * What the system calls leave to the caller (short reads and writes, EINTR, missing parents, files
 * that appear half written) is settled here once.  Nothing here logs or keeps state; every function
 * may be called from any thread, and all of them block.
 */
#include "cache/fileio.h"

#include "codec/patch_file.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SYNC_STEP = 32 << 20 };

static bool range_is_offset(uint64_t off, size_t len)
{
	uint64_t end;

	return !add_overflows(off, len, &end) && end <= INT64_MAX;
}

int file_pread(int fd, void *dst, size_t len, uint64_t off)
{
	char *p = dst;

	if (!range_is_offset(off, len))
		return -EOVERFLOW;
	while (len > 0) {
		ssize_t n = pread(fd, p, len, (off_t)off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return -ENODATA;
		p += n;
		off += (uint64_t)n;
		len -= (size_t)n;
	}
	return 0;
}

int file_pwrite(int fd, const void *src, size_t len, uint64_t off)
{
	const char *p = src;

	if (!range_is_offset(off, len))
		return -EFBIG;
	while (len > 0) {
		ssize_t n = pwrite(fd, p, len, (off_t)off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return -EIO;
		p += n;
		off += (uint64_t)n;
		len -= (size_t)n;
	}
	return 0;
}

static int make_dir(const char *path)
{
	struct stat st;
	int err;

	if (mkdir(path, 0700) == 0)
		return 0;
	err = errno;
	/* An existing directory is fine, whatever mkdir() says of it (EROFS, EACCES, EEXIST). */
	if (stat(path, &st) == 0)
		return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
	return -err;
}

int file_mkdirs(const char *path)
{
	char copy[PATH_MAX];
	size_t len = strlen(path);
	int rc;

	if (len == 0)
		return -ENOENT;
	if (len >= sizeof(copy))
		return -ENAMETOOLONG;
	memcpy(copy, path, len + 1);
	for (size_t i = 1; i < len; i++) {
		if (copy[i] != '/')
			continue;
		copy[i] = '\0';
		rc = make_dir(copy);
		copy[i] = '/';
		if (rc < 0)
			return rc;
	}
	return make_dir(copy);
}

DIR *file_opendir(int dirfd, const char *name)
{
	int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
	int err = errno;

	if (dir == NULL && fd >= 0)
		close(fd);
	errno = err;
	return dir;
}

/* Reads to the end into *data (grown as needed); what fstat says is only a first guess. */
static int slurp_fd(int fd, size_t first, size_t max, char **data, size_t *out_len)
{
	size_t cap = MIN(first, max) + 2, len = 0; /* one more to see the end, one for the NUL */

	for (;;) {
		char *grown = realloc(*data, cap);
		ssize_t n;

		if (grown == NULL)
			return -ENOMEM;
		*data = grown;
		n = read(fd, grown + len, cap - 1 - len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		len += (size_t)n;
		if (len > max)
			return -EFBIG;
		if (len == cap - 1)
			cap = cap < max / 2 ? cap * 2 : max + 2;
	}
	(*data)[len] = '\0';
	*out_len = len;
	return 0;
}

int file_slurp(int dirfd, const char *path, size_t max, char **out, size_t *out_len)
{
	int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	char *data = NULL;
	struct stat st;
	int rc;

	if (fd < 0)
		return -errno;
	if (max > SIZE_MAX - 2)
		max = SIZE_MAX - 2;
	if (fstat(fd, &st) < 0) {
		rc = -errno;
		goto out;
	}
	if (S_ISREG(st.st_mode) && (uint64_t)st.st_size > max) {
		rc = -EFBIG;
		goto out;
	}
	rc = slurp_fd(fd, (size_t)st.st_size, max, &data, out_len);
	if (rc == 0) {
		*out = data;
		data = NULL;
	}
out:
	free(data);
	close(fd);
	return rc;
}

/* Makes a rename or a new name in the directory of path durable. */
static int sync_parent(const char *path)
{
	const char *slash = strrchr(path, '/');
	char *dir = slash == NULL   ? strdup(".")
		    : slash == path ? strdup("/")
				    : strndup(path, (size_t)(slash - path));
	int fd, rc = 0;

	if (dir == NULL)
		return -ENOMEM;
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	free(dir);
	if (fd < 0)
		return -errno;
	if (fsync(fd) < 0 && errno != EINVAL) /* some file systems cannot sync directories */
		rc = -errno;
	close(fd);
	return rc;
}

int file_sync(int fd, uint64_t size, bool (*stopped)(void *ctx), void *ctx)
{
	const unsigned all =
		SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;

	for (uint64_t at = 0; at < size; at += SYNC_STEP) {
		if (stopped != NULL && stopped(ctx))
			return -ECANCELED;
		/* An error that it tells is not told again.  Not every file system can do it. */
		if (sync_file_range(fd, (off_t)at, SYNC_STEP, all) < 0 && errno != EINVAL &&
		    errno != ESPIPE && errno != ENOSYS && errno != EOPNOTSUPP)
			return -errno;
	}
	return fsync(fd) < 0 ? -errno : 0;
}

/* A new file beside path, under a name that nothing else uses. */
static int open_temp(const char *path, char *temp, size_t cap)
{
	for (unsigned n = 0; n < 1000; n++) {
		int len = snprintf(temp, cap, "%s.tmp.%ld.%u", path, (long)getpid(), n), fd;

		if (len < 0 || (size_t)len >= cap)
			return -ENAMETOOLONG;
		fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		if (fd >= 0)
			return fd;
		if (errno != EEXIST)
			return -errno;
	}
	return -EEXIST;
}

static int replace(const char *path, const void *bytes, size_t len, bool sync)
{
	char temp[PATH_MAX];
	int fd = open_temp(path, temp, sizeof(temp)), rc;

	if (fd < 0)
		return fd;
	rc = file_pwrite(fd, bytes, len, 0);
	if (rc == 0 && sync && fsync(fd) < 0)
		rc = -errno;
	if (close(fd) < 0 && rc == 0)
		rc = -errno;
	if (rc == 0 && rename(temp, path) < 0)
		rc = -errno;
	if (rc < 0) {
		unlink(temp);
		return rc;
	}
	return sync ? sync_parent(path) : 0;
}

int file_replace(const char *path, const void *bytes, size_t len)
{
	return replace(path, bytes, len, true);
}

int file_replace_soon(const char *path, const void *bytes, size_t len)
{
	return replace(path, bytes, len, false);
}

char *path_join(const char *a, const char *b)
{
	size_t alen = strlen(a), blen = strlen(b);
	bool slash = alen > 0 && a[alen - 1] != '/';
	char *out = malloc(alen + slash + blen + 1);

	if (out == NULL)
		return NULL;
	memcpy(out, a, alen);
	if (slash)
		out[alen++] = '/';
	memcpy(out + alen, b, blen + 1);
	return out;
}

bool path_is_safe(const char *path)
{
	if (strnlen(path, PATH_MAX) >= PATH_MAX)
		return false;
	for (const char *p = path;;) {
		size_t len = strcspn(p, "/");

		if (len == 0 || len > NAME_MAX)
			return false;
		if (p[0] == '.' && (len == 1 || (len == 2 && p[1] == '.')))
			return false;
		if (p[len] == '\0')
			return true;
		p += len + 1;
	}
}

static int source_fd_read(void *ctx, uint64_t off, void *dst, size_t len)
{
	return file_pread((int)(intptr_t)ctx, dst, len, off);
}

int source_fd(int fd, struct source *out)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (S_ISDIR(st.st_mode))
		return -EISDIR;
	*out = (struct source){
		.read = source_fd_read,
		.ctx = (void *)(intptr_t)fd,
		.size = (uint64_t)st.st_size,
	};
	return 0;
}

int source_fd_of(const struct source *src)
{
	if (src->file != NULL)
		return *src->file;
	return src->read == source_fd_read ? (int)(intptr_t)src->ctx : -1;
}

static int sink_fd_write(void *ctx, uint64_t off, const void *src, size_t len)
{
	return file_pwrite(*(const int *)ctx, src, len, off);
}

struct sink sink_fd(const int *fd)
{
	return (struct sink){.write = sink_fd_write, .ctx = (void *)fd};
}

int patch_file_end(struct patch_file_writer *w, int fd, uint64_t *out_size, struct why *why)
{
	struct source readback;
	/* All that it reads is written by now, so the size covers it. */
	int err = source_fd(fd, &readback);

	return err < 0 ? err : patch_file_writer_end(w, &readback, out_size, why);
}
