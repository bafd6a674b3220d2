/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Daemon: becoming a background process that tells its parent how the start went, and ending on
 * signals. Fork first, then threads.
 */
#ifndef FS_DAEMON_H
#define FS_DAEMON_H

#include "codec/base.h"

struct daemon {
	bool foreground;
	int ready_fd;  /* gets "ready\n"; -1: none */
	int parent_fd; /* pipe to the waiting parent; -1 in the foreground */
};

/* Forks unless `foreground`.  In the process that is to serve it returns -1; in the parent it
 * returns, when the start is over, the exit code (a failure has been told on stderr). */
int daemon_start(struct daemon *d, bool foreground, int ready_fd);
/* The mount is there: from now on the process outlives its parent.  From the main thread only. */
void daemon_mounted(struct daemon *d);
/* The mount can be used: tells the parent and ready_fd, and lets go of the terminal. */
void daemon_ready(struct daemon *d);
/* The start failed: one line for the terminal, by way of the parent if there is one. */
void daemon_failed(struct daemon *d, const struct why *why);

/* Signals that end the mount (TERM, INT, HUP) wait from now on.  Call before there is something to
 * take down and before threads are started: they inherit the mask. */
void daemon_signals_block(void);
struct daemon_signal_ops {
	/* A signal has come; false: it is dealt with, and the mount goes on. */
	bool (*signal)(void *ctx, int signal);
	/* Has the loop ended by itself?  Asked now and then. */
	bool (*over)(void *ctx);
	/* Called once: the mount ends. */
	void (*stop)(void *ctx);
};
/* Starts the thread that takes them: once it has called `stop`, it wakes the calling thread with a
 * signal without effect until daemon_signals_end(). */
struct daemon_signals; /* opaque */
int daemon_signals_begin(const struct daemon_signal_ops *ops, void *ctx,
			 struct daemon_signals **out) MUST_CHECK;
/* Ends and joins the thread; a call under way is waited for.  NULL is fine. */
void daemon_signals_end(struct daemon_signals *s);

#endif
