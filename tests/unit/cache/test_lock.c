/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Locks and conditions: exclusion, waking, deadlines, and in debug builds the abort on a wrong
 * order.
 */
#include "cache/lock.h"

#include "tests/unit/cache/scratch.h"

#include <signal.h>
#include <sys/resource.h>

#include "cache/clock.h"

static struct lock low, high;
static struct condition cond;
static int turn; /* guarded by low */

static int setup(void **state)
{
	lock_init(&low, LOCK_QUEUE);
	lock_init(&high, LOCK_HISTORY);
	condition_init(&cond);
	turn = 0;
	return 0;
}

static int teardown(void **state)
{
	condition_destroy(&cond);
	lock_destroy(&high);
	lock_destroy(&low);
	return 0;
}

static void *answer(void *arg)
{
	for (int i = 0; i < 500; i++) {
		lock_take(&low);
		while (turn != 2 * i + 1)
			assert_int_equal(condition_wait(&cond, &low, -1), 0);
		turn++;
		condition_broadcast(&cond);
		lock_release(&low);
	}
	return NULL;
}

static void test_ping_pong(void **state)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, answer, NULL), 0);
	for (int i = 0; i < 500; i++) {
		lock_take(&low);
		turn++;
		condition_broadcast(&cond);
		while (turn != 2 * i + 2)
			assert_int_equal(condition_wait(&cond, &low, -1), 0);
		lock_release(&low);
	}
	pthread_join(thread, NULL);
	assert_int_equal(turn, 1000);
}

static void test_deadline(void **state)
{
	int64_t until = clock_mono_ns() + NSEC_PER_SEC / 100;
	int rc;

	lock_take(&low);
	while ((rc = condition_wait(&cond, &low, until)) == 0)
		;
	assert_int_equal(rc, -ETIMEDOUT);
	assert_true(clock_mono_ns() >= until);
	assert_int_equal(condition_wait(&cond, &low, 0), -ETIMEDOUT);
	lock_release(&low);
}

static void test_right_order(void **state)
{
	lock_take(&high);
	lock_take(&low);
	lock_release(&high); /* in any order */
	lock_release(&low);
	lock_take(&low);
	lock_release(&low);
	lock_take(&high);
	lock_release(&high);
}

static void test_clock(void **state)
{
	struct timespec ts = clock_timespec(-1);

	assert_int_equal(ts.tv_sec, -1);
	assert_int_equal(ts.tv_nsec, 999999999);
	clock_fake(5);
	assert_int_equal(clock_mono_ns(), 5);
	assert_int_equal(clock_real_ns(), 5);
	clock_fake(-1);
	assert_true(clock_real_ns() > INT64_C(1500000000) * NSEC_PER_SEC);
}

#ifndef NDEBUG
static void quiet(void)
{
	static const struct rlimit none = {0, 0};
	int fd = open("/dev/null", O_WRONLY);

	dup2(fd, STDERR_FILENO);
	setrlimit(RLIMIT_CORE, &none);
	signal(SIGABRT, SIG_DFL); /* not the test library's */
}

static void take_wrong(void)
{
	quiet();
	lock_take(&low);
	lock_take(&high);
}

static void take_equal(void)
{
	struct lock other;

	quiet();
	lock_init(&other, LOCK_QUEUE);
	lock_take(&low);
	lock_take(&other);
}

static void release_free(void)
{
	quiet();
	lock_release(&low);
}

static void expect_abort(void (*fn)(void))
{
	int status = in_child(fn);

	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGABRT);
}

static void test_wrong_order_aborts(void **state)
{
	expect_abort(take_wrong);
	expect_abort(take_equal);
	expect_abort(release_free);
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_ping_pong, setup, teardown),
		cmocka_unit_test_setup_teardown(test_deadline, setup, teardown),
		cmocka_unit_test_setup_teardown(test_right_order, setup, teardown),
		cmocka_unit_test(test_clock),
#ifndef NDEBUG
		cmocka_unit_test_setup_teardown(test_wrong_order_aborts, setup, teardown),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
