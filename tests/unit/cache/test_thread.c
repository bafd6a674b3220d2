/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that take no signals, and events. */
#include "cache/thread.h"

#include "tests/unit/cache/scratch.h"

#include <signal.h>

static void *mask_of_mine(void *arg)
{
	pthread_sigmask(SIG_BLOCK, NULL, arg);
	return NULL;
}

static void test_signals(void **state)
{
	sigset_t before, in_thread, after;
	pthread_t thread;

	pthread_sigmask(SIG_BLOCK, NULL, &before);
	assert_int_equal(sigismember(&before, SIGTERM), 0);
	assert_int_equal(thread_start(&thread, "a-name", mask_of_mine, &in_thread), 0);
	pthread_join(thread, NULL);
	assert_int_equal(sigismember(&in_thread, SIGTERM), 1);
	assert_int_equal(sigismember(&in_thread, SIGPIPE), 1);
	assert_int_equal(sigismember(&in_thread, SIGBUS), 0);
	pthread_sigmask(SIG_BLOCK, NULL, &after);
	for (int i = 1; i < 32; i++)
		assert_int_equal(sigismember(&after, i), sigismember(&before, i));
}

struct task {
	struct event ended;
	int result;
};

static void *do_task(void *arg)
{
	struct task *t = arg;

	t->result = 42;
	event_happen(&t->ended);
	return NULL;
}

static void test_event(void **state)
{
	for (int i = 0; i < 200; i++) {
		struct task t = {.result = 0};
		pthread_t thread;

		event_init(&t.ended);
		assert_int_equal(thread_start(&thread, NULL, do_task, &t), 0);
		event_wait(&t.ended);
		assert_int_equal(t.result, 42);
		pthread_join(thread, NULL);
	}
}

static void test_event_before(void **state)
{
	struct task t = {.result = 0};

	event_init(&t.ended);
	do_task(&t);
	event_wait(&t.ended);
	assert_int_equal(t.result, 42);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_signals),
		cmocka_unit_test(test_event),
		cmocka_unit_test(test_event_before),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
