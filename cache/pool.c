/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker pool: two queues, fixed threads.
 *
 * A job is queued in one of the two lists, or taken out and run; `queued` tells the two apart for
 * pool_cancel().  After a worker has called run() it does not look at the job again, which may be
 * gone by then.  The lock guards the lists and the counts and is never held over run().
 *
 * Not here: results, ordering between jobs, growing, deadlines.
 */
#include "cache/pool.h"

#include <assert.h>
#include <stdlib.h>

#include "cache/lock.h"
#include "cache/thread.h"

enum { THREADS_MAX = 64, FAIR = 8 };

struct queue {
	struct pool_job *head, **tail;
};

struct pool {
	struct lock lock;		    /* guards what follows */
	struct condition work, idle;	    /* something to do; nothing left */
	struct queue queue[POOL_LATER + 1]; /* by priority */
	unsigned running, turn;
	bool end;
	unsigned threads; /* constant once started */
	pthread_t thread[THREADS_MAX];
};

static struct pool_job *take_locked(struct pool *p)
{
	bool fair = ++p->turn % FAIR == 0;

	for (int i = 0; i <= POOL_LATER; i++) {
		struct queue *q = &p->queue[fair ? POOL_LATER - i : i];
		struct pool_job *job = q->head;

		if (job == NULL)
			continue;
		q->head = job->next;
		if (q->head == NULL)
			q->tail = &q->head;
		job->queued = false;
		return job;
	}
	return NULL;
}

static void *work(void *arg)
{
	struct pool *p = arg;
	struct pool_job *job;

	lock_take(&p->lock);
	for (;;) {
		job = take_locked(p);
		if (job == NULL && p->end)
			break;
		if (job == NULL) {
			(void)condition_wait(&p->work, &p->lock, -1);
			continue;
		}
		p->running++;
		lock_release(&p->lock);
		job->run(job);
		lock_take(&p->lock);
		p->running--;
		if (p->running == 0 && p->queue[POOL_SOON].head == NULL &&
		    p->queue[POOL_LATER].head == NULL)
			condition_broadcast(&p->idle);
	}
	lock_release(&p->lock);
	return NULL;
}

int pool_new(unsigned threads, struct pool **out)
{
	struct pool *p = calloc(1, sizeof(*p));
	int err = 0;

	if (p == NULL)
		return -ENOMEM;
	lock_init(&p->lock, LOCK_QUEUE);
	condition_init(&p->work);
	condition_init(&p->idle);
	for (int i = 0; i <= POOL_LATER; i++)
		p->queue[i].tail = &p->queue[i].head;
	while (p->threads < MIN(threads, (unsigned)THREADS_MAX) && err == 0) {
		err = thread_start(&p->thread[p->threads], NULL, work, p);
		if (err == 0)
			p->threads++;
	}
	if (p->threads == 0) {
		pool_free(p);
		return err != 0 ? err : -EINVAL;
	}
	*out = p;
	return 0;
}

void pool_free(struct pool *p)
{
	if (p == NULL)
		return;
	lock_take(&p->lock);
	p->end = true;
	condition_broadcast(&p->work);
	lock_release(&p->lock);
	for (unsigned i = 0; i < p->threads; i++)
		pthread_join(p->thread[i], NULL);
	condition_destroy(&p->work);
	condition_destroy(&p->idle);
	lock_destroy(&p->lock);
	free(p);
}

void pool_submit(struct pool *p, struct pool_job *job, enum pool_priority priority)
{
	struct queue *q = &p->queue[priority];

	lock_take(&p->lock);
	assert(!job->queued && !(p->end && p->threads == 0));
	job->queued = true;
	job->next = NULL;
	*q->tail = job;
	q->tail = &job->next;
	condition_broadcast(&p->work);
	lock_release(&p->lock);
}

bool pool_cancel(struct pool *p, struct pool_job *job)
{
	bool found = false;

	lock_take(&p->lock);
	for (int i = 0; i <= POOL_LATER && !found; i++) {
		struct pool_job **at = &p->queue[i].head;

		while (*at != NULL && *at != job)
			at = &(*at)->next;
		if (*at == NULL)
			continue;
		*at = job->next;
		if (*at == NULL)
			p->queue[i].tail = at;
		job->queued = false;
		found = true;
	}
	lock_release(&p->lock);
	return found;
}

void pool_drain(struct pool *p)
{
	lock_take(&p->lock);
	while (p->running > 0 || p->queue[POOL_SOON].head != NULL ||
	       p->queue[POOL_LATER].head != NULL)
		(void)condition_wait(&p->idle, &p->lock, -1);
	lock_release(&p->lock);
}
