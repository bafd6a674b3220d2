/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes of what headers said: a restart makes none anew, damaged or foreign records are passed over
 * and made again, an object that is another one has another note, and the file stays small.
 */
#include "tests/unit/fs/world.h"

#include "cache/fileio.h"

#include <dirent.h>
#include <fcntl.h>
#include <xxhash.h>

enum { RECORD = 136, DELTAS = 20, LONG = SLOWER > 1 ? 60 : 400 };

/* Where the notes are. */
static void notes_path(struct world *w, char out[400])
{
	DIR *d = opendir(w->cache_dir);
	struct dirent *de;

	assert_non_null(d);
	while ((de = readdir(d)) != NULL)
		if (de->d_name[0] != '.')
			snprintf(out, 400, "%s/%.64s/notes", w->cache_dir, de->d_name);
	closedir(d);
}

static char *notes_get(struct world *w, size_t *out_len)
{
	char path[400];
	char *bytes;

	notes_path(w, path);
	assert_int_equal(file_slurp(AT_FDCWD, path, 1 << 20, &bytes, out_len), 0);
	return bytes;
}

static size_t notes_size(struct world *w)
{
	size_t len;

	free(notes_get(w, &len));
	return len;
}

static void notes_put(struct world *w, const char *bytes, size_t len)
{
	char path[400];

	notes_path(w, path);
	write_bytes(path, bytes, len);
}

static void again(struct world *w)
{
	if (w->run != NULL)
		world_close(w);
	world_open(w, false, true);
	scan_all(w);
}

/* An anchor and deltas, mounted once. */
static struct world *noted_world(uint64_t seed)
{
	struct world *w = world_new(WRITE_V3, seed);

	world_open(w, false, true);
	add_anchor(w, 1);
	for (uint64_t i = 2; i < 2 + DELTAS; i++)
		add_delta(w, i);
	scan_all(w);
	check_newest(w, 1 + DELTAS);
	assert_int_equal(notes_size(w), DELTAS * RECORD);
	return w;
}

static void check_all(struct world *w)
{
	check_newest(w, 1 + DELTAS);
	for (uint64_t i = 1; i < 2 + DELTAS; i++) {
		check_build(w, i, i);
		assert_int_equal(state_of(w, i), VERSION_OK);
	}
}

static void restart_makes_none(void **state)
{
	struct world *w = noted_world(31);
	size_t len, len2;
	char *before = notes_get(w, &len), *after;

	for (int round = 0; round < 2; round++) {
		again(w);
		check_all(w);
	}
	after = notes_get(w, &len2);
	assert_int_equal(len, len2);
	assert_memory_equal(before, after, len);
	free(before);
	free(after);
	world_free(w);
}

/* `n` records are not to be believed: just these are made again, and what is shown is right. */
static void check_again(struct world *w, const char *bytes, size_t len, size_t n)
{
	world_close(w);
	notes_put(w, bytes, len);
	again(w);
	check_all(w);
	assert_int_equal(notes_size(w), len + n * RECORD);
}

static void damaged(void **state)
{
	struct world *w = noted_world(32);
	char *bytes, *longer;
	size_t len;

	bytes = notes_get(w, &len);
	for (size_t i = 0; i < RECORD; i += 5) {
		size_t at = below(&w->seed, DELTAS) * RECORD + i;

		bytes[at] ^= 1 << below(&w->seed, 8);
		check_again(w, bytes, len, 1);
		free(bytes);
		world_close(w);
		bytes = notes_get(w, &len);
		/* The good ones only. */
		memmove(bytes + at / RECORD * RECORD, bytes + (at / RECORD + 1) * RECORD,
			len - (at / RECORD + 1) * RECORD);
		len -= RECORD;
		notes_put(w, bytes, len);
		again(w);
	}
	check_again(w, bytes, len - 7, 1);
	check_again(w, bytes, 0, DELTAS);
	longer = malloc(len + 100);
	assert_non_null(longer);
	memset(longer, 'w', 50);
	memcpy(longer + 50, bytes, len);
	memset(longer + 50 + len, 'w', 50);
	check_again(w, longer, len + 100, 0);
	free(longer);
	free(bytes);
	world_free(w);
}

/* Sound in itself, but for another layout or other dtypes: the parts are checked anew. */
static void other_target(void **state)
{
	struct world *w = noted_world(33);
	size_t len;
	char *bytes = notes_get(w, &len);

	for (size_t i = 0; i < 4; i++) {
		char *record = bytes + i * RECORD;
		XXH64_hash_t hash;
		const char *end = record + RECORD - sizeof(hash);

		record[i % 2 ? 24 : 40] ^= 1; /* layout, dtypes */
		hash = XXH3_64bits(record, (size_t)(end - record));
		memcpy(record + RECORD - sizeof(hash), &hash, sizeof(hash));
	}
	check_again(w, bytes, len, 4);
	free(bytes);
	world_free(w);
}

/* The same key with other contents, while nobody was there. */
static void replaced(void **state)
{
	struct world *w = noted_world(34);

	world_close(w);
	for (struct meant *m = w->list; m != NULL; m = m->next)
		if (m->number % 7 == 3) {
			for (int t = 0; t < MODEL_TENSORS; t++)
				for (uint64_t i = 0; m->kind[t] == SOME && i < m->count[t]; i++)
					m->values[t][i] ^= 0x11;
			w->time = FIRST_TIME + 1000 + (int64_t)m->number;
			remove_meant(w, m);
		}
	for (struct meant *m = w->list; m != NULL; m = m->next)
		if (m->number % 7 == 3) {
			w->time = FIRST_TIME + (int64_t)m->number - 1;
			put_meant(w, m);
		}
	again(w);
	check_all(w);
	assert_int_equal(notes_size(w), (DELTAS + 3) * RECORD);
	world_free(w);
}

/* A tool reads headers, whatever a mount has noted. */
static void tools_keep_none(void **state)
{
	struct world *w = noted_world(35);
	struct history *history;
	size_t len;
	char *bytes = notes_get(w, &len);

	world_close(w);
	notes_put(w, bytes, 0);
	free(bytes);
	world_open(w, false, true);
	run_free(w->run);
	history = w->config.history;
	w->config.history = NULL;
	assert_int_equal(run_new(&w->config, &w->run, NULL), 0);
	scan_all(w);
	check_build(w, 9, 9);
	assert_int_equal(notes_size(w), 0);
	w->config.history = history;
	world_free(w);
}

/* An anchor now and then: what lies below is forgotten in time. */
static void stays_small(void **state)
{
	struct world *w = world_new(WRITE_V3, 36);

	w->config.keep = 2;
	world_open(w, false, true);
	for (uint64_t i = 1; i <= LONG; i++) {
		if (i % 20 == 1)
			add_anchor(w, i);
		else
			add_delta(w, i);
		scan_all(w);
		assert_true(i < 20 || notes_size(w) <= 300 * RECORD);
	}
	check_newest(w, LONG);
	again(w);
	check_newest(w, LONG);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(restart_makes_none), cmocka_unit_test(damaged),
		cmocka_unit_test(other_target),	      cmocka_unit_test(replaced),
		cmocka_unit_test(tools_keep_none),    cmocka_unit_test(stays_small),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
