/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls from a thread apart: there are no descriptors in it, the others keep theirs, and results
 * come back.  That a killed mount is dead and does not hang is for the tests of mounts.
 */
#include "fs/apart.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

static int descriptors(void *ctx)
{
	int *fds = ctx, found = 0;

	for (int i = 0; i < 2; i++)
		found += fcntl(fds[i], F_GETFD) >= 0;
	return found;
}

static void test_no_descriptors(void **state)
{
	int fds[2];

	assert_int_equal(pipe(fds), 0);
	assert_int_equal(apart_run(descriptors, fds), 0);
	assert_int_equal(descriptors(fds), 2);
	close(fds[0]);
	close(fds[1]);
}

static void test_stat(void **state)
{
	struct stat want, st;

	assert_int_equal(stat("/", &want), 0);
	assert_int_equal(apart_stat("/", &st), 0);
	assert_int_equal(st.st_ino, want.st_ino);
	assert_int_equal(apart_stat("/proc/self/none", &st), -ENOENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_descriptors),
		cmocka_unit_test(test_stat),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
