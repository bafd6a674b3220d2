/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random runs against the model: whatever objects come, in whatever order they are mended, deleted
 * or replaced, the newest version is the model's newest whole one and every version is the model's
 * to the byte, also after the program was started anew on the same cache directory.
 */
#include "tests/unit/fs/world.h"

/* Something in the middle of the run is bad for a while. */
static void spoil_and_mend(struct world *w, uint64_t shown)
{
	struct meant *m = w->list;
	size_t n = 0;

	for (struct meant *x = w->list; x != NULL; x = x->next)
		n++;
	for (size_t i = below(&w->seed, n); i > 0; i--)
		m = m->next;
	if (m->number <= 1 || m->number > shown)
		return;
	/* All that follow are written again, so that times ascend. */
	put_cut(w, m);
	for (struct meant *x = m->next; x != NULL; x = x->next)
		put_meant(w, x);
	scan(w);
	m->bad = false;
	for (; m != NULL; m = m->next)
		put_meant(w, m);
}

static void add_random(struct world *w, uint64_t number)
{
	struct meant *m;

	switch (below(&w->seed, 12)) {
	case 0: add_anchor(w, number); break;
	case 1: /* a full file in deltas/ */
		m = meant_new(w, number, false);
		for (int t = 0; t < MODEL_TENSORS; t++)
			meant_whole(m, t, &w->seed);
		put_meant(w, m);
		break;
	case 2: /* a partial anchor */
	case 3:
		m = meant_new(w, number, true);
		for (int t = 0; t < MODEL_TENSORS; t++)
			if (below(&w->seed, 2) == 0)
				meant_whole(m, t, &w->seed);
		put_meant(w, m);
		break;
	case 4: /* full and sparse mixed */
		m = meant_new(w, number, false);
		for (int t = 0; t < MODEL_TENSORS; t++)
			(below(&w->seed, 2) ? meant_whole : meant_some)(m, t, &w->seed);
		put_meant(w, m);
		break;
	case 5: put_meant(w, meant_new(w, number, false)); break; /* empty */
	default: add_delta(w, number);
	}
}

/* The newest whole version is there, and every one can be built. */
static void check_all(struct world *w)
{
	struct state_bytes s = {0};
	uint64_t newest = model_state(w->list, UINT64_MAX, &s), last = 0;

	check_newest(w, newest);
	for (const struct meant *m = w->list; m != NULL; m = m->next) {
		uint64_t shows = model_state(w->list, m->number, &s);

		if (shows == m->number)
			check_build(w, m->number, shows);
		else
			check_no_build(w, m->number);
		if (m->number > last + 1 && m->holes_legal && last > 0 &&
		    model_state(w->list, last, &s) == last)
			check_build(w, last + 1 + below(&w->seed, m->number - last - 1), last);
		last = m->number;
	}
	state_release(&s);
}

static void random_run(uint64_t seed)
{
	struct world *w = world_new(seed % 2 ? WRITE_V1 : WRITE_V3, seed);
	uint64_t number = 1, steps = 10 + below(&w->seed, 30);

	w->config.keep = 1 + (unsigned)below(&w->seed, 5);
	world_open(w, false, seed % 4 == 0);
	add_anchor(w, 1);
	for (uint64_t i = 0; i < steps; i++) {
		struct state_bytes s = {0};
		uint64_t newest;

		number += w->writer == WRITE_V3 && below(&w->seed, 6) == 0 ? 1 + below(&w->seed, 3)
									   : 1;
		add_random(w, number);
		if (below(&w->seed, 3) != 0)
			continue;
		if (below(&w->seed, 8) == 0) {
			world_close(w);
			world_open(w, false, seed % 4 == 0);
		}
		scan(w);
		newest = model_state(w->list, UINT64_MAX, &s);
		check_newest(w, newest);
		state_release(&s);
		if (below(&w->seed, 4) == 0)
			spoil_and_mend(w, newest);
		if (below(&w->seed, 15) == 0) {
			restart(w);
			add_anchor(w, 1);
			number = 1;
		}
	}
	scan_all(w);
	check_all(w);
	world_close(w);
	world_open(w, false, seed % 4 == 0);
	scan_all(w);
	check_all(w);
	world_free(w);
}

static void random_runs(void **state)
{
	const char *from = getenv("WEIGHTFS_SEED"), *count = getenv("WEIGHTFS_RUNS");
	uint64_t first = from != NULL ? strtoull(from, NULL, 10) : 1;
	uint64_t n = count != NULL ? strtoull(count, NULL, 10) : 8 / SLOWER;

	for (uint64_t i = 0; i < n; i++) {
		print_message("seed %llu\n", (unsigned long long)(first + i));
		random_run(first + i);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(random_runs)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
