/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loop whose turns are taken by several threads.
 *
 * Whoever is free takes the next turn, so turns of different lengths do not matter much.  Threads
 * are made for each call: a call is for milliseconds of work at least.
 *
 * Locks: none; the number of the next turn is atomic, and all else is the callback's.
 */
#include "fs/parallel.h"

#include "cache/thread.h"
#include "codec/base.h"

enum { THREADS_MAX = 256 };

struct loop {
	void (*work)(void *ctx, size_t i);
	void *ctx;
	size_t count;
	size_t next; /* atomic */
};

static void *turns(void *arg)
{
	struct loop *l = arg;
	size_t i;

	while ((i = __atomic_fetch_add(&l->next, 1, __ATOMIC_RELAXED)) < l->count)
		l->work(l->ctx, i);
	return NULL;
}

void parallel_for(unsigned jobs, size_t count, void (*work)(void *ctx, size_t i), void *ctx)
{
	struct loop l = {.work = work, .ctx = ctx, .count = count};
	pthread_t threads[THREADS_MAX];
	unsigned started = 0;

	jobs = MIN(jobs, (unsigned)THREADS_MAX);
	while (started + 1 < jobs && started + 1 < count &&
	       thread_start(&threads[started], NULL, turns, &l) == 0)
		started++;
	turns(&l);
	for (unsigned i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
}
