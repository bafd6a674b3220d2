/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of checkpoints.
 *
 * A file that is there is overwritten in place, which needs no new blocks; what a crash leaves is a
 * mixture of two states, but no record names a slot before it is complete.  Nothing is synced: a
 * copy is trusted by its hash.
 *
 * One thread.
 */
#include "tools/pub_slot.h"

#include "cache/fileio.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { WINDOW = 1 << 20 };

static bool belongs(const struct pub_checkpoint *c, const char *name)
{
	for (size_t i = 0; c != NULL && i < c->file_count; i++)
		if (strcmp(c->files[i].name, name) == 0)
			return true;
	return false;
}

static void remove_others(const char *path, const struct pub_checkpoint *c)
{
	DIR *dir = opendir(path);
	struct dirent *e;

	while (dir != NULL && (e = readdir(dir)) != NULL)
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
		    !belongs(c, e->d_name))
			unlinkat(dirfd(dir), e->d_name, 0);
	if (dir != NULL)
		closedir(dir);
}

static int open_file(const char *dir, const struct pub_file *f, bool clone, int *out_fd,
		     struct why *why)
{
	char *path = path_join(dir, f->name);
	int fd, err = 0;

	if (path == NULL)
		return why_set(why, ENOMEM, "out of memory");
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0) {
		err = errno;
	} else if (ioctl(fd, FICLONE, f->fd) == 0) {
		close(fd);
		fd = -1;
	} else if (clone) {
		err = EOPNOTSUPP;
		close(fd);
	} else if (ftruncate(fd, (off_t)f->size) < 0) {
		err = errno;
		close(fd);
	}
	if (err != 0 && !clone)
		why_set(why, err, "the copy %s of the state cannot be made: %s", SHOWN(path),
			strerrordesc_np(err));
	if (err == 0)
		*out_fd = fd;
	free(path);
	return clone && err != 0 ? -EOPNOTSUPP : -err;
}

int pub_slot_open(const char *dir, const struct pub_checkpoint *c, bool clone, struct pub_slot *out,
		  struct why *why)
{
	int ret = file_mkdirs(dir);

	if (ret < 0)
		return why_set(why, -ret, "%s cannot be made: %s", SHOWN(dir),
			       strerrordesc_np(-ret));
	remove_others(dir, c);
	out->fds = calloc(c->file_count, sizeof(*out->fds));
	if (out->fds == NULL)
		return why_set(why, ENOMEM, "out of memory");
	for (; ret == 0 && out->count < c->file_count; out->count++) {
		out->fds[out->count] = -1;
		ret = open_file(dir, &c->files[out->count], clone, &out->fds[out->count], why);
	}
	return ret;
}

static int fill_file(int fd, const struct pub_file *f, char *window, struct progress *progress,
		     const volatile bool *stop, struct why *why)
{
	int ret = 0;

	for (uint64_t at = 0; ret == 0 && at < f->size; at += WINDOW) {
		size_t len = (size_t)MIN(f->size - at, (uint64_t)WINDOW);

		if (*stop)
			return why_set(why, EINTR, "interrupted; nothing was published");
		ret = file_pread(f->fd, window, len, at);
		if (ret == 0)
			ret = file_pwrite(fd, window, len, at);
		if (ret == 0 && progress != NULL)
			progress_add(progress, len);
	}
	return ret < 0 ? why_set(why, -ret, "%s cannot be copied: %s", SHOWN(f->path),
				 strerrordesc_np(-ret))
		       : 0;
}

int pub_slot_fill(const struct pub_slot *s, const struct pub_checkpoint *c,
		  struct progress *progress, const volatile bool *stop, struct why *why)
{
	char *window = malloc(WINDOW);
	int ret = window != NULL ? 0 : why_set(why, ENOMEM, "out of memory");

	for (size_t i = 0; ret == 0 && i < s->count; i++)
		if (s->fds[i] >= 0)
			ret = fill_file(s->fds[i], &c->files[i], window, progress, stop, why);
	free(window);
	return ret;
}

void pub_slot_release(struct pub_slot *s)
{
	for (size_t i = 0; i < s->count; i++)
		if (s->fds[i] >= 0)
			close(s->fds[i]);
	free(s->fds);
	*s = (struct pub_slot){0};
}

void pub_slot_clear(const char *dir)
{
	remove_others(dir, NULL);
}
