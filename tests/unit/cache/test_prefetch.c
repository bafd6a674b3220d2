/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding streams among reads: when there is advice, how far ahead, in which direction, and that
 * random readers get none.
 */
#include "cache/prefetch.h"

#include "tests/unit/cache/scratch.h"

static const uint64_t KIB = 1 << 10, MIB = 1 << 20;
static const uint64_t SIZE = (uint64_t)1 << 30;
static const struct prefetch_limits limits = {
	.min = 1 << 20, .max = 64 << 20, .step = 8 << 20, .align = 1 << 20};

static struct prefetch_advice note(struct prefetch *p, uint64_t off, uint64_t len)
{
	struct prefetch_advice a;

	prefetch_read(p, &limits, SIZE, off, len, false, &a);
	assert_true(a.off + a.len <= SIZE);
	return a;
}

static void test_ascending(void **state)
{
	struct prefetch p = {0};
	struct prefetch_advice a = note(&p, 0, 128 * KIB);
	uint64_t frontier = 0, largest = 0;
	unsigned requests = 0;

	assert_false(a.sequential);
	assert_int_equal(a.len, 0);
	for (uint64_t off = 128 * KIB; off < SIZE; off += 128 * KIB) {
		uint64_t end = off + 128 * KIB, ahead;

		a = note(&p, off, 128 * KIB);
		assert_true(a.sequential && !a.down);
		if (a.len > 0) {
			/* What was asked for already is not asked for again, and nothing left out.
			 */
			assert_int_equal(a.off, MAX(frontier, end));
			assert_true(a.off + a.len == SIZE || (a.off + a.len) % MIB == 0);
			frontier = a.off + a.len;
			requests++;
		}
		ahead = frontier - end;
		largest = MAX(largest, ahead);
		assert_true(frontier >= end && ahead <= MAX(limits.min, 8 * end));
		if (end > 32 * MIB && end < SIZE - 64 * MIB)
			assert_true(ahead >= 48 * MIB); /* never runs dry */
	}
	assert_int_equal(frontier, SIZE);
	assert_in_range(largest, 48 * MIB, 64 * MIB);
	assert_in_range(requests, 100, 180); /* GiB / 8 MiB and the slow start */
}

static void test_descending(void **state)
{
	struct prefetch p = {0};
	uint64_t frontier = SIZE;
	bool found = false;

	for (uint64_t end = SIZE; end > 0; end -= 128 * KIB) {
		struct prefetch_advice a = note(&p, end - 128 * KIB, 128 * KIB);

		if (SIZE - end >= 256 * KIB)
			assert_true(a.sequential && a.down);
		if (a.len > 0) {
			assert_int_equal(a.off + a.len, MIN(frontier, end - 128 * KIB));
			frontier = a.off;
			found = true;
		}
	}
	assert_true(found);
	assert_int_equal(frontier, 0);
}

static void test_several_streams(void **state)
{
	struct prefetch p = {0};
	uint64_t frontier[10] = {0};

	for (uint64_t i = 0; i < 200; i++) {
		for (uint64_t s = 0; s < 10; s++) {
			uint64_t base = s * 100 * MIB;
			struct prefetch_advice a = note(&p, base + i * 128 * KIB, 128 * KIB);

			assert_int_equal(a.sequential, i > 0);
			if (a.len > 0) {
				assert_true(a.off >= base && a.off < base + 100 * MIB);
				frontier[s] = a.off + a.len;
			}
		}
	}
	for (uint64_t s = 0; s < 10; s++)
		assert_true(frontier[s] > s * 100 * MIB + 50 * MIB);
}

/* The kernel's requests arrive in pairs swapped, and a second rank lags behind: one stream. */
static void test_out_of_order(void **state)
{
	struct prefetch p = {0};
	uint64_t asked = 0;

	for (uint64_t i = 0; i < 400; i += 2) {
		struct prefetch_advice a;

		asked += note(&p, (i + 1) * 128 * KIB, 128 * KIB).len;
		a = note(&p, i * 128 * KIB, 128 * KIB);
		asked += a.len;
		if (i > 2)
			assert_true(a.sequential && !a.down);
		if (i >= 16)
			asked += note(&p, (i - 16) * 128 * KIB, 128 * KIB).len;
	}
	assert_true(asked <= 400 * 128 * KIB + 64 * MIB);
}

static void test_random(void **state)
{
	struct prefetch p = {0};
	uint64_t x = 1;
	unsigned sequential = 0;

	for (int i = 0; i < 20000; i++) {
		struct prefetch_advice a;

		x = x * UINT64_C(6364136223846793005) + 1442695040888963407;
		a = note(&p, (x >> 20) % (SIZE / 4096) * 4096, 4096);
		sequential += a.sequential;
	}
	/* Now and then two are neighbours by chance; a stream of them does not last. */
	assert_in_range(sequential, 0, 20);
}

static void test_lost_window(void **state)
{
	struct prefetch p = {0};
	struct prefetch_advice a;
	uint64_t off;

	for (off = 0; off < 16 * MIB; off += 128 * KIB)
		note(&p, off, 128 * KIB);
	/* Fetches ahead have failed: what the reader now finds missing is asked for anew. */
	prefetch_read(&p, &limits, SIZE, off, 128 * KIB, true, &a);
	assert_int_equal(a.off, off + 128 * KIB);
	assert_true(a.len >= 60 * MIB);
	/* Only a part could be asked for. */
	prefetch_trim(&p, &a, 8 * MIB);
	off += 128 * KIB;
	a = note(&p, off, 128 * KIB);
	assert_int_equal(a.off, off + 8 * MIB);
}

static void test_ends(void **state)
{
	struct prefetch p = {0};
	struct prefetch_advice a;

	note(&p, SIZE - 256 * KIB, 128 * KIB);
	a = note(&p, SIZE - 128 * KIB, 128 * KIB);
	assert_true(a.sequential);
	assert_int_equal(a.len, 0);
	prefetch_read(&p, &limits, 100, 0, 50, true, &a); /* an object smaller than anything */
	prefetch_read(&p, &limits, 100, 50, 50, true, &a);
	assert_int_equal(a.len, 0);
	prefetch_read(&(struct prefetch){0}, &limits, 1, 0, 1, true, &a);
	assert_int_equal(a.len, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ascending),
		cmocka_unit_test(test_descending),
		cmocka_unit_test(test_several_streams),
		cmocka_unit_test(test_out_of_order),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_lost_window),
		cmocka_unit_test(test_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
