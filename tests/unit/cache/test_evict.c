/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of blocks by last use, against a plain array that does the same slowly.
 */
#include "cache/evict.h"

#include "tests/unit/cache/scratch.h"

static int owner[4];

static void expect_order(const struct evict *e, const uint32_t *blocks, uint32_t count)
{
	uint32_t slot = EVICT_NONE;

	assert_int_equal(e->count, count);
	for (uint32_t i = 0; i < count; i++) {
		slot = evict_next(e, slot);
		assert_true(slot != EVICT_NONE);
		assert_int_equal(evict_get(e, slot)->block, blocks[i]);
	}
	if (count > 0)
		assert_true(evict_next(e, slot) == EVICT_NONE);
	else
		assert_true(evict_next(e, EVICT_NONE) == EVICT_NONE);
}

static void test_order(void **state)
{
	struct evict e = {0};
	uint32_t s[5];

	expect_order(&e, NULL, 0);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(evict_add(&e, &owner[i], i, false, &s[i]), 0);
	expect_order(&e, (uint32_t[]){0, 1, 2, 3}, 4);
	evict_touch(&e, s[1]);
	expect_order(&e, (uint32_t[]){0, 2, 3, 1}, 4);
	evict_touch(&e, s[1]);
	evict_touch(&e, s[0]);
	expect_order(&e, (uint32_t[]){2, 3, 1, 0}, 4);
	assert_int_equal(evict_add(&e, &owner[0], 9, true, &s[4]), 0);
	expect_order(&e, (uint32_t[]){9, 2, 3, 1, 0}, 5);
	evict_remove(&e, s[4]);
	evict_remove(&e, s[0]);
	evict_remove(&e, s[3]);
	expect_order(&e, (uint32_t[]){2, 1}, 2);
	assert_ptr_equal(evict_get(&e, s[2])->owner, &owner[2]);
	evict_remove(&e, s[1]);
	evict_remove(&e, s[2]);
	expect_order(&e, NULL, 0);
	assert_int_equal(evict_add(&e, &owner[0], 7, true, &s[0]), 0);
	expect_order(&e, (uint32_t[]){7}, 1);
	evict_release(&e);
}

enum { MANY = 3000, STEPS = 20000 };

/* The model: blocks from oldest to newest, and the slot of each. */
struct model {
	uint32_t order[MANY], count;
	uint32_t slot[MANY];
};

static void model_remove(struct model *m, uint32_t block)
{
	uint32_t i = 0;

	while (m->order[i] != block)
		i++;
	m->count--;
	memmove(m->order + i, m->order + i + 1, (m->count - i) * sizeof(*m->order));
}

static void test_random(void **state)
{
	static struct model m;
	struct evict e = {0};
	unsigned seed = 1;

	for (uint32_t i = 0; i < MANY; i++)
		m.slot[i] = EVICT_NONE;
	for (int i = 0; i < STEPS; i++) {
		uint32_t b = (uint32_t)(seed = seed * 1103515245 + 12345) / 8 % MANY;

		if (m.slot[b] == EVICT_NONE) {
			bool old = i % 5 == 0;

			assert_int_equal(evict_add(&e, &owner[b % 4], b, old, &m.slot[b]), 0);
			memmove(m.order + old, m.order, old ? m.count * sizeof(*m.order) : 0);
			m.order[old ? 0 : m.count] = b;
			m.count++;
		} else if (i % 3 == 0) {
			evict_remove(&e, m.slot[b]);
			m.slot[b] = EVICT_NONE;
			model_remove(&m, b);
		} else {
			evict_touch(&e, m.slot[b]);
			model_remove(&m, b);
			m.order[m.count++] = b;
		}
	}
	assert_true(m.count > 1024); /* more than a chunk */
	expect_order(&e, m.order, m.count);
	evict_release(&e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
