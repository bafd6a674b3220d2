/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Temp files that outlive nobody.
 *
 * Who makes one locks it.  Who sweeps takes the lock of each, if that can be had at once, and
 * removes the file under it: so a file is removed only when its maker has gone, or has not yet
 * locked it; the maker looks for that once it has the lock, and makes another one.
 *
 * Where a file system has no locks, a file that was not touched for an hour is taken for nobody's.
 *
 * No state.
 */
#include "cache/temps.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/clock.h"
#include "cache/fileio.h"

enum { AGE_S = 3600 };

/* Locks a file that was just made; false: somebody took it for a left one. */
static bool claim(int fd)
{
	struct stat st;

	if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
		return false;
	return fstat(fd, &st) == 0 && st.st_nlink > 0;
}

int temps_create(int dirfd, unsigned *count, char name[TEMPS_NAME])
{
	for (int tries = 0; tries < 1000; tries++) {
		unsigned n = __atomic_add_fetch(count, 1, __ATOMIC_RELAXED);
		int fd;

		snprintf(name, TEMPS_NAME, "tmp.%ld.%u", (long)getpid(), n);
		fd = openat(dirfd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
		if (fd < 0 && errno != EEXIST)
			return -errno;
		if (fd >= 0 && claim(fd))
			return fd;
		if (fd >= 0)
			close(fd);
	}
	return -EEXIST;
}

bool temps_named(const char *name)
{
	return strncmp(name, "tmp.", 4) == 0;
}

static void sweep_one(int dirfd, const char *name)
{
	int fd = openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st;
	bool left;

	if (fd < 0)
		return;
	left = flock(fd, LOCK_EX | LOCK_NB) == 0;
	if (!left && errno != EWOULDBLOCK)
		left = fstat(fd, &st) == 0 &&
		       clock_real_ns() / NSEC_PER_SEC - (int64_t)st.st_mtim.tv_sec > AGE_S;
	if (left)
		unlinkat(dirfd, name, 0);
	close(fd);
}

void temps_sweep(int dirfd)
{
	DIR *dir = file_opendir(dirfd, ".");
	const struct dirent *de;

	if (dir == NULL)
		return;
	while ((de = readdir(dir)) != NULL)
		if (temps_named(de->d_name))
			sweep_one(dirfd, de->d_name);
	closedir(dir);
}
