/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run over a real directory, for tests of the core: everything that a mount has below the front,
 * and comparisons of what it shows with the model of bucket.h.
 */
#ifndef TESTS_UNIT_FS_WORLD_H
#define TESTS_UNIT_FS_WORLD_H

#include "tests/unit/fs/bucket.h"

#include "cache/clock.h"
#include "cache/log.h"
#include "fs/run.h"

enum { FIRST_TIME = 1700000000 };

struct world {
	char dir[64];
	char bucket[100], base_dir[100], cache_dir[100];
	struct run_config config;
	struct run *run;
	enum writer writer;
	uint64_t seed;
	struct meant *list, **end; /* the run as it is meant */
	struct meant *first;	   /* whose header the layout has */
	int64_t time;		   /* of the next object, in seconds */
};

/* Opens what is closed; config.keep, shard_size ... may have been set before. */
UNUSED static void world_open(struct world *w, bool with_base, bool disk)
{
	struct why why = {0};
	bool in_memory;

	assert_int_equal(store_dir_new(w->bucket, false, &w->config.store, &why), 0);
	if (with_base)
		assert_int_equal(store_dir_new(w->base_dir, true, &w->config.base, &why), 0);
	assert_int_equal(cachedir_open(disk ? w->cache_dir : "/proc/none", "run", &w->config.cache,
				       &in_memory, &why),
			 0);
	assert_int_equal(in_memory, !disk);
	w->config.nodes = nodes_new();
	w->config.history = history_new(w->config.keep);
	assert_true(w->config.nodes != NULL && w->config.history != NULL);
	if (run_new(&w->config, &w->run, &why) < 0)
		fail_msg("no run: %s", why.text);
}

UNUSED static void world_close(struct world *w)
{
	run_free(w->run);
	history_free(w->config.history);
	nodes_free(w->config.nodes);
	cachedir_close(w->config.cache);
	store_free(w->config.base);
	store_free(w->config.store);
	w->run = NULL;
	w->config.base = NULL;
}

UNUSED static struct world *world_new(enum writer writer, uint64_t seed)
{
	struct world *w = calloc(1, sizeof(*w));

	assert_non_null(w);
	log_set_level(LOG_LEVEL_ERROR);
	/* In memory where there is such a place: the cache directory syncs every file. */
	snprintf(w->dir, sizeof(w->dir), "%s/wfs-run-XXXXXX",
		 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
	assert_non_null(mkdtemp(w->dir));
	snprintf(w->bucket, sizeof(w->bucket), "%s/bucket", w->dir);
	snprintf(w->base_dir, sizeof(w->base_dir), "%s/base", w->dir);
	snprintf(w->cache_dir, sizeof(w->cache_dir), "%s/cache", w->dir);
	assert_int_equal(mkdir(w->bucket, 0755), 0);
	assert_int_equal(mkdir(w->base_dir, 0755), 0);
	w->config.keep = 4;
	w->writer = writer;
	w->seed = seed * 2654435761 + 1;
	w->end = &w->list;
	w->time = FIRST_TIME;
	return w;
}

UNUSED static void world_free(struct world *w)
{
	if (w->run != NULL)
		world_close(w);
	meant_free(w->list);
	remove_tree(w->dir);
	free(w);
	clock_fake(-1);
}

/* ---- making objects ---- */

/* The next object of the run, not yet in the bucket. */
UNUSED static struct meant *meant_new(struct world *w, uint64_t number, bool anchor)
{
	struct meant *m = calloc(1, sizeof(*m));

	assert_non_null(m);
	m->number = number;
	m->anchor_dir = anchor;
	m->holes_legal = w->writer == WRITE_V3;
	*w->end = m;
	w->end = &m->next;
	return m;
}

UNUSED static void put_meant(struct world *w, const struct meant *m)
{
	char key[64];
	size_t len;
	char *bytes = meant_bytes(m, w->writer, &len);

	meant_key(m, key);
	put_bytes(w->bucket, key, bytes, len, w->time++);
	free(bytes);
}

/* The same object cut short by a byte. */
UNUSED static void put_cut(struct world *w, struct meant *m)
{
	char key[64];
	size_t len;
	char *bytes = meant_bytes(m, w->writer, &len);

	m->bad = true;
	meant_key(m, key);
	put_bytes(w->bucket, key, bytes, len - 1, w->time++);
	free(bytes);
}

UNUSED static struct meant *add_anchor(struct world *w, uint64_t number)
{
	struct meant *m = meant_new(w, number, true);

	for (int t = 0; t < MODEL_TENSORS; t++)
		meant_whole(m, t, &w->seed);
	if (w->first == NULL)
		w->first = m;
	put_meant(w, m);
	return m;
}

UNUSED static struct meant *make_delta(struct world *w, uint64_t number)
{
	struct meant *m = meant_new(w, number, false);

	for (int t = 0; t < MODEL_TENSORS - 1; t++) /* f.rare is not touched */
		if (below(&w->seed, 4) != 0)
			meant_some(m, t, &w->seed);
	return m;
}

UNUSED static struct meant *add_delta(struct world *w, uint64_t number)
{
	struct meant *m = make_delta(w, number);

	put_meant(w, m);
	return m;
}

UNUSED static void remove_meant(struct world *w, const struct meant *m)
{
	char key[64], path[300];

	meant_key(m, key);
	snprintf(path, sizeof(path), "%s/%s", w->bucket, key);
	assert_int_equal(unlink(path), 0);
}

/* A new run in the same place, as far as the model goes. */
UNUSED static void restart(struct world *w)
{
	meant_free(w->list);
	w->list = NULL;
	w->end = &w->list;
	w->first = NULL;
}

/* ---- looking ---- */

UNUSED static void scan(struct world *w)
{
	struct why why = {0};

	if (run_scan(w->run, &why) < 0)
		fail_msg("scan: %s", why.text);
}

/* Scans until there is nothing left to do by itself; how many rounds that took. */
UNUSED static int scan_all(struct world *w)
{
	int rounds = 0;

	do
		scan(w);
	while (++rounds < 400 && run_unsettled(w->run));
	assert_true(rounds < 400);
	return rounds;
}

UNUSED static char *read_node(struct node *n)
{
	char *bytes = malloc(n->size + 1);

	assert_non_null(bytes);
	assert_int_equal(node_read(n, 0, bytes, n->size), 0);
	return bytes;
}

/* All of a generation's model.safetensors is what the model says, also when read piecemeal. */
UNUSED static void check_generation(struct world *w, struct generation *g)
{
	struct node *n = node_child(g->root, "model.safetensors");
	struct state_bytes s = {0};
	char *want, *have;
	size_t len;

	assert_int_equal(model_state(w->list, g->version, &s), g->version);
	want = model_file(w->first, w->writer, &s, &len);
	assert_non_null(n);
	assert_int_equal(n->size, len);
	have = read_node(n);
	assert_memory_equal(have, want, len);
	for (int i = 0; i < 20; i++) {
		uint64_t off = below(&w->seed, len), size = below(&w->seed, len - off + 1);

		if (i % 2)
			size = below(&w->seed, MIN(size, UINT64_C(200)) + 1);
		memset(have, 0x5a, size + 1);
		assert_int_equal(node_read(n, off, have, size), 0);
		assert_memory_equal(have, want + off, size);
		assert_int_equal(have[size], 0x5a);
	}
	free(have);
	free(want);
	state_release(&s);
}

/* The newest version is `number` (0: none with weights), to the byte. */
UNUSED static void check_newest(struct world *w, uint64_t number)
{
	struct generation *g = history_newest(w->config.history);

	assert_non_null(g);
	assert_int_equal(g->version, number);
	assert_int_equal(g->state != NULL, number > 0);
	if (number > 0)
		check_generation(w, g);
	generation_unref(g);
}

UNUSED static void check_build(struct world *w, uint64_t version, uint64_t shows)
{
	struct generation *g;
	struct why why = {0};

	if (run_build(w->run, version, &g, &why) < 0)
		fail_msg("version %llu: %s", (unsigned long long)version, why.text);
	assert_int_equal(g->version, shows);
	check_generation(w, g);
	generation_unref(g);
}

UNUSED static void check_no_build(struct world *w, uint64_t version)
{
	struct generation *g;
	struct why why = {0};

	assert_int_equal(run_build(w->run, version, &g, &why), -ENOENT);
	assert_true(why.text[0] != '\0');
}

/* Is there a problem about the object whose sentence has this text? */
UNUSED static bool has_problem(struct world *w, const char *object, const char *text)
{
	struct run_report *p = run_report(w->run);
	bool found = false;

	for (size_t i = 0; i < p->problem_count; i++)
		found |= strcmp(p->problems[i].object, object) == 0 &&
			 strstr(p->problems[i].text, text) != NULL;
	run_report_unref(p);
	return found;
}

UNUSED static size_t problem_count(struct world *w)
{
	struct run_report *p = run_report(w->run);
	size_t n = p->problem_count;

	run_report_unref(p);
	return n;
}

UNUSED static bool has_note(struct world *w, const char *text)
{
	struct run_report *p = run_report(w->run);
	bool found = false;

	for (size_t i = 0; i < p->note_count; i++)
		found |= strstr(p->notes[i], text) != NULL;
	run_report_unref(p);
	return found;
}

/* State of a version in the report. */
UNUSED static enum version_state state_of(struct world *w, uint64_t number)
{
	struct run_report *p = run_report(w->run);
	int state = -1;

	for (size_t i = 0; i < p->version_count; i++)
		if (p->versions[i].number == number && p->versions[i].state != VERSION_SUPERSEDED)
			state = p->versions[i].state;
	run_report_unref(p);
	assert_true(state >= 0);
	return (enum version_state)state;
}

#endif
