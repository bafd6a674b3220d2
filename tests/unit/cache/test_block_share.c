/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One cache directory, several block caches: what a guest may use, that the owner's evictions never
 * show in what it reads, and how it becomes the owner.  flock() goes by open file, so two caches in
 * one process are as good as two processes; one test has real ones.
 */
#include "tests/unit/cache/scratch.h"

#include "tests/unit/cache/block_rig.h"

#include <signal.h>
#include <sys/prctl.h>

#include "cache/log.h"

static void open_guest(struct rig *r)
{
	struct blockcache_config config = {.dir = at("cache"), .holder = "/mnt/guest", .floor = 1};
	char text[100];

	rig_open(r, &config);
	snprintf(text, sizeof(text), "process %ld (/mnt/test)", (long)getpid());
	assert_int_equal(r->why.err, EBUSY);
	assert_non_null(strstr(r->why.text, text));
}

static bool writes(struct rig *r)
{
	struct blockcache_stats st;

	blockcache_stats(r->c, &st);
	return st.writing;
}

static void test_guest_reads_what_is_there(void **state)
{
	const uint64_t size = 6 * MIB + 5;
	struct rig owner, guest;
	struct blob *a, *b;

	rig_open_disk(&owner, 0);
	a = rig_blob(&owner, 1, size);
	expect_bytes(a, 1, 0, 4 << 20);
	rig_quiet(&owner);

	open_guest(&guest);
	assert_false(writes(&guest));
	b = rig_blob(&guest, 1, size);
	expect_bytes(b, 1, 0, 4 << 20);
	assert_int_equal(mem_fetches(guest.m), 0);
	expect_bytes(a, 1, 5 * MIB, 4096); /* what the owner has got meanwhile, too */
	rig_quiet(&owner);
	expect_bytes(b, 1, 5 * MIB + 5000, 4096);
	assert_int_equal(mem_fetches(guest.m), 0);
	expect_bytes(b, 1, 6 * MIB, 5); /* the rest it fetches for itself */
	rig_quiet(&guest);
	assert_int_equal(mem_fetched(guest.m), 5);
	expect_bytes(a, 1, 6 * MIB, 5); /* and the owner does not find it on disk */
	rig_quiet(&owner);
	expect_whole(b, 1, 1 << 20);
	blob_unref(b);
	b = rig_blob(&guest, 2, MIB); /* nothing there of this one */
	expect_whole(b, 2, 4096);
	blob_unref(b);
	blob_unref(a);
	rig_close(&guest);
	rig_close(&owner);
}

static void test_evicted_under_a_guest(void **state)
{
	struct rig owner, guest;
	struct blob *a, *b, *other;

	rig_open_disk(&owner, 8 * MIB);
	a = rig_blob(&owner, 3, 6 * MIB);
	expect_whole(a, 3, 1 << 20);
	rig_quiet(&owner);
	open_guest(&guest);
	b = rig_blob(&guest, 3, 6 * MIB);
	expect_whole(b, 3, 1 << 20); /* checked, and checked again from here on */
	other = rig_blob(&owner, 4, 8 * MIB);
	expect_whole(other, 4, 1 << 20);
	assert_true(rig_quiet(&owner).evicted_bytes >= 4 * MIB);
	expect_whole(b, 3, 1 << 20);
	assert_true(mem_fetched(guest.m) >= 4 * MIB);
	assert_int_equal(rig_quiet(&guest).damaged, 0);
	blob_unref(a);
	blob_unref(b);
	blob_unref(other);
	rig_close(&guest);
	rig_close(&owner);
}

static void test_guest_becomes_owner(void **state)
{
	struct rig owner, guest;
	struct blob *a, *b, *c;

	log_set_level(LOG_LEVEL_ERROR);
	rig_open_disk(&owner, 0);
	a = rig_blob(&owner, 5, 6 * MIB);
	expect_bytes(a, 5, 0, 2 << 20);
	rig_quiet(&owner);
	open_guest(&guest);
	b = rig_blob(&guest, 5, 6 * MIB);
	expect_bytes(b, 5, 0, 3 << 20);
	blob_unref(a);
	rig_close(&owner);
	assert_false(writes(&guest));
	clock_fake(clock_mono_ns() + 10 * NSEC_PER_SEC); /* it does not look all the time */
	c = rig_blob(&guest, 6, MIB);
	clock_fake(-1);
	assert_true(writes(&guest));
	expect_whole(b, 5, 1 << 20);
	expect_whole(c, 6, 1 << 20);
	rig_quiet(&guest);
	blob_unref(b);
	blob_unref(c);
	rig_close(&guest);

	rig_open_disk(&owner, 0); /* what it has written as owner is there */
	a = rig_blob(&owner, 5, 6 * MIB);
	b = rig_blob(&owner, 6, MIB);
	expect_bytes(a, 5, 3 * MIB, 3 << 20);
	expect_whole(b, 6, 1 << 20);
	assert_int_equal(mem_fetches(owner.m), 0);
	blob_unref(a);
	blob_unref(b);
	rig_close(&owner);
	log_set_level(LOG_LEVEL_INFO);
}

/* ---- two processes ---- */

static void open_blobs(struct rig *r, struct blob *blobs[3])
{
	for (uint64_t i = 0; i < 3; i++)
		blobs[i] = rig_blob(r, 100 + i, 4 * MIB + 100);
}

static void random_reads(struct blob *blobs[3], uint64_t *seed, unsigned count)
{
	while (count-- > 0) {
		uint64_t i = rng(seed) % 3, off = rng(seed) % blobs[i]->size;
		uint64_t len = rng(seed) % (512 << 10) + 1;

		expect_bytes(blobs[i], 100 + i, off, (size_t)MIN(len, blobs[i]->size - off));
	}
}

/* Evicts all the time, until it is told to stop. */
static void owner_child(void)
{
	struct blob *blobs[3];
	uint64_t seed = 1;
	struct rig r;

	prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
	rig_open_disk(&r, 4 * MIB);
	write_text("owned", "");
	open_blobs(&r, blobs);
	while (access(at("stop"), F_OK) < 0)
		random_reads(blobs, &seed, 20);
	for (uint64_t i = 0; i < 3; i++)
		blob_unref(blobs[i]);
	rig_close(&r);
}

static void test_two_processes(void **state)
{
	struct timespec ts = {.tv_nsec = 1000000};
	struct blockcache_config config = {.floor = 1, .memory = 2 * MIB};
	struct blockcache_stats st = {0};
	struct blob *blobs[3];
	uint64_t seed = 2;
	struct rig r;
	int status;
	pid_t pid;

	log_set_level(LOG_LEVEL_ERROR);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		owner_child();
		_exit(0);
	}
	while (access(at("owned"), F_OK) < 0)
		nanosleep(&ts, NULL);
	config.dir = at("cache");
	rig_open(&r, &config);
	assert_int_equal(r.why.err, EBUSY);
	open_blobs(&r, blobs); /* perhaps before the owner has them */
	/* Until it has read from the owner's disk what was not in its own memory. */
	for (unsigned i = 0; i < 10 || (st.hit_bytes < 10 * MIB && i < 10000); i++) {
		random_reads(blobs, &seed, 20);
		blockcache_stats(r.c, &st);
	}
	assert_true(st.hit_bytes >= 10 * MIB);
	assert_int_equal(st.stored_bytes, 0);
	write_text("stop", "");
	for (uint64_t i = 0; i < 3; i++)
		blob_unref(blobs[i]);
	rig_close(&r);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	log_set_level(LOG_LEVEL_INFO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		scratch_test(test_guest_reads_what_is_there),
		scratch_test(test_evicted_under_a_guest),
		scratch_test(test_guest_becomes_owner),
		scratch_test(test_two_processes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
