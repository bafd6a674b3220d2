/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory that appears whole or not at all: built beside its place under a name with our
 * process id, then renamed.
 *
 * rename(2) itself refuses to replace a directory that is not empty, so without --force nothing can
 * be lost even if somebody fills it meanwhile.  With --force the two are exchanged, which is one
 * step for everybody who looks, and the old one is removed afterwards; where the file system cannot
 * exchange, it is moved aside first.  Only what looks like a checkpoint is ever replaced: a slip of
 * the hand must not cost a home directory.
 *
 * One thread.
 */
#include "tools/replace.h"

#include "cache/fileio.h"
#include "tools/cli.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

void replace_abort(const char *temp)
{
	/* What cannot be removed stays under a name that says what it is. */
	(void)nftw(temp, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

static bool ends_with(const char *name, const char *end)
{
	size_t len = strlen(name), end_len = strlen(end);

	return len >= end_len && strcmp(name + len - end_len, end) == 0;
}

static int look_inside(const char *dir, bool *out_empty, bool *out_checkpoint)
{
	DIR *d = opendir(dir);
	struct dirent *e;

	*out_empty = true;
	*out_checkpoint = false;
	if (d == NULL)
		return -errno;
	while ((e = readdir(d)) != NULL) {
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		*out_empty = false;
		if (strcmp(e->d_name, "config.json") == 0 || ends_with(e->d_name, ".safetensors") ||
		    ends_with(e->d_name, ".safetensors.index.json"))
			*out_checkpoint = true;
	}
	closedir(d);
	return 0;
}

/* Without trailing slashes, so that ".tmp" goes beside it; malloc'ed. */
static char *trimmed(const char *dir)
{
	char *copy = strdup(dir);
	size_t len = copy != NULL ? strlen(copy) : 0;

	for (; len > 1 && copy[len - 1] == '/'; len--)
		copy[len - 1] = '\0';
	return copy;
}

static int temp_name(const char *dir, char **out, struct why *why)
{
	char *base = trimmed(dir);

	if (base == NULL || asprintf(out, "%s.tmp.%ld", base, (long)getpid()) < 0) {
		free(base);
		return why_set(why, ENOMEM, "out of memory");
	}
	free(base);
	return 0;
}

int replace_begin(const char *dir, bool force, char **out_temp, struct why *why)
{
	bool empty, checkpoint;
	struct stat st;
	int ret;

	if (lstat(dir, &st) < 0) {
		if (errno != ENOENT)
			return why_set(why, errno, "%s: %s", dir, errno_text(errno));
		return temp_name(dir, out_temp, why);
	}
	if (!S_ISDIR(st.st_mode))
		return why_set(why, ENOTDIR, "%s exists and is not a directory", dir);
	ret = look_inside(dir, &empty, &checkpoint);
	if (ret < 0)
		return why_set(why, -ret, "%s: %s", dir, errno_text(ret));
	if (!empty && !force)
		return why_set(why, EEXIST, "%s is not empty; --force replaces a checkpoint", dir);
	if (!empty && !checkpoint)
		return why_set(why, EEXIST,
			       "%s has no checkpoint in it, so --force does not replace it", dir);
	return temp_name(dir, out_temp, why);
}

/* Replaces without RENAME_EXCHANGE: for a moment dir is absent. */
static int swap_in_steps(const char *dir, const char *temp)
{
	char *old;
	int ret = 0;

	if (asprintf(&old, "%s.old", temp) < 0)
		return -ENOMEM;
	if (rename(dir, old) < 0)
		ret = -errno;
	else if (rename(temp, dir) < 0) {
		ret = -errno;
		if (rename(old, dir) < 0)
			cli_error("what was in %s is now in %s", dir, old);
	} else {
		replace_abort(old);
	}
	free(old);
	return ret;
}

static int put_in_place(const char *dir, bool force, const char *temp)
{
	if (rename(temp, dir) == 0)
		return 0;
	if (!force || (errno != ENOTEMPTY && errno != EEXIST))
		return -errno;
	if (renameat2(AT_FDCWD, temp, AT_FDCWD, dir, RENAME_EXCHANGE) == 0) {
		replace_abort(temp);
		return 0;
	}
	return errno == EINVAL || errno == ENOSYS ? swap_in_steps(dir, temp) : -errno;
}

static int sync_parent(const char *path)
{
	char *copy = strdup(path), *slash = copy != NULL ? strrchr(copy, '/') : NULL;
	int fd, ret = 0;

	if (copy == NULL)
		return -ENOMEM;
	if (slash != NULL)
		slash[slash == copy ? 1 : 0] = '\0';
	fd = open(slash != NULL ? copy : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fsync(fd) < 0)
		ret = -errno;
	if (fd >= 0)
		close(fd);
	free(copy);
	return ret;
}

int replace_end(const char *dir, bool force, const char *temp, struct why *why)
{
	char *place = trimmed(dir);
	int ret;

	if (place == NULL)
		return why_set(why, ENOMEM, "out of memory");
	ret = put_in_place(place, force, temp);
	if (ret < 0)
		why_set(why, -ret, "%s cannot be put in place: %s", dir, errno_text(ret));
	else if (sync_parent(place) < 0) /* it is there; only a power cut could still undo it */
		cli_error("%s: the directory above it cannot be synced", dir);
	free(place);
	return ret;
}
