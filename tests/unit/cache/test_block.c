/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block cache as readers see it: what is fetched and how often, by one reader and by many,
 * errors and who gets them, streams and random reads, pulling, and life without a disk.
 */
#include "tests/unit/cache/scratch.h"

#include "tests/unit/cache/block_rig.h"

#include "cache/log.h"

/* ---- single flight ---- */

struct many {
	struct blob *blob;
	uint64_t seed;
	unsigned number;
	int rc;
	bool whole; /* reads everything, in an order of its own */
	pthread_t thread;
};

static void *many_read(void *arg)
{
	struct many *t = arg;
	const uint64_t step = 96 << 10, count = (t->blob->size + step - 1) / step;
	uint8_t *bytes = malloc(step);

	assert_non_null(bytes);
	for (uint64_t i = 0; i < (t->whole ? count : 1) && t->rc == 0; i++) {
		uint64_t n = t->whole && t->number % 2 != 0 ? count - 1 - i : i, off = n * step;
		size_t len = (size_t)MIN(step, t->blob->size - off);

		t->rc = blob_read(t->blob, off, bytes, len);
		if (t->rc == 0 && !mem_is(t->seed, off, bytes, len))
			t->rc = 1;
	}
	free(bytes);
	return NULL;
}

static void start(struct many *t, unsigned count, struct blob *b, uint64_t seed, bool whole)
{
	for (unsigned i = 0; i < count; i++) {
		t[i] = (struct many){.blob = b, .seed = seed, .number = i, .whole = whole};
		assert_int_equal(pthread_create(&t[i].thread, NULL, many_read, &t[i]), 0);
	}
}

static void test_single_flight(void **state)
{
	const uint64_t size = 12 * MIB + 12345;
	struct many t[8];
	struct rig r;
	struct blob *b;

	rig_open_disk(&r, 0);
	r.m->latency_ns = 2000000;
	b = rig_blob(&r, 1, size);
	start(t, 8, b, 1, true);
	for (int i = 0; i < 8; i++) {
		pthread_join(t[i].thread, NULL);
		assert_int_equal(t[i].rc, 0);
	}
	rig_quiet(&r);
	assert_int_equal(mem_fetched(r.m), size);
	expect_whole(b, 1, 1 << 20);
	assert_int_equal(mem_fetched(r.m), size);
	blob_unref(b);
	rig_close(&r);
}

/* The same content under another name, of another run: one object. */
static void test_two_names(void **state)
{
	struct rig r;
	struct blob *a, *b;
	char other[] = "run-2/base.safetensors";
	struct object o = mem_object(5, 3 * MIB, other);

	rig_open_disk(&r, 0);
	a = rig_blob(&r, 5, 3 * MIB);
	expect_whole(a, 5, 1 << 20);
	assert_int_equal(blob_open(&r.m->base, &o, false, &b, NULL), 0);
	expect_whole(b, 5, 1 << 18);
	blob_unref(a);
	expect_whole(b, 5, 1 << 19);
	assert_int_equal(mem_fetched(r.m), 3 * MIB);
	blob_unref(b);
	rig_close(&r);
}

/* ---- errors ---- */

static void wait_for_fetches(struct mem_store *m, unsigned count)
{
	struct timespec ts = {.tv_nsec = 500000};

	while (mem_fetches(m) < count)
		nanosleep(&ts, NULL);
}

static void test_error_is_shared(void **state)
{
	struct timespec ts = {.tv_nsec = 20000000};
	struct many t[8];
	unsigned failed = 0;
	struct rig r;
	struct blob *b;
	uint8_t byte;

	rig_open_disk(&r, 0);
	b = rig_blob(&r, 2, 4 * MIB);
	mem_hold(r.m, true);
	mem_fail(r.m, -EACCES, 1);
	start(t, 8, b, 2, false);
	wait_for_fetches(r.m, 1);
	nanosleep(&ts,
		  NULL); /* most are waiting by now; whoever is late makes a fetch of its own */
	mem_hold(r.m, false);
	for (int i = 0; i < 8; i++) {
		pthread_join(t[i].thread, NULL);
		assert_true(t[i].rc == 0 || t[i].rc == -EACCES);
		failed += t[i].rc != 0;
	}
	/* Whoever waited for the fetch has its error, and they were few that did not. */
	assert_true(failed >= 1);
	assert_true(mem_fetches(r.m) <= 2);
	/* An error is not remembered. */
	expect_bytes(b, 2, 0, 1000);
	mem_fail(r.m, -EIO, 1);
	assert_int_equal(blob_read(b, 3 * MIB, &byte, 1), -EIO);
	expect_bytes(b, 2, 3 * MIB, 1);
	assert_int_equal(blob_read(b, 4 * MIB, &byte, 1), -EBADMSG);
	assert_int_equal(blob_read(b, UINT64_MAX, &byte, 2), -EBADMSG);
	assert_int_equal(blob_read(b, 4 * MIB, &byte, 0), 0);
	blob_unref(b);
	rig_close(&r);
}

/* A window fetched ahead that failed is no reader's error. */
static void test_background_failure(void **state)
{
	struct rig r;
	struct blob *b;

	rig_open_disk(&r, 0);
	b = rig_blob(&r, 3, 16 * MIB);
	expect_bytes(b, 3, 0, 128 << 10);
	mem_hold(r.m, true);
	block_want(b->block, &(struct block_range){128 << 10, 128 << 10}, 1);
	mem_hold(r.m, false);
	rig_quiet(&r);
	mem_fail(r.m, -EIO, 3);
	expect_bytes(b, 3, 128 << 10, 128 << 10); /* there; starts the window, which fails */
	rig_quiet(&r);
	mem_fail(r.m, 0, 0);
	expect_whole(b, 3, 128 << 10);
	blob_unref(b);
	rig_close(&r);
}

static void test_timeout(void **state)
{
	struct blockcache_config config = {.timeout_ns = 1000000};
	struct rig r;
	struct blob *b;
	uint8_t byte;

	rig_open(&r, &config);
	b = rig_blob(&r, 4, MIB);
	mem_hold(r.m, true);
	assert_int_equal(blob_read(b, 0, &byte, 1), -ETIMEDOUT);
	mem_hold(r.m, false);
	rig_quiet(&r);
	expect_bytes(b, 4, 0, 1);
	blob_unref(b);
	rig_close(&r);
}

/* Closing does not wait for what is under way, and ending does. */
static void test_close_with_fetches(void **state)
{
	struct rig r;
	struct blob *b;

	rig_open_disk(&r, 0);
	b = rig_blob(&r, 6, 32 * MIB);
	mem_hold(r.m, true);
	blob_want(b, &(struct block_range){0, 32 * MIB}, 1);
	assert_int_equal(mem_fetches(r.m), 4);
	blob_unref(b);
	store_stop(&r.m->base); /* -ECANCELED for all */
	rig_close(&r);
}

/* ---- what is fetched ---- */

static void test_random_reads(void **state)
{
	const uint64_t size = 64 * MIB;
	uint64_t seed = 11;
	struct blockcache_stats st;
	struct rig r;
	struct blob *b;

	rig_open_disk(&r, 0);
	b = rig_blob(&r, 7, size);
	expect_bytes(b, 7, 5 * MIB + 4096, 4096);
	assert_int_equal(mem_fetched(r.m), PIECE);
	assert_int_equal(r.m->log[0].off, 5 * MIB);
	expect_bytes(b, 7, 5 * MIB + PIECE - 1, 2); /* across two pieces; the other one */
	assert_int_equal(mem_fetched(r.m), 2 * PIECE);
	mem_forget(r.m);
	for (int i = 0; i < 200; i++)
		expect_bytes(b, 7, rng(&seed) % (size / 4096) * 4096, 4096);
	st = rig_quiet(&r);
	assert_true(mem_fetched(r.m) <= 200 * PIECE);
	assert_true(mem_fetches(r.m) <= 200);
	assert_int_equal(st.stored_bytes, st.fetched_bytes);
	printf("           random: 200 reads of 4 KiB: %u requests, %.1f MiB\n", mem_fetches(r.m),
	       (double)mem_fetched(r.m) / MIB);
	blob_unref(b);
	rig_close(&r);
}

static void run_stream(struct rig *r, const char *name, uint64_t seed, uint64_t size, bool down)
{
	const size_t step = 128 << 10;
	struct blob *b = rig_blob(r, seed, size);
	uint64_t n = size / step;

	mem_forget(r->m);
	for (uint64_t i = 0; i < n; i++)
		expect_bytes(b, seed, (down ? n - 1 - i : i) * step, step);
	rig_quiet(r);
	printf("           %s: %llu MiB in reads of 128 KiB: %u requests (%u ahead of time), "
	       "%.1f MiB, %u in flight at most\n",
	       name, (unsigned long long)(size / MIB), mem_fetches(r->m), r->m->background,
	       (double)mem_fetched(r->m) / MIB, r->m->flying_max);
	assert_int_equal(mem_fetched(r->m), size);
	/* 64 requests of 1 MiB would be one by one; 8 of 8 MiB is what cannot be beaten. */
	assert_in_range(mem_fetches(r->m), size / (8 * MIB), 24);
	assert_true(r->m->background >= mem_fetches(r->m) - 6);
	assert_true(r->m->flying_max >= 2);
	blob_unref(b);
}

static void test_streams(void **state)
{
	struct rig r;

	rig_open_disk(&r, 0);
	r.m->latency_ns =
		5000000; /* so that the next request is there before the first is answered */
	run_stream(&r, "ascending", 8, 64 * MIB, false);
	run_stream(&r, "descending", 9, 64 * MIB, true);
	rig_close(&r);
}

/* What will be read from end to end: a small request and some more, at once, and no byte twice. */
static void test_beginning(void **state)
{
	const uint64_t size = 5 * MIB + 77, large = 40 * MIB;
	struct blob *b;
	struct rig r;

	rig_open_disk(&r, 0);
	r.m->latency_ns = 1000000;
	b = rig_blob(&r, 10, size);
	blob_want_beginning(b);
	assert_int_equal(mem_fetches(r.m), 4);
	expect_whole(b, 10, 100000);
	rig_quiet(&r);
	assert_int_equal(mem_fetches(r.m), 4);
	assert_int_equal(mem_fetched(r.m), size);
	blob_want_beginning(b); /* all there */
	blob_unref(b);
	b = rig_blob(&r, 11, 1000);
	blob_want_beginning(b);
	expect_whole(b, 11, 1000);
	assert_int_equal(mem_fetches(r.m), 5);
	blob_unref(b);
	mem_forget(r.m);
	b = rig_blob(&r, 12, large);
	blob_want_beginning(b);
	rig_quiet(&r);
	assert_int_equal(mem_fetched(r.m), 32 * MIB);
	blob_unref(b);
	rig_close(&r);
}

/* One large read, as of a delta: at once, in large requests. */
static void test_large_read(void **state)
{
	struct rig r;
	struct blob *b;

	rig_open_disk(&r, 0);
	b = rig_blob(&r, 10, 70 * MIB + 1);
	mem_hold(r.m, true);
	blob_want(b, (struct block_range[]){{0, 10}, {8 * MIB, 8 * MIB}, {70 * MIB, 1}}, 3);
	assert_int_equal(mem_fetches(r.m), 3);
	mem_hold(r.m, false);
	expect_bytes(b, 10, 0, 70 * MIB + 1);
	assert_int_equal(mem_fetched(r.m), 70 * MIB + 1);
	assert_in_range(mem_fetches(r.m), 10, 14);
	blob_unref(b);
	rig_close(&r);
}

/* ---- pulling ---- */

static struct block_progress pulled(struct blob *b)
{
	struct timespec ts = {.tv_nsec = 1000000};
	struct block_progress p;

	for (;;) {
		blob_progress(b, &p);
		if (!p.pulling)
			return p;
		nanosleep(&ts, NULL);
	}
}

static void test_pull(void **state)
{
	const uint64_t size = 40 * MIB + 7;
	struct block_progress p;
	struct rig r;
	struct blob *b;

	rig_open_disk(&r, 0);
	b = rig_blob(&r, 12, size);
	expect_bytes(b, 12, 17 * MIB, 4096);
	blob_pull(b);
	blob_pull(b); /* is under way */
	p = pulled(b);
	assert_int_equal(p.err, 0);
	assert_int_equal(p.present, size);
	assert_int_equal(p.size, size);
	assert_int_equal(mem_fetched(r.m), size);
	assert_int_equal(r.m->background, mem_fetches(r.m) - 1);
	expect_whole(b, 12, 1 << 20);
	assert_int_equal(mem_fetched(r.m), size);
	blob_unref(b);
	rig_close(&r);
}

static void test_pull_ends(void **state)
{
	struct block_progress p;
	struct rig r;
	struct blob *b;

	/* More than there is room for: it fills the cache and does not go round in it. */
	rig_open_disk(&r, 16 * MIB);
	b = rig_blob(&r, 13, 40 * MIB);
	blob_pull(b);
	p = pulled(b);
	assert_int_equal(p.err, -ENOSPC);
	assert_in_range(p.present, 12 * MIB, 16 * MIB);
	assert_true(mem_fetched(r.m) <= 17 * MIB);
	blob_unref(b);
	rig_closed(&r);

	/* What nobody has open makes room.  A store that fails ends it after a few; it goes on when
	 * asked again. */
	b = rig_blob(&r, 14, 10 * MIB);
	mem_fail(r.m, -EIO, 100);
	blob_pull(b);
	assert_int_equal(pulled(b).err, -EIO);
	mem_fail(r.m, 0, 0);
	blob_unref(b);

	/* Closing ends it. */
	b = rig_blob(&r, 15, 10 * MIB);
	mem_hold(r.m, true);
	blob_pull(b);
	blob_unref(b);
	mem_hold(r.m, false);
	rig_close(&r);

	rig_open_memory(&r);
	b = rig_blob(&r, 16, 10 * MIB);
	blob_pull(b);
	p = pulled(b);
	assert_int_equal(p.err, -ENOTSUP);
	assert_int_equal(mem_fetches(r.m), 0);
	blob_unref(b);
	rig_close(&r);
}

static void test_pull_goes_on_after_failures(void **state)
{
	struct block_progress p;
	struct rig r;
	struct blob *b;

	rig_open_disk(&r, 0);
	b = rig_blob(&r, 17, 50 * MIB);
	mem_fail(r.m, -EIO, 3);
	blob_pull(b);
	p = pulled(b);
	assert_int_equal(p.err, 0);
	assert_int_equal(p.present, 50 * MIB);
	blob_unref(b);
	rig_close(&r);
}

/* ---- without a disk ---- */

static void test_memory_only(void **state)
{
	struct blockcache_config config = {.memory = 8 * MIB};
	struct blockcache_stats st;
	struct rig r;
	struct blob *b;

	rig_open(&r, &config);
	b = rig_blob(&r, 20, 32 * MIB);
	expect_whole(b, 20, 128 << 10);
	st = rig_quiet(&r);
	assert_int_equal(mem_fetched(r.m), 32 * MIB); /* the window fits the ring */
	assert_in_range(st.memory, 4 * MIB, 8 * MIB);
	assert_null(st.path);
	assert_false(st.writing);
	mem_forget(r.m);
	expect_bytes(b, 20, 31 * MIB, 1 << 20); /* a recent block is still there */
	assert_int_equal(mem_fetches(r.m), 0);
	expect_bytes(b, 20, 0, 4096); /* an old one is not */
	assert_int_equal(mem_fetches(r.m), 1);
	blob_unref(b);
	/* And nothing of closed objects is, once the last fetch has let go of them. */
	rig_closed(&r);
	for (int tries = 0; tries < 5000 && rig_quiet(&r).memory > 0; tries++)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	assert_int_equal(rig_quiet(&r).memory, 0);
	rig_close(&r);
}

static void test_no_directory(void **state)
{
	struct blockcache_config config = {.dir = at("file")};
	struct rig r;
	struct blob *b;

	write_text("file", "not a directory");
	rig_open(&r, &config);
	assert_int_equal(r.why.err, ENOTDIR);
	assert_non_null(strstr(r.why.text, "cannot be used"));
	b = rig_blob(&r, 21, 5 * MIB);
	expect_whole(b, 21, 1 << 20);
	blob_unref(b);
	rig_close(&r);
}

/* Companion files are read whole through the cache, so that they are there offline. */
static void test_kept_copy(void **state)
{
	char key[] = "config.json";
	struct object o = mem_object(22, 1000, key);
	struct rig r;
	struct blob *b;

	rig_open_disk(&r, 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(blob_open(&r.m->base, &o, true, &b, NULL), 0);
		assert_null(b->block);
		expect_bytes(b, 22, 0, 1000);
		blob_unref(b);
		rig_quiet(&r);
		assert_int_equal(mem_fetches(r.m), 1);
	}
	o.size = 999; /* the identity says the content has changed when it has */
	struct why why = {0};
	struct blob *first = rig_blob(&r, 22, 1000), *second = NULL;
	store_le64(o.id.bytes + 8, 1000);
	assert_int_equal(blob_open(&r.m->base, &o, false, &second, &why), -EBADMSG);
	assert_non_null(strstr(why.text, "two sizes"));
	blob_unref(first);
	rig_close(&r);
}

/* What has come of a fetch can be read before the rest has; what has not is waited for. */
static void test_part_of_a_fetch(void **state)
{
	const struct block_range all = {0, 2 * MIB};
	uint8_t *bytes = malloc(MIB);
	struct many t;
	struct rig r;
	struct blob *b;

	assert_non_null(bytes);
	rig_open_disk(&r, 0);
	b = rig_blob(&r, 9, 2 * MIB);
	mem_part(r.m, MIB);
	blob_want(b, &all, 1);
	/* From the front and in the middle of it, up to the last byte that has come. */
	assert_int_equal(blob_read(b, 0, bytes, 1000), 0);
	assert_true(mem_is(9, 0, bytes, 1000));
	assert_int_equal(blob_read(b, MIB - 777, bytes, 777), 0);
	assert_true(mem_is(9, MIB - 777, bytes, 777));
	assert_int_equal(mem_fetches(r.m), 1);
	t = (struct many){.blob = b, .seed = 9, .whole = true};
	assert_int_equal(pthread_create(&t.thread, NULL, many_read, &t), 0);
	mem_part(r.m, 0);
	pthread_join(t.thread, NULL);
	assert_int_equal(t.rc, 0);
	rig_quiet(&r);
	assert_int_equal(mem_fetched(r.m), 2 * MIB);
	expect_whole(b, 9, 1 << 20);
	blob_unref(b);
	rig_close(&r);
	free(bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		scratch_test(test_single_flight),   scratch_test(test_two_names),
		scratch_test(test_error_is_shared), scratch_test(test_background_failure),
		scratch_test(test_timeout),	    scratch_test(test_close_with_fetches),
		scratch_test(test_random_reads),    scratch_test(test_streams),
		scratch_test(test_beginning),	    scratch_test(test_pull),
		scratch_test(test_large_read),	    scratch_test(test_pull),
		scratch_test(test_pull_ends),	    scratch_test(test_pull_goes_on_after_failures),
		scratch_test(test_memory_only),	    scratch_test(test_no_directory),
		scratch_test(test_kept_copy),	    scratch_test(test_part_of_a_fetch),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
