/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unit tests of fs/memory: the numbers in the kernel's texts, and that this machine's can be read.
 * Whether memory is short is the machine's business, so that is not asserted.
 */
#include "fs/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	return remove(path);
}

static void fields_are_found(void **unused)
{
	static const char meminfo[] = "MemTotal:       24000000 kB\nMemFree:  100 kB\n"
				      "MemAvailable:   12345678 kB\n";
	static const char pressure[] = "some avg10=12.50 avg60=1.00 avg300=0.10 total=99\n"
				       "full avg10=3.00 avg60=0.00 avg300=0.00 total=9\n";
	double v = 0;

	assert_true(memory_field(meminfo, "MemTotal:", &v));
	assert_true(v == 24000000);
	assert_true(memory_field(meminfo, "MemAvailable:", &v));
	assert_true(v == 12345678);
	assert_true(memory_field(pressure, "some avg10=", &v));
	assert_true(v == 12.5);
	assert_true(memory_field(pressure, "full avg10=", &v));
	assert_true(v == 3);
	assert_true(memory_field("4096\n", "", &v));
	assert_true(v == 4096);
}

static void what_is_no_number_is_not_found(void **unused)
{
	double v = 7;

	assert_false(memory_field("max\n", "", &v));
	assert_false(memory_field("", "MemTotal:", &v));
	assert_false(memory_field("MemTotal:", "MemTotal:", &v));
	assert_false(memory_field("a\nb", "MemTotal:", &v));
	assert_false(memory_field("xMemTotal: 5\n", "MemTotal:", &v));
}

static void put(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static void the_tightest_group_counts(void **unused)
{
	char root[] = "/tmp/weightfs-test-XXXXXX";
	struct memory_room room = {-1, -1};

	assert_non_null(mkdtemp(root));
	assert_int_equal(chdir(root), 0);
	assert_int_equal(mkdir("pod", 0700), 0);
	assert_int_equal(mkdir("pod/box", 0700), 0);
	assert_false(memory_of_group(root, "/pod/box", &room));
	put("pod/box/memory.max", "max\n");
	put("pod/box/memory.current", "500\n");
	put("pod/memory.max", "1000\n");
	put("pod/memory.current", "900\n");
	put("pod/memory.stat", "anon 600\ninactive_file 250\nactive_file 50\n");
	assert_true(memory_of_group(root, "/pod/box", &room));
	assert_true(room.left == 350 && room.total == 1000);
	put("pod/box/memory.max", "600\n");
	assert_true(memory_of_group(root, "/pod/box", &room));
	assert_true(room.left == 100 && room.total == 600);
	put("memory.max", "10\n"); /* as a name space shows its own group */
	put("memory.current", "20\n");
	assert_true(memory_of_group(root, "/", &room));
	assert_true(room.left == 0 && room.total == 10);
	assert_int_equal(chdir("/"), 0);
	assert_int_equal(nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

static void this_machine_says_something(void **unused)
{
	assert_true(memory_available() > 0);
	(void)memory_short();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fields_are_found),
		cmocka_unit_test(what_is_no_number_is_not_found),
		cmocka_unit_test(the_tightest_group_counts),
		cmocka_unit_test(this_machine_says_something),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
