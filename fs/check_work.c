/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Comparing checksums in the background: one thread, for one version at a time.
 *
 * The thread is made for a version and ends with it, and gives way to others.  Not SCHED_IDLE: on
 * a machine whose processors are all busy such a thread stands still for many seconds, also while
 * others wait for what it holds, or for its end.  It has a copy of what is recorded and a reference
 * on the state, so the run may go on meanwhile; the run's thread asks now and then whether it has
 * ended.
 *
 * States: idle; running; ended (the result is to be taken).  `phase` is atomic and is moved on by
 * the thread once, from running to ended; all else is written by whoever the phase says.
 */
#include "fs/check.h"

#include "cache/log.h"
#include "cache/thread.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum { NICE = 10 };
enum phase { IDLE, RUNNING, ENDED };

struct check_work {
	pthread_t thread;
	int phase; /* atomic, as stop is */
	bool stop;
	struct state *state;
	struct checks checks;
	struct check_miss miss;
	int err;
};

struct check_work *check_work_new(void)
{
	return calloc(1, sizeof(struct check_work));
}

static int phase_of(const struct check_work *w)
{
	return __atomic_load_n(&w->phase, __ATOMIC_ACQUIRE);
}

bool check_work_busy(const struct check_work *w)
{
	return phase_of(w) != IDLE;
}

static void *work_main(void *arg)
{
	struct check_work *w = arg;
	struct why why = {0};

	if (setpriority(PRIO_PROCESS, (id_t)gettid(), NICE) < 0)
		log_debug("checksums are compared at the usual priority");
	w->err = checks_compare(w->state, &w->checks, 1, &w->stop, &w->miss, &why);
	if (w->err < 0 && w->err != -EBADMSG && w->err != -ECANCELED)
		log_debug("checksums of version %llu: %s", (unsigned long long)w->state->version,
			  why.text);
	__atomic_store_n(&w->phase, ENDED, __ATOMIC_RELEASE);
	return NULL;
}

bool check_work_start(struct check_work *w, struct state *s, const struct checks *c)
{
	if (check_work_busy(w) || checks_copy(c, &w->checks) < 0)
		return false;
	w->state = state_ref(s);
	w->miss = (struct check_miss){0};
	w->err = 0;
	__atomic_store_n(&w->stop, false, __ATOMIC_RELAXED);
	__atomic_store_n(&w->phase, RUNNING, __ATOMIC_RELEASE);
	if (thread_start(&w->thread, NULL, work_main, w) == 0)
		return true;
	__atomic_store_n(&w->phase, IDLE, __ATOMIC_RELEASE);
	state_unref(w->state);
	checks_release(&w->checks);
	return false;
}

bool check_work_take(struct check_work *w, struct state **out_state, struct checks *out_checks,
		     struct check_miss *out_miss, int *out_err)
{
	if (phase_of(w) != ENDED)
		return false;
	pthread_join(w->thread, NULL);
	*out_state = w->state;
	*out_checks = w->checks;
	*out_miss = w->miss;
	*out_err = w->err;
	w->checks = (struct checks){0};
	w->state = NULL;
	__atomic_store_n(&w->phase, IDLE, __ATOMIC_RELEASE);
	return true;
}

void check_work_free(struct check_work *w)
{
	if (w == NULL)
		return;
	__atomic_store_n(&w->stop, true, __ATOMIC_RELAXED);
	if (phase_of(w) != IDLE)
		pthread_join(w->thread, NULL);
	state_unref(w->state);
	checks_release(&w->checks);
	free(w);
}
