/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Noticing changes in a directory store: inotify on the root and on the directories below it.
 *
 * Only "something may have changed" is told; what, the next listing tells.  So events are thrown
 * away except for those that mean there may be new directories to watch, after which all
 * directories are walked again: adding a watch twice is harmless, and watches of deleted
 * directories go by themselves. A directory is watched before its names are read, so that what
 * appears in between is an event.
 *
 * MODIFY is left out: a writer makes thousands of them and ends with CLOSE_WRITE.
 *
 * The descriptor is made at the first request and lives as long as the store.  Two threads may
 * ask at once: the loser closes its own.
 */
#include "cache/store_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <unistd.h>

static const uint32_t events = IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_CLOSE_WRITE |
			       IN_DELETE | IN_DELETE_SELF | IN_ATTRIB | IN_ONLYDIR;

static bool is_dir(int dirfd, const struct dirent *de)
{
	struct stat st;

	if (de->d_type != DT_UNKNOWN)
		return de->d_type == DT_DIR;
	return fstatat(dirfd, de->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

/*
 * Watches the directory behind fd, which it closes, and those below it; -errno when fd's own cannot
 * be watched.  Links are not followed: what they lead to lies below the root and is met there.
 */
static int watch_tree(int watch_fd, int fd, unsigned depth, unsigned *left)
{
	char link[64];
	struct dirent *de;
	DIR *dir;
	int rc = 0;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (*left == 0)
		rc = -ENOSPC;
	else if (inotify_add_watch(watch_fd, link, events) < 0)
		rc = -errno;
	else
		(*left)--;
	if (rc < 0 || depth >= DIR_DEPTH_MAX || (dir = fdopendir(fd)) == NULL) {
		close(fd);
		return rc;
	}
	while (*left > 0 && (de = readdir(dir)) != NULL) {
		int sub;

		if (de->d_name[0] == '.' || !is_dir(dirfd(dir), de))
			continue;
		sub = openat(dirfd(dir), de->d_name,
			     O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (sub >= 0)
			(void)watch_tree(watch_fd, sub, depth + 1, left);
	}
	closedir(dir);
	return 0;
}

static int watch_all(const struct dir_store *d, int watch_fd)
{
	unsigned left = DIR_WATCH_MAX;
	int fd = openat(d->root_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 ? -errno : watch_tree(watch_fd, fd, 0, &left);
}

int store_dir_watch_fd(struct store *s)
{
	struct dir_store *d = (struct dir_store *)s;
	int fd = __atomic_load_n(&d->watch_fd, __ATOMIC_ACQUIRE), none = -1;

	if (fd >= 0)
		return fd;
	fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	if (fd < 0)
		return -1;
	if (watch_all(d, fd) < 0) {
		close(fd);
		return -1;
	}
	if (__atomic_compare_exchange_n(&d->watch_fd, &none, fd, false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE))
		return fd;
	close(fd);
	return none;
}

void store_dir_watch_rescan(struct dir_store *d)
{
	int fd = __atomic_load_n(&d->watch_fd, __ATOMIC_ACQUIRE);

	if (fd >= 0)
		(void)watch_all(d, fd); /* a hint is lost at worst */
}

/* May the event mean that a directory appeared (or that we have missed that)? */
static bool wants_rescan(const struct inotify_event *e)
{
	if (e->mask & (IN_Q_OVERFLOW | IN_IGNORED))
		return true;
	return (e->mask & IN_ISDIR) && (e->mask & (IN_CREATE | IN_MOVED_TO | IN_ATTRIB));
}

void store_dir_watch_drain(struct store *s)
{
	struct dir_store *d = (struct dir_store *)s;
	int fd = __atomic_load_n(&d->watch_fd, __ATOMIC_ACQUIRE);
	_Alignas(struct inotify_event) char room[16384];
	bool rescan = false;
	ssize_t n;

	if (fd < 0)
		return;
	while ((n = read(fd, room, sizeof(room))) > 0 || (n < 0 && errno == EINTR)) {
		for (ssize_t at = 0; at < n;) {
			const struct inotify_event *e = (const void *)(room + at);

			rescan = rescan || wants_rescan(e);
			at += (ssize_t)(sizeof(*e) + e->len);
		}
	}
	if (rescan)
		store_dir_watch_rescan(d);
}
