/* SPDX-License-Identifier: Apache-2.0 */
/*
 * File helpers: full reads and writes, directories, whole files, paths.
 */
#include "cache/fileio.h"

#include "tests/unit/cache/scratch.h"

static void test_pread_pwrite(void **state)
{
	int fd = open(at("f"), O_RDWR | O_CREAT, 0600);
	struct source src;
	struct sink sink = sink_fd(&fd);
	char got[8];

	assert_true(fd >= 0);
	assert_int_equal(file_pwrite(fd, "abcdef", 6, 2), 0);
	assert_int_equal(file_pread(fd, got, 8, 0), 0);
	assert_memory_equal(got, "\0\0abcdef", 8);
	assert_int_equal(file_pread(fd, got, 3, 6), -ENODATA);
	assert_int_equal(file_pread(fd, got, 0, 100), 0);
	assert_int_equal(file_pread(fd, got, 1, UINT64_MAX), -EOVERFLOW);
	assert_int_equal(file_pwrite(fd, got, 1, INT64_MAX), -EFBIG);
	assert_int_equal(sink.write(sink.ctx, 8, "gh", 2), 0);
	assert_int_equal(source_fd(fd, &src), 0);
	assert_int_equal(src.size, 10);
	assert_int_equal(source_read(&src, 7, got, 3), 0);
	assert_memory_equal(got, "fgh", 3);
	assert_int_equal(source_read(&src, 8, got, 3), -EBADMSG);
	close(fd);
	assert_int_equal(file_pread(fd, got, 1, 0), -EBADF);
}

static void test_mkdirs(void **state)
{
	struct stat st;

	assert_int_equal(file_mkdirs(at("a/b//c/")), 0);
	assert_int_equal(stat(at("a/b/c"), &st), 0);
	assert_true(S_ISDIR(st.st_mode));
	assert_int_equal(st.st_mode & 0077, 0);
	assert_int_equal(file_mkdirs(at("a/b/c")), 0);
	assert_int_equal(file_mkdirs("/"), 0);
	write_text("file", "");
	assert_int_equal(file_mkdirs(at("file")), -ENOTDIR);
	assert_int_equal(file_mkdirs(at("file/x")), -ENOTDIR);
	assert_int_equal(file_mkdirs(""), -ENOENT);
}

static void test_opendir(void **state)
{
	int top = open(at("."), O_RDONLY | O_DIRECTORY);
	DIR *dir;

	assert_int_equal(file_mkdirs(at("d/e")), 0);
	assert_int_equal(symlink("d", at("link")), 0);
	assert_int_equal(file_replace(at("file"), "x", 1), 0);
	for (int i = 0; i < 2; i++) { /* each from the beginning */
		unsigned n = 0;

		dir = file_opendir(top, ".");
		assert_non_null(dir);
		while (readdir(dir) != NULL)
			n++;
		assert_int_equal(n, 5);
		closedir(dir);
	}
	dir = file_opendir(top, "d");
	assert_non_null(dir);
	closedir(dir);
	assert_null(file_opendir(top, "link"));
	assert_null(file_opendir(top, "file"));
	assert_int_equal(errno, ENOTDIR);
	assert_null(file_opendir(top, "none"));
	assert_int_equal(errno, ENOENT);
	close(top);
}

static void test_slurp(void **state)
{
	char *text = NULL, big[10000];
	size_t len = 99;

	write_text("f", "hello");
	assert_int_equal(file_slurp(AT_FDCWD, at("f"), 5, &text, &len), 0);
	assert_int_equal(len, 5);
	assert_string_equal(text, "hello");
	free(text);
	text = NULL;
	len = 99;
	assert_int_equal(file_slurp(AT_FDCWD, at("f"), 4, &text, &len), -EFBIG);
	assert_int_equal(file_slurp(AT_FDCWD, at("none"), 4, &text, &len), -ENOENT);
	assert_int_equal(file_slurp(AT_FDCWD, scratch, 4, &text, &len), -EISDIR);
	assert_null(text);
	assert_int_equal(len, 99);
	write_text("f", "");
	assert_int_equal(file_slurp(AT_FDCWD, at("f"), 0, &text, &len), 0);
	assert_int_equal(len, 0);
	assert_string_equal(text, "");
	free(text);
	memset(big, 'z', sizeof(big));
	write_file("f", big, sizeof(big));
	assert_int_equal(file_slurp(AT_FDCWD, at("f"), SIZE_MAX, &text, &len), 0);
	assert_int_equal(len, sizeof(big));
	free(text);
	/* Files whose size fstat does not know. */
	assert_int_equal(file_slurp(AT_FDCWD, "/proc/self/stat", 1 << 16, &text, &len), 0);
	assert_true(len > 20);
	free(text);
	assert_int_equal(file_slurp(AT_FDCWD, "/proc/self/stat", 20, &text, &len), -EFBIG);
}

static void test_replace(void **state)
{
	char *text;
	size_t len;

	assert_int_equal(file_replace(at("f"), "one", 3), 0);
	assert_int_equal(file_replace(at("f"), "three", 5), 0);
	assert_int_equal(file_slurp(AT_FDCWD, at("f"), 100, &text, &len), 0);
	assert_string_equal(text, "three");
	free(text);
	assert_int_equal(file_replace(at("no/f"), "x", 1), -ENOENT);
	assert_int_equal(mkdir(at("d"), 0700), 0);
	assert_int_equal(file_replace(at("d"), "x", 1), -EISDIR);
	/* No temp file stays behind: only f and the empty d are there. */
	assert_int_equal(rmdir(at("d")), 0);
	assert_int_equal(unlink(at("f")), 0);
	assert_int_equal(rmdir(scratch), 0);
	assert_int_equal(mkdir(scratch, 0700), 0);
}

static void expect_join(const char *a, const char *b, const char *joined)
{
	char *got = path_join(a, b);

	assert_string_equal(got, joined);
	free(got);
}

static void test_paths(void **state)
{
	char longer[5000];

	expect_join("a", "b", "a/b");
	expect_join("a/", "b", "a/b");
	expect_join("/", "b", "/b");
	expect_join("", "b", "b");
	assert_true(path_is_safe("a"));
	assert_true(path_is_safe("a/b.c/..d/...x"));
	assert_false(path_is_safe(""));
	assert_false(path_is_safe("/a"));
	assert_false(path_is_safe("a/"));
	assert_false(path_is_safe("a//b"));
	assert_false(path_is_safe("."));
	assert_false(path_is_safe("a/./b"));
	assert_false(path_is_safe(".."));
	assert_false(path_is_safe("a/.."));
	assert_false(path_is_safe("../a"));
	memset(longer, 'x', sizeof(longer));
	longer[255] = '\0';
	assert_true(path_is_safe(longer));
	longer[255] = 'x';
	longer[256] = '\0';
	assert_false(path_is_safe(longer));
	for (size_t i = 0; i < sizeof(longer); i++)
		longer[i] = i % 2 ? '/' : 'x';
	longer[4095] = '\0';
	assert_true(path_is_safe(longer));
	longer[4095] = '/';
	longer[4097] = '\0';
	assert_false(path_is_safe(longer));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		scratch_test(test_pread_pwrite), scratch_test(test_mkdirs),
		scratch_test(test_slurp),	 scratch_test(test_opendir),
		scratch_test(test_replace),	 cmocka_unit_test(test_paths),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
