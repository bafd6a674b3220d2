/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unit tests of fs/mountpoint and fs/places: what can be said without mounting anything.
 */
#include "fs/mountpoint.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "cache/fileio.h"
#include "fs/places.h"

static char top[] = "/tmp/weightfs-unit-XXXXXX";

static int setup(void **unused)
{
	return mkdtemp(top) ? 0 : -1;
}

static int teardown(void **unused)
{
	return rmdir(top);
}

static void inside_means_whole_components(void **unused)
{
	assert_true(path_inside("/a/b", "/a/b"));
	assert_true(path_inside("/a/b/c", "/a/b"));
	assert_true(path_inside("/a/b/c", "/a/b/"));
	assert_true(path_inside("/a", "/"));
	assert_false(path_inside("/a/bc", "/a/b"));
	assert_false(path_inside("/a", "/a/b"));
}

static void types_come_from_the_kernel(void **unused)
{
	char type[64];

	assert_int_equal(mountpoint_type("/proc", type, sizeof(type)), 0);
	assert_string_equal(type, "proc");
	assert_int_equal(mountpoint_type(top, type, sizeof(type)), 0);
	assert_string_equal(type, "");
}

static void resolves_links(void **unused)
{
	char *link = path_join(top, "link"), *full;
	struct why why = {0};

	assert_int_equal(symlink(".", link), 0);
	assert_int_equal(mountpoint_resolve(link, &full, &why), 0);
	assert_string_equal(full, top);
	free(full);
	unlink(link);
	assert_int_equal(mountpoint_resolve(link, &full, &why), -ENOENT);
	assert_non_null(strstr(why.text, link));
	free(link);
}

static void only_empty_directories_are_taken(void **unused)
{
	char *file = path_join(top, "file");
	struct why why = {0};
	int fd;

	assert_int_equal(mountpoint_prepare(top, false, &why), 0);
	fd = open(file, O_CREAT | O_WRONLY, 0600);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(mountpoint_prepare(top, false, &why), -ENOTEMPTY);
	assert_non_null(strstr(why.text, "-o nonempty"));
	assert_int_equal(mountpoint_prepare(top, true, &why), 0);
	assert_int_equal(mountpoint_prepare(file, true, &why), -ENOTDIR);
	unlink(file);
	assert_int_equal(mountpoint_prepare(file, true, &why), -ENOENT);
	free(file);
}

static void places_keep_their_numbers(void **unused)
{
	struct nodes *nodes = nodes_new();
	struct places *t = places_new(nodes);
	struct object one = {.size = 1, .id = {{1}}}, two = {.size = 2, .id = {{2}}};
	const struct place *root = places_get(t, INODE_VIEW_DIR, "", NULL, 1);
	const struct place *dir = places_get(t, INODE_VIEW_DIR, "a/b", NULL, 0);
	const struct place *file = places_get(t, INODE_BUCKET_FILE, "a/b", &one, 0);
	const struct place *later = places_get(t, INODE_BUCKET_FILE, "a/b", &two, 0);

	assert_int_equal(root->ino, 1);
	assert_ptr_equal(places_number(t, 1), root);
	assert_true(dir->ino >= NODE_FIRST && file->ino >= NODE_FIRST);
	assert_ptr_equal(places_get(t, INODE_VIEW_DIR, "a/b", NULL, 0), dir);
	assert_true(places_get(t, INODE_BUCKET_DIR, "a/b", NULL, 0) != dir);
	assert_ptr_equal(places_get(t, INODE_BUCKET_FILE, "a/b", &one, 0), file);
	assert_true(file->ino != later->ino);
	assert_int_equal(file->object.size, 1);
	assert_int_equal(later->object.size, 2);
	assert_string_equal(later->object.key, "a/b");
	assert_ptr_equal(places_number(t, later->ino), later);
	assert_null(places_number(t, nodes_number(nodes)));
	places_free(t);
	nodes_free(nodes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(inside_means_whole_components),
		cmocka_unit_test(types_come_from_the_kernel),
		cmocka_unit_test(resolves_links),
		cmocka_unit_test(only_empty_directories_are_taken),
		cmocka_unit_test(places_keep_their_numbers),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
