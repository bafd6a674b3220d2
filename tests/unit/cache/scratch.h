/* SPDX-License-Identifier: Apache-2.0 */
/* A scratch directory per test, and files in it.  Included once per test binary, before anything
 * else of the test. */
#ifndef TESTS_UNIT_CACHE_SCRATCH_H
#define TESTS_UNIT_CACHE_SCRATCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char scratch[64];

static inline int scratch_setup(void **state)
{
	snprintf(scratch, sizeof(scratch), "/tmp/wfs-unit-XXXXXX");
	return mkdtemp(scratch) != NULL ? 0 : -1;
}

static inline int scratch_remove(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

static inline int scratch_teardown(void **state)
{
	return nftw(scratch, scratch_remove, 16, FTW_DEPTH | FTW_PHYS);
}

/* The path of a name in the scratch directory; eight of them are valid at a time. */
static inline const char *at(const char *name)
{
	static char paths[8][512];
	static unsigned next;
	char *path = paths[next++ % 8];

	snprintf(path, sizeof(paths[0]), "%s/%s", scratch, name);
	return path;
}

static inline void write_file(const char *name, const void *bytes, size_t len)
{
	int fd = open(at(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, len), len);
	assert_int_equal(close(fd), 0);
}

static inline void write_text(const char *name, const char *text)
{
	write_file(name, text, strlen(text));
}

static inline void set_mtime(const char *name, int64_t seconds)
{
	struct timespec ts[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};

	assert_int_equal(utimensat(AT_FDCWD, at(name), ts, 0), 0);
}

/* Runs fn in a child; the status as waitpid() has it. */
static inline int in_child(void (*fn)(void))
{
	int status = 0;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		fn();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

#define scratch_test(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

#endif
