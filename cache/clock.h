/* SPDX-License-Identifier: Apache-2.0 */
/* Time, replaceable in tests: everything that asks for the time asks here. */
#ifndef CACHE_CLOCK_H
#define CACHE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define NSEC_PER_SEC INT64_C(1000000000)

int64_t clock_mono_ns(void); /* CLOCK_MONOTONIC */
int64_t clock_real_ns(void); /* CLOCK_REALTIME */
struct timespec clock_timespec(int64_t ns);
/* Tests: both clocks stand at ns from now on; a negative value returns to the real ones. */
void clock_fake(int64_t ns);

#endif
