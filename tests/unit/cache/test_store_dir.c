/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A local directory against the store's contract: pinned reads, identity, settled, put, watch,
 * blobs.  Listing has a file of its own.
 */
#include "cache/store.h"

#include "tests/unit/cache/dir_rig.h"

#include <poll.h>
#include <pthread.h>

#include "cache/blob.h"
#include "cache/clock.h"

static void test_new_failures(void **state)
{
	struct store *s = NULL;
	struct why why = {0};

	assert_int_equal(store_dir_new(at("none"), false, &s, &why), -ENOENT);
	assert_non_null(strstr(why.text, "none"));
	write_text("f", "x");
	assert_int_equal(store_dir_new(at("f"), false, &s, &why), -ENOTDIR);
	assert_int_equal(store_dir_new(at("f"), false, &s, NULL), -ENOTDIR);
	assert_null(s);
	store_free(NULL);
	store_close(NULL);
}

static void test_pinned(void **state)
{
	struct store *s;
	struct handle *h, *gone;
	char got[4];

	write_text("f", "old bytes");
	write_text("g", "deleted");
	s = open_store("", false);
	h = open_key(s, "f");
	gone = open_key(s, "g");
	/* Replaced by rename, and deleted: the handles do not mind. */
	write_text("new", "NEW BYTES!");
	assert_int_equal(rename(at("new"), at("f")), 0);
	assert_int_equal(unlink(at("g")), 0);
	expect_bytes(h, "old bytes");
	expect_bytes(gone, "deleted");
	assert_int_equal(store_settled(gone), 0);
	assert_int_equal(store_read(h, 5, got, 4), 0);
	assert_memory_equal(got, "ytes", 4);
	assert_int_equal(store_read(h, 9, got, 0), 0);
	assert_int_equal(store_read(h, 9, got, 1), -EBADMSG);
	assert_int_equal(store_read(h, UINT64_MAX, got, 4), -EBADMSG);
	store_close(h);
	store_close(gone);
	store_free(s);
}

static void test_rewritten_in_place(void **state)
{
	struct store *s;
	struct handle *h;
	struct listing l;
	struct why why = {0};
	char got[16];
	int fd;

	write_text("f", "0123456789");
	set_mtime("f", 1000);
	s = open_store("", false);
	l = list(s, "");
	h = open_key(s, "f");
	assert_int_equal(store_read(h, 0, got, 10), 0);
	/* The same size, another time. */
	write_text("f", "abcdefghij");
	assert_int_equal(store_read(h, 0, got, 10), -ESTALE);
	assert_int_equal(store_settled(h), -ESTALE);
	store_close(h);
	h = NULL;
	assert_int_equal(store_open(s, &l.v[0], &h, &why), -ESTALE);
	assert_non_null(strstr(why.text, "changed"));
	listing_release(&l);
	/* The same time, another size; a part that is there and one that is not. */
	set_mtime("f", 1000);
	h = open_key(s, "f");
	fd = open(at("f"), O_WRONLY);
	assert_int_equal(ftruncate(fd, 5), 0);
	close(fd);
	set_mtime("f", 1000);
	assert_int_equal(store_read(h, 0, got, 2), -ESTALE);
	assert_int_equal(store_read(h, 4, got, 4), -ESTALE);
	store_close(h);
	l = list(s, "");
	assert_int_equal(unlink(at("f")), 0);
	assert_int_equal(store_open(s, &l.v[0], &h, &why), -ENOENT);
	listing_release(&l);
	store_free(s);
}

static void test_identity(void **state)
{
	struct store *s;
	struct listing a, b;
	char hex[33];

	write_text("f", "same");
	write_text("g", "same");
	set_mtime("f", 1000);
	set_mtime("g", 1000);
	s = open_store("", false);
	a = list(s, "");
	b = list(s, "");
	assert_int_equal(a.v[0].size, 4);
	assert_true(a.v[0].mtime_ns == 1000 * NSEC_PER_SEC);
	assert_true(identity_equal(&a.v[0].id, &b.v[0].id));
	assert_false(identity_equal(&a.v[0].id, &a.v[1].id));
	identity_hex(&a.v[0].id, hex);
	assert_int_equal(strspn(hex, "0123456789abcdef"), 32);
	listing_release(&b);
	set_mtime("f", 1001);
	b = list(s, "");
	assert_false(identity_equal(&a.v[0].id, &b.v[0].id));
	listing_release(&a);
	listing_release(&b);
	store_free(s);
}

static void test_settled(void **state)
{
	struct store *s;
	struct handle *h;
	int fd;

	write_text("f", "x");
	set_mtime("f", 1000);
	s = open_store("", false);
	h = open_key(s, "f");
	assert_int_equal(store_settled(h), 0);
	assert_int_equal(store_settled(h), 0);
	fd = open(at("f"), O_WRONLY);
	assert_true(fd >= 0);
	assert_int_equal(store_settled(h), -EAGAIN);
	close(fd);
	assert_int_equal(store_settled(h), 0);
	fd = open(at("f"), O_RDONLY);
	assert_int_equal(store_settled(h), 0);
	close(fd);
	store_close(h);
	store_free(s);
}

static void settled_without_lease(void)
{
	struct store *s;
	struct listing l = {0};
	struct handle *h;

	/* Not the file's owner, so that leases are refused. */
	if (seteuid(65534) < 0)
		_exit(2);
	if (store_dir_new(scratch, false, &s, NULL) < 0 || store_list(s, "", &l, NULL) < 0 ||
	    l.count != 1 || store_open(s, &l.v[0], &h, NULL) < 0)
		_exit(3);
	clock_fake(1000 * NSEC_PER_SEC + NSEC_PER_SEC / 2);
	if (store_settled(h) != -EAGAIN)
		_exit(4);
	clock_fake(1001 * NSEC_PER_SEC);
	if (store_settled(h) != 0)
		_exit(5);
	clock_fake(999 * NSEC_PER_SEC); /* a time in the future says nothing */
	if (store_settled(h) != 0)
		_exit(6);
	store_close(h);
	listing_release(&l);
	store_free(s);
}

static void test_settled_by_age(void **state)
{
	int status;

	if (geteuid() != 0)
		skip();
	assert_int_equal(chmod(scratch, 0755), 0);
	write_text("f", "x");
	set_mtime("f", 1000);
	status = in_child(settled_without_lease);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static bool stop_writing; /* atomic */

static void *write_again_and_again(void *arg)
{
	while (!__atomic_load_n(&stop_writing, __ATOMIC_RELAXED))
		close(open(arg, O_WRONLY));
	return NULL;
}

/* A writer that comes in the instant of the lease must not kill us. */
static void test_settled_race(void **state)
{
	struct store *s;
	struct handle *h;
	pthread_t thread;
	char path[512];

	write_text("f", "x");
	set_mtime("f", 1000);
	s = open_store("", false);
	h = open_key(s, "f");
	snprintf(path, sizeof(path), "%s", at("f"));
	assert_int_equal(pthread_create(&thread, NULL, write_again_and_again, path), 0);
	for (int i = 0; i < 5000; i++) {
		int rc = store_settled(h);

		assert_true(rc == 0 || rc == -EAGAIN);
	}
	__atomic_store_n(&stop_writing, true, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	assert_int_equal(store_settled(h), 0);
	store_close(h);
	store_free(s);
}

static int failing_read(void *ctx, uint64_t off, void *dst, size_t len)
{
	memset(dst, 'x', len);
	return off > 0 ? -EIO : 0;
}

static void test_put(void **state)
{
	const size_t big = (1 << 20) + 12345;
	struct source src = source_memory("hello", 5);
	struct source bad = {.read = failing_read, .size = 3 << 20};
	struct store *s;
	struct handle *h;
	struct why why = {0};
	char *bytes = malloc(big), *got = malloc(big), longer[256];

	make_dir("r");
	write_text("r/file", "x");
	make_link("..", "r/out");
	s = open_store("r", false);
	assert_int_equal(store_put(s, "a/b/c", &src, &why), 0);
	assert_int_equal(store_put(s, "a/b/c", &src, &why), 0);
	h = open_key(s, "a/b/c");
	expect_bytes(h, "hello");
	assert_int_equal(store_settled(h), 0);
	store_close(h);
	for (size_t i = 0; i < big; i++)
		bytes[i] = (char)(i * 31 >> 3);
	src = source_memory(bytes, big);
	assert_int_equal(store_put(s, "big", &src, &why), 0);
	h = open_key(s, "big");
	assert_int_equal(h->size, big);
	assert_int_equal(store_read(h, 0, got, big), 0);
	assert_memory_equal(got, bytes, big);
	store_close(h);
	/* What fails leaves what was there. */
	assert_int_equal(store_put(s, "big", &bad, &why), -EIO);
	assert_int_equal(store_put(s, "a/b/d", &bad, NULL), -EIO);
	assert_int_equal(store_put(s, "file/x", &src, &why), -ENOTDIR);
	assert_int_equal(store_put(s, "a", &src, &why), -EISDIR);
	assert_int_equal(store_put(s, "out/x", &src, &why), -ELOOP);
	assert_int_equal(store_put(s, "../x", &src, &why), -EINVAL);
	memset(longer, 'n', 255);
	longer[255] = '\0';
	src = source_memory("", 0);
	assert_int_equal(store_put(s, longer, &src, &why), 0);
	assert_int_equal(unlink(at("r/out")), 0);
	assert_int_equal(unlinkat(AT_FDCWD, at("r/file"), 0), 0);
	h = open_key(s, "big");
	assert_int_equal(h->size, big);
	store_close(h);
	/* No temp file is left: the directory a/b is empty but for c. */
	assert_int_equal(unlink(at("r/a/b/c")), 0);
	assert_int_equal(rmdir(at("r/a/b")), 0);
	store_free(s);
	free(bytes);
	free(got);
}

/* True when the descriptor becomes readable; drains it. */
static bool woken(struct store *s)
{
	struct pollfd p = {.fd = store_watch_fd(s), .events = POLLIN};

	/* Inotify queues an event before the call that causes it returns. */
	if (poll(&p, 1, 0) != 1)
		return false;
	store_watch_drain(s);
	assert_int_equal(poll(&p, 1, 0), 0);
	return true;
}

static void test_watch(void **state)
{
	struct store *s;
	int fd;

	make_dir("old");
	s = open_store("", false);
	store_watch_drain(s); /* before anybody asked: nothing */
	fd = store_watch_fd(s);
	assert_true(fd >= 0);
	assert_int_equal(store_watch_fd(s), fd);
	assert_false(woken(s));
	write_text("f", "x");
	assert_true(woken(s));
	assert_false(woken(s));
	write_text("old/f", "x");
	assert_true(woken(s));
	make_dir("new");
	make_dir("new/er");
	assert_true(woken(s));
	write_text("new/er/f", "x");
	assert_true(woken(s));
	assert_int_equal(rename(at("f"), at("new/g")), 0);
	assert_true(woken(s));
	assert_int_equal(unlink(at("new/er/f")), 0);
	assert_true(woken(s));
	assert_int_equal(rmdir(at("new/er")), 0);
	assert_true(woken(s));
	expect_list(s, "", "new/g old/f");
	assert_false(woken(s)); /* looking is no change */
	store_free(s);
}

static void test_root_made_anew(void **state)
{
	struct store *s;
	struct listing l = {0};
	struct handle *h;
	struct why why = {0};

	make_dir("run");
	write_text("run/f", "first");
	s = open_store("run", false);
	assert_true(store_watch_fd(s) >= 0);
	h = open_key(s, "f");
	assert_int_equal(unlink(at("run/f")), 0);
	assert_int_equal(rmdir(at("run")), 0);
	assert_int_equal(store_list(s, "", &l, &why), -ENOENT);
	make_dir("run");
	write_text("run/g", "second");
	expect_list(s, "", "g");
	store_watch_drain(s);
	write_text("run/h", "third");
	assert_true(woken(s));
	expect_bytes(h, "first");
	store_close(h);
	store_free(s);
}

static void test_blob(void **state)
{
	struct store *s;
	struct listing l;
	struct blob *kept = NULL, *open = NULL, *none = NULL;
	struct source src;
	struct why why = {0};
	char got[8];

	write_text("config.json", "{}");
	write_text("w", "weights");
	set_mtime("w", 1000);
	s = open_store("", false);
	l = list(s, "");
	assert_int_equal(blob_open(s, &l.v[0], true, &kept, &why), 0);
	assert_int_equal(blob_open(s, &l.v[1], false, &open, &why), 0);
	assert_string_equal(kept->key, "config.json");
	assert_true(identity_equal(&kept->id, &l.v[0].id));
	write_text("config.json", "[overwritten]");
	write_text("w", "WEIGHTS");
	assert_int_equal(blob_read(kept, 0, got, 2), 0);
	assert_memory_equal(got, "{}", 2);
	assert_int_equal(blob_read(kept, 1, got, 2), -EBADMSG);
	assert_int_equal(blob_read(kept, UINT64_MAX, got, 2), -EBADMSG);
	assert_int_equal(blob_read(open, 5, got, 3), -EBADMSG);
	assert_int_equal(blob_read(open, 0, got, 2), -ESTALE);
	assert_int_equal(blob_open(s, &l.v[1], true, &none, &why), -ESTALE);
	assert_null(none);
	listing_release(&l);
	assert_ptr_equal(blob_ref(kept), kept);
	blob_unref(kept);
	src = blob_source(kept);
	assert_int_equal(src.size, 2);
	assert_int_equal(source_read(&src, 1, got, 1), 0);
	assert_int_equal(got[0], '}');
	blob_unref(kept);
	blob_unref(open);
	blob_unref(NULL);
	store_free(s);
}

/* ---- putting under a condition ---- */

static int put_text(struct store *s, const char *text, const struct put_condition *c,
		    struct why *why)
{
	const struct source src = source_memory(text, strlen(text));

	return store_put_if(s, "pointer", &src, c, why);
}

static struct identity identity_of(struct store *s)
{
	struct listing l = list(s, "pointer");
	struct identity id = l.v[0].id;

	listing_release(&l);
	return id;
}

static void test_put_if(void **state)
{
	struct store *s = open_store("", false);
	struct put_condition absent = {.absent = true}, replace = {0};
	struct why why = {0};
	struct identity first;

	replace.replace = &first;
	memset(&first, 7, sizeof(first));
	assert_int_equal(put_text(s, "one", &replace, &why), -ESTALE);
	assert_int_equal(put_text(s, "one", &absent, &why), 0);
	assert_int_equal(put_text(s, "two", &absent, &why), -EEXIST);
	assert_non_null(strstr(why.text, "there already"));
	first = identity_of(s);
	assert_int_equal(put_text(s, "three", &replace, &why), 0);
	assert_int_equal(put_text(s, "four", &replace, &why), -ESTALE);
	assert_non_null(strstr(why.text, "replaced meanwhile"));
	/* What failed left nothing, and the lock is not listed. */
	expect_list(s, "", "pointer");
	assert_int_equal(access(at(".pointer.lock"), F_OK), 0);
	store_free(s);
}

static void test_remove(void **state)
{
	struct store *s = open_store("", false);
	struct put_condition absent = {.absent = true};
	struct source src = source_memory("x", 1);
	struct identity first;
	struct why why = {0};

	assert_int_equal(put_text(s, "one", &absent, &why), 0);
	first = identity_of(s);
	assert_int_equal(store_put(s, "anchors/step/a", &src, &why), 0);
	assert_int_equal(store_put(s, "anchors/step/b", &src, &why), 0);
	assert_int_equal(store_remove(s, "../x", NULL, &why), -EINVAL);
	assert_int_equal(store_remove(s, "anchors/none/a", NULL, &why), -ENOENT);
	assert_int_equal(store_remove(s, "anchors/step/c", NULL, &why), -ENOENT);
	assert_non_null(strstr(why.text, "is not there"));
	assert_int_equal(store_remove(s, "anchors", NULL, &why) < 0, true);
	assert_int_equal(store_remove(s, "anchors/step/a", &first, &why), -ESTALE);
	assert_int_equal(store_remove(s, "anchors/step/a", NULL, &why), 0);
	assert_int_equal(access(at("anchors/step"), F_OK), 0);
	/* With the last one its directory goes, but not the one at the top. */
	assert_int_equal(store_remove(s, "anchors/step/b", NULL, &why), 0);
	assert_int_equal(access(at("anchors/step"), F_OK), -1);
	assert_int_equal(access(at("anchors"), F_OK), 0);
	assert_int_equal(store_remove(s, "pointer", &first, &why), 0);
	expect_list(s, "", "");
	store_free(s);
}

enum { RIVALS = 8, ROUNDS = 20 };

struct rival {
	pthread_t thread;
	struct store *s;
	pthread_barrier_t *go;
	struct identity seen;
	bool absent;
	int ret;
};

static void *compete(void *arg)
{
	struct rival *r = arg;
	const struct put_condition c = {
		.absent = r->absent,
		.replace = r->absent ? NULL : &r->seen,
	};

	pthread_barrier_wait(r->go);
	r->ret = put_text(r->s, "text", &c, NULL);
	return NULL;
}

/* Of those that have seen the same, exactly one wins. */
static void test_put_if_rivals(void **state)
{
	struct rival rivals[RIVALS];
	pthread_barrier_t go;

	pthread_barrier_init(&go, NULL, RIVALS);
	for (int round = 0; round < ROUNDS; round++) {
		struct store *s = open_store("", false);
		int won = 0;

		for (int i = 0; i < RIVALS; i++) {
			rivals[i] = (struct rival){.s = s, .go = &go, .absent = round == 0};
			if (round > 0)
				rivals[i].seen = identity_of(s);
		}
		for (int i = 0; i < RIVALS; i++)
			assert_int_equal(
				pthread_create(&rivals[i].thread, NULL, compete, &rivals[i]), 0);
		for (int i = 0; i < RIVALS; i++) {
			pthread_join(rivals[i].thread, NULL);
			won += rivals[i].ret == 0;
			assert_true(rivals[i].ret == 0 ||
				    rivals[i].ret == (round == 0 ? -EEXIST : -ESTALE));
		}
		assert_int_equal(won, 1);
		store_free(s);
	}
	pthread_barrier_destroy(&go);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		scratch_test(test_new_failures),
		scratch_test(test_pinned),
		scratch_test(test_rewritten_in_place),
		scratch_test(test_identity),
		scratch_test(test_settled),
		scratch_test(test_settled_by_age),
		scratch_test(test_settled_race),
		scratch_test(test_put),
		scratch_test(test_put_if),
		scratch_test(test_put_if_rivals),
		scratch_test(test_remove),
		scratch_test(test_watch),
		scratch_test(test_root_made_anew),
		scratch_test(test_blob),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
