/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker pool: everything runs once, priorities, cancelling, resubmitting from a job, draining
 * and ending.
 */
#include "cache/pool.h"

#include "tests/unit/cache/scratch.h"

#include "cache/lock.h"

struct gate { /* holds a job until it is opened */
	struct pool_job job;
	struct lock lock;
	struct condition cond;
	bool entered, open;
};

static void gate_run(struct pool_job *job)
{
	struct gate *g = (struct gate *)job;

	lock_take(&g->lock);
	g->entered = true;
	condition_broadcast(&g->cond);
	while (!g->open)
		(void)condition_wait(&g->cond, &g->lock, -1);
	lock_release(&g->lock);
}

static void gate_shut(struct gate *g, struct pool *p)
{
	*g = (struct gate){.job.run = gate_run};
	lock_init(&g->lock, LOCK_QUEUE);
	condition_init(&g->cond);
	pool_submit(p, &g->job, POOL_SOON);
	lock_take(&g->lock);
	while (!g->entered)
		(void)condition_wait(&g->cond, &g->lock, -1);
	lock_release(&g->lock);
}

static void gate_open(struct gate *g)
{
	lock_take(&g->lock);
	g->open = true;
	condition_broadcast(&g->cond);
	lock_release(&g->lock);
}

static void gate_end(struct gate *g)
{
	condition_destroy(&g->cond);
	lock_destroy(&g->lock);
}

struct count {
	struct pool_job job;
	struct pool *pool;
	unsigned *total; /* atomic */
	unsigned order, again;
};

static void count_run(struct pool_job *job)
{
	struct count *c = (struct count *)job;

	c->order = __atomic_add_fetch(c->total, 1, __ATOMIC_RELAXED);
	if (c->again > 0) {
		c->again--;
		pool_submit(c->pool, job, POOL_LATER);
	}
}

static void test_all_run_once(void **state)
{
	static struct count jobs[1000];
	unsigned total = 0;
	struct pool *p;

	assert_int_equal(pool_new(3, &p), 0);
	for (size_t i = 0; i < ARRAY_LEN(jobs); i++) {
		jobs[i] = (struct count){.job.run = count_run, .pool = p, .total = &total};
		jobs[i].again = i % 10 == 0 ? 2 : 0;
		pool_submit(p, &jobs[i].job, i % 3 == 0 ? POOL_SOON : POOL_LATER);
	}
	pool_drain(p);
	assert_int_equal(__atomic_load_n(&total, __ATOMIC_RELAXED), 1200);
	pool_free(p);
}

static void test_priorities(void **state)
{
	struct count later[20], soon[20];
	unsigned total = 0, overtaken = 0;
	struct gate gate;
	struct pool *p;

	assert_int_equal(pool_new(1, &p), 0);
	gate_shut(&gate, p);
	for (int i = 0; i < 20; i++) {
		later[i] = (struct count){.job.run = count_run, .total = &total};
		soon[i] = later[i];
		pool_submit(p, &later[i].job, POOL_LATER);
	}
	for (int i = 0; i < 20; i++)
		pool_submit(p, &soon[i].job, POOL_SOON);
	gate_open(&gate);
	pool_drain(p);
	assert_int_equal(total, 40);
	/* All that matters before all that can wait, but for the few that keep those from starving.
	 */
	for (int i = 0; i < 20; i++)
		overtaken += later[i].order < soon[19].order;
	assert_in_range(overtaken, 1, 4);
	for (int i = 1; i < 20; i++)
		assert_true(soon[i].order > soon[i - 1].order);
	pool_free(p);
	gate_end(&gate);
}

static void test_cancel(void **state)
{
	struct count a, b;
	unsigned total = 0;
	struct gate gate;
	struct pool *p;

	assert_int_equal(pool_new(1, &p), 0);
	gate_shut(&gate, p);
	a = (struct count){.job.run = count_run, .total = &total};
	b = a;
	pool_submit(p, &a.job, POOL_LATER);
	pool_submit(p, &b.job, POOL_LATER);
	assert_true(pool_cancel(p, &b.job));
	assert_false(pool_cancel(p, &b.job));
	assert_false(pool_cancel(p, &gate.job)); /* it runs */
	gate_open(&gate);
	pool_drain(p);
	assert_int_equal(total, 1);
	assert_false(pool_cancel(p, &a.job));
	pool_submit(p, &b.job, POOL_SOON); /* and can be submitted again */
	pool_free(p);			   /* runs what is queued */
	assert_int_equal(total, 2);
	gate_end(&gate);
}

static void test_none(void **state)
{
	struct pool *p = NULL;

	assert_int_equal(pool_new(0, &p), -EINVAL);
	assert_null(p);
	pool_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_run_once),
		cmocka_unit_test(test_priorities),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
