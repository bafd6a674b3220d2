/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The uploader that is a program, with a stand-in for it: a script that checks its words, copies
 * into the directory that the reader reads, and writes down what it was given.  Files are given by
 * their name and other sources as a temporary file that is gone afterwards; the token is in the
 * environment and nowhere else; what it says on stderr is in the sentence; conditions are looked
 * at; and stopping the store ends it.
 */
#include "tests/unit/cache/scratch.h"

#include "cache/fileio.h"
#include "cache/store_hf.h"

#include <dirent.h>
#include <pthread.h>

static const char script[] =
	"#!/bin/sh\n"
	"if [ \"$1 $2 $3 $4\" = 'buckets rm --yes --quiet' ] && [ $# = 5 ]; then\n"
	"\texec rm \"$SCRATCH/bucket/${5#hf://buckets/ns/name/run/}\"\nfi\n"
	"[ \"$1 $2 $3\" = 'buckets cp --quiet' ] && [ $# = 5 ] || { echo usage >&2; exit 2; }\n"
	"echo \"$4\" >\"$SCRATCH/given\"; echo \"$*\" >\"$SCRATCH/words\"\n"
	"printf %s \"$HF_TOKEN\" >\"$SCRATCH/token\"\n"
	"case $5 in hf://buckets/ns/name/run/*) ;; *) echo \"where? $5\" >&2; exit 1;; esac\n"
	"case $5 in\n"
	"*/refused) printf '\\033[31mError: 403, %s is not allowed\\033[0m\\n' \"$HF_TOKEN\" >&2\n"
	"\techo 'Hint: run hf auth login' >&2; exit 1;;\n"
	"*/silent) exit 3;;\n"
	"*/slow) echo here >\"$SCRATCH/slow\"; exec sleep 100;;\n"
	"esac\n"
	"cp \"$4\" \"$SCRATCH/bucket/${5#hf://buckets/ns/name/run/}\"\n";

static struct store *new_store(void)
{
	const struct store_hf_options options = {
		.place = "hf://buckets/ns/name/run",
		.token_file = strdup(at("secret")),
	};
	struct store *reader = NULL, *s = NULL;
	struct why why = {0};

	assert_int_equal(file_mkdirs(at("bucket")), 0);
	assert_int_equal(file_mkdirs(at("bin")), 0);
	write_file("bin/hf", script, sizeof(script) - 1);
	assert_int_equal(chmod(at("bin/hf"), 0755), 0);
	write_file("secret", " hf_MARKED\n", 11);
	assert_int_equal(setenv("SCRATCH", scratch, 1), 0);
	assert_int_equal(setenv("TMPDIR", scratch, 1), 0);
	assert_int_equal(store_dir_new(at("bucket"), false, &reader, &why), 0);
	if (store_hf_new(&options, reader, &s, &why) < 0)
		fail_msg("%s", why.text);
	free((char *)options.token_file);
	return s;
}

static int setup(void **state)
{
	char path[4200];

	if (scratch_setup(state) < 0)
		return -1;
	snprintf(path, sizeof(path), "%s:/usr/bin:/bin", at("bin"));
	return setenv("PATH", path, 1);
}

static void expect_file(const char *name, const char *want)
{
	char *text = NULL;
	size_t len = 0;

	assert_int_equal(file_slurp(AT_FDCWD, at(name), 1 << 20, &text, &len), 0);
	assert_string_equal(text, want);
	free(text);
}

static bool no_temporary_left(void)
{
	DIR *dir = opendir(scratch);
	bool none = true;
	struct dirent *e;

	assert_non_null(dir);
	while ((e = readdir(dir)) != NULL)
		none = none && strncmp(e->d_name, "weightfs-upload", 15) != 0;
	closedir(dir);
	return none;
}

static void uploads(void **state)
{
	struct store *s = new_store();
	struct source memory = source_memory("bytes", 5), file;
	char given[600], words[900];
	struct why why = {0};
	int fd;

	if (store_put(s, "one", &memory, &why) < 0)
		fail_msg("%s", why.text);
	expect_file("bucket/one", "bytes");
	expect_file("token", "hf_MARKED");
	assert_true(no_temporary_left());
	write_file("weights", "many", 4);
	fd = open(at("weights"), O_RDONLY | O_CLOEXEC);
	assert_int_equal(source_fd(fd, &file), 0);
	assert_int_equal(store_put(s, "two", &file, &why), 0);
	snprintf(given, sizeof(given), "%s\n", at("weights"));
	expect_file("given", given);
	snprintf(words, sizeof(words), "buckets cp --quiet %s hf://buckets/ns/name/run/two\n",
		 at("weights"));
	expect_file("words", words);
	assert_int_equal(unlink(at("weights")), 0); /* a file without a name is copied */
	assert_int_equal(store_put(s, "three", &file, &why), 0);
	expect_file("bucket/three", "many");
	assert_true(no_temporary_left());
	close(fd);
	store_free(s);
}

static void sentences(void **state)
{
	struct store *s = new_store();
	struct source memory = source_memory("bytes", 5);
	struct why why = {0};

	assert_int_equal(store_put(s, "refused", &memory, &why), -EIO);
	assert_string_equal(why.text, "hf://buckets/ns/name/run/refused: hf buckets cp: Error: "
				      "403, ********* is not allowed");
	assert_int_equal(store_put(s, "silent", &memory, &why), -EIO);
	assert_non_null(strstr(why.text, "ended with exit code 3"));
	assert_int_equal(unlink(at("secret")), 0);
	assert_int_equal(store_put(s, "one", &memory, &why), -ENOENT);
	assert_non_null(strstr(why.text, "token file"));
	assert_true(no_temporary_left());
	store_free(s);
}

static void conditions(void **state)
{
	struct store *s = new_store();
	struct source memory = source_memory("bytes", 5), other = source_memory("other!", 6);
	struct put_condition absent = {.absent = true}, same = {0};
	struct listing l = {0};
	struct identity before;
	struct why why = {0};

	assert_int_equal(store_put_if(s, "p", &memory, &absent, &why), 0);
	assert_int_equal(store_put_if(s, "p", &other, &absent, &why), -EEXIST);
	assert_int_equal(store_list(s, "", &l, &why), 0);
	assert_int_equal(l.count, 1);
	before = l.v[0].id;
	listing_release(&l);
	same.replace = &before;
	assert_int_equal(store_put_if(s, "p", &other, &same, &why), 0);
	assert_int_equal(store_put_if(s, "p", &memory, &same, &why), -ESTALE);
	expect_file("bucket/p", "other!");
	assert_int_equal(store_put_if(s, "q", &memory, &same, &why), -ESTALE);
	store_free(s);
}

static void removes(void **state)
{
	struct store *s = new_store();
	struct source memory = source_memory("bytes", 5), other = source_memory("other!", 6);
	struct listing l = {0};
	struct identity before;
	struct why why = {0};

	assert_int_equal(store_put(s, "p", &memory, &why), 0);
	assert_int_equal(store_list(s, "", &l, &why), 0);
	before = l.v[0].id;
	listing_release(&l);
	assert_int_equal(store_put(s, "p", &other, &why), 0);
	assert_int_equal(store_remove(s, "p", &before, &why), -ESTALE);
	expect_file("bucket/p", "other!");
	if (store_remove(s, "p", NULL, &why) < 0)
		fail_msg("%s", why.text);
	assert_int_not_equal(access(at("bucket/p"), F_OK), 0);
	assert_int_equal(store_remove(s, "p", NULL, &why), -ENOENT);
	store_free(s);
}

static void *stop_when_slow(void *arg)
{
	while (access(at("slow"), F_OK) != 0)
		usleep(1000);
	store_stop(arg);
	return NULL;
}

static void stops(void **state)
{
	struct store *s = new_store();
	struct source memory = source_memory("bytes", 5);
	struct why why = {0};
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, stop_when_slow, s), 0);
	assert_int_equal(store_put(s, "slow", &memory, &why), -ECANCELED);
	pthread_join(thread, NULL);
	assert_true(no_temporary_left());
	store_free(s);
}

static void not_installed(void **state)
{
	const struct store_hf_options options = {.place = "hf://buckets/ns/name"};
	struct store *reader = NULL, *s = NULL;
	struct why why = {0};

	assert_int_equal(setenv("PATH", scratch, 1), 0);
	assert_int_equal(store_dir_new(scratch, false, &reader, &why), 0);
	assert_int_equal(store_hf_new(&options, reader, &s, &why), -ENOENT);
	assert_non_null(strstr(why.text, "pip install"));
	assert_non_null(strstr(why.text, "--uploader s3"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(uploads, setup, scratch_teardown),
		cmocka_unit_test_setup_teardown(sentences, setup, scratch_teardown),
		cmocka_unit_test_setup_teardown(conditions, setup, scratch_teardown),
		cmocka_unit_test_setup_teardown(removes, setup, scratch_teardown),
		cmocka_unit_test_setup_teardown(stops, setup, scratch_teardown),
		cmocka_unit_test_setup_teardown(not_installed, setup, scratch_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
