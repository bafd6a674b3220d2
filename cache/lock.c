/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranked mutexes and conditions on the monotonic clock.
 *
 * In a debug build (no NDEBUG) each thread keeps the locks it holds in a small thread-local stack;
 * taking a lock whose rank is not below all of them, releasing one that is not held, or waiting on
 * a condition without its lock aborts with a message.  Locks of equal rank are never held together,
 * so two shards cannot dead-lock either.  In a release build the functions are the bare pthread
 * ones.
 *
 * Failure of a pthread call here is a programmer's error (or a broken lock), never an input: it
 * aborts in every build, since going on without mutual exclusion could show wrong bytes.
 */
#include "cache/lock.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "cache/clock.h"

static void must(int err, const char *what)
{
	if (err == 0)
		return;
	fprintf(stderr, "fatal: lock: %s failed with error %d\n", what, err);
	abort();
}

#ifndef NDEBUG

enum { HELD_MAX = 8 };

static __thread const struct lock *held[HELD_MAX];
static __thread unsigned held_count;

static void note_take(const struct lock *lock)
{
	for (unsigned i = 0; i < held_count; i++) {
		if (lock->rank < held[i]->rank)
			continue;
		fprintf(stderr, "fatal: lock: rank %d is taken while rank %d is held\n",
			(int)lock->rank, (int)held[i]->rank);
		abort();
	}
	assert(held_count < HELD_MAX);
	held[held_count++] = lock;
}

static void note_release(const struct lock *lock)
{
	for (unsigned i = held_count; i-- > 0;) {
		if (held[i] != lock)
			continue;
		for (held_count--; i < held_count; i++)
			held[i] = held[i + 1];
		return;
	}
	fprintf(stderr, "fatal: lock: rank %d is released but not held\n", (int)lock->rank);
	abort();
}

#else

static void note_take(const struct lock *lock)
{
}

static void note_release(const struct lock *lock)
{
}

#endif

void lock_init(struct lock *lock, enum lock_rank rank)
{
	lock->rank = rank;
	must(pthread_mutex_init(&lock->mutex, NULL), "init");
}

void lock_destroy(struct lock *lock)
{
	must(pthread_mutex_destroy(&lock->mutex), "destroy");
}

void lock_take(struct lock *lock)
{
	note_take(lock);
	must(pthread_mutex_lock(&lock->mutex), "lock");
}

void lock_release(struct lock *lock)
{
	note_release(lock);
	must(pthread_mutex_unlock(&lock->mutex), "unlock");
}

void condition_init(struct condition *c)
{
	pthread_condattr_t attr;

	must(pthread_condattr_init(&attr), "condattr init");
	must(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC), "condattr clock");
	must(pthread_cond_init(&c->cond, &attr), "cond init");
	pthread_condattr_destroy(&attr);
}

void condition_destroy(struct condition *c)
{
	must(pthread_cond_destroy(&c->cond), "cond destroy");
}

int condition_wait(struct condition *c, struct lock *lock, int64_t until_mono_ns)
{
	int err;

	note_release(lock);
	if (until_mono_ns < 0) {
		err = pthread_cond_wait(&c->cond, &lock->mutex);
	} else {
		struct timespec ts = clock_timespec(until_mono_ns);

		err = pthread_cond_timedwait(&c->cond, &lock->mutex, &ts);
	}
	note_take(lock);
	if (err == ETIMEDOUT)
		return -ETIMEDOUT;
	must(err, "wait");
	return 0;
}

void condition_broadcast(struct condition *c)
{
	must(pthread_cond_broadcast(&c->cond), "broadcast");
}
