/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Killed at any moment, during fetches, writes and evictions: the next start has no trouble, every
 * byte is right, and what had been written is not fetched again.
 */
#include "tests/unit/cache/scratch.h"

#include "tests/unit/cache/block_rig.h"

#include <signal.h>

enum { OBJECTS = 3, ROUNDS = 12 };
static const uint64_t SIZE = 4 * MIB + 4321;

static uint64_t child_limit, child_seed;

static void *child_reader(void *arg)
{
	struct blob **blobs = arg;
	uint64_t seed = __atomic_add_fetch(&child_seed, 1, __ATOMIC_RELAXED) * 1000;

	for (;;) {
		uint64_t i = rng(&seed) % OBJECTS, off = rng(&seed) % SIZE;
		uint64_t len = rng(&seed) % (1 << 20) + 1;

		expect_bytes(blobs[i], i, off, (size_t)MIN(len, SIZE - off));
	}
	return NULL;
}

static void child(void)
{
	struct blob *blobs[OBJECTS];
	struct rig r;
	pthread_t thread;

	rig_open_disk(&r, child_limit);
	for (uint64_t i = 0; i < OBJECTS; i++)
		blobs[i] = rig_blob(&r, i, SIZE);
	write_text("started", "");
	pthread_create(&thread, NULL, child_reader, blobs);
	child_reader(blobs);
}

static void kill_after(int64_t ns)
{
	struct timespec ts = {.tv_nsec = 500000};
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		child();
		_exit(1);
	}
	while (access(at("started"), F_OK) < 0)
		nanosleep(&ts, NULL);
	ts = clock_timespec(ns);
	nanosleep(&ts, NULL);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status)); /* it was right until the end */
	unlink(at("started"));
}

/* Bytes of pieces whose record holds; *out_bad: records that do not. */
static uint64_t whole_pieces(uint64_t seed, unsigned *out_bad)
{
	char key[] = "";
	struct object o = mem_object(seed, SIZE, key);
	uint8_t *bytes = malloc(PIECE_SIZE);
	struct disk *d;
	struct disk_file *f;
	bool foreign;
	uint64_t sum = 0;

	assert_non_null(bytes);
	assert_int_equal(disk_open(at("cache"), "", &d, NULL), 0);
	assert_true(disk_owned(d)); /* the kernel has given the lock back */
	assert_int_equal(disk_file_open(d, &o.id, SIZE, "", &f, &foreign), 0);
	for (uint32_t p = 0; p < piece_count(SIZE); p++) {
		int rc = disk_file_check(f, p, bytes);

		sum += rc == 0 ? piece_len(SIZE, p) : 0;
		*out_bad += rc == -EBADMSG;
	}
	disk_file_unref(f);
	disk_close(d);
	free(bytes);
	return sum;
}

static void check_after(uint64_t *total_kept)
{
	struct blockcache_stats st;
	uint64_t kept = 0;
	unsigned bad = 0;
	struct rig r;

	for (uint64_t i = 0; i < OBJECTS; i++)
		kept += whole_pieces(i, &bad);
	rig_open_disk(&r, 0);
	for (uint64_t i = 0; i < OBJECTS; i++) {
		struct blob *b = rig_blob(&r, i, SIZE);

		expect_whole(b, i, 1 << 20);
		expect_whole(b, i, 100000);
		blob_unref(b);
	}
	st = rig_quiet(&r);
	assert_int_equal(mem_fetched(r.m), OBJECTS * SIZE - kept);
	assert_int_equal(st.damaged, bad);
	rig_close(&r);
	*total_kept += kept;
}

static void empty(void)
{
	if (access(at("cache"), F_OK) == 0)
		assert_int_equal(nftw(at("cache"), scratch_remove, 16, FTW_DEPTH | FTW_PHYS), 0);
}

/* On a busy machine there may be nothing to keep in any of them: then more, each of twice the time.
 */
static int64_t longer(int round, int64_t ns)
{
	return round < ROUNDS ? ns : ns << (round - ROUNDS + 1);
}

static bool goes_on(int round, uint64_t kept)
{
	return round < ROUNDS || (kept == 0 && round < 2 * ROUNDS);
}

static void test_killed_while_filling(void **state)
{
	uint64_t kept = 0, seed = 1;

	child_limit = 0;
	for (int i = 0; goes_on(i, kept); i++) {
		empty();
		child_seed = (uint64_t)i;
		kill_after(longer(i, (int64_t)(rng(&seed) % 12000000)));
		check_after(&kept);
	}
	assert_true(kept > 0);
}

/* The same cache each time, so that one crash comes on top of the other. */
static void test_killed_while_evicting(void **state)
{
	uint64_t kept = 0, seed = 2;

	child_limit = 5 * MIB;
	for (int i = 0; goes_on(i, kept); i++) {
		child_seed = (uint64_t)i;
		kill_after(longer(i, (int64_t)(rng(&seed) % 30000000)));
		if (i % 3 == 2)
			check_after(&kept);
	}
	assert_true(kept > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		scratch_test(test_killed_while_filling),
		scratch_test(test_killed_while_evicting),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
