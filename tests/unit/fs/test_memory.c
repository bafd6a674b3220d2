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
		cmocka_unit_test(this_machine_says_something),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
