/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Syncing later: files are closed and mappings let go of in the end, and one that cannot be synced
 * is broken.  More of them than may wait open, too.
 */
#include "cache/syncer.h"

#include "tests/unit/cache/scratch.h"

#include <fcntl.h>
#include <unistd.h>

#include "cache/log.h"

static struct mapping *mapped(const char *name, int *out_fd)
{
	struct mapping *m = NULL;

	write_text(name, "some bytes");
	*out_fd = open(at(name), O_RDWR | O_CLOEXEC);
	assert_true(*out_fd >= 0);
	assert_int_equal(mapping_new(*out_fd, 10, &m), 0);
	return m;
}

static void test_synced(void **state)
{
	struct syncer *s = syncer_new();
	struct mapping *m[600];
	int fd[600];

	assert_non_null(s);
	for (size_t i = 0; i < ARRAY_LEN(m); i++) {
		char name[8];

		snprintf(name, sizeof(name), "f%zu", i);
		m[i] = mapped(name, &fd[i]);
		syncer_take(s, fd[i], m[i], name);
		/* Its number is taken again once it is closed. */
		assert_in_range(fd[i], 0, 400);
	}
	while (__atomic_load_n(&m[0]->refs, __ATOMIC_RELAXED) > 1)
		usleep(1000);
	syncer_free(s);
	for (size_t i = 0; i < ARRAY_LEN(m); i++) {
		assert_int_equal(fcntl(fd[i], F_GETFD), -1);
		assert_int_equal(m[i]->refs, 1);
		assert_false(mapping_broken(m[i]));
		assert_memory_equal(m[i]->bytes, "some bytes", 10);
		mapping_unref(m[i]);
	}
	syncer_free(NULL);
}

static void test_not_synced(void **state)
{
	struct syncer *s = syncer_new();
	struct mapping *m;
	int fd, ends[2];

	assert_non_null(s);
	m = mapped("f", &fd);
	close(fd);
	assert_int_equal(pipe(ends), 0); /* which cannot be synced */
	log_set_level(LOG_LEVEL_ERROR);
	syncer_take(s, ends[1], m, "f");
	while (!mapping_broken(m))
		usleep(1000);
	syncer_free(s);
	log_set_level(LOG_LEVEL_INFO);
	assert_true(mapping_broken(m));
	close(ends[0]);
	mapping_unref(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		scratch_test(test_synced),
		scratch_test(test_not_synced),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
