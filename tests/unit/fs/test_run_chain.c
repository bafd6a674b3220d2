/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Long chains: stacks stay short, open files and cache files stay few, a late joiner and a restart
 * show the same bytes, and damaged cache files are made again.
 */
#include "tests/unit/fs/world.h"

#include <dirent.h>

enum { LATE = SLOWER > 1 ? 120 : 300 };

/* A delta of a few elements, so that long chains are quick. */
static struct meant *small_delta(struct world *w, uint64_t number)
{
	struct meant *m = meant_new(w, number, false);
	const int tensors[] = {0, 1, 4};

	for (size_t i = 0; i < ARRAY_LEN(tensors); i++) {
		int t = tensors[i];
		uint64_t step = specs[t].n / 3, at = below(&w->seed, step);

		m->kind[t] = SOME;
		m->pos[t] = calloc(4, sizeof(uint64_t));
		m->values[t] = calloc(4, sizeof(uint16_t));
		for (; at < specs[t].n && m->count[t] < 4; at += 1 + below(&w->seed, step)) {
			m->pos[t][m->count[t]] = at;
			m->values[t][m->count[t]++] = (uint16_t)rnd(&w->seed);
		}
	}
	put_meant(w, m);
	return m;
}

static struct meant *partial_anchor(struct world *w, uint64_t number)
{
	struct meant *m = meant_new(w, number, true);

	meant_whole(m, 1, &w->seed);
	meant_whole(m, 4, &w->seed);
	put_meant(w, m);
	return m;
}

static uint32_t stack_height(struct world *w)
{
	struct generation *g = history_newest(w->config.history);
	uint32_t n = g->state->link_count;

	generation_unref(g);
	return n;
}

static size_t open_files(void)
{
	DIR *d = opendir("/proc/self/fd");
	size_t n = 0;

	assert_non_null(d);
	while (readdir(d) != NULL)
		n++;
	closedir(d);
	return n;
}

struct cache_file {
	char name[64];
	uint64_t ino;
};

/* The files of the one run in the cache directory. */
static size_t cache_files(struct world *w, struct cache_file *out, size_t max)
{
	char path[400];
	DIR *d = opendir(w->cache_dir);
	struct dirent *de;
	size_t n = 0;

	assert_non_null(d);
	while ((de = readdir(d)) != NULL)
		if (de->d_name[0] != '.')
			snprintf(path, sizeof(path), "%s/%.64s", w->cache_dir, de->d_name);
	closedir(d);
	d = opendir(path);
	assert_non_null(d);
	while ((de = readdir(d)) != NULL) {
		if (de->d_name[0] == '.')
			continue;
		assert_true(n < max);
		snprintf(out[n].name, sizeof(out[n].name), "%.63s", de->d_name);
		out[n++].ino = de->d_ino;
	}
	closedir(d);
	return n;
}

/* One after the other, as a mount sees them. */
static void stacks_stay_short(void **state)
{
	struct world *w = world_new(WRITE_V3, 21);
	struct cache_file files[200];

	w->config.keep = 2;
	world_open(w, false, true);
	add_anchor(w, 1);
	scan_all(w);
	for (uint64_t n = 2; n <= 90; n++) {
		if (n == 40)
			partial_anchor(w, n);
		else if (n % 11 == 0)
			put_meant(w, meant_new(w, n, false));
		else
			small_delta(w, n);
		scan_all(w);
		assert_true(stack_height(w) <= 7 + 4 + 1); /* single steps, folds of 8 to 64 */
		if (n % 6 == 0)
			check_newest(w, n);
	}
	check_newest(w, 90);
	/* 89 steps: one of 64, of 16, of 8, and one; what they stand for is gone. */
	assert_true(stack_height(w) <= 4);
	small_delta(w, 91);
	scan_all(w);
	assert_true(cache_files(w, files, ARRAY_LEN(files)) < 20);
	for (uint64_t n = 1; n <= 91; n += 3 * SLOWER)
		check_build(w, n, n);
	scan_all(w);
	small_delta(w, 92);
	scan_all(w);
	assert_true(cache_files(w, files, ARRAY_LEN(files)) < 20);
	check_newest(w, 92);
	world_free(w);
}

/* Files of merged patches that are in both lists. */
static size_t common_folds(const struct cache_file *a, size_t n, const struct cache_file *b,
			   size_t m)
{
	size_t common = 0;

	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < m; k++)
			common += strstr(a[i].name, ".fold") != NULL && a[i].ino == b[k].ino &&
				  strcmp(a[i].name, b[k].name) == 0;
	return common;
}

/* An object deep in a folded chain is another one now, and all that follow are written again. */
static void folded_object_changes(void **state)
{
	struct world *w = world_new(WRITE_V3, 28);
	struct cache_file a[64], b[64];
	struct meant *fifth;
	size_t n;

	w->config.keep = 1;
	world_open(w, false, true);
	add_anchor(w, 1);
	for (uint64_t i = 2; i <= 75; i++)
		small_delta(w, i);
	scan_all(w);
	check_newest(w, 75);
	assert_true(stack_height(w) <= 15);
	small_delta(w, 76);
	scan_all(w);
	assert_true(stack_height(w) <= 5);
	n = cache_files(w, a, ARRAY_LEN(a));
	assert_true(common_folds(a, n, a, n) >= 2);
	fifth = w->list;
	while (fifth->number < 5)
		fifth = fifth->next;
	fifth->values[0][0] ^= 1;
	for (; fifth != NULL; fifth = fifth->next)
		put_meant(w, fifth);
	scan_all(w);
	check_newest(w, 76);
	small_delta(w, 77);
	assert_true(scan_all(w) <= 2); /* nothing is folded again and again */
	check_newest(w, 77);
	assert_true(stack_height(w) <= 6);
	/* Nothing of the old chain is left. */
	assert_int_equal(common_folds(a, n, b, cache_files(w, b, ARRAY_LEN(b))), 0);
	world_free(w);
}

/* Many objects at once; v1.3's partial anchors do not keep their files open. */
static void late_joiner(void **state)
{
	struct world *w = world_new(WRITE_V1, 22);
	struct cache_file files[400];
	size_t before;

	add_anchor(w, 1);
	for (uint64_t n = 2; n <= LATE; n++)
		if (n % 5 == 0)
			partial_anchor(w, n);
		else
			small_delta(w, n);
	w->config.keep = 3;
	world_open(w, false, false);
	before = open_files();
	scan(w);
	check_newest(w, LATE);
	assert_true(stack_height(w) <= 7 + 6); /* single steps, folds of 8 to 256 */
	assert_true(open_files() < before + 60);
	scan_all(w);
	assert_true(open_files() < before + 60);
	check_build(w, LATE - 1, LATE - 1);
	check_build(w, LATE / 2, LATE / 2);
	check_build(w, 77, 77);
	world_close(w);
	world_open(w, false, true);
	scan_all(w);
	check_newest(w, LATE);
	small_delta(w, LATE + 1);
	scan_all(w);
	assert_true(cache_files(w, files, ARRAY_LEN(files)) < 30);
	world_free(w);
}

/* A restart with a warm cache makes no file anew. */
static void cache_is_used_again(void **state)
{
	struct world *w = world_new(WRITE_V3, 23);
	struct cache_file a[64], b[64];
	size_t n, m;

	w->config.keep = 1;
	world_open(w, false, true);
	add_anchor(w, 1);
	for (uint64_t i = 2; i <= 80; i++)
		small_delta(w, i);
	scan_all(w);
	small_delta(w, 81);
	scan_all(w);
	n = cache_files(w, a, ARRAY_LEN(a));
	assert_true(n > 0);
	for (int round = 0; round < 2; round++) {
		world_close(w);
		world_open(w, false, true);
		scan_all(w);
		check_newest(w, 81);
		m = cache_files(w, b, ARRAY_LEN(b));
		assert_true(m <= n);
		for (size_t i = 0; i < m; i++) {
			bool same = false;

			for (size_t k = 0; k < n; k++)
				same |= a[k].ino == b[i].ino && strcmp(a[k].name, b[i].name) == 0;
			assert_true(same);
		}
	}
	world_free(w);
}

static void flip_byte(const char *path, off_t at)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	uint8_t byte;

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &byte, 1, at), 1);
	byte ^= 0x10;
	assert_int_equal(pwrite(fd, &byte, 1, at), 1);
	close(fd);
}

static int damage(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	if (type == FTW_F && st->st_size > 0)
		flip_byte(path, st->st_size - 1 - st->st_ino % 30);
	return 0;
}

static void damaged_cache(void **state)
{
	struct world *w = world_new(WRITE_V3, 24);

	world_open(w, false, true);
	add_anchor(w, 1);
	for (uint64_t i = 2; i <= 30; i++)
		small_delta(w, i);
	scan_all(w);
	world_close(w);
	assert_int_equal(nftw(w->cache_dir, damage, 8, FTW_PHYS), 0);
	world_open(w, false, true);
	scan_all(w);
	check_newest(w, 30);
	for (uint64_t n = 1; n <= 30; n += 4)
		check_build(w, n, n);
	world_free(w);
}

/* Anchors again and again: what lies below the newest is let go of. */
static void anchors_bound_everything(void **state)
{
	struct world *w = world_new(WRITE_V3, 25);
	struct cache_file files[200];
	size_t before;

	w->config.keep = 2;
	world_open(w, false, true);
	before = open_files();
	for (uint64_t n = 1; n <= 120; n++) {
		if (n % 10 == 1)
			add_anchor(w, n);
		else
			small_delta(w, n);
		scan_all(w);
	}
	check_newest(w, 120);
	assert_true(open_files() < before + 20);
	assert_true(cache_files(w, files, ARRAY_LEN(files)) < 12);
	world_free(w);
}

/* The versions below the newest come by themselves, as many as are kept. */
static void backfill(void **state)
{
	struct world *w = world_new(WRITE_V3, 26);
	struct history_entry *list;
	struct generation *g;
	size_t n;

	add_anchor(w, 1);
	for (uint64_t i = 2; i <= 9; i++)
		add_delta(w, i);
	add_anchor(w, 10);
	add_delta(w, 12);
	w->config.keep = 6;
	world_open(w, false, false);
	scan_all(w);
	assert_int_equal(history_list(w->config.history, &list, &n), 0);
	assert_int_equal(n, 6);
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(list[i].version, i < 5 ? i + 6 : 12);
		assert_true(i == 0 || list[i].mtime_ns > list[i - 1].mtime_ns);
		g = history_version(w->config.history, list[i].version);
		check_generation(w, g);
		generation_unref(g);
	}
	free(list);
	world_free(w);
}

/* One time for all objects, and times that mean nothing. */
static void times(void **state)
{
	struct world *w = world_new(WRITE_V3, 27);
	struct generation *a, *b;
	struct why why = {0};

	for (uint64_t i = 1; i <= 12; i++) {
		w->time = FIRST_TIME - (int64_t)i;
		if (i % 4 == 1)
			add_anchor(w, i);
		else
			add_delta(w, i);
	}
	w->first = w->list;
	w->config.ignore_times = true;
	world_open(w, false, false);
	scan_all(w);
	check_newest(w, 12);
	for (uint64_t i = 1; i < 12; i++) {
		assert_int_equal(run_build(w->run, i, &a, &why), 0);
		assert_int_equal(run_build(w->run, i + 1, &b, &why), 0);
		assert_true(a->mtime_ns < b->mtime_ns);
		check_generation(w, a);
		generation_unref(a);
		generation_unref(b);
	}
	world_close(w);
	w->config.ignore_times = false;
	world_open(w, false, false);
	scan_all(w);
	check_newest(w, 1);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(folded_object_changes),
		cmocka_unit_test(stacks_stay_short),
		cmocka_unit_test(late_joiner),
		cmocka_unit_test(cache_is_used_again),
		cmocka_unit_test(damaged_cache),
		cmocka_unit_test(anchors_bound_everything),
		cmocka_unit_test(backfill),
		cmocka_unit_test(times),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
