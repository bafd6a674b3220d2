/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hash table: both kinds of keys, replacing, removing, growing.
 */
#include "cache/table.h"

#include "tests/unit/cache/scratch.h"

static void test_numbers(void **state)
{
	enum { N = 5000 };
	struct table *t = table_new();
	static int values[N];

	assert_non_null(t);
	for (uint64_t i = 0; i < N; i++)
		assert_int_equal(table_put(t, i * UINT64_C(0x100000001), &values[i]), 0);
	assert_int_equal(table_count(t), N);
	for (uint64_t i = 0; i < N; i++)
		assert_ptr_equal(table_get(t, i * UINT64_C(0x100000001)), &values[i]);
	assert_null(table_get(t, 1));
	for (uint64_t i = 0; i < N; i += 2)
		assert_ptr_equal(table_remove(t, i * UINT64_C(0x100000001)), &values[i]);
	assert_null(table_remove(t, 0));
	assert_int_equal(table_count(t), N / 2);
	for (uint64_t i = 0; i < N; i++)
		assert_ptr_equal(table_get(t, i * UINT64_C(0x100000001)),
				 i % 2 == 0 ? NULL : &values[i]);
	table_free(t);
}

static void test_replace(void **state)
{
	struct table *t = table_new();
	int a, b;

	assert_int_equal(table_put(t, 7, &a), 0);
	assert_int_equal(table_put(t, 7, &b), 0);
	assert_int_equal(table_count(t), 1);
	assert_ptr_equal(table_get(t, 7), &b);
	table_free(t);
	t = table_new();
	assert_int_equal(table_put_str(t, "k", &a), 0);
	assert_int_equal(table_put_str(t, "k", &b), 0);
	assert_int_equal(table_count(t), 1);
	assert_ptr_equal(table_get_str(t, "k"), &b);
	table_free(t);
}

static void test_strings_are_copied(void **state)
{
	struct table *t = table_new();
	char key[32];
	int values[100];

	for (int i = 0; i < 100; i++) {
		snprintf(key, sizeof(key), "layer.%d", i);
		assert_int_equal(table_put_str(t, key, &values[i]), 0);
	}
	memset(key, 'x', sizeof(key) - 1);
	assert_ptr_equal(table_get_str(t, "layer.0"), &values[0]);
	assert_ptr_equal(table_get_str(t, "layer.99"), &values[99]);
	assert_null(table_get_str(t, "layer.1000"));
	assert_null(table_get_str(t, "layer."));
	assert_null(table_get_str(t, ""));
	assert_ptr_equal(table_remove_str(t, "layer.5"), &values[5]);
	assert_null(table_get_str(t, "layer.5"));
	assert_int_equal(table_count(t), 99);
	table_free(t);
}

static void add_up(void *value, void *ctx)
{
	*(int *)ctx += *(int *)value;
}

static void test_each_and_empty(void **state)
{
	struct table *t = table_new();
	int values[] = {1, 20, 300}, sum = 0;

	table_each(t, add_up, &sum);
	assert_int_equal(sum, 0);
	assert_int_equal(table_count(t), 0);
	assert_null(table_get(t, 0));
	for (uint64_t i = 0; i < 3; i++)
		assert_int_equal(table_put(t, i, &values[i]), 0);
	table_each(t, add_up, &sum);
	assert_int_equal(sum, 321);
	table_free(t);
	table_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_replace),
		cmocka_unit_test(test_strings_are_copied),
		cmocka_unit_test(test_each_and_empty),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
