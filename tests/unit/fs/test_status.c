/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status and the watch over a real stack on a small bucket: what the line, the JSON and the metrics
 * say while nothing is whole, when a version is served, when a newer object is bad, and when the
 * plain paths are held.  The watch is asked to refresh, so nothing here depends on time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cache/clock.h"
#include "cache/fileio.h"
#include "cache/log.h"
#include "fs/human.h"
#include "fs/status.h"

#include <ftw.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct world {
	char dir[64];
	char bucket[100], cache[100];
	struct opts o;
	struct stack *s;
};

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));
	struct why why = {0};

	assert_non_null(w);
	log_set_level(LOG_LEVEL_ERROR);
	snprintf(w->dir, sizeof(w->dir), "/tmp/weightfs-unit-XXXXXX");
	assert_non_null(mkdtemp(w->dir));
	snprintf(w->bucket, sizeof(w->bucket), "%s/bucket", w->dir);
	snprintf(w->cache, sizeof(w->cache), "%s/cache", w->dir);
	assert_int_equal(mkdir(w->bucket, 0755), 0);
	opts_init(&w->o);
	w->o.source = strdup(w->bucket);
	w->o.cache_dir = strdup(w->cache);
	w->o.mountpoint = strdup("/mnt/\"odd\\name");
	w->o.hole_grace_ns = 0;
	assert_int_equal(stack_new(&w->o, true, &w->s, &why), 0);
	assert_int_equal(watch_start(w->s->watch), 0);
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	stack_free(w->s);
	opts_release(&w->o);
	nftw(w->dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
	free(w);
	return 0;
}

/* An object of one or two tensors, put in place by rename. */
static void put(struct world *w, const char *key, const struct st_tensor *tensors, size_t count,
		const void *data, size_t len, bool cut)
{
	static const struct st_meta meta[] = {{"format", "sparse_weight_patch"},
					      {"encoding", "gap_delta"}};
	struct buf b = {0};
	struct why why = {0};
	char path[200], *slash;

	assert_int_equal(st_compose(tensors, count, meta, ARRAY_LEN(meta), 8, 0, &b, &why), 0);
	buf_add(&b, data, cut ? len - 1 : len);
	assert_false(b.failed);
	snprintf(path, sizeof(path), "%s/%s", w->bucket, key);
	slash = strrchr(path, '/');
	*slash = '\0';
	assert_int_equal(file_mkdirs(path), 0);
	*slash = '/';
	assert_int_equal(file_replace(path, b.data, b.len), 0);
	buf_release(&b);
}

static void put_anchor(struct world *w)
{
	static const uint64_t shape[] = {4};
	static const struct st_tensor t[] = {
		{.name = "w", .dtype = ST_BF16, .rank = 1, .shape = shape, .begin = 0, .end = 8}};

	put(w, "anchors/step_000001.safetensors", t, 1, "aabbccdd", 8, false);
}

static void put_delta(struct world *w, const char *key, bool cut)
{
	static const uint64_t shape[] = {1};
	static const struct st_tensor t[] = {
		{.name = "w.idx", .dtype = ST_U16, .rank = 1, .shape = shape, .begin = 0, .end = 2},
		{.name = "w.val",
		 .dtype = ST_BF16,
		 .rank = 1,
		 .shape = shape,
		 .begin = 2,
		 .end = 4}};

	put(w, key, t, 2, "\1\0xy", 4, cut);
}

static void expect_line(struct world *w, const char *begin, const char *part)
{
	struct buf b = {0};

	assert_int_equal(watch_refresh(w->s->watch, true), 0);
	status_line(w->s, &b);
	if (strncmp(buf_str(&b), begin, strlen(begin)) != 0 || strstr(buf_str(&b), part) == NULL)
		fail_msg("the line is: %s", buf_str(&b));
	buf_release(&b);
}

static json_t *read_json(struct world *w)
{
	struct buf b = {0};
	json_t *j;

	status_json(w->s, &b);
	j = json_loads(buf_str(&b), 0, NULL);
	assert_non_null(j);
	buf_release(&b);
	return j;
}

static void waiting(void **state)
{
	struct world *w = *state;
	json_t *j;

	expect_line(w, "waiting: no complete anchor in ", w->bucket);
	j = read_json(w);
	assert_string_equal(json_string_value(json_object_get(j, "state")), "waiting");
	assert_true(json_is_null(json_object_get(j, "version")));
	assert_true(json_is_null(json_object_get(j, "lineage")));
	assert_string_equal(json_string_value(json_object_get(j, "mountpoint")),
			    "/mnt/\"odd\\name");
	json_decref(j);
}

static void serving(void **state)
{
	struct world *w = *state;
	struct buf b = {0};
	json_t *j, *kept;

	put_anchor(w);
	expect_line(w, "version 1 = anchor 1, lineage ", " old");
	put_delta(w, "deltas/step_000002.safetensors", false);
	expect_line(w, "version 2 = anchor 1 + 1 delta, lineage ", "(gap_delta)");
	j = read_json(w);
	assert_string_equal(json_string_value(json_object_get(j, "state")), "serving");
	assert_int_equal(json_integer_value(json_object_get(j, "version")), 2);
	assert_int_equal(json_integer_value(json_object_get(j, "newest")), 2);
	assert_int_equal(json_integer_value(json_object_get(j, "anchor")), 1);
	assert_int_equal(json_integer_value(json_object_get(j, "deltas")), 1);
	assert_int_equal(strlen(json_string_value(json_object_get(j, "lineage"))), 8);
	kept = json_object_get(j, "versions");
	assert_int_equal(json_integer_value(json_object_get(
				 json_array_get(kept, json_array_size(kept) - 1), "version")),
			 2);
	json_decref(j);
	status_metrics(w->s, &b);
	assert_non_null(strstr(buf_str(&b), "\nweightfs_version 2\n"));
	assert_non_null(strstr(buf_str(&b), "\nweightfs_source_reachable 1\n"));
	buf_release(&b);
}

static void bad_object(void **state)
{
	struct world *w = *state;
	struct buf b = {0};
	json_t *j, *problem;

	put_anchor(w);
	put_delta(w, "deltas/step_000002.safetensors", true);
	put_delta(w, "deltas/step_000003.safetensors", false);
	expect_line(w, "version 1 = anchor 1",
		    "; newest object 3 is not shown: deltas/step_000002.safetensors: ");
	j = read_json(w);
	problem = json_array_get(json_object_get(j, "problems"), 0);
	assert_string_equal(json_string_value(json_object_get(problem, "object")),
			    "deltas/step_000002.safetensors");
	assert_true(strlen(json_string_value(json_object_get(problem, "error"))) > 10);
	json_decref(j);
	status_text(w->s, &b);
	assert_non_null(strstr(buf_str(&b), "\n  deltas/step_000002.safetensors: "));
	/* Once, not in front of a sentence that begins with it. */
	assert_null(strstr(buf_str(&b),
			   "deltas/step_000002.safetensors: deltas/step_000002.safetensors"));
	buf_release(&b);
}

static void held(void **state)
{
	struct world *w = *state;

	put_anchor(w);
	expect_line(w, "version 1 = ", "");
	history_hold(w->s->history, 3600 * NSEC_PER_SEC);
	put_delta(w, "deltas/step_000002.safetensors", false);
	expect_line(w, "version 1 = ", "; version 2 is ready; held for ");
	history_release(w->s->history);
	expect_line(w, "version 2 = ", " old");
}

static void loading(void **state)
{
	struct world *w = *state;
	struct buf b = {0};
	uint64_t id;
	bool fresh;
	json_t *j, *load;

	put_anchor(w);
	expect_line(w, "version 1 = ", " old");
	assert_int_equal(history_load_opened(w->s->history, 123, "model.safetensors", false, NULL,
					     &id, &fresh),
			 0);
	history_load_named(w->s->history, id, "py\"thon");
	expect_line(w, "version 1 = ", "; being loaded by pid 123 (py\\x22thon) for 0 s");
	put_delta(w, "deltas/step_000002.safetensors", false);
	expect_line(w, "version 1 = ",
		    "; version 2 is ready, held back by pid 123 (py\\x22thon), loading for ");
	assert_int_equal(history_load_opened(w->s->history, 0, "model.safetensors", false, NULL,
					     &id, &fresh),
			 0);
	expect_line(w, "version 1 = ", " and 1 more, loading for ");
	j = read_json(w);
	load = json_array_get(json_object_get(j, "loads"), 0);
	assert_int_equal(json_integer_value(json_object_get(load, "pid")), 123);
	assert_true(json_is_true(json_object_get(load, "holds")));
	assert_string_equal(json_string_value(json_array_get(json_object_get(load, "files"), 0)),
			    "model.safetensors");
	load = json_array_get(json_object_get(j, "loads"), 1);
	assert_true(json_is_null(json_object_get(load, "pid")));
	json_decref(j);
	status_text(w->s, &b);
	assert_non_null(strstr(buf_str(&b), "loads by plain path: 2\n  pid 123 "));
	buf_release(&b);
	status_metrics(w->s, &b);
	assert_non_null(strstr(buf_str(&b), "\nweightfs_holding 2\n"));
	buf_release(&b);
	history_release(w->s->history);
	expect_line(w, "version 2 = ", " old");
}

static void source_goes_away(void **state)
{
	struct world *w = *state;
	struct buf b = {0};

	put_anchor(w);
	expect_line(w, "version 1 = ", "");
	assert_int_equal(nftw(w->bucket, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
	assert_true(watch_refresh(w->s->watch, true) < 0);
	status_line(w->s, &b);
	assert_non_null(strstr(buf_str(&b), " cannot be listed: "));
	assert_true(strncmp(buf_str(&b), "version 1 = ", 12) == 0);
	buf_release(&b);
	assert_int_equal(mkdir(w->bucket, 0755), 0);
	put_anchor(w);
	expect_line(w, "version 1 = ", " old");
}

static void pins(void **state)
{
	struct world *w = *state;
	struct generation *g;
	struct why why = {0};

	put_anchor(w);
	put_delta(w, "deltas/step_000002.safetensors", false);
	expect_line(w, "version 2 = ", "");
	assert_int_equal(watch_pin(w->s->watch, 1, NULL, &why), 0);
	g = history_version(w->s->history, 1);
	assert_non_null(g);
	generation_unref(g);
	assert_int_equal(history_unpin(w->s->history, 1), 0);
	assert_int_equal(watch_pin(w->s->watch, 77, NULL, &why), -ENOENT);
	assert_true(strlen(why.text) > 5);
	/* What has just arrived is found, too. */
	put_delta(w, "deltas/step_000003.safetensors", false);
	assert_int_equal(watch_pin(w->s->watch, 3, NULL, &why), 0);
	watch_stop(w->s->watch);
	assert_int_equal(watch_refresh(w->s->watch, true), -ECANCELED);
	assert_int_equal(watch_pin(w->s->watch, 999, NULL, &why), -ECANCELED);
}

static void numbers_for_people(void **state)
{
	struct buf b = {0};

	human_time(&b, 119 * NSEC_PER_SEC);
	buf_addstr(&b, "|");
	human_time(&b, -5);
	buf_addstr(&b, "|");
	human_time(&b, 3 * 3600 * NSEC_PER_SEC);
	buf_addstr(&b, "|");
	human_bytes(&b, 999);
	buf_addstr(&b, "|");
	human_bytes(&b, 999960);
	buf_addstr(&b, "|");
	human_bytes(&b, 1230000);
	buf_addstr(&b, "|");
	human_count(&b, 276271);
	buf_addstr(&b, "|");
	human_date(&b, 0);
	assert_string_equal(buf_str(&b), "119 s|0 s|3 h|999 B|1.0 MB|1.2 MB|276 k|"
					 "1970-01-01 00:00:00 UTC");
	buf_release(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(waiting, setup, teardown),
		cmocka_unit_test_setup_teardown(serving, setup, teardown),
		cmocka_unit_test_setup_teardown(bad_object, setup, teardown),
		cmocka_unit_test_setup_teardown(held, setup, teardown),
		cmocka_unit_test_setup_teardown(loading, setup, teardown),
		cmocka_unit_test_setup_teardown(source_goes_away, setup, teardown),
		cmocka_unit_test_setup_teardown(pins, setup, teardown),
		cmocka_unit_test(numbers_for_people),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
