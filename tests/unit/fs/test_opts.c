/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options: sizes and times, single options, -o lists, the command line.
 *
 * Each refusal is checked together with its sentence, because that is all a user gets to see.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "fs/opts.h"

#define SEC UINT64_C(1000000000)

static void sizes(void **unused)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} good[] = {
		{"0", 0},
		{"123", 123},
		{"123B", 123},
		{"1K", 1024},
		{"1kb", 1000},
		{"1KiB", 1024},
		{"512M", UINT64_C(512) << 20},
		{"5GB", UINT64_C(5000000000)},
		{"1.5GiB", UINT64_C(3) << 29},
		{"0.5k", 512},
		{"2 MB", 2000000},
		{"3T", UINT64_C(3) << 40},
		{"9223372036854775807", INT64_MAX},
	};
	static const char *const bad[] = {
		"",
		"G",
		"-1",
		"+1",
		"1.5",
		"1.5B",
		"5XB",
		"1GBB",
		"1e9",
		"0x10",
		"1 G B",
		"9223372036854775808",
		"99999999999999999999",
		"9000000T",
		".",
		"1..5",
	};
	uint64_t v;

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		assert_int_equal(parse_size(good[i].text, &v), 0);
		assert_true(v == good[i].bytes);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(parse_size(bad[i], &v), -EINVAL);
}

static void times(void **unused)
{
	static const struct {
		const char *text;
		uint64_t ns;
	} good[] = {
		{"1", SEC},	      {"0.25", SEC / 4}, {"500ms", SEC / 2}, {"2m", 120 * SEC},
		{"1.5h", 5400 * SEC}, {"3us", 3000},	 {"0", 0},	     {"0.000000001", 1},
		{"1 s", SEC},	      {".5", SEC / 2},
	};
	static const char *const bad[] = {"", "s", "-1", "1x", "300y", "1e3", "400000000000"};
	int64_t v;

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		assert_int_equal(parse_duration_ns(good[i].text, &v), 0);
		assert_true((uint64_t)v == good[i].ns);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(parse_duration_ns(bad[i], &v), -EINVAL);
}

static void each_option_is_stored(void **unused)
{
	struct why why = {0};
	struct opts o;

	opts_init(&o);
	assert_int_equal(o.keep, 16);
	assert_true(o.poll_ns == (int64_t)SEC);
	assert_int_equal(o.ready_fd, -1);
	assert_int_equal(opts_set(&o, "base", "/b", &why), 0);
	assert_int_equal(opts_set(&o, "base", "/c", &why), 0);
	assert_string_equal(o.base, "/c");
	assert_int_equal(opts_set(&o, "shard-size", "1M", &why), 0);
	assert_true(o.shard_size == 1 << 20);
	assert_int_equal(opts_set(&o, "cache-size", "2GiB", &why), 0);
	assert_true(o.cache_size == UINT64_C(2) << 30);
	assert_int_equal(opts_set(&o, "poll", "0.5", &why), 0);
	assert_true(o.poll_ns == (int64_t)SEC / 2);
	assert_int_equal(opts_set(&o, "hole-grace", "0", &why), 0);
	assert_true(o.hole_grace_ns == 0);
	assert_true(o.timeout_ns == (int64_t)(60 * SEC));
	assert_int_equal(opts_set(&o, "timeout", "2.5", &why), 0);
	assert_true(o.timeout_ns == (int64_t)(5 * SEC / 2));
	assert_int_equal(opts_set(&o, "timeout", "900ms", &why), -EINVAL);
	assert_int_equal(opts_set(&o, "timeout", "25h", &why), -EINVAL);
	assert_int_equal(opts_set(&o, "timeout", "86401", &why), -EINVAL);
	assert_non_null(strstr(why.text, "--timeout: \"86401\" is not a time from 1 second"));
	assert_int_equal(opts_set(&o, "keep", "3", &why), 0);
	assert_int_equal(o.keep, 3);
	assert_int_equal(opts_set(&o, "threads", "5", &why), 0);
	assert_int_equal(o.threads, 5);
	assert_int_equal(opts_set(&o, "times", "ignore", &why), 0);
	assert_true(o.ignore_times);
	assert_int_equal(opts_set(&o, "times", "trust", &why), 0);
	assert_false(o.ignore_times);
	assert_int_equal(opts_set(&o, "ready-fd", "7", &why), 0);
	assert_int_equal(o.ready_fd, 7);
	assert_int_equal(opts_set(&o, "allow-other", NULL, &why), 0);
	assert_true(o.allow_other);
	assert_int_equal(opts_set(&o, "foreground", NULL, &why), 0);
	assert_true(o.foreground);
	opts_release(&o);
	assert_null(o.base);
}

/* A table entry without a setter would only show up in a user's hands. */
static void every_table_entry_is_known(void **unused)
{
	for (const struct opt_def *d = opt_defs; d->name != NULL; d++) {
		struct why why = {0};
		struct opts o;

		opts_init(&o);
		assert_int_not_equal(opts_set(&o, d->name, d->arg != NULL ? "" : NULL, &why),
				     -ENOENT);
		assert_non_null(d->help);
		opts_release(&o);
	}
}

static void refusals_have_sentences(void **unused)
{
	static const struct {
		const char *name, *value, *sentence;
	} bad[] = {
		{"keep", "0", "--keep: \"0\" is not a number of versions from 1 to 1000000"},
		{"keep", "1.5", "--keep: \"1.5\" is not a number of versions from 1 to 1000000"},
		{"poll", "0", "--poll: \"0\" is not a time above 0 (such as 1, 0.25, 500ms or 2m)"},
		{"shard-size", "5\n",
		 "--shard-size: \"5\\x0a\" is not a size (such as 5GB, 512M or 1.5GiB)"},
		{"cache-size", "1M",
		 "--cache-size: \"1M\" is not a size of at least 16M (such as 200GB)"},
		{"times", "maybe", "--times: \"maybe\" is not \"trust\" or \"ignore\""},
		{"base", "", "--base needs a name that is not empty"},
		{"base", NULL, "--base needs a value (DIR)"},
		{"foreground", "1", "--foreground takes no value"},
		{"ready-fd", "x", "--ready-fd: \"x\" is not the number of a file descriptor"},
	};
	struct opts o;

	opts_init(&o);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct why why = {0};

		assert_int_equal(opts_set(&o, bad[i].name, bad[i].value, &why), -EINVAL);
		assert_string_equal(why.text, bad[i].sentence);
	}
	assert_int_equal(opts_set(&o, "nonsense", "1", NULL), -ENOENT);
	opts_release(&o);
}

static void lists(void **unused)
{
	struct why why = {0};
	struct opts o;

	opts_init(&o);
	assert_int_equal(opts_set_list(&o,
				       "rw,nosuid,keep=4,allow_other,x-systemd.automount,_netdev,"
				       "shard_size=1M,defaults,nodev,base=/a\\,b,,noatime",
				       &why),
			 0);
	assert_int_equal(o.keep, 4);
	assert_true(o.allow_other);
	assert_true(o.shard_size == 1 << 20);
	assert_string_equal(o.base, "/a,b");
	assert_string_equal(buf_str(&o.fuse), "nosuid,nodev,noatime");
	assert_int_equal(opts_set_list(&o, "", &why), 0);
	assert_int_equal(opts_set_list(&o, "ro", &why), 0);
	assert_string_equal(buf_str(&o.fuse), "nosuid,nodev,noatime,ro");
	assert_int_equal(opts_set_list(&o, "ro,nonsense=3", &why), -EINVAL);
	assert_string_equal(why.text, "unknown option \"nonsense=3\" in -o");
	assert_int_equal(opts_set_list(&o, "options=ro", &why), -EINVAL);
	assert_int_equal(opts_set_list(&o, "keep", &why), -EINVAL);
	assert_string_equal(why.text, "--keep needs a value (N)");
	assert_int_equal(opts_set_list(&o, "keep=x", &why), -EINVAL);
	opts_release(&o);
}

struct line {
	struct opts o;
	char text[200];
	const char *args[2];
	size_t count;
	bool help;
	struct why why;
};

/* The line's words are between single blanks. */
static int parse(struct line *l, bool mount, const char *text)
{
	char *words[16], *rest;
	int count = 0;

	*l = (struct line){0};
	snprintf(l->text, sizeof(l->text), "%s", text);
	for (rest = l->text; rest != NULL && count < (int)ARRAY_LEN(words);)
		words[count++] = strsep(&rest, " ");
	opts_init(&l->o);
	return opts_parse(&l->o, count, words, mount, l->args, ARRAY_LEN(l->args), &l->count,
			  &l->help, &l->why);
}

static void command_lines(void **unused)
{
	struct line l;

	assert_int_equal(parse(&l, true, "SRC -f --keep=3 --poll 2 MNT -oro"), 0);
	assert_int_equal(l.count, 2);
	assert_string_equal(l.args[0], "SRC");
	assert_string_equal(l.args[1], "MNT");
	assert_true(l.o.foreground);
	assert_int_equal(l.o.keep, 3);
	assert_true(l.o.poll_ns == (int64_t)(2 * SEC));
	assert_string_equal(buf_str(&l.o.fuse), "ro");
	opts_release(&l.o);

	assert_int_equal(parse(&l, true, "-fo keep=2 -- -x --poll"), 0);
	assert_true(l.o.foreground);
	assert_int_equal(l.o.keep, 2);
	assert_string_equal(l.args[0], "-x");
	assert_string_equal(l.args[1], "--poll");
	opts_release(&l.o);

	assert_int_equal(parse(&l, true, "-"), 0);
	assert_string_equal(l.args[0], "-");
	opts_release(&l.o);

	assert_int_equal(parse(&l, false, "--help"), 0);
	assert_true(l.help);
	opts_release(&l.o);
}

static void bad_command_lines(void **unused)
{
	struct line l;

	assert_int_equal(parse(&l, true, "a b c"), -EINVAL);
	assert_string_equal(l.why.text, "unexpected argument \"c\"");
	opts_release(&l.o);
	assert_int_equal(parse(&l, true, "--poll"), -EINVAL);
	assert_string_equal(l.why.text, "--poll needs a value (SECONDS)");
	opts_release(&l.o);
	assert_int_equal(parse(&l, true, "-z"), -EINVAL);
	assert_string_equal(l.why.text, "unknown option -z");
	opts_release(&l.o);
	/* Tools have no options of the mount. */
	assert_int_equal(parse(&l, false, "--keep 3"), -EINVAL);
	assert_string_equal(l.why.text, "unknown option --keep");
	opts_release(&l.o);
	assert_int_equal(parse(&l, false, "-f"), -EINVAL);
	opts_release(&l.o);
	assert_int_equal(parse(&l, false, "--base x"), 0);
	opts_release(&l.o);
	assert_int_equal(parse(&l, true, "--=1"), -EINVAL);
	opts_release(&l.o);
	assert_int_equal(parse(&l, true, "--a-name-that-is-longer-than-any-of-ours-can-be"),
			 -EINVAL);
	opts_release(&l.o);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes),
		cmocka_unit_test(times),
		cmocka_unit_test(each_option_is_stored),
		cmocka_unit_test(every_table_entry_is_known),
		cmocka_unit_test(refusals_have_sentences),
		cmocka_unit_test(lists),
		cmocka_unit_test(command_lines),
		cmocka_unit_test(bad_command_lines),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
