/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads and events.
 *
 * Signals that ask the program to end are for the thread that runs the session, and a SIGPIPE of a
 * connection must kill nobody; so a thread begins with all of them blocked.  Not SIGBUS: it is a
 * thread's own (a mapped file was cut), cache/mapping.c lives through it, and where it is blocked
 * it can only end the process.  The mask is set in the parent, so that there is no moment without
 * it.
 *
 * An event has a lock of its own rather than an atomic: the waiter may sleep, and what the other
 * side wrote before must be seen.  Stack memory is enough, because the waiter leaves only after it
 * has had the lock, which the other side then has released or is about to without looking again.
 */
#include "cache/thread.h"

#include <signal.h>

int thread_start(pthread_t *out, const char *name, void *(*fn)(void *arg), void *arg)
{
	sigset_t all, before;
	int err;

	sigfillset(&all);
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	err = pthread_create(out, NULL, fn, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (err == 0 && name != NULL)
		pthread_setname_np(*out, name);
	return -err;
}

void event_init(struct event *e)
{
	lock_init(&e->lock, LOCK_QUEUE);
	condition_init(&e->cond);
	e->happened = false;
}

void event_happen(struct event *e)
{
	lock_take(&e->lock);
	e->happened = true;
	condition_broadcast(&e->cond);
	lock_release(&e->lock);
}

void event_wait(struct event *e)
{
	lock_take(&e->lock);
	while (!e->happened)
		(void)condition_wait(&e->cond, &e->lock, -1);
	lock_release(&e->lock);
	condition_destroy(&e->cond);
	lock_destroy(&e->lock);
}
