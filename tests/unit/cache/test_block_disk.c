/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block cache and its disk: restarts, damage, budgets and eviction under readers, pins, full
 * and vanished disks.
 */
#include "tests/unit/cache/scratch.h"

#include "tests/unit/cache/block_rig.h"

#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "cache/fileio.h"
#include "cache/log.h"

static const char *file_of(uint64_t seed, uint64_t size, const char *suffix)
{
	char key[] = "", hex[33], name[100];
	struct object o = mem_object(seed, size, key);

	identity_hex(&o.id, hex);
	snprintf(name, sizeof(name), "cache/blocks/%s.%s", hex, suffix);
	return at(name);
}

/* Bytes that all data files take. */
static uint64_t on_disk(void)
{
	struct disk_entry *v;
	struct disk *d;
	size_t count;
	uint64_t sum = 0;

	assert_int_equal(disk_open(at("cache"), "", &d, NULL), 0);
	assert_int_equal(disk_list(d, &v, &count), 0);
	for (size_t i = 0; i < count; i++)
		sum += v[i].bytes;
	free(v);
	disk_close(d);
	return sum;
}

/* Opens a cache, reads an object whole, ends; how much had to be fetched. */
static uint64_t read_again(uint64_t seed, uint64_t size, uint64_t *out_damaged)
{
	struct blockcache_stats st;
	struct rig r;
	struct blob *b;
	uint64_t fetched;

	rig_open_disk(&r, 0);
	b = rig_blob(&r, seed, size);
	expect_whole(b, seed, 1 << 20);
	expect_whole(b, seed, 96 << 10);
	st = rig_quiet(&r);
	fetched = mem_fetched(r.m);
	if (out_damaged != NULL)
		*out_damaged = st.damaged;
	blob_unref(b);
	rig_close(&r);
	return fetched;
}

static void test_restart(void **state)
{
	const uint64_t size = 6 * MIB + 777;

	assert_int_equal(read_again(1, size, NULL), size);
	assert_int_equal(read_again(1, size, NULL), 0);
	assert_int_equal(read_again(2, size, NULL), size);
	assert_int_equal(read_again(1, size, NULL), 0);
}

static void flip(const char *path, uint64_t off)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	uint8_t byte;

	assert_true(fd >= 0);
	assert_int_equal(file_pread(fd, &byte, 1, off), 0);
	byte ^= 0x10;
	assert_int_equal(file_pwrite(fd, &byte, 1, off), 0);
	close(fd);
}

static void test_damage_is_healed(void **state)
{
	const uint64_t size = 6 * MIB + 777;
	uint64_t damaged;

	read_again(3, size, NULL);
	flip(file_of(3, size, "data"), 0);
	flip(file_of(3, size, "data"), 9 * PIECE + 5);
	flip(file_of(3, size, "data"), size - 1);
	/* Each costs its block, as part of a stream: nothing more is missing in it. */
	assert_int_equal(read_again(3, size, &damaged), 2 * PIECE + 777);
	assert_int_equal(damaged, 3);
	assert_int_equal(read_again(3, size, &damaged), 0);
	assert_int_equal(damaged, 0);

	flip(file_of(3, size, "index"), 4096 + 8 * 4); /* a record */
	assert_int_equal(read_again(3, size, &damaged), PIECE);
	assert_int_equal(damaged, 1);

	assert_int_equal(truncate(file_of(3, size, "data"), (off_t)(2 * MIB)), 0);
	assert_int_equal(read_again(3, size, &damaged), size - 2 * MIB);
	assert_int_equal(truncate(file_of(3, size, "data"), 0), 0);
	assert_int_equal(truncate(file_of(3, size, "data"), (off_t)size), 0); /* zeroes */
	assert_int_equal(read_again(3, size, &damaged), size);

	flip(file_of(3, size, "index"), 33); /* the header */
	assert_int_equal(read_again(3, size, &damaged), size);
	assert_int_equal(damaged, 1);
	assert_int_equal(unlink(file_of(3, size, "index")), 0);
	assert_int_equal(read_again(3, size, &damaged), size);
	assert_int_equal(truncate(file_of(3, size, "index"), 4096 + 80), 0);
	assert_int_equal(read_again(3, size, &damaged), size - 10 * PIECE);
}

/* A file that is cut while it is open: noticed where the bytes are missing. */
static void test_cut_while_open(void **state)
{
	const uint64_t size = 4 * MIB;
	struct rig r;
	struct blob *b;

	rig_open_disk(&r, 0);
	b = rig_blob(&r, 4, size);
	expect_whole(b, 4, 1 << 20);
	rig_quiet(&r);
	assert_int_equal(truncate(file_of(4, size, "data"), (off_t)MIB), 0);
	expect_bytes(b, 4, MIB / 2, 2 << 20);
	expect_whole(b, 4, 1 << 20);
	blob_unref(b);
	rig_close(&r);
}

/* ---- budgets ---- */

struct soak {
	struct blob **blobs;
	uint64_t count, seed;
	int64_t until;
	unsigned wrong, reads, lent;
	pthread_t thread;
};

static void *soak(void *arg)
{
	struct soak *s = arg;
	uint8_t *bytes = malloc(1 << 20);
	struct blob_loan loan;

	assert_non_null(bytes);
	do {
		uint64_t i = rng(&s->seed) % s->count, size = s->blobs[i]->size;
		uint64_t off = rng(&s->seed) % size;
		uint64_t most = rng(&s->seed) % 4 == 0 ? MIB : 16 << 10;
		uint64_t len = rng(&s->seed) % most + 1;

		len = MIN(len, size - off);
		off -= len >= LOAN_MIN ? off % 4096 : 0;
		if (blob_lend(s->blobs[i], off, (size_t)len, &loan) == 0) {
			s->wrong += !loan_is(&loan.loan, 100 + i, off, (size_t)len);
			s->lent++;
			blob_loan_end(&loan);
		} else if (blob_read(s->blobs[i], off, bytes, (size_t)len) != 0 ||
			   !mem_is(100 + i, off, bytes, (size_t)len))
			s->wrong++;
		s->reads++;
	} while (clock_mono_ns() < s->until);
	free(bytes);
	return NULL;
}

/* How many reads were lent. */
static unsigned run_soak(struct rig *r, struct blob **blobs, uint64_t count, int64_t ns)
{
	struct soak t[4];
	unsigned lent = 0;

	for (unsigned i = 0; i < ARRAY_LEN(t); i++) {
		t[i] = (struct soak){
			.blobs = blobs, .count = count, .seed = i, .until = clock_mono_ns() + ns};
		assert_int_equal(pthread_create(&t[i].thread, NULL, soak, &t[i]), 0);
	}
	for (unsigned i = 0; i < ARRAY_LEN(t); i++) {
		pthread_join(t[i].thread, NULL);
		assert_int_equal(t[i].wrong, 0);
		assert_true(t[i].reads > 0);
		lent += t[i].lent;
	}
	return lent;
}

static void test_tiny_budget(void **state)
{
	const uint64_t limit = 6 * MIB, size = 5 * MIB + 33;
	struct blockcache_stats st;
	struct blob *blobs[3];
	unsigned lent = 0;
	struct rig r;

	log_set_level(LOG_LEVEL_ERROR); /* readers may be on all that could be evicted */
	rig_open_disk(&r, limit);
	for (uint64_t i = 0; i < 3; i++)
		blobs[i] = rig_blob(&r, 100 + i, size);
	for (unsigned round = 0; round < 50; round++) { /* a busy machine reads little in one */
		lent += run_soak(&r, blobs, 3, 300000000);
		st = rig_quiet(&r);
		if (st.evicted_bytes > 0 && lent > 0)
			break;
	}
	log_set_level(LOG_LEVEL_INFO);
	assert_true(st.evicted_bytes > 0);
	assert_true(lent > 0);
	assert_int_equal(st.damaged, 0);
	assert_true(st.used <= limit);
	for (uint64_t i = 0; i < 3; i++)
		blob_unref(blobs[i]);
	rig_close(&r);
	assert_true(on_disk() <= limit + MIB);
	/* And what it left is right, whatever was going on. */
	rig_open_disk(&r, 0);
	for (uint64_t i = 0; i < 3; i++) {
		blobs[i] = rig_blob(&r, 100 + i, size);
		expect_whole(blobs[i], 100 + i, 1 << 20);
		blob_unref(blobs[i]);
	}
	st = rig_quiet(&r);
	assert_int_equal(st.damaged, 0);
	assert_true(mem_fetched(r.m) < 3 * size - limit / 2);
	rig_close(&r);
}

static void test_least_recently_used_goes(void **state)
{
	struct rig r;
	struct blob *a, *b;

	rig_open_disk(&r, 8 * MIB);
	a = rig_blob(&r, 5, 4 * MIB);
	b = rig_blob(&r, 6, 6 * MIB);
	expect_whole(a, 5, 1 << 20);
	rig_quiet(&r);
	expect_bytes(b, 6, 0, 2 << 20);
	rig_quiet(&r);
	expect_bytes(a, 5, 0, 1 << 20); /* the first block is wanted again */
	for (uint64_t off = 2 * MIB; off < 5 * MIB; off += MIB) {
		expect_bytes(b, 6, off, 1 << 20);
		rig_quiet(&r);
	}
	mem_forget(r.m);
	expect_bytes(a, 5, 0, 1 << 20);
	assert_int_equal(mem_fetches(r.m), 0);
	expect_bytes(a, 5, MIB, 1 << 20);
	assert_int_equal(mem_fetches(r.m), 1);
	blob_unref(a);
	blob_unref(b);
	rig_close(&r);
}

/* What an earlier run left goes before what this one uses, oldest first, and its files with it. */
static void test_cold_goes_first(void **state)
{
	const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
	struct rig r;
	struct blob *b;

	read_again(7, 4 * MIB, NULL);
	read_again(8, 4 * MIB, NULL);
	assert_int_equal(utimensat(AT_FDCWD, file_of(8, 4 * MIB, "data"), old, 0), 0);
	assert_int_equal(utimensat(AT_FDCWD, file_of(8, 4 * MIB, "index"), old, 0), 0);
	rig_open_disk(&r, 12 * MIB + MIB / 2);
	b = rig_blob(&r, 9, 7 * MIB);
	expect_whole(b, 9, 1 << 20);
	assert_true(rig_quiet(&r).used <= 12 * MIB + MIB / 2);
	expect_whole(b, 9, 1 << 20);
	assert_int_equal(mem_fetched(r.m), 7 * MIB);
	blob_unref(b);
	mem_forget(r.m);
	b = rig_blob(&r, 7, 4 * MIB);
	expect_whole(b, 7, 1 << 20);
	assert_int_equal(mem_fetched(r.m), 0);
	blob_unref(b);
	b = rig_blob(&r, 8, 4 * MIB); /* about 3 of its 4 MiB had to go, from the front */
	expect_bytes(b, 8, 3 * MIB, 1 << 20);
	assert_int_equal(mem_fetched(r.m), 0);
	expect_bytes(b, 8, 0, 1 << 20);
	assert_int_equal(mem_fetched(r.m), MIB);
	blob_unref(b);
	rig_close(&r);

	rig_open_disk(&r, 4 * MIB); /* a smaller budget: all else goes, files too */
	b = rig_blob(&r, 10, 4 * MIB);
	expect_whole(b, 10, 1 << 20);
	rig_quiet(&r);
	assert_int_equal(access(file_of(8, 4 * MIB, "index"), F_OK), -1);
	assert_int_equal(access(file_of(9, 7 * MIB, "data"), F_OK), -1);
	blob_unref(b);
	rig_close(&r);
	assert_true(on_disk() <= 4 * MIB + 64 * 1024);
}

static void test_pins(void **state)
{
	struct rig r;
	struct blob *a, *b;

	rig_open_disk(&r, 8 * MIB);
	a = rig_blob(&r, 11, 4 * MIB);
	b = rig_blob(&r, 12, 20 * MIB);
	blob_pin(a);
	expect_whole(a, 11, 1 << 20);
	expect_whole(b, 12, 1 << 20);
	rig_quiet(&r);
	mem_forget(r.m);
	expect_whole(a, 11, 1 << 20);
	assert_int_equal(mem_fetches(r.m), 0);
	blob_unpin(a);
	expect_whole(b, 12, 1 << 20);
	rig_quiet(&r);
	mem_forget(r.m);
	expect_whole(a, 11, 1 << 20);
	assert_int_equal(mem_fetched(r.m), 4 * MIB);
	blob_unref(a);
	blob_unref(b);
	rig_close(&r);
}

static void test_lost_objects_stay(void **state)
{
	struct rig r;
	struct blob *a, *b;
	uint8_t byte;

	rig_open_disk(&r, 8 * MIB);
	a = rig_blob(&r, 13, 5 * MIB);
	b = rig_blob(&r, 14, 20 * MIB);
	expect_bytes(a, 13, 0, 4 << 20);
	rig_quiet(&r);
	mem_fail(r.m, -ENOENT, 1);
	assert_int_equal(blob_read(a, 5 * MIB - 1, &byte, 1), -ENOENT);
	rig_quiet(&r);
	expect_whole(b, 14, 1 << 20);
	rig_quiet(&r);
	mem_forget(r.m);
	expect_bytes(a, 13, 0, 4 << 20);
	assert_int_equal(mem_fetches(r.m), 0);
	blob_unref(a);
	blob_unref(b);
	rig_close(&r);
}

/* Everything pinned, nothing can be stored: reads go on in memory. */
static void test_nothing_to_evict(void **state)
{
	struct blockcache_stats st;
	struct rig r;
	struct blob *a, *b;

	log_set_level(LOG_LEVEL_ERROR);
	rig_open_disk(&r, 4 * MIB);
	a = rig_blob(&r, 15, 4 * MIB);
	b = rig_blob(&r, 16, 8 * MIB);
	blob_pin(a);
	expect_whole(a, 15, 1 << 20);
	rig_quiet(&r);
	expect_whole(b, 16, 1 << 20);
	st = rig_quiet(&r);
	assert_true(st.used <= 4 * MIB);
	assert_true(st.memory > 0);
	blob_unref(a);
	blob_unref(b);
	rig_close(&r);
	log_set_level(LOG_LEVEL_INFO);
}

/* ---- disks that fail ---- */

static void read_all_on_bad_disk(const char *what)
{
	struct blockcache_config config = {.dir = at("cache"), .floor = 1};
	struct blob *blobs[3];
	struct blockcache_stats st;
	struct rig r;

	rig_open(&r, &config);
	for (uint64_t i = 0; i < 3; i++)
		blobs[i] = rig_blob(&r, 100 + i, 5 * MIB);
	for (int round = 0; round < 2; round++)
		for (uint64_t i = 0; i < 3; i++)
			expect_whole(blobs[i], 100 + i, 1 << 20);
	run_soak(&r, blobs, 3, 100000000);
	st = rig_quiet(&r);
	printf("           %s: %.1f MiB on disk, %.1f in memory, %.1f evicted\n", what,
	       (double)st.used / MIB, (double)st.memory / MIB, (double)st.evicted_bytes / MIB);
	assert_true(st.memory > 0 || st.evicted_bytes > 0);
	for (uint64_t i = 0; i < 3; i++)
		blob_unref(blobs[i]);
	rig_close(&r);
}

/* Copies of mounts of tests that run at the same time would keep those alive. */
static void let_go(void)
{
	FILE *f = fopen("/proc/self/mounts", "re");
	char line[8192], path[4096], type[64];

	while (f != NULL && fgets(line, sizeof(line), f) != NULL)
		if (sscanf(line, "%*s %4095s %63s", path, type) == 2 &&
		    strncmp(type, "fuse.", 5) == 0)
			(void)umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW);
	if (f != NULL)
		fclose(f);
}

/* In a mount namespace of its own, so that nothing is left behind whatever happens. */
static void full_child(void)
{
	if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		_exit(77);
	let_go();
	if (mkdir(at("cache"), 0700) < 0 || mount("tmpfs", at("cache"), "tmpfs", 0, "size=8m") < 0)
		_exit(77);
	log_set_level(LOG_LEVEL_ERROR);
	read_all_on_bad_disk("tmpfs of 8 MiB");
	fflush(stdout);
}

static void test_full_disk(void **state)
{
	int status = in_child(full_child);

	if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
		print_message("           skipped: a tmpfs cannot be mounted here\n");
		skip();
	}
	assert_int_equal(status, 0);
}

static void limited_child(void)
{
	struct rlimit limit = {.rlim_cur = 2 << 20, .rlim_max = 2 << 20};

	signal(SIGXFSZ, SIG_IGN);
	if (setrlimit(RLIMIT_FSIZE, &limit) < 0)
		_exit(77);
	log_set_level(LOG_LEVEL_ERROR);
	read_all_on_bad_disk("files of 2 MiB at most");
	fflush(stdout);
}

static void test_limited_files(void **state)
{
	assert_int_equal(in_child(limited_child), 0);
}

static void test_vanished_directory(void **state)
{
	struct rig r;
	struct blob *a, *b;

	log_set_level(LOG_LEVEL_ERROR);
	rig_open_disk(&r, 0);
	a = rig_blob(&r, 20, 4 * MIB);
	expect_bytes(a, 20, 0, 2 << 20);
	rig_quiet(&r);
	assert_int_equal(nftw(at("cache"), scratch_remove, 16, FTW_DEPTH | FTW_PHYS), 0);
	expect_whole(a, 20, 1 << 20);
	blob_unref(a);
	for (uint64_t i = 0; i < 2; i++) {
		b = rig_blob(&r, 20 + i, 4 * MIB); /* the first of them again: all is gone */
		expect_whole(b, 20 + i, 1 << 20);
		rig_quiet(&r);
		mem_forget(r.m);
		expect_whole(b, 20 + i, 1 << 20);
		assert_int_equal(mem_fetches(r.m), 0); /* in memory */
		blob_unref(b);
	}
	rig_close(&r);
	log_set_level(LOG_LEVEL_INFO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		scratch_test(test_restart),
		scratch_test(test_damage_is_healed),
		scratch_test(test_cut_while_open),
		scratch_test(test_tiny_budget),
		scratch_test(test_least_recently_used_goes),
		scratch_test(test_cold_goes_first),
		scratch_test(test_pins),
		scratch_test(test_lost_objects_stay),
		scratch_test(test_nothing_to_evict),
		scratch_test(test_full_disk),
		scratch_test(test_limited_files),
		scratch_test(test_vanished_directory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
