/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers of checkpoints by the names that trainers give them.
 */
#include "tests/unit/cache/scratch.h"

#include "tools/pub_found.h"

static void numbers(void **state)
{
	static const struct {
		const char *name;
		bool has;
		uint64_t number;
	} cases[] = {
		{"checkpoint-100", true, 100},
		{"step_000042", true, 42},
		{"7", true, 7},
		{"global_step_100/actor/huggingface", true, 100},
		{"epoch2/step_5", true, 5},
		{"epoch2/final", true, 2},
		{"iter_0000000", true, 0},
		{"9223372036854775807", true, INT64_MAX},
		{"step_9223372036854775808", false, 0},
		{"run3/step_99999999999999999999999", true, 3},
		{"checkpoint-last", false, 0},
		{"100-steps", false, 0},
		{"", false, 0},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t number = 0;

		if (found_number(cases[i].name, &number) != cases[i].has ||
		    number != cases[i].number)
			fail_msg("\"%s\": %llu", cases[i].name, (unsigned long long)number);
	}
}

static const struct pub_places nowhere;

/* A directory is scanned again: what has changed is not quiet, what has not is. */
static void scans(void **state)
{
	struct found_list l = {0};
	struct store *dir = NULL;
	uint64_t before;

	(void)state;
	assert_int_equal(mkdir(at("checkpoint-2"), 0755), 0);
	assert_int_equal(mkdir(at("checkpoint-10"), 0755), 0);
	assert_int_equal(mkdir(at("tmp-checkpoint-11"), 0755), 0);
	write_file("checkpoint-2/model.safetensors", "two", 3);
	write_file("checkpoint-10/model-00001-of-00002.safetensors", "ten", 3);
	write_file("tmp-checkpoint-11/model.safetensors", "eleven", 6);
	assert_int_equal(store_dir_new(scratch, true, &dir, NULL), 0);
	assert_int_equal(found_scan(dir, scratch, &nowhere, 1000, &l, NULL), 0);
	assert_int_equal(l.count, 2);
	assert_int_equal(l.v[0].number, 2);
	assert_int_equal(l.v[1].number, 10);
	assert_true(l.v[1].sharded && !l.v[1].indexed && !l.v[0].sharded);
	before = l.v[0].signature;
	write_file("checkpoint-2/trainer_state.json", "{}", 2);
	assert_int_equal(found_scan(dir, scratch, &nowhere, 2000, &l, NULL), 0);
	assert_int_equal(l.v[0].quiet_ns, 2000);
	assert_int_equal(l.v[1].quiet_ns, 1000);
	assert_true(l.v[0].signature == before); /* it is not what is published */
	write_file("checkpoint-2/model.safetensors", "two!", 4);
	assert_int_equal(found_scan(dir, scratch, &nowhere, 3000, &l, NULL), 0);
	assert_true(l.v[0].signature != before);
	found_release(&l);
	store_free(dir);
}

/* Runs, and what a publisher keeps, are none of the trainer's. */
static void sets_apart(void **state)
{
	struct pub_places places = {{NULL}};
	struct found_list l = {0};
	struct store *dir = NULL;

	(void)state;
	for (size_t i = 0; i < 4; i++) {
		static const char *const dirs[] = {"apart", "apart/run", "apart/run/anchors",
						   "apart/state"};

		assert_int_equal(mkdir(at(dirs[i]), 0755), 0);
	}
	write_file("apart/model.safetensors", "one", 3);
	write_file("apart/run/anchors/step_1.safetensors", "two", 3);
	write_file("apart/state/model.safetensors", "three", 5);
	assert_int_equal(store_dir_new(at("apart"), true, &dir, NULL), 0);
	assert_int_equal(found_scan(dir, at("apart"), &places, 1000, &l, NULL), 0);
	assert_int_equal(l.count, 3);
	write_file("apart/run/weightfs.json", "{}", 2);
	assert_int_equal(found_scan(dir, at("apart"), &places, 2000, &l, NULL), 0);
	assert_int_equal(l.count, 2);
	places.v[1] = strdup(at("apart/state"));
	places.v[2] = strdup(at("apart"));
	assert_int_equal(found_scan(dir, at("apart"), &places, 3000, &l, NULL), 0);
	assert_int_equal(l.count, 1);
	assert_string_equal(l.v[0].name, "");
	free((char *)places.v[1]);
	free((char *)places.v[2]);
	found_release(&l);
	store_free(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(numbers),
		cmocka_unit_test_setup_teardown(scans, scratch_setup, scratch_teardown),
		cmocka_unit_test_setup_teardown(sets_apart, scratch_setup, scratch_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
