/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mapped files: what happens when somebody cuts one short.  (That they outlive their files and may
 * give back their pages is in test_cachedir.c.)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cache/mapping.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 5, MANY = 700 };

static size_t page;
static struct sigaction ours;

/* A file of PAGES pages, each byte the number of its page and one more. */
static int make_file(void)
{
	int fd = memfd_create("mapping", MFD_CLOEXEC);
	uint8_t *bytes = malloc(page);

	assert_true(fd >= 0);
	assert_non_null(bytes);
	for (size_t i = 0; i < PAGES; i++) {
		memset(bytes, (int)i + 1, page);
		assert_int_equal(write(fd, bytes, page), page);
	}
	free(bytes);
	return fd;
}

static struct mapping *map(int fd)
{
	struct mapping *m = NULL;

	assert_int_equal(mapping_new(fd, PAGES * page, &m), 0);
	return m;
}

/* Cmocka has a handler of its own while a test runs. */
static void take_back(void)
{
	assert_int_equal(sigaction(SIGBUS, &ours, NULL), 0);
}

/* The sum of a byte of each page. */
static unsigned sum(const struct mapping *m)
{
	unsigned n = 0;

	for (size_t i = 0; i < PAGES; i++)
		n += ((const volatile uint8_t *)m->bytes)[i * page + 7];
	return n;
}

static void cut_short(void **state)
{
	int fd = make_file(), other_fd = make_file();
	struct mapping *m = map(fd), *other = map(other_fd), *again;

	take_back();
	assert_int_equal(sum(m), 15);
	assert_int_equal(ftruncate(fd, (off_t)page), 0);
	assert_false(mapping_broken(m)); /* nobody has looked yet */
	assert_true(sum(m) < 15);
	assert_true(mapping_broken(m));
	mapping_touch(m, 100 << 20);
	assert_int_equal(sum(m), 0);
	assert_int_equal(sum(other), 15);
	assert_false(mapping_broken(other));
	/* What is mapped at its address afterwards is another thing. */
	mapping_unref(m);
	again = map(other_fd);
	assert_false(mapping_broken(again));
	assert_int_equal(sum(again), 15);
	mapping_unref(again);
	mapping_unref(other);
	close(fd);
	close(other_fd);
}

/* More of them than fit into one piece of the table, and places used again. */
static void many(void **state)
{
	struct mapping *v[MANY];
	int fd = make_file(), bad = make_file();

	take_back();
	for (size_t i = 0; i < MANY; i++)
		v[i] = map(i % 2 ? bad : fd);
	for (size_t i = 0; i < MANY; i += 3) {
		mapping_unref(v[i]);
		v[i] = map(i % 2 ? bad : fd);
	}
	assert_int_equal(ftruncate(bad, 0), 0);
	for (size_t i = 0; i < MANY; i++) {
		assert_int_equal(sum(v[i]), i % 2 ? 0 : 15);
		assert_int_equal(mapping_broken(v[i]), i % 2);
	}
	for (size_t i = 0; i < MANY; i++)
		mapping_unref(v[i]);
	close(fd);
	close(bad);
}

static void *read_on(void *ctx)
{
	struct mapping *m = ctx;
	unsigned n;

	do
		n = sum(m);
	while (!mapping_broken(m));
	(void)n;
	return NULL;
}

/* Several threads meet the same hole. */
static void together(void **state)
{
	take_back();
	for (unsigned round = 0; round < 20; round++) {
		int fd = make_file();
		struct mapping *m = map(fd);
		pthread_t threads[4];

		for (size_t i = 0; i < ARRAY_LEN(threads); i++)
			assert_int_equal(pthread_create(&threads[i], NULL, read_on, m), 0);
		assert_int_equal(ftruncate(fd, 0), 0);
		for (size_t i = 0; i < ARRAY_LEN(threads); i++)
			pthread_join(threads[i], NULL);
		assert_int_equal(sum(m), 0);
		mapping_unref(m);
		close(fd);
	}
}

/* Any other page that is not there ends the process as before. */
static void others(void **state)
{
	int fd = make_file(), status = 0;
	pid_t pid;

	take_back();
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		volatile uint8_t *bytes = mmap(NULL, page, PROT_READ, MAP_SHARED, fd, 0);

		if (freopen("/dev/null", "w", stderr) == NULL) /* a sanitizer tells at length */
			_exit(0);
		if (ftruncate(fd, 0) == 0)
			_exit(bytes[0]);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cut_short),
		cmocka_unit_test(many),
		cmocka_unit_test(together),
		cmocka_unit_test(others),
	};
	struct mapping *first = NULL;
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);

	page = (size_t)sysconf(_SC_PAGESIZE);
	if (mapping_new(fd, page, &first) < 0 || sigaction(SIGBUS, NULL, &ours) < 0)
		return 1;
	mapping_unref(first);
	close(fd);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
