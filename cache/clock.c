/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time.
 *
 * Two clocks, both in nanoseconds: monotonic for deadlines and ages inside the process, real for
 * comparing with file times.  The one variable here is the time that a test has set; it is atomic,
 * so tests may move it while other threads look.  The kernel knows nothing of a set time: waits on
 * conditions (cache/lock.h) always run on the real monotonic clock.
 */
#include "cache/clock.h"

static int64_t fake_ns = -1; /* atomic; negative: the real clocks */

static int64_t clock_ns(clockid_t id)
{
	int64_t fake = __atomic_load_n(&fake_ns, __ATOMIC_RELAXED);
	struct timespec ts;

	if (fake >= 0)
		return fake;
	clock_gettime(id, &ts);
	return (int64_t)ts.tv_sec * NSEC_PER_SEC + ts.tv_nsec;
}

int64_t clock_mono_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

int64_t clock_real_ns(void)
{
	return clock_ns(CLOCK_REALTIME);
}

struct timespec clock_timespec(int64_t ns)
{
	struct timespec ts = {.tv_sec = ns / NSEC_PER_SEC, .tv_nsec = ns % NSEC_PER_SEC};

	if (ts.tv_nsec < 0) {
		ts.tv_sec--;
		ts.tv_nsec += NSEC_PER_SEC;
	}
	return ts;
}

void clock_fake(int64_t ns)
{
	__atomic_store_n(&fake_ns, ns, __ATOMIC_RELAXED);
}
