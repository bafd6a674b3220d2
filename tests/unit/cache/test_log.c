/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log: levels, one clean line per event, files, and lines of many threads that do not mix.
 *
 * A log file, once opened, takes all lines of the process for ever; so the test of stderr comes
 * first.
 */
#include "cache/log.h"

#include "tests/unit/cache/scratch.h"

#include <pthread.h>

#include "cache/clock.h"
#include "cache/fileio.h"

static char *slurp(const char *name)
{
	char *text = NULL;
	size_t len;

	assert_int_equal(file_slurp(AT_FDCWD, at(name), 1 << 20, &text, &len), 0);
	assert_int_equal(strlen(text), len);
	return text;
}

static void test_levels(void **state)
{
	assert_int_equal(log_level_parse("error"), LOG_LEVEL_ERROR);
	assert_int_equal(log_level_parse("warning"), LOG_LEVEL_WARNING);
	assert_int_equal(log_level_parse("info"), LOG_LEVEL_INFO);
	assert_int_equal(log_level_parse("debug"), LOG_LEVEL_DEBUG);
	assert_int_equal(log_level_parse("Debug"), -1);
	assert_int_equal(log_level_parse(""), -1);
}

static void test_stderr(void **state)
{
	int saved = dup(STDERR_FILENO), fd = open(at("err"), O_WRONLY | O_CREAT, 0600);
	char *text;

	assert_true(saved >= 0 && fd >= 0);
	fflush(stderr);
	dup2(fd, STDERR_FILENO);
	errno = ENOENT;
	log_error("a %d: %m", 1);
	assert_int_equal(errno, ENOENT);
	log_warning("b");
	log_info("c\nd\te\x1b[31m\xc2\x9b"
		 "f \xc3\xa4");
	log_debug("not shown");
	log_set_level(LOG_LEVEL_ERROR);
	log_warning("not shown");
	log_set_level(LOG_LEVEL_DEBUG);
	log_debug("g");
	log_set_level(LOG_LEVEL_INFO);
	dup2(saved, STDERR_FILENO);
	close(saved);
	close(fd);
	text = slurp("err");
	assert_string_equal(text, "error: a 1: No such file or directory\nwarning: b\n"
				  "info: c d e?[31m??f \xc3\xa4\ndebug: g\n");
	free(text);
}

static void test_file(void **state)
{
	char longer[5000], *text;
	struct stat st;

	assert_int_equal(log_open_file(at("no/such")), -ENOENT);
	assert_int_equal(log_open_file(at("log")), 0);
	assert_int_equal(stat(at("log"), &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	setenv("TZ", "UTC", 1);
	clock_fake(INT64_C(1700000000) * NSEC_PER_SEC);
	log_error("x");
	clock_fake(-1);
	text = slurp("log");
	assert_string_equal(text, "2023-11-14T22:13:20+0000 error: x\n");
	free(text);
	/* Another file takes over, and a long line is cut but stays a line. */
	assert_int_equal(log_open_file(at("log2")), 0);
	memset(longer, 'y', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	log_info("%s", longer);
	text = slurp("log2");
	assert_true(strlen(text) <= 2048);
	assert_string_equal(text + strlen(text) - 5, "y...\n");
	free(text);
	text = slurp("log");
	assert_int_equal(strlen(text), 34);
	free(text);
}

static void *log_many(void *arg)
{
	for (int i = 0; i < 200; i++)
		log_info("thread %s says the same all over", (const char *)arg);
	return NULL;
}

static void test_threads(void **state)
{
	static char names[4][2] = {"a", "b", "c", "d"};
	pthread_t threads[4];
	char *text, *save = NULL;
	int lines = 0;

	assert_int_equal(log_open_file(at("log")), 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, log_many, names[i]), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	text = slurp("log");
	for (char *line = strtok_r(text, "\n", &save); line != NULL;
	     line = strtok_r(NULL, "\n", &save), lines++) {
		const char *rest = strstr(line, " info: thread ");

		assert_non_null(rest);
		assert_string_equal(rest + 15, " says the same all over");
	}
	assert_int_equal(lines, 800);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_levels),
		scratch_test(test_stderr),
		scratch_test(test_file),
		scratch_test(test_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
