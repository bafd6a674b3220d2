/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory of the block cache: opening it, who owns it, what lies in it.
 *
 * The owner is whoever holds the flocks on the directory itself and on `lock`; the kernel gives
 * them back at the end of the process however that ends, so there is no stale lock.  The file alone
 * would not do: what clears old files away (it is never touched again) takes it from under its
 * owner, and the next process would lock another.  The directory goes only together with all that
 * lies in it.  Some network file systems lock files only.  The file's text (pid and mount point) is
 * for the sentence that others print and decides nothing.
 *
 * A file system without hole punching is refused here: evicting by blocks would give nothing back.
 * The files of one object are in disk_file.c.
 *
 * State: nothing changes after disk_open() but `owned`, which is atomic and only ever becomes true.
 */
#include "cache/disk.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cache/clock.h"
#include "cache/disk_internal.h"
#include "cache/fileio.h"

static int open_lock(struct disk *d)
{
	d->lock_fd = openat(d->dir_fd, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	return d->lock_fd < 0 ? -errno : 0;
}

/* "process 123 (/mnt/policy)" of what the owner wrote into the lock file. */
static void holder_text(int fd, char *dst, size_t cap)
{
	char text[600], shown[400];
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
	char *mount;
	long pid;

	snprintf(dst, cap, "another process");
	if (n <= 0)
		return;
	text[n] = '\0';
	text[strcspn(text, "\n")] = '\0';
	pid = strtol(text, &mount, 10);
	if (pid <= 0)
		return;
	while (*mount == ' ')
		mount++;
	if (*mount == '\0')
		snprintf(dst, cap, "process %ld", pid);
	else
		snprintf(dst, cap, "process %ld (%s)", pid,
			 printable(shown, sizeof(shown), mount, strlen(mount)));
}

static bool take_locks(const struct disk *d)
{
	if (flock(d->dir_fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
		return false;
	if (flock(d->lock_fd, LOCK_EX | LOCK_NB) == 0)
		return true;
	(void)flock(d->dir_fd, LOCK_UN);
	return false;
}

bool disk_own(struct disk *d)
{
	char text[600];

	if (disk_owned(d))
		return true;
	if (d->lock_fd < 0 || !take_locks(d))
		return false;
	snprintf(text, sizeof(text), "%ld %s\n", (long)getpid(), d->holder);
	/* Only for people: a full disk is no reason not to own it. */
	if (ftruncate(d->lock_fd, 0) == 0)
		(void)file_pwrite(d->lock_fd, text, strlen(text), 0);
	__atomic_store_n(&d->owned, true, __ATOMIC_RELEASE);
	return true;
}

bool disk_owned(const struct disk *d)
{
	return __atomic_load_n(&d->owned, __ATOMIC_ACQUIRE);
}

static bool can_punch(int fd)
{
	/* Far behind the text, so that it does not matter who owns the file. */
	return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1 << 20, 4096) == 0 ||
	       (errno != EOPNOTSUPP && errno != ENOSYS);
}

static int open_place(struct disk *d, struct why *why)
{
	char shown[300], who[450];
	int rc = d->holder != NULL ? file_mkdirs(d->path) : 0;

	if (rc == 0) {
		d->dir_fd = open(d->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		rc = d->dir_fd < 0 ? -errno : 0;
	}
	printable(shown, sizeof(shown), d->path, strlen(d->path));
	if (rc < 0)
		return why_set(why, -rc, "the block cache %s cannot be used: %s", shown,
			       strerrordesc_np(-rc));
	if (d->holder == NULL)
		return 0;
	rc = open_lock(d);
	if (rc < 0) {
		why_set(why, -rc, "the block cache %s cannot be written: %s", shown,
			strerrordesc_np(-rc));
		return 0;
	}
	if (!can_punch(d->lock_fd))
		return why_set(why, EOPNOTSUPP,
			       "the block cache %s is on a file system that cannot punch holes",
			       shown);
	if (!disk_own(d)) {
		holder_text(d->lock_fd, who, sizeof(who));
		why_set(why, EBUSY, "the block cache %.200s is written by %.200s", shown, who);
	}
	return 0;
}

int disk_open(const char *parent, const char *holder, struct disk **out, struct why *why)
{
	struct disk *d = calloc(1, sizeof(*d));
	int rc;

	if (d == NULL)
		return why_set(why, ENOMEM, "out of memory");
	d->dir_fd = d->lock_fd = -1;
	d->path = path_join(parent, "blocks");
	d->holder = holder != NULL ? strndup(holder, 500) : NULL;
	if (d->path == NULL || (d->holder == NULL && holder != NULL))
		rc = why_set(why, ENOMEM, "out of memory");
	else
		rc = open_place(d, why);
	if (rc < 0) {
		disk_close(d);
		return rc;
	}
	*out = d;
	return 0;
}

void disk_close(struct disk *d)
{
	if (d == NULL)
		return;
	if (d->lock_fd >= 0)
		close(d->lock_fd);
	if (d->dir_fd >= 0)
		close(d->dir_fd);
	free(d->path);
	free(d->holder);
	free(d);
}

const char *disk_path(const struct disk *d)
{
	return d->path;
}

uint64_t disk_space(const struct disk *d)
{
	struct statvfs st;

	if (fstatvfs(d->dir_fd, &st) < 0 || st.f_blocks == 0)
		return UINT64_MAX;
	return (uint64_t)st.f_bavail * st.f_frsize;
}

uint64_t disk_capacity(const struct disk *d)
{
	struct statvfs st;

	return fstatvfs(d->dir_fd, &st) < 0 ? 0 : (uint64_t)st.f_blocks * st.f_frsize;
}

/* ---- what lies in it ---- */

void disk_name(const struct identity *id, const char *suffix, char out[DISK_NAME_SIZE])
{
	char hex[33];

	identity_hex(id, hex);
	snprintf(out, DISK_NAME_SIZE, "%s.%s", hex, suffix);
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool parse_name(const char *name, struct identity *out)
{
	for (size_t i = 0; i < sizeof(out->bytes); i++) {
		int high = hex_digit(name[2 * i]), low;

		if (high < 0)
			return false;
		low = hex_digit(name[2 * i + 1]);
		if (low < 0)
			return false;
		out->bytes[i] = (uint8_t)(high << 4 | low);
	}
	return strcmp(name + 32, ".data") == 0 || strcmp(name + 32, ".index") == 0;
}

static int compare_id(const void *a, const void *b)
{
	const struct disk_entry *x = a, *y = b;

	return memcmp(x->id.bytes, y->id.bytes, sizeof(x->id.bytes));
}

static int compare_used(const void *a, const void *b)
{
	const struct disk_entry *x = a, *y = b;

	return x->used_ns < y->used_ns ? 1 : x->used_ns > y->used_ns ? -1 : compare_id(a, b);
}

/* One entry for each file, then the two files of an object become one. */
static size_t merge(struct disk_entry *v, size_t count)
{
	size_t n = 0;

	if (count == 0)
		return 0;
	qsort(v, count, sizeof(*v), compare_id);
	for (size_t i = 1; i < count; i++) {
		if (compare_id(&v[n], &v[i]) != 0) {
			v[++n] = v[i];
			continue;
		}
		v[n].bytes += v[i].bytes;
		v[n].used_ns = MAX(v[n].used_ns, v[i].used_ns);
	}
	qsort(v, n + 1, sizeof(*v), compare_used);
	return n + 1;
}

static int read_dir(DIR *dir, struct disk_entry **v, size_t *count)
{
	size_t cap = 0;
	struct dirent *de;

	for (errno = 0; (de = readdir(dir)) != NULL; errno = 0) {
		struct disk_entry e = {0};
		struct stat st;

		if (!parse_name(de->d_name, &e.id) ||
		    fstatat(dirfd(dir), de->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
		    !S_ISREG(st.st_mode))
			continue;
		e.bytes = (uint64_t)st.st_blocks * 512;
		e.used_ns = (int64_t)st.st_mtim.tv_sec * NSEC_PER_SEC + st.st_mtim.tv_nsec;
		if (*count == cap) {
			struct disk_entry *grown =
				reallocarray(*v, cap = 2 * cap + 64, sizeof(*grown));

			if (grown == NULL)
				return -ENOMEM;
			*v = grown;
		}
		(*v)[(*count)++] = e;
	}
	return -errno;
}

int disk_list(struct disk *d, struct disk_entry **out, size_t *out_count)
{
	DIR *dir = file_opendir(d->dir_fd, ".");
	struct disk_entry *v = NULL;
	size_t count = 0;
	int rc;

	if (dir == NULL)
		return -errno;
	rc = read_dir(dir, &v, &count);
	closedir(dir);
	if (rc < 0) {
		free(v);
		return rc;
	}
	*out_count = merge(v, count);
	*out = v;
	return 0;
}

void disk_remove(struct disk *d, const struct identity *id)
{
	char name[DISK_NAME_SIZE];

	disk_name(id, "index", name);
	unlinkat(d->dir_fd, name, 0);
	disk_name(id, "data", name);
	unlinkat(d->dir_fd, name, 0);
}
