/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of the block cache: what is stored comes back, everything else does not; who owns the
 * directory; and what is found in it.
 */
#include "cache/disk.h"

#include "tests/unit/cache/scratch.h"

#include "cache/fileio.h"

static const struct identity id_a = {{0xab, 1, 2, 3}}, id_b = {{0xab, 1, 2, 4}};
static const char name_a[] = "cache/blocks/ab010203000000000000000000000000";
static const uint64_t SIZE = 20 * (uint64_t)PIECE_SIZE + 100;

static uint8_t bytes[21 * PIECE_SIZE], back[PIECE_SIZE];

static struct disk *open_disk(bool owned)
{
	struct disk *d = NULL;
	struct why why = {0};

	assert_int_equal(disk_open(at("cache"), "/mnt/a\n", &d, &why), 0);
	assert_int_equal(disk_owned(d), owned);
	assert_int_equal(why.err != 0, !owned);
	return d;
}

static struct disk_file *open_file(struct disk *d, const struct identity *id, bool foreign)
{
	struct disk_file *f = NULL;
	bool was = !foreign;

	assert_int_equal(disk_file_open(d, id, SIZE, "key", &f, &was), 0);
	assert_int_equal(was, foreign);
	return f;
}

static void fill(void)
{
	uint32_t x = 1;

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)((x = x * 1103515245 + 12345) >> 16);
}

static void expect_piece(struct disk_file *f, uint32_t p)
{
	memset(back, 0, sizeof(back));
	assert_int_equal(disk_file_check(f, p, back), 0);
	assert_memory_equal(back, bytes + (size_t)p * PIECE_SIZE, piece_len(SIZE, p));
}

static void test_store_and_drop(void **state)
{
	struct disk *d = open_disk(true);
	struct disk_file *f = open_file(d, &id_a, false);
	uint64_t records[21];

	fill();
	assert_int_equal(piece_count(SIZE), 21);
	assert_int_equal(disk_file_check(f, 0, back), -ENOENT);
	assert_int_equal(disk_file_store(f, 3, bytes + 3 * PIECE_SIZE, 5 * PIECE_SIZE), 0);
	assert_int_equal(disk_file_store(f, 20, bytes + 20 * PIECE_SIZE, 100), 0);
	assert_int_equal(disk_file_records(f, 0, 21, records), 0);
	for (uint32_t p = 0; p < 21; p++) {
		bool there = (p >= 3 && p < 8) || p == 20;

		assert_int_equal(records[p] != 0, there);
		if (there)
			expect_piece(f, p);
	}
	assert_int_equal(disk_file_allocated(f), 5 * PIECE_SIZE + 4096);
	assert_int_equal(disk_file_read(f, 3 * PIECE_SIZE + 7, back, 1000), 0);
	assert_memory_equal(back, bytes + 3 * PIECE_SIZE + 7, 1000);
	assert_int_equal(disk_file_drop(f, 4, 17), 0);
	assert_int_equal(disk_file_check(f, 4, back), -ENOENT);
	assert_int_equal(disk_file_check(f, 20, back), -ENOENT);
	expect_piece(f, 3);
	assert_int_equal(disk_file_allocated(f), PIECE_SIZE);
	disk_file_unref(f);

	f = open_file(d, &id_a, false);
	expect_piece(f, 3);
	disk_file_unref(f);
	disk_close(d);
}

/* Equal bytes elsewhere are not this piece: the hash knows place and object. */
static void test_hash_knows_the_place(void **state)
{
	struct disk *d = open_disk(true);
	struct disk_file *f = open_file(d, &id_a, false);
	uint64_t records[3];

	memset(bytes, 0, sizeof(bytes));
	assert_int_equal(disk_file_store(f, 0, bytes, 2 * PIECE_SIZE), 0);
	assert_int_equal(disk_file_records(f, 0, 3, records), 0);
	assert_true(records[0] != records[1]);
	disk_file_unref(f);
	disk_close(d);
}

static void poke(const char *suffix, uint64_t off, const void *with, size_t len)
{
	char name[100];
	int fd;

	snprintf(name, sizeof(name), "%s.%s", name_a, suffix);
	fd = open(at(name), O_WRONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(file_pwrite(fd, with, len, off), 0);
	close(fd);
}

static void test_damage(void **state)
{
	struct disk *d = open_disk(true);
	struct disk_file *f = open_file(d, &id_a, false);
	uint64_t record;
	char data[100];

	fill();
	assert_int_equal(disk_file_store(f, 0, bytes, SIZE), 0);
	poke("data", 2 * PIECE_SIZE + 999, "?", 1);
	assert_int_equal(disk_file_check(f, 2, back), -EBADMSG);
	expect_piece(f, 1);
	poke("index", 4096 + 5 * 8, "\0\0\0\0\0\0\0\0", 8); /* a record that was not written */
	assert_int_equal(disk_file_check(f, 5, back), -ENOENT);
	assert_int_equal(disk_file_records(f, 6, 1, &record), 0);
	poke("index", 4096 + 7 * 8, &record, 8); /* one of another piece */
	assert_int_equal(disk_file_check(f, 7, back), -EBADMSG);
	snprintf(data, sizeof(data), "%s.data", name_a);
	assert_int_equal(truncate(at(data), 10 * PIECE_SIZE + 5), 0);
	expect_piece(f, 9);
	assert_int_equal(disk_file_check(f, 10, back), -EBADMSG);
	assert_int_equal(disk_file_check(f, 20, back), -EBADMSG);
	assert_int_equal(disk_file_read(f, 10 * PIECE_SIZE, back, PIECE_SIZE), -ENODATA);
	disk_file_unref(f);

	/* A header that is not right takes everything with it. */
	poke("index", 20, "?", 1);
	f = open_file(d, &id_a, true);
	assert_int_equal(disk_file_check(f, 1, back), -ENOENT);
	assert_int_equal(disk_file_allocated(f), 0);
	assert_int_equal(disk_file_store(f, 1, bytes + PIECE_SIZE, PIECE_SIZE), 0);
	disk_file_unref(f);
	f = open_file(d, &id_a, false);
	expect_piece(f, 1);
	disk_file_unref(f);
	disk_close(d);
}

static void test_foreign_files(void **state)
{
	struct disk *d = open_disk(true);
	struct disk_file *f = open_file(d, &id_b, false);
	char from[100], to[100];
	uint64_t size;
	char *key;

	fill();
	assert_int_equal(disk_file_store(f, 0, bytes, SIZE), 0);
	disk_file_unref(f);
	/* Another object's files under this name. */
	for (int i = 0; i < 2; i++) {
		const char *suffix = i == 0 ? "data" : "index";

		snprintf(from, sizeof(from), "cache/blocks/ab010204%024d.%s", 0, suffix);
		snprintf(to, sizeof(to), "%s.%s", name_a, suffix);
		assert_int_equal(rename(at(from), at(to)), 0);
	}
	assert_int_equal(disk_inspect(d, &id_a, &size, &key), -EBADMSG);
	assert_int_equal(disk_inspect(d, &id_b, &size, &key), -ENOENT);
	f = open_file(d, &id_a, true);
	assert_int_equal(disk_file_check(f, 0, back), -ENOENT);
	disk_file_unref(f);
	assert_int_equal(disk_inspect(d, &id_a, &size, &key), 0);
	assert_int_equal(size, SIZE);
	assert_string_equal(key, "key");
	free(key);
	/* A directory or a link where a file should be is not followed, and not a crash. */
	disk_remove(d, &id_a);
	snprintf(to, sizeof(to), "%s.data", name_a);
	assert_int_equal(symlink("/etc/passwd", at(to)), 0);
	bool foreign;
	assert_true(disk_file_open(d, &id_a, SIZE, "key", &f, &foreign) < 0);
	disk_close(d);
}

static void test_list(void **state)
{
	struct disk *d = open_disk(true);
	struct disk_file *a = open_file(d, &id_a, false), *b = open_file(d, &id_b, false);
	struct disk_entry *v;
	size_t count;
	const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
	char name[100];

	assert_int_equal(disk_file_store(a, 0, bytes, 3 * PIECE_SIZE), 0);
	write_text("cache/blocks/README", "not ours");
	write_text("cache/blocks/ab01.data", "not ours");
	write_text("cache/blocks/ff010203000000000000000000000000.data", "half of one");
	for (int i = 0; i < 2; i++) {
		snprintf(name, sizeof(name), "%s.%s", name_a, i == 0 ? "data" : "index");
		assert_int_equal(utimensat(AT_FDCWD, at(name), old, 0), 0);
	}
	assert_int_equal(disk_list(d, &v, &count), 0);
	assert_int_equal(count, 3);
	assert_true(identity_equal(&v[2].id, &id_a)); /* used longest ago */
	assert_true(v[2].bytes >= 3 * PIECE_SIZE && v[2].bytes < 4 * PIECE_SIZE);
	assert_int_equal(v[2].used_ns, INT64_C(1000000000000));
	free(v);
	disk_file_touch(a);
	assert_int_equal(disk_list(d, &v, &count), 0);
	assert_true(identity_equal(&v[0].id, &id_a));
	free(v);
	disk_remove(d, &id_a);
	assert_int_equal(disk_list(d, &v, &count), 0);
	assert_int_equal(count, 2);
	free(v);
	assert_int_equal(access(at("cache/blocks/README"), F_OK), 0);
	disk_file_unref(a);
	disk_file_unref(b);
	disk_close(d);
}

static void test_owner_and_guest(void **state)
{
	struct disk *owner = open_disk(true), *guest = NULL;
	struct disk_file *f = open_file(owner, &id_a, false), *g = NULL;
	struct why why = {0};
	char pid[40];
	bool foreign;

	fill();
	assert_int_equal(disk_file_store(f, 0, bytes, SIZE), 0);
	assert_int_equal(disk_open(at("cache"), "/mnt/b", &guest, &why), 0);
	assert_false(disk_owned(guest));
	snprintf(pid, sizeof(pid), "process %ld (/mnt/a)", (long)getpid());
	assert_non_null(strstr(why.text, pid));
	assert_int_equal(disk_file_open(guest, &id_b, SIZE, "key", &g, &foreign), -ENOENT);
	assert_int_equal(disk_file_open(guest, &id_a, SIZE + 1, "key", &g, &foreign), -EBADMSG);
	assert_int_equal(disk_file_open(guest, &id_a, SIZE, "key", &g, &foreign), 0);
	assert_false(disk_file_writable(g));
	expect_piece(g, 20);
	assert_int_equal(disk_file_drop(f, 16, 5), 0);
	assert_int_equal(disk_file_check(g, 20, back), -ENOENT);
	expect_piece(g, 15);
	assert_false(disk_own(guest));
	disk_file_unref(f);
	disk_close(owner);
	assert_true(disk_own(guest));
	assert_true(disk_own(guest));
	disk_file_unref(g);
	disk_close(guest);
	disk_close(NULL);
}

/* What clears old files away takes the lock file from under its owner. */
static void test_lock_file_gone(void **state)
{
	struct disk *owner = open_disk(true), *second = NULL;
	struct why why = {0};

	assert_int_equal(unlink(at("cache/blocks/lock")), 0);
	assert_int_equal(disk_open(at("cache"), "/mnt/b", &second, &why), 0);
	assert_false(disk_owned(second));
	assert_int_equal(why.err, EBUSY);
	assert_false(disk_own(second));
	disk_close(owner);
	assert_true(disk_own(second));
	disk_close(second);
}

static void test_unusable(void **state)
{
	struct disk *d = NULL;
	struct why why = {0};

	write_text("file", "");
	assert_int_equal(disk_open(at("absent"), NULL, &d, &why), -ENOENT); /* only looks */
	assert_int_equal(access(at("absent"), F_OK), -1);
	assert_int_equal(disk_open(at("file"), "", &d, &why), -ENOTDIR);
	assert_non_null(strstr(why.text, "/file/blocks cannot be used: Not a directory"));
	assert_null(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		scratch_test(test_store_and_drop), scratch_test(test_hash_knows_the_place),
		scratch_test(test_damage),	   scratch_test(test_foreign_files),
		scratch_test(test_list),	   scratch_test(test_owner_and_guest),
		scratch_test(test_lock_file_gone), scratch_test(test_unusable),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
