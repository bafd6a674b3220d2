/* SPDX-License-Identifier: Apache-2.0 */
/*
 * credential_process: a command whose output is JSON with credentials.
 *
 * The command line is the user's own, from the user's own file, and is given to the shell as it
 * stands there, as AWS tools do; nothing is put into it.  The child has the environment of this
 * process, no input, this process's standard error, and none of its other descriptors that are
 * close-on-exec (all are).  It is in a process group of its own, so that one that takes longer than
 * a minute, or outlives the mount, goes with all that it started.
 *
 * What it prints is never shown: it holds secrets.
 *
 * Runs in the credentials' thread.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "cache/child.h"
#include "cache/clock.h"
#include "cache/remote/credentials_private.h"

#define PATIENCE_NS (60 * NSEC_PER_SEC)

enum { OUTPUT_MAX = 64 << 10 };

extern char **environ;

/* Reads until the end of its output.  -ETIMEDOUT, -ECANCELED, -EFBIG. */
static int read_output(struct credentials *c, int fd, char *text, size_t *len)
{
	int64_t until = clock_mono_ns() + PATIENCE_NS;

	for (;;) {
		struct pollfd fds[2] = {{.fd = fd, .events = POLLIN},
					{.fd = c->stop_fd, .events = POLLIN}};
		int64_t left = until - clock_mono_ns();
		ssize_t n;

		if (left <= 0)
			return -ETIMEDOUT;
		if (poll(fds, 2, (int)(left / 1000000) + 1) < 0 && errno != EINTR)
			return -errno;
		if (fds[1].revents != 0)
			return -ECANCELED;
		if (fds[0].revents == 0)
			continue;
		n = read(fd, text + *len, OUTPUT_MAX - *len);
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n == 0)
			return 0;
		if (n > 0)
			*len += (size_t)n;
		if (*len == OUTPUT_MAX)
			return -EFBIG;
	}
}

/* Its exit code, or -errno; it has closed its output and should be ending. */
static int reap(struct credentials *c, pid_t pid, bool hurry)
{
	int64_t until = clock_mono_ns() + PATIENCE_NS;
	int status = 0;
	pid_t n;

	if (hurry)
		kill(-pid, SIGKILL);
	for (;;) {
		struct pollfd stop = {.fd = c->stop_fd, .events = POLLIN};

		n = waitpid(pid, &status, hurry ? 0 : WNOHANG);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == ECHILD ? 0 : -errno; /* children are not ours to wait for */
		if (n == pid)
			break;
		if (poll(&stop, 1, 10) > 0 || clock_mono_ns() > until) {
			kill(-pid, SIGKILL);
			hurry = true;
		}
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int check_version(const char *text, size_t len, const char *from, struct why *why)
{
	json_t *root = json_loadb(text, len, 0, NULL);
	json_t *version = json_object_get(root, "Version");
	int rc = 0;

	if (version == NULL || json_integer_value(version) != 1)
		rc = why_set(why, EPROTO, "the credential_process of %s did not print %s", from,
			     root == NULL ? "JSON" : "\"Version\": 1");
	json_decref(root);
	return rc;
}

static int failed(const struct credentials *c, int rc, struct why *why)
{
	const char *from = c->source.from;

	switch (rc) {
	case -ETIMEDOUT:
		return why_set(why, ETIMEDOUT,
			       "the credential_process of %s did not end within a minute", from);
	case -ECANCELED: return why_set(why, ECANCELED, "shutting down");
	case -EFBIG:
		return why_set(why, EPROTO, "the credential_process of %s printed too much", from);
	default:
		return why_set(why, -rc, "the credential_process of %s cannot be run: %s", from,
			       strerrordesc_np(-rc));
	}
}

int credentials_run_process(struct credentials *c, struct credential_set *out, struct why *why)
{
	char *argv[] = {(char *)"/bin/sh", (char *)"-c", (char *)c->source.command, NULL};
	char *text = malloc(OUTPUT_MAX);
	size_t len = 0;
	int fd, rc, code;
	pid_t pid;

	if (text == NULL)
		return why_set(why, ENOMEM, "out of memory");
	rc = child_start_pipe(argv, environ, STDOUT_FILENO, STDERR_FILENO, &pid, &fd);
	if (rc == 0) {
		rc = read_output(c, fd, text, &len);
		close(fd);
		code = reap(c, pid, rc < 0);
		if (rc == 0 && code < 0)
			rc = code;
		else if (rc == 0 && code > 0)
			rc = why_set(why, EACCES,
				     "the credential_process of %s ended with exit code %d",
				     c->source.from, code);
		else if (rc < 0)
			rc = failed(c, rc, why);
	} else {
		rc = failed(c, rc, why);
	}
	if (rc == 0)
		rc = check_version(text, len, c->source.from, why);
	if (rc == 0)
		rc = credentials_parse_json(text, len, "SessionToken", c->source.from, out, why);
	explicit_bzero(text, len);
	free(text);
	return rc;
}
