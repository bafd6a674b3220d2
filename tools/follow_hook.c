/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command of --exec: the user's own words, given to the shell as they are.
 *
 * It has this process's environment and WEIGHTFS_VERSION, WEIGHTFS_PATH and WEIGHTFS_RESULT, no
 * input, and standard error for its output, too, since standard output has a line of JSON per
 * update and nothing else.  It runs in a process group of its own, so that what it started goes
 * with it when it takes too long or follow is told to end.
 *
 * One thread; waits.
 */
#include "tools/follow_hook.h"

#include "cache/child.h"
#include "cache/clock.h"
#include "tools/cli.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define GRACE_NS (10 * NSEC_PER_SEC)

enum { OWN = 3 }; /* variables of ours */

extern char **environ;

/* The environment with ours in front; the strings of both are borrowed. */
static char **make_environment(char *own[OWN])
{
	size_t count = 0, n = 0;
	char **all;

	while (environ[count] != NULL)
		count++;
	all = calloc(count + OWN + 1, sizeof(*all));
	if (all == NULL)
		return NULL;
	for (size_t i = 0; i < OWN; i++)
		all[n++] = own[i];
	for (size_t i = 0; i < count; i++)
		if (strncmp(environ[i], "WEIGHTFS_VERSION=", 17) != 0 &&
		    strncmp(environ[i], "WEIGHTFS_PATH=", 14) != 0 &&
		    strncmp(environ[i], "WEIGHTFS_RESULT=", 16) != 0)
			all[n++] = environ[i];
	return all;
}

/* Sleeps until the child has ended, stop_fd is readable, or the time has come.  Without a pidfd
 * (an old kernel) it looks often. */
static void doze(int pid_fd, int stop_fd, int64_t until)
{
	struct pollfd p[2] = {{.fd = pid_fd, .events = POLLIN}, {.fd = stop_fd, .events = POLLIN}};
	int64_t left = until - clock_mono_ns();
	struct timespec ts;

	if (pid_fd < 0)
		left = MIN(left, NSEC_PER_SEC / 50);
	ts = clock_timespec(MAX(left, 0));
	(void)ppoll(p, 2, &ts, NULL);
}

static bool is_readable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return fd >= 0 && poll(&p, 1, 0) > 0;
}

/* Has it ended?  It stays there, and so does its group, until it is reaped. */
static bool has_ended(pid_t pid)
{
	siginfo_t info = {.si_pid = 0};

	if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0)
		return errno != EINTR;
	return info.si_pid == pid;
}

/* 0 with its status, -ECANCELED, -ETIMEDOUT. */
static int await(const struct follow_hook *hook, pid_t pid, int *status)
{
	int pid_fd = (int)syscall(SYS_pidfd_open, pid, 0), stop_fd = hook->stop_fd, ret = 0;
	int64_t until = clock_mono_ns() + hook->timeout_ns;

	while (!has_ended(pid)) {
		if (is_readable(stop_fd) || clock_mono_ns() >= until) {
			kill(-pid, ret == 0 ? SIGTERM : SIGKILL);
			if (ret == 0)
				ret = is_readable(stop_fd) ? -ECANCELED : -ETIMEDOUT;
			until = clock_mono_ns() + GRACE_NS;
			stop_fd = -1;
		}
		doze(pid_fd, stop_fd, until);
	}
	/* The shell went, but not what it had started and what does not heed SIGTERM. */
	if (ret < 0)
		kill(-pid, SIGKILL);
	while (waitpid(pid, status, 0) < 0 && errno == EINTR)
		;
	if (pid_fd >= 0)
		close(pid_fd);
	return ret;
}

int follow_hook_run(const struct follow_hook *hook, struct why *why)
{
	char *own[OWN] = {NULL, NULL, NULL}, **environment = NULL;
	char *argv[] = {(char *)"/bin/sh", (char *)"-c", (char *)hook->command, NULL};
	int status = 0, ret = -ENOMEM;
	pid_t pid;

	if (asprintf(&own[0], "WEIGHTFS_VERSION=%" PRIu64, hook->version) < 0 ||
	    asprintf(&own[1], "WEIGHTFS_PATH=%s", hook->path) < 0 ||
	    asprintf(&own[2], "WEIGHTFS_RESULT=%s", hook->result) < 0)
		goto out;
	environment = make_environment(own);
	if (environment == NULL)
		goto out;
	ret = child_start(argv, environment, STDERR_FILENO, STDERR_FILENO, &pid);
	if (ret == 0)
		ret = await(hook, pid, &status);
	else
		why_set(why, -ret, "--exec: /bin/sh cannot be run: %s", errno_text(ret));
	if (ret == -ECANCELED)
		why_set(why, ECANCELED, "--exec: told to end while the command ran");
	else if (ret == -ETIMEDOUT)
		why_set(why, ETIMEDOUT, "--exec: the command did not end in time");
	else if (ret == 0 && WIFSIGNALED(status))
		ret = why_set(why, ECHILD, "--exec: the command was ended by signal %d",
			      WTERMSIG(status));
	else if (ret == 0 && WEXITSTATUS(status) != 0)
		ret = why_set(why, ECHILD, "--exec: the command ended with exit code %d",
			      WEXITSTATUS(status));
out:
	if (ret == -ENOMEM && why->text[0] == '\0')
		why_set(why, ENOMEM, "out of memory");
	for (size_t i = 0; i < OWN; i++)
		free(own[i]);
	free(environment);
	return ret;
}
