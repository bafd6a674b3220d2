/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The retry policy: what is transient, how long to wait, when to give up, and how far parallelism
 * goes down and comes back.
 */
#include "cache/remote/retry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const struct retry_policy policy = {
	.attempts = 4, .base_ms = 100, .cap_ms = 1000, .server_ms = 60000};

static struct retry_event event(int status, int err)
{
	return (struct retry_event){.attempt = 1,
				    .status = status,
				    .err = err,
				    .repeatable = true,
				    .retry_after_ms = -1,
				    .rate_reset_ms = -1,
				    .rate_remaining = -1,
				    .budget_ms = -1};
}

static void transient(void **state)
{
	static const int yes[] = {408, 425, 429, 500, 502, 503, 504, 520, 522};
	static const int no[] = {400, 401, 403, 404, 405, 409, 412, 416, 422, 501, 505, 507, 301};
	static const int yes_err[] = {ETIMEDOUT,    ECONNRESET, ECONNREFUSED,
				      EHOSTUNREACH, EPROTO,	EIO};
	static const int no_err[] = {EKEYREJECTED, ENOMEM, ECANCELED, ESTALE, EFBIG, EOPNOTSUPP};
	struct retry_event e;

	for (size_t i = 0; i < ARRAY_LEN(yes); i++) {
		e = event(yes[i], 0);
		assert_true(retry_is_transient(&e));
	}
	for (size_t i = 0; i < ARRAY_LEN(no); i++) {
		e = event(no[i], 0);
		assert_false(retry_is_transient(&e));
	}
	for (size_t i = 0; i < ARRAY_LEN(yes_err); i++) {
		e = event(206, yes_err[i]);
		assert_true(retry_is_transient(&e));
	}
	for (size_t i = 0; i < ARRAY_LEN(no_err); i++) {
		e = event(0, no_err[i]);
		assert_false(retry_is_transient(&e));
	}
	/* A signed URL that ran out: once. */
	e = event(403, 0);
	e.redirected = true;
	assert_true(retry_is_transient(&e));
	e.attempt = 2;
	assert_false(retry_is_transient(&e));
	e = event(400, 0);
	e.slow_down = true;
	assert_true(retry_is_transient(&e));
}

static void not_repeatable(void **state)
{
	struct retry_event e = event(500, 0);

	e.repeatable = false;
	assert_false(retry_decide(&policy, &e).again);
	e.status = 503;
	assert_true(retry_decide(&policy, &e).again);
	e.status = 429;
	assert_true(retry_decide(&policy, &e).again);
	e = event(0, ECONNRESET);
	e.repeatable = false;
	assert_false(retry_decide(&policy, &e).again);
	e.unsent = true;
	assert_true(retry_decide(&policy, &e).again);
}

static void back_off(void **state)
{
	static const int64_t longest[] = {100, 200, 400};
	struct retry_event e = event(500, 0);
	struct retry_decision d;
	struct retry_policy patient = policy;

	for (unsigned i = 0; i < 3; i++) {
		e.attempt = i + 1;
		e.random = UINT32_MAX;
		d = retry_decide(&policy, &e);
		assert_true(d.again);
		assert_false(d.fewer);
		assert_int_equal(d.wait_ms, longest[i]);
		e.random = 0;
		assert_int_equal(retry_decide(&policy, &e).wait_ms, 0);
		e.random = UINT32_MAX / 2;
		assert_in_range(retry_decide(&policy, &e).wait_ms, longest[i] / 2 - 1,
				longest[i] / 2 + 1);
	}
	e.attempt = 4;
	assert_false(retry_decide(&policy, &e).again);
	patient.attempts = UINT32_MAX;
	e.attempt = UINT32_MAX - 1;
	e.random = UINT32_MAX;
	assert_int_equal(retry_decide(&patient, &e).wait_ms, 1000);
}

static void servers_wish(void **state)
{
	struct retry_event e = event(429, 0);
	struct retry_decision d;

	e.retry_after_ms = 5000;
	d = retry_decide(&policy, &e);
	assert_true(d.again && d.fewer);
	assert_int_equal(d.wait_ms, 5000);
	e.random = UINT32_MAX; /* a little more, so that not all come at once */
	assert_int_equal(retry_decide(&policy, &e).wait_ms, 6250);
	e.status = 503;
	assert_int_equal(retry_decide(&policy, &e).wait_ms, 6250);
	e.retry_after_ms = 60001; /* more than anybody wants to wait */
	assert_false(retry_decide(&policy, &e).again);
	/* RateLimit: only with a 429, only when the window is used up, only without Retry-After. */
	e = event(429, 0);
	e.rate_reset_ms = 7000;
	e.rate_remaining = 0;
	assert_int_equal(retry_decide(&policy, &e).wait_ms, 7000);
	e.rate_remaining = 5;
	assert_int_equal(retry_decide(&policy, &e).wait_ms, 0);
	e.rate_remaining = 0;
	e.retry_after_ms = 1000;
	assert_int_equal(retry_decide(&policy, &e).wait_ms, 1000);
	e = event(500, 0);
	e.rate_reset_ms = 7000;
	assert_int_equal(retry_decide(&policy, &e).wait_ms, 0);
	/* Fewer at a time: only when told so. */
	assert_false(retry_decide(&policy, &e).fewer);
	e = event(503, ECONNRESET);
	assert_false(retry_decide(&policy, &e).fewer);
}

static void budget(void **state)
{
	struct retry_event e = event(500, 0);
	struct retry_decision d;

	e.attempt = 3;
	e.random = UINT32_MAX;
	e.budget_ms = 400;
	assert_int_equal(retry_decide(&policy, &e).wait_ms, 400);
	e.budget_ms = 100; /* the jitter gives way */
	d = retry_decide(&policy, &e);
	assert_true(d.again);
	assert_int_equal(d.wait_ms, 50);
	e.budget_ms = 0;
	assert_false(retry_decide(&policy, &e).again);
	e = event(503, 0);
	e.retry_after_ms = 2000;
	e.budget_ms = 1999; /* the server's wish does not */
	d = retry_decide(&policy, &e);
	assert_false(d.again);
	assert_true(d.fewer);
	e.budget_ms = 2000;
	assert_int_equal(retry_decide(&policy, &e).wait_ms, 2000);
}

static void parallel(void **state)
{
	struct parallelism p;

	parallelism_init(&p, 16);
	assert_int_equal(p.limit, 16);
	parallelism_good(&p);
	assert_int_equal(p.limit, 16);
	/* A burst of refusals of calls that were started before is one. */
	for (int i = 0; i < 10; i++)
		parallelism_fewer(&p, 0);
	assert_int_equal(p.limit, 8);
	parallelism_fewer(&p, p.epoch);
	assert_int_equal(p.limit, 4);
	for (int i = 0; i < 4; i++)
		parallelism_good(&p);
	assert_int_equal(p.limit, 5);
	for (int i = 0; i < 5; i++)
		parallelism_good(&p);
	assert_int_equal(p.limit, 6);
	for (int i = 0; i < 10; i++)
		parallelism_fewer(&p, p.epoch);
	assert_int_equal(p.limit, 1);
	for (int i = 0; i < 10000; i++)
		parallelism_good(&p);
	assert_int_equal(p.limit, 16);
	parallelism_init(&p, 0);
	assert_int_equal(p.limit, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(transient), cmocka_unit_test(not_repeatable),
		cmocka_unit_test(back_off),  cmocka_unit_test(servers_wish),
		cmocka_unit_test(budget),    cmocka_unit_test(parallel),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
