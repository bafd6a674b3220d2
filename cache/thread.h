/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting threads that leave signals to others, and waiting for what another thread ends.
 */
#ifndef CACHE_THREAD_H
#define CACHE_THREAD_H

#include <pthread.h>
#include <stdbool.h>

#include "cache/lock.h"

/* Starts a thread that takes no signal but SIGBUS.  name (≤ 15 bytes) is what ps shows; NULL: the
 * program's.  Returns 0 or -errno. */
int thread_start(pthread_t *out, const char *name, void *(*fn)(void *arg), void *arg);

/* Something that happens once, with one thread that waits for it: for running asynchronous calls
 * synchronously.  On the waiter's stack. */
struct event {
	struct lock lock; /* LOCK_QUEUE */
	struct condition cond;
	bool happened; /* under lock */
};

void event_init(struct event *e);
/* The last thing that the other side does with it: the waiter may have ended it. */
void event_happen(struct event *e);
/* Blocks until it has happened, and ends it.  What was written before event_happen() is seen. */
void event_wait(struct event *e);

#endif
