/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mount points.
 *
 * The kernel's list (/proc/self/mountinfo) is the only authority on what is mounted: a dead mount
 * cannot be asked, and a hung one must not be.  Paths in it are resolved and have blanks and
 * backslashes as octal escapes; of several mounts on one path the last line is the one on top.
 *
 * Root unmounts by umount2(2).  Everybody else goes through fusermount3, whose words on stderr
 * become the sentence.
 *
 * No state.  Threads: any, but unmounting forks.
 */
#include "fs/mountpoint.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache/fileio.h"
#include "cache/log.h"

enum { STALE_MAX = 8 }; /* dead mounts on top of each other that are cleaned */

static int path_why(struct why *why, int err, const char *path, const char *what)
{
	char shown[200];

	return why_set(why, err, "%s %s: %s", printable(shown, sizeof(shown), path, strlen(path)),
		       what, strerrordesc_np(err));
}

int mountpoint_resolve(const char *path, char **out, struct why *why)
{
	char *full = realpath(path, NULL), *parent, *slash, *dir;
	const char *name;
	int err = errno;

	if (full) {
		*out = full;
		return 0;
	}
	if (err != ENOTCONN && err != ECONNABORTED && err != EACCES && err != EIO)
		return path_why(why, err, path, "cannot be used");
	/* The last component cannot be looked at: resolve what leads there. */
	parent = strdup(path);
	if (!parent)
		return why_set(why, ENOMEM, "out of memory");
	for (size_t len = strlen(parent); len > 1 && parent[len - 1] == '/'; len--)
		parent[len - 1] = 0;
	slash = strrchr(parent, '/');
	name = slash ? slash + 1 : parent;
	if (slash)
		*slash = 0;
	dir = realpath(!slash ? "." : *parent ? parent : "/", NULL);
	full = dir ? path_join(dir, name) : NULL;
	free(dir);
	free(parent);
	if (!full)
		return path_why(why, err, path, "cannot be used");
	*out = full;
	return 0;
}

/* Undoes the octal escapes of mountinfo in place. */
static void unescape(char *s)
{
	char *to = s;

	for (; *s; s++) {
		if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' &&
		    s[3] >= '0' && s[3] <= '7') {
			*to++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
			s += 3;
		} else {
			*to++ = *s;
		}
	}
	*to = 0;
}

/* Splits a line of mountinfo: "id parent maj:min root MOUNTPOINT options [tags] - TYPE source
 * super". */
static bool parse_mount(char *line, char **out_point, char **out_type)
{
	char *rest = line, *word = NULL, *dash;

	for (int i = 0; i < 5; i++)
		if (!(word = strsep(&rest, " ")))
			return false;
	dash = rest ? strstr(rest, " - ") : NULL;
	if (!dash)
		return false;
	rest = dash + 3;
	*out_type = strsep(&rest, " ");
	*out_point = word;
	unescape(word);
	return true;
}

int mountpoint_type(const char *path, char *out, size_t cap)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	char *line = NULL, *point, *type;
	size_t line_cap = 0;

	if (!f)
		return -errno;
	snprintf(out, cap, "%s", "");
	while (getline(&line, &line_cap, f) > 0)
		if (parse_mount(line, &point, &type) && strcmp(point, path) == 0)
			snprintf(out, cap, "%s", type);
	free(line);
	fclose(f);
	return 0;
}

/* The nearest directory above a resolved path that a weightfs is mounted on; malloc'ed; NULL: none.
 */
static char *mount_above(const char *path)
{
	char *at = strdup(path), *slash, type[64];

	while (at && (slash = strrchr(at, '/')) && slash > at) {
		*slash = 0;
		if (mountpoint_type(at, type, sizeof(type)) == 0 && strcmp(type, MOUNT_TYPE) == 0)
			return at;
	}
	free(at);
	return NULL;
}

/* Runs fusermount3 and keeps what it says.  Exit code, or -errno. */
static int run_helper(const char *path, bool lazy, char *said, size_t cap)
{
	const char *const argv[] = {"fusermount3", lazy ? "-uz" : "-u", "--", path, NULL};
	int fds[2], status;
	size_t len = 0;
	ssize_t n;
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	pid = fork();
	if (pid == 0) {
		dup2(fds[1], STDERR_FILENO);
		execvp(argv[0], (char *const *)argv);
		_exit(127);
	}
	close(fds[1]);
	while (pid > 0 && len + 1 < cap) {
		n = read(fds[0], said + len, cap - 1 - len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		len += (size_t)n;
	}
	said[len] = 0;
	said[strcspn(said, "\n")] = 0;
	close(fds[0]);
	if (pid < 0)
		return -EAGAIN;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

/* Unmounts whatever is on top there; `lazy` detaches it even when it is in use.  -EBUSY. */
static int unmount(const char *path, bool lazy, struct why *why)
{
	char said[200], shown[200];
	int ret, err = 0;

	printable(shown, sizeof(shown), path, strlen(path));
	if (geteuid() == 0) {
		if (umount2(path, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)) < 0)
			err = errno;
	} else {
		ret = run_helper(path, lazy, said, sizeof(said));
		if (ret == 127)
			return why_set(why, ENOENT,
				       "unmounting as an ordinary user needs fusermount3, which is "
				       "not installed (package fuse3)");
		if (ret < 0)
			err = -ret;
		else if (ret && (strstr(said, "busy") || strstr(said, "Busy")))
			err = EBUSY;
		else if (ret)
			return why_set(why, EPERM, "%s", said[0] ? said : "fusermount3 failed");
	}
	if (err == EBUSY)
		return why_set(
			why, EBUSY,
			"%s is in use: it is busy with open files (fuser -vm shows whose); close "
			"them, or use --lazy",
			shown);
	return err ? path_why(why, err, path, "cannot be unmounted") : 0;
}

static bool is_dead(int err)
{
	return err == ENOTCONN || err == ECONNABORTED;
}

/* Looks at the mount point, cleaning dead mounts away until it can be looked at. */
static int clean_stale(const char *path, struct stat *st, struct why *why)
{
	char type[64], shown[200];
	int ret;

	printable(shown, sizeof(shown), path, strlen(path));
	for (int i = 0; stat(path, st) < 0; i++) {
		if (!is_dead(errno))
			return path_why(why, errno, path, "cannot be used as a mount point");
		ret = mountpoint_type(path, type, sizeof(type));
		if (ret < 0)
			return path_why(why, -ret, "/proc/self/mountinfo", "cannot be read");
		if (strcmp(type, MOUNT_TYPE) != 0 || i == STALE_MAX)
			return why_set(why, ENOTCONN,
				       "%s is a dead mount of another filesystem; unmount it first",
				       shown);
		ret = unmount(path, true, why);
		if (ret < 0)
			return ret;
		log_warning("%s: a mount whose process had died was cleaned away", shown);
	}
	return 0;
}

static int check_empty(const char *path, struct why *why)
{
	DIR *dir = opendir(path);
	const struct dirent *e;
	char shown[200];

	if (!dir)
		return path_why(why, errno, path, "cannot be used as a mount point");
	do {
		e = readdir(dir);
	} while (e && (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0));
	closedir(dir);
	if (!e)
		return 0;
	return why_set(why, ENOTEMPTY,
		       "%s is not empty; choose an empty directory, or hide what is in it with "
		       "-o nonempty",
		       printable(shown, sizeof(shown), path, strlen(path)));
}

int mountpoint_prepare(const char *path, bool nonempty, struct why *why)
{
	char type[64], shown[200];
	struct stat st;
	int ret = clean_stale(path, &st, why);

	if (ret < 0)
		return ret;
	printable(shown, sizeof(shown), path, strlen(path));
	if (!S_ISDIR(st.st_mode))
		return why_set(why, ENOTDIR, "%s is not a directory", shown);
	ret = mountpoint_type(path, type, sizeof(type));
	if (ret < 0)
		return path_why(why, -ret, "/proc/self/mountinfo", "cannot be read");
	if (strcmp(type, MOUNT_TYPE) == 0)
		return why_set(why, EBUSY,
			       "%s has a weightfs mount already; take it down first: weightfs "
			       "umount %s",
			       shown, shown);
	return nonempty ? 0 : check_empty(path, why);
}

bool path_inside(const char *path, const char *dir)
{
	size_t len = strlen(dir);

	while (len && dir[len - 1] == '/')
		len--;
	return strncmp(path, dir, len) == 0 && (path[len] == 0 || path[len] == '/');
}

static int no_mount(const char *path, struct why *why)
{
	char *above = mount_above(path);
	int ret;

	if (above)
		ret = why_set(
			why, EINVAL,
			"%s lies in the mount on %s, which is taken down as a whole, with all "
			"its runs: weightfs umount %s",
			SHOWN(path), SHOWN(above), SHOWN(above));
	else
		ret = why_set(why, EINVAL, "%s is not a weightfs mount", SHOWN(path));
	free(above);
	return ret;
}

int mountpoint_umount(const char *path, bool lazy, struct why *why)
{
	char type[64], *full;
	int ret = mountpoint_resolve(path, &full, why);

	if (ret < 0)
		return ret;
	ret = mountpoint_type(full, type, sizeof(type));
	if (ret < 0)
		why_set(why, -ret, "/proc/self/mountinfo cannot be read: %s",
			strerrordesc_np(-ret));
	else if (strcmp(type, MOUNT_TYPE) != 0)
		ret = no_mount(full, why);
	else
		ret = unmount(full, lazy, why);
	free(full);
	return ret;
}
