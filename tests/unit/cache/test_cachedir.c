/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache directory, on disk and in memory: whole files only, mappings that outlive everything,
 * sweeping, and what happens when the directory goes.
 */
#include "cache/cachedir.h"

#include "tests/unit/cache/scratch.h"

#include <dirent.h>
#include <signal.h>

#include "cache/fileio.h"
#include "cache/log.h"

static struct cachedir *open_dir(const char *parent, bool expect_memory)
{
	struct cachedir *d = NULL;
	struct why why = {0};
	bool in_memory = !expect_memory;

	assert_int_equal(cachedir_open(parent, "run", &d, &in_memory, &why), 0);
	assert_int_equal(in_memory, expect_memory);
	assert_int_equal(why.err != 0, expect_memory);
	return d;
}

static struct mapping *add(struct cachedir *d, const char *name, const char *text)
{
	struct mapping *m = NULL;
	int fd = -1;

	assert_int_equal(cachedir_create(d, &fd), 0);
	/* More than is committed, as a writer may that does not know the size before. */
	assert_int_equal(file_pwrite(fd, text, strlen(text), 0), 0);
	assert_int_equal(file_pwrite(fd, "rest", 4, strlen(text)), 0);
	assert_int_equal(cachedir_commit(d, fd, name, strlen(text), &m), 0);
	return m;
}

static void expect(const struct mapping *m, const char *text)
{
	assert_int_equal(m->size, strlen(text));
	assert_memory_equal(m->bytes, text, strlen(text));
}

static void expect_absent(struct cachedir *d, const char *name)
{
	struct mapping *m = NULL;

	assert_int_equal(cachedir_map(d, name, &m), -ENOENT);
	assert_null(m);
}

/* The only directory in the scratch directory's "cache": its path. */
static const char *run_dir(void)
{
	DIR *dir = opendir(at("cache"));
	const char *found = NULL;
	struct dirent *de;

	assert_non_null(dir);
	while ((de = readdir(dir)) != NULL) {
		char name[300];

		if (de->d_name[0] == '.')
			continue;
		assert_null(found);
		snprintf(name, sizeof(name), "cache/%s", de->d_name);
		found = at(name);
	}
	closedir(dir);
	assert_non_null(found);
	return found;
}

static unsigned count_files(void)
{
	DIR *dir = opendir(run_dir());
	struct dirent *de;
	unsigned n = 0;

	while ((de = readdir(dir)) != NULL)
		n += de->d_name[0] != '.';
	closedir(dir);
	return n;
}

static bool keep_a(const char *name, void *ctx)
{
	++*(int *)ctx;
	return name[0] == 'a';
}

/* What both kinds must do. */
static void check_contract(struct cachedir *d)
{
	struct mapping *m, *again = NULL, *empty, *b;
	int fd, calls = 0;

	m = add(d, "a1", "first");
	expect(m, "first");
	assert_int_equal(cachedir_map(d, "a1", &again), 0);
	expect(again, "first");
	mapping_unref(again);
	mapping_touch(m, 1);
	mapping_touch(m, 100 << 20); /* pages dropped, bytes still there */
	expect(m, "first");
	/* Replaced: the old mapping keeps its bytes. */
	b = add(d, "a1", "second");
	expect(m, "first");
	expect(b, "second");
	mapping_unref(b);
	assert_int_equal(cachedir_map(d, "a1", &again), 0);
	expect(again, "second");
	cachedir_remove(d, "a1");
	cachedir_remove(d, "a1");
	expect_absent(d, "a1");
	expect(again, "second");
	mapping_unref(again);
	mapping_unref(m);

	empty = add(d, "empty", "");
	assert_int_equal(empty->size, 0);
	assert_non_null(empty->bytes);
	mapping_touch(empty, 100 << 20);
	assert_ptr_equal(mapping_ref(empty), empty);
	mapping_unref(empty);
	mapping_unref(empty);
	assert_int_equal(cachedir_map(d, "empty", &empty), 0);
	assert_int_equal(empty->size, 0);
	mapping_unref(empty);

	assert_int_equal(cachedir_create(d, &fd), 0);
	cachedir_abort(d, fd);
	assert_int_equal(fcntl(fd, F_GETFD), -1);
	assert_int_equal(cachedir_create(d, &fd), 0);
	assert_int_equal(cachedir_commit(d, fd, "no/slash", 0, &m), -EINVAL);
	assert_int_equal(fcntl(fd, F_GETFD), -1);
	assert_int_equal(cachedir_create(d, &fd), 0);
	assert_int_equal(cachedir_commit(d, fd, "big", UINT64_MAX, &m), -EFBIG);
	assert_int_equal(cachedir_map(d, "..", &m), -EINVAL);
	assert_int_equal(cachedir_map(d, "", &m), -EINVAL);

	mapping_unref(add(d, "a.keep_1-2", "x"));
	b = add(d, "b", "y");
	cachedir_sweep(d, keep_a, &calls);
	assert_int_equal(calls, 3); /* empty, a.keep_1-2, b */
	expect_absent(d, "b");
	expect_absent(d, "empty");
	expect(b, "y");
	mapping_unref(b);
	mapping_unref(NULL);
	assert_int_equal(cachedir_map(d, "a.keep_1-2", &m), 0);
	mapping_unref(m);
}

static void test_disk(void **state)
{
	struct cachedir *d = open_dir(at("cache"), false);
	struct stat st;

	check_contract(d);
	assert_int_equal(count_files(), 1);
	assert_int_equal(stat(run_dir(), &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
	cachedir_close(d);
	cachedir_close(NULL);
}

static void test_memory(void **state)
{
	struct cachedir *d = open_dir("/dev/null/x", true);
	struct mapping *m;

	check_contract(d);
	m = add(d, "z", "outlives the cachedir");
	cachedir_close(d);
	expect(m, "outlives the cachedir");
	mapping_unref(m);
}

static void test_shared_and_kept(void **state)
{
	struct cachedir *d = open_dir(at("cache"), false), *e = open_dir(at("cache"), false),
			*other;
	struct mapping *m;
	bool in_memory;

	mapping_unref(add(d, "f", "shared"));
	assert_int_equal(cachedir_map(e, "f", &m), 0);
	expect(m, "shared");
	mapping_unref(m);
	cachedir_close(d);
	cachedir_close(e);
	d = open_dir(at("cache"), false);
	assert_int_equal(cachedir_map(d, "f", &m), 0);
	expect(m, "shared");
	mapping_unref(m);
	assert_int_equal(cachedir_open(at("cache"), "other run", &other, &in_memory, NULL), 0);
	expect_absent(other, "f");
	cachedir_close(other);
	cachedir_close(d);
}

static void die_while_writing(void)
{
	struct cachedir *d = open_dir(at("cache"), false);
	int fd;

	if (cachedir_create(d, &fd) == 0 && file_pwrite(fd, "half", 4, 0) == 0)
		kill(getpid(), SIGKILL);
}

/* What is being written stays, by whomever; what a process that was killed left goes at once. */
static void test_killed_writer(void **state)
{
	struct cachedir *d = open_dir(at("cache"), false), *other;
	int calls = 0, own;

	assert_int_equal(cachedir_create(d, &own), 0);
	assert_int_equal(WTERMSIG(in_child(die_while_writing)), SIGKILL);
	assert_int_equal(count_files(), 2);
	cachedir_sweep(d, keep_a, &calls);
	assert_int_equal(count_files(), 1);
	assert_int_equal(WTERMSIG(in_child(die_while_writing)), SIGKILL);
	other = open_dir(at("cache"), false);
	assert_int_equal(count_files(), 1);
	cachedir_sweep(other, keep_a, &calls);
	assert_int_equal(count_files(), 1);
	assert_int_equal(calls, 0);
	cachedir_close(other);
	cachedir_close(d); /* drops what was neither committed nor aborted */
	assert_int_equal(count_files(), 0);
}

static void quiet_log(void)
{
	assert_int_equal(log_open_file(at("log")), 0);
}

static unsigned count_warnings(void)
{
	char *text, *p;
	unsigned n = 0;
	size_t len;

	assert_int_equal(file_slurp(AT_FDCWD, at("log"), 1 << 16, &text, &len), 0);
	for (p = text; (p = strstr(p, "warning: ")) != NULL; p++)
		n++;
	free(text);
	return n;
}

static void test_directory_vanishes(void **state)
{
	struct cachedir *d = open_dir(at("cache"), false);
	struct mapping *before, *during, *after, *m;
	int fd;

	quiet_log();
	before = add(d, "before", "on disk");
	assert_int_equal(cachedir_create(d, &fd), 0);
	assert_int_equal(file_pwrite(fd, "in between", 10, 0), 0);
	assert_int_equal(nftw(at("cache"), scratch_remove, 16, FTW_DEPTH | FTW_PHYS), 0);
	assert_int_equal(cachedir_commit(d, fd, "during", 10, &during), 0);
	after = add(d, "after", "in memory");
	expect(before, "on disk");
	expect(during, "in between");
	expect(after, "in memory");
	expect_absent(d, "before");
	assert_int_equal(cachedir_map(d, "during", &m), 0);
	expect(m, "in between");
	mapping_unref(m);
	assert_int_equal(cachedir_map(d, "after", &m), 0);
	mapping_unref(m);
	assert_int_equal(count_warnings(), 1);
	mapping_unref(before);
	mapping_unref(during);
	mapping_unref(after);
	cachedir_close(d);
}

static void test_full_disk(void **state)
{
	struct cachedir *d = open_dir(at("cache"), false);
	struct mapping *spilt = NULL, *next, *m = NULL;
	int fd;

	quiet_log();
	assert_int_equal(cachedir_create(d, &fd), 0);
	assert_int_equal(file_pwrite(fd, "a beginning", 11, 0), 0);
	assert_false(cachedir_spill(d, fd, -EIO));
	assert_true(cachedir_spill(d, fd, -ENOSPC));
	assert_false(cachedir_spill(d, fd, -ENOSPC)); /* it is in memory */
	assert_int_equal(count_files(), 0);
	assert_int_equal(file_pwrite(fd, "whole", 5, 0), 0);
	assert_int_equal(cachedir_commit(d, fd, "spilt", 5, &spilt), 0);
	assert_memory_equal(spilt->bytes, "whole", 5);
	assert_int_equal(cachedir_map(d, "spilt", &m), 0);
	assert_memory_equal(m->bytes, "whole", 5);
	mapping_unref(m);
	assert_int_equal(count_files(), 0);
	next = add(d, "next", "on disk");
	assert_int_equal(count_files(), 1);
	assert_int_equal(count_warnings(), 1);
	cachedir_remove(d, "spilt");
	expect_absent(d, "spilt");
	mapping_unref(spilt);
	mapping_unref(next);
	cachedir_close(d);
}

static void test_temp_file_removed(void **state)
{
	struct cachedir *d = open_dir(at("cache"), false);
	struct mapping *m;
	char name[300];
	int fd;

	quiet_log();
	assert_int_equal(cachedir_create(d, &fd), 0);
	assert_int_equal(file_pwrite(fd, "x", 1, 0), 0);
	snprintf(name, sizeof(name), "%s/tmp.%ld.2", run_dir() + strlen(scratch) + 1,
		 (long)getpid());
	assert_int_equal(unlink(at(name)), 0);
	assert_int_equal(cachedir_commit(d, fd, "f", 1, &m), 0);
	expect(m, "x");
	mapping_unref(m);
	expect_absent(d, "f");
	assert_int_equal(count_warnings(), 0);
	mapping_unref(add(d, "g", "still on disk"));
	assert_int_equal(count_files(), 1);
	cachedir_close(d);
}

static void test_default(void **state)
{
	char *path;

	assert_int_equal(setenv("WEIGHTFS_CACHE_DIR", "/somewhere", 1), 0);
	path = cachedir_default();
	assert_string_equal(path, "/somewhere");
	free(path);
	unsetenv("WEIGHTFS_CACHE_DIR");
	path = cachedir_default();
	if (geteuid() == 0)
		assert_string_equal(path, "/var/cache/weightfs");
	free(path);
	/* The default is where files go. */
	assert_int_equal(setenv("WEIGHTFS_CACHE_DIR", at("cache"), 1), 0);
	cachedir_close(open_dir(NULL, false));
	assert_int_equal(count_files(), 0);
	unsetenv("WEIGHTFS_CACHE_DIR");
}

static void default_of_user(void)
{
	char *path;

	if (geteuid() == 0 && setuid(65534) < 0)
		_exit(2);
	setenv("XDG_CACHE_HOME", "/xdg", 1);
	setenv("HOME", "/home/u", 1);
	path = cachedir_default();
	if (path == NULL || strcmp(path, "/xdg/weightfs") != 0)
		_exit(3);
	free(path);
	unsetenv("XDG_CACHE_HOME");
	path = cachedir_default();
	if (path == NULL || strcmp(path, "/home/u/.cache/weightfs") != 0)
		_exit(4);
	free(path);
	unsetenv("HOME");
	if (cachedir_default() != NULL)
		_exit(5);
}

static void test_default_of_user(void **state)
{
	assert_int_equal(in_child(default_of_user), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		scratch_test(test_disk),
		scratch_test(test_memory),
		scratch_test(test_shared_and_kept),
		scratch_test(test_killed_writer),
		scratch_test(test_directory_vanishes),
		scratch_test(test_full_disk),
		scratch_test(test_temp_file_removed),
		scratch_test(test_default),
		cmocka_unit_test(test_default_of_user),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
