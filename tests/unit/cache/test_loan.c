/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loans: what is lent is what was asked for until it is given back, whatever writers and eviction
 * would like to do meanwhile; and what cannot be promised is not lent.
 */
#include "cache/store.h"

#include "tests/unit/cache/dir_rig.h"

#include <fcntl.h>
#include <sys/mman.h>

#define expect_bytes expect_blob /* the two rigs have one each */
#include "tests/unit/cache/block_rig.h"
#undef expect_bytes

enum { SIZE = 200 << 10 };

static void write_large(const char *name, uint8_t fill)
{
	int fd = open(at(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
	uint8_t *bytes = malloc(SIZE);

	assert_true(fd >= 0 && bytes != NULL);
	memset(bytes, fill, SIZE);
	assert_int_equal(write(fd, bytes, SIZE), SIZE);
	free(bytes);
	close(fd);
}

static bool lent_is(const struct loan *l, uint8_t fill, size_t len)
{
	int fd = memfd_create("lent", MFD_CLOEXEC);
	uint8_t *bytes = malloc(len);
	bool same;

	assert_true(fd >= 0 && bytes != NULL);
	same = write(fd, l->bytes, len) == (ssize_t)len && pread(fd, bytes, len, 0) == (ssize_t)len;
	for (size_t i = 0; same && i < len; i++)
		same = bytes[i] == fill;
	free(bytes);
	close(fd);
	return same;
}

static void test_what_is_lent(void **state)
{
	struct store *s;
	struct handle *h;
	struct loan l;

	write_large("f", 7);
	s = open_store("", false);
	h = open_key(s, "f");
	assert_int_equal(store_lend(h, 0, SIZE, &l), 0);
	assert_true(lent_is(&l, 7, SIZE));
	loan_end(&l);
	assert_int_equal(store_lend(h, 4096, SIZE - 4096, &l), 0);
	assert_true(lent_is(&l, 7, SIZE - 4096));
	/* Deleted and replaced: nothing to the bytes. */
	assert_int_equal(unlink(at("f")), 0);
	write_large("f", 8);
	assert_true(lent_is(&l, 7, SIZE - 4096));
	loan_end(&l);
	assert_int_equal(store_lend(h, 100, LOAN_MIN, &l), -EAGAIN);   /* not at a page */
	assert_int_equal(store_lend(h, 0, LOAN_MIN - 1, &l), -EAGAIN); /* too small */
	assert_int_equal(store_lend(h, 4096, SIZE, &l), -EBADMSG);     /* not inside */
	assert_int_equal(store_lend(h, UINT64_MAX, SIZE, &l), -EBADMSG);
	store_close(h);
	store_free(s);
}

static int open_to_write(const char *name)
{
	return open(at(name), O_WRONLY | O_NONBLOCK);
}

static void test_writers_wait(void **state)
{
	struct store *s;
	struct handle *h;
	struct loan a, b;
	int fd;

	write_large("f", 7);
	s = open_store("", false);
	h = open_key(s, "f");
	assert_int_equal(store_lend(h, 0, SIZE, &a), 0);
	assert_int_equal(store_settled(h), 0); /* which asks for a lease, too, and keeps this one */
	assert_int_equal(store_lend(h, 0, SIZE, &b), 0);
	loan_end(&b);
	assert_int_equal(open_to_write("f"), -1);
	assert_int_equal(errno, EWOULDBLOCK);
	assert_int_equal(store_lend(h, 0, SIZE, &b),
			 -EAGAIN); /* so that the writer gets its turn */
	assert_true(lent_is(&a, 7, SIZE));
	loan_end(&a);
	/* And what somebody may be writing is not lent. */
	fd = open_to_write("f");
	assert_true(fd >= 0);
	assert_int_equal(store_lend(h, 0, SIZE, &a), -EAGAIN);
	close(fd);
	assert_int_equal(store_lend(h, 0, SIZE, &a), 0);
	loan_end(&a);
	assert_int_equal(truncate(at("f"), SIZE - 1), 0);
	assert_int_equal(store_lend(h, 0, SIZE - 1, &a), -ESTALE);
	store_close(h);
	store_free(s);
}

/* One that sees to it that all of an object is on disk and checked. */
static struct blob *ready_blob(struct rig *r, uint64_t seed, uint64_t size)
{
	struct blob *b = rig_blob(r, seed, size);

	expect_whole(b, seed, MIB);
	rig_quiet(r);
	return b;
}

static void test_lent_blocks_stay(void **state)
{
	struct blob *a, *b;
	struct blob_loan l, other;
	struct rig r;

	rig_open_disk(&r, 4 * MIB);
	a = ready_blob(&r, 1, 3 * MIB);
	assert_int_equal(blob_lend(a, MIB, MIB, &l), 0);
	assert_true(loan_is(&l.loan, 1, MIB, MIB));
	b = ready_blob(&r, 2, 4 * MIB); /* which wants all the room */
	expect_whole(b, 2, MIB);
	assert_true(rig_quiet(&r).evicted_bytes > 0);
	assert_int_not_equal(blob_lend(a, 0, MIB, &other), 0);
	assert_true(loan_is(&l.loan, 1, MIB, MIB));
	blob_loan_end(&l);
	for (unsigned i = 0; i < 3 && blob_lend(a, MIB, MIB, &l) == 0; i++) {
		blob_loan_end(&l);
		expect_whole(b, 2, MIB);
		rig_quiet(&r);
	}
	blob_unref(a);
	blob_unref(b);
	rig_close(&r);
}

static void test_closed_before_the_loan_ends(void **state)
{
	struct blob_loan l;
	struct listing list_of;
	struct blob *b;
	struct store *s;
	struct rig r;

	write_large("f", 7);
	s = open_store("", false);
	list_of = list(s, "f");
	assert_int_equal(blob_open(s, &list_of.v[0], false, &b, NULL), 0);
	listing_release(&list_of);
	assert_int_equal(blob_lend(b, 0, SIZE, &l), 0);
	blob_unref(b);
	assert_true(lent_is(&l.loan, 7, SIZE));
	blob_loan_end(&l);
	store_free(s);

	rig_open_disk(&r, 0);
	b = ready_blob(&r, 1, MIB);
	assert_int_equal(blob_lend(b, 0, MIB, &l), 0);
	blob_unref(b);
	assert_true(loan_is(&l.loan, 1, 0, MIB));
	blob_loan_end(&l);
	rig_close(&r);
}

static void test_only_what_is_checked(void **state)
{
	struct blockcache_config guest = {.dir = at("cache"), .holder = "/mnt/other", .floor = 1};
	struct rig r, other;
	struct blob *b;
	struct blob_loan l;

	rig_open_disk(&r, 0);
	b = rig_blob(&r, 1, 2 * MIB);
	assert_int_equal(blob_lend(b, 0, MIB, &l), -EAGAIN); /* not there */
	blob_unref(b);
	b = ready_blob(&r, 1, 2 * MIB);
	blob_unref(b);
	rig_close(&r);

	rig_open_disk(&r, 0);
	b = rig_blob(&r, 1, 2 * MIB);
	assert_int_equal(blob_lend(b, 0, MIB, &l), -EAGAIN); /* there, and not yet looked at */
	expect_blob(b, 1, 0, MIB);
	assert_int_equal(blob_lend(b, 0, MIB, &l), 0);
	assert_true(loan_is(&l.loan, 1, 0, MIB));
	blob_loan_end(&l);
	assert_int_equal(blob_lend(b, PIECE, MIB, &l), -EAGAIN); /* not all of it */
	/* A guest cannot keep the owner from evicting. */
	rig_open(&other, &guest);
	blob_unref(b);
	b = rig_blob(&other, 1, 2 * MIB);
	expect_whole(b, 1, MIB);
	assert_int_equal(blob_lend(b, 0, MIB, &l), -EAGAIN);
	blob_unref(b);
	rig_close(&other);
	rig_close(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		scratch_test(test_what_is_lent),
		scratch_test(test_writers_wait),
		scratch_test(test_lent_blocks_stay),
		scratch_test(test_closed_before_the_loan_ends),
		scratch_test(test_only_what_is_checked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
