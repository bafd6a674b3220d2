/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Daemon: the fork, the pipe to the parent, and signals.
 *
 * The parent waits on a pipe.  'R' means ready; 'E' and a sentence mean failure; the end of the
 * pipe without either means that the child died.  Until it is ready the child is part of the
 * terminal's process group (so ^C reaches it) and dies with its parent; only then it begins a
 * session of its own.
 *
 * Signals are taken by one thread with sigwait(), so that no code runs in a signal handler.  The
 * FUSE loop sleeps in a semaphore of libfuse's that only a signal interrupts, and looks at its exit
 * flag just before: the wake-up is repeated until the loop has ended, because one could fall
 * between the two.  The same thread notices when the loop ends without a signal, because somebody
 * unmounts: libfuse waits for its workers then, and reads that wait for a network have to be told.
 *
 * Threads: the main thread, and the signal thread that lives between begin and end.
 */
#include "fs/daemon.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct daemon_signals {
	pthread_t thread, loop_thread;
	struct daemon_signal_ops ops;
	void *ctx;
	bool ended; /* atomic */
};

static void write_all(int fd, const char *text, size_t len)
{
	while (len) {
		ssize_t n = write(fd, text, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return; /* nobody listens: nothing to be done about it */
		text += n;
		len -= (size_t)n;
	}
}

static void say(const char *sentence)
{
	char line[600];
	int len = snprintf(line, sizeof(line), "weightfs: %s\n", sentence);

	write_all(STDERR_FILENO, line, MIN((size_t)len, sizeof(line) - 1));
}

/* The parent's part: waits for the child's word. */
static int wait_for_child(int fd, pid_t pid)
{
	char text[600];
	size_t len = 0;
	int status;

	while (len + 1 < sizeof(text)) {
		ssize_t n = read(fd, text + len, sizeof(text) - 1 - len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		len += (size_t)n;
	}
	text[len] = 0;
	if (len && text[0] == 'R')
		return 0;
	if (len && text[0] == 'E') {
		say(text + 1);
	} else if (waitpid(pid, &status, 0) == pid && WIFSIGNALED(status)) {
		snprintf(text, sizeof(text), "the mount's process was ended by signal %d (%s)",
			 WTERMSIG(status), sigdescr_np(WTERMSIG(status)));
		say(text);
	} else {
		say("the mount's process ended before the mount could be used");
	}
	return 1;
}

int daemon_start(struct daemon *d, bool foreground, int ready_fd)
{
	int fds[2];
	pid_t pid;

	*d = (struct daemon){.foreground = foreground, .ready_fd = ready_fd, .parent_fd = -1};
	/* Helpers that are run meanwhile must not hold it open. */
	if (ready_fd >= 0 && fcntl(ready_fd, F_SETFD, FD_CLOEXEC) < 0) {
		say("--ready-fd is not an open file descriptor");
		return 1;
	}
	if (foreground)
		return -1;
	if (pipe2(fds, O_CLOEXEC) < 0 || (pid = fork()) < 0) {
		say("the background process cannot be started");
		return 1;
	}
	if (pid > 0) {
		close(fds[1]);
		return wait_for_child(fds[0], pid);
	}
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	close(fds[0]);
	d->parent_fd = fds[1];
	return -1;
}

static void leave_terminal(void)
{
	int null = open("/dev/null", O_RDWR);

	setsid();
	if (null < 0)
		return;
	for (int fd = 0; fd <= STDERR_FILENO; fd++)
		dup2(null, fd);
	if (null > STDERR_FILENO)
		close(null);
}

/* The kernel keeps the wish to die with the parent per thread. */
void daemon_mounted(struct daemon *d)
{
	if (!d->foreground)
		prctl(PR_SET_PDEATHSIG, 0);
}

void daemon_ready(struct daemon *d)
{
	if (!d->foreground)
		leave_terminal();
	if (d->ready_fd >= 0) {
		write_all(d->ready_fd, "ready\n", 6);
		close(d->ready_fd);
		d->ready_fd = -1;
	}
	if (d->parent_fd >= 0) {
		write_all(d->parent_fd, "R", 1);
		close(d->parent_fd);
		d->parent_fd = -1;
	}
}

void daemon_failed(struct daemon *d, const struct why *why)
{
	const char *text = why->text[0] ? why->text : "the mount failed";

	if (d->parent_fd >= 0) {
		write_all(d->parent_fd, "E", 1);
		write_all(d->parent_fd, text, strlen(text));
	} else {
		say(text);
	}
}

static void no_effect(int sig)
{
}

static void signal_sets(sigset_t *ending, sigset_t *all)
{
	sigemptyset(ending);
	sigaddset(ending, SIGTERM);
	sigaddset(ending, SIGINT);
	sigaddset(ending, SIGHUP);
	*all = *ending;
	sigaddset(all, SIGUSR2); /* ours: the loop has ended */
}

static void *signal_thread(void *ctx)
{
	const struct timespec again = {.tv_nsec = 50 * 1000 * 1000}, look = {.tv_sec = 1};
	struct daemon_signals *s = ctx;
	sigset_t ending, all;
	bool stopped = false;
	int sig;

	signal_sets(&ending, &all);
	while (!__atomic_load_n(&s->ended, __ATOMIC_ACQUIRE)) {
		sig = sigtimedwait(&all, NULL, stopped ? &again : &look);
		if (!stopped &&
		    (sig > 0 && sigismember(&ending, sig) == 1 ? s->ops.signal(s->ctx, sig)
							       : s->ops.over(s->ctx))) {
			stopped = true;
			s->ops.stop(s->ctx);
		}
		if (stopped && !__atomic_load_n(&s->ended, __ATOMIC_ACQUIRE))
			pthread_kill(s->loop_thread, SIGUSR1);
	}
	return NULL;
}

void daemon_signals_block(void)
{
	struct sigaction wake = {.sa_handler = no_effect}, ignore = {.sa_handler = SIG_IGN};
	sigset_t ending, all;

	signal_sets(&ending, &all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	sigaction(SIGUSR1, &wake, NULL);
	sigaction(SIGPIPE, &ignore, NULL);
}

int daemon_signals_begin(const struct daemon_signal_ops *ops, void *ctx,
			 struct daemon_signals **out)
{
	struct daemon_signals *s = calloc(1, sizeof(*s));
	int ret;

	if (!s)
		return -ENOMEM;
	s->loop_thread = pthread_self();
	s->ops = *ops;
	s->ctx = ctx;
	ret = pthread_create(&s->thread, NULL, signal_thread, s);
	if (ret) {
		free(s);
		return -ret;
	}
	*out = s;
	return 0;
}

void daemon_signals_end(struct daemon_signals *s)
{
	if (!s)
		return;
	__atomic_store_n(&s->ended, true, __ATOMIC_RELEASE);
	pthread_kill(s->thread, SIGUSR2);
	pthread_join(s->thread, NULL);
	free(s);
}
