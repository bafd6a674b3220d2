/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting other programs.
 *
 * With posix_spawn(), since this process has threads.  What a child inherits otherwise would be
 * this process's blocked and ignored signals, so that it could not be ended; and a process group of
 * its own lets whoever started it end it with all that it started in turn.
 *
 * Not here: waiting, and what is done with one that does not end.  Any thread.
 */
#include "cache/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

static int redirect(posix_spawn_file_actions_t *files, int from, int to)
{
	if (from == CHILD_NULL)
		return posix_spawn_file_actions_addopen(files, to, "/dev/null", O_WRONLY, 0);
	return from == to ? 0 : posix_spawn_file_actions_adddup2(files, from, to);
}

static int prepare(posix_spawn_file_actions_t *files, posix_spawnattr_t *attr, int out, int err)
{
	sigset_t none, all;
	int ret;

	sigemptyset(&none);
	sigfillset(&all);
	sigdelset(&all, SIGKILL);
	sigdelset(&all, SIGSTOP);
	ret = posix_spawn_file_actions_addopen(files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	if (ret == 0)
		ret = redirect(files, out, STDOUT_FILENO);
	if (ret == 0)
		ret = redirect(files, err, STDERR_FILENO);
	if (ret == 0)
		ret = posix_spawnattr_setsigmask(attr, &none);
	if (ret == 0)
		ret = posix_spawnattr_setsigdefault(attr, &all);
	if (ret == 0)
		ret = posix_spawnattr_setpgroup(attr, 0);
	if (ret == 0)
		ret = posix_spawnattr_setflags(attr, POSIX_SPAWN_SETSIGMASK |
							     POSIX_SPAWN_SETSIGDEF |
							     POSIX_SPAWN_SETPGROUP);
	return -ret;
}

int child_start(char *const argv[], char *const env[], int out, int err, pid_t *out_pid)
{
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	int ret;

	posix_spawn_file_actions_init(&files);
	posix_spawnattr_init(&attr);
	ret = prepare(&files, &attr, out, err);
	if (ret == 0)
		ret = -posix_spawnp(out_pid, argv[0], &files, &attr, argv, env);
	posix_spawn_file_actions_destroy(&files);
	posix_spawnattr_destroy(&attr);
	return ret;
}

int child_start_pipe(char *const argv[], char *const env[], int captured, int other, pid_t *out_pid,
		     int *out_fd)
{
	int ends[2], ret;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	if (captured == STDOUT_FILENO)
		ret = child_start(argv, env, ends[1], other, out_pid);
	else
		ret = child_start(argv, env, other, ends[1], out_pid);
	close(ends[1]);
	if (ret == 0)
		*out_fd = ends[0];
	else
		close(ends[0]);
	return ret;
}
