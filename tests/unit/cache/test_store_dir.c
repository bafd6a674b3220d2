/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A local directory against the store's contract: listing, links, pinned reads, settled, put,
 * watch, blobs.
 */
#include "cache/store.h"

#include "tests/unit/cache/scratch.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "cache/blob.h"
#include "cache/clock.h"

static struct store *open_store(const char *name, bool follow)
{
	struct store *s = NULL;
	struct why why = {0};

	assert_int_equal(store_dir_new(at(name), follow, &s, &why), 0);
	return s;
}

static struct listing list(struct store *s, const char *prefix)
{
	struct listing l = {0};
	struct why why = {0};
	int rc = store_list(s, prefix, &l, &why);

	if (rc < 0)
		print_error("%s\n", why.text);
	assert_int_equal(rc, 0);
	return l;
}

/* Expects the listing to be "key key key:errno ...". */
static void expect_list(struct store *s, const char *prefix, const char *expected)
{
	struct listing l = list(s, prefix);
	char got[4096] = "";
	size_t len = 0;

	for (size_t i = 0; i < l.count; i++) {
		len += (size_t)snprintf(got + len, sizeof(got) - len, "%s%s", i ? " " : "",
					l.v[i].key);
		if (l.v[i].err)
			len += (size_t)snprintf(got + len, sizeof(got) - len, ":%s",
						strerrorname_np(l.v[i].err));
	}
	assert_string_equal(got, expected);
	listing_release(&l);
}

static struct handle *open_key(struct store *s, const char *key)
{
	struct listing l = list(s, "");
	const struct object *o = listing_find(&l, key);
	struct handle *h = NULL;
	struct why why = {0};

	assert_non_null(o);
	assert_int_equal(store_open(s, o, &h, &why), 0);
	listing_release(&l);
	return h;
}

static void expect_bytes(struct handle *h, const char *expected)
{
	char got[256];

	assert_int_equal(h->size, strlen(expected));
	assert_int_equal(store_read(h, 0, got, strlen(expected)), 0);
	assert_memory_equal(got, expected, strlen(expected));
}

static void make_dir(const char *name)
{
	assert_int_equal(mkdir(at(name), 0755), 0);
}

static void make_link(const char *target, const char *name)
{
	assert_int_equal(symlink(target, at(name)), 0);
}

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

static void test_order_and_prefix(void **state)
{
	struct store *s;

	make_dir("a");
	make_dir("a/sub.safetensors");
	make_dir(".hidden");
	write_text(".hidden/x", "");
	write_text(".dot", "");
	write_text("a/2", "");
	write_text("a/10", "");
	write_text("a/sub.safetensors/x", "");
	write_text("a.b", "");
	write_text("b", "");
	s = open_store("", false);
	expect_list(s, "", "a.b a/10 a/2 a/sub.safetensors/x b");
	expect_list(s, "a", "a.b a/10 a/2 a/sub.safetensors/x");
	expect_list(s, "a/", "a/10 a/2 a/sub.safetensors/x");
	expect_list(s, "a/sub", "a/sub.safetensors/x");
	expect_list(s, "a/sub.safetensors/x", "a/sub.safetensors/x");
	expect_list(s, "a/2/", "");
	expect_list(s, "c", "");
	store_free(s);
}

static void test_links_inside(void **state)
{
	struct store *s;
	struct handle *h;

	make_dir("r");
	make_dir("r/d");
	make_dir("r/e");
	write_text("r/d/f", "inside");
	write_text("outside", "outside");
	make_link("../d/f", "r/e/link");
	make_link("d", "r/dlink");
	make_link(at("r/d/f"), "r/abs");
	make_link("../outside", "r/out");
	make_link(at("outside"), "r/outabs");
	make_link("nothing", "r/dangling");
	make_link("..", "r/updir");
	make_link(".", "r/self");
	make_link("loop2", "r/loop1");
	make_link("loop1", "r/loop2");
	s = open_store("r", false);
	expect_list(s, "",
		    "abs d/f dangling:ENOENT dlink/f e/link loop1:ELOOP loop2:ELOOP out:ELOOP "
		    "outabs:ELOOP self:ELOOP updir:ELOOP");
	h = open_key(s, "e/link");
	expect_bytes(h, "inside");
	store_close(h);
	h = open_key(s, "abs");
	expect_bytes(h, "inside");
	store_close(h);
	h = open_key(s, "dlink/f");
	expect_bytes(h, "inside");
	store_close(h);
	store_free(s);
	/* With follow, files may lie anywhere; directories still may not. */
	s = open_store("r", true);
	expect_list(s, "",
		    "abs d/f dangling:ENOENT dlink/f e/link loop1:ELOOP loop2:ELOOP out outabs "
		    "self:ELOOP updir:ELOOP");
	h = open_key(s, "out");
	expect_bytes(h, "outside");
	store_close(h);
	store_free(s);
}

static void test_link_turned_outwards(void **state)
{
	struct store *s;
	struct listing l;
	struct handle *h = NULL;
	struct why why = {0};

	make_dir("r");
	write_text("r/f", "x");
	write_text("secret", "y");
	make_link("f", "r/link");
	s = open_store("r", false);
	l = list(s, "");
	assert_int_equal(unlink(at("r/link")), 0);
	make_link("../secret", "r/link");
	assert_int_equal(store_open(s, listing_find(&l, "link"), &h, &why), -ELOOP);
	assert_null(h);
	assert_non_null(strstr(why.text, "link"));
	listing_release(&l);
	store_free(s);
}

static void test_many_ways(void **state)
{
	struct store *s;
	struct listing l;
	char name[64], target[64];

	/* Links that would unfold to 2^30 paths. */
	for (int i = 0; i < 31; i++) {
		snprintf(name, sizeof(name), "d%d", i);
		make_dir(name);
		for (int k = 0; k < 2 && i < 30; k++) {
			snprintf(name, sizeof(name), "d%d/%d", i, k);
			snprintf(target, sizeof(target), "../d%d", i + 1);
			make_link(target, name);
		}
	}
	s = open_store("", false);
	l = list(s, "");
	assert_true(l.count > 0 && l.count < 100000);
	listing_release(&l);
	store_free(s);
}

static void test_not_files(void **state)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct store *s;
	struct listing l;
	struct handle *h = NULL;
	struct why why = {0};

	assert_int_equal(mkfifo(at("fifo"), 0600), 0);
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", at("sock"));
	assert_int_equal(bind(sock, (struct sockaddr *)&addr, sizeof(addr)), 0);
	write_text("ok", "x");
	write_text("bad\xff", "x");
	write_text("\xc3\xa4", "x");
	make_link("fifo", "tofifo");
	s = open_store("", false);
	expect_list(s, "", "bad\xff:EILSEQ fifo:ENXIO ok sock:ENXIO tofifo:ENXIO \xc3\xa4");
	l = list(s, "");
	assert_int_equal(store_open(s, &l.v[0], &h, &why), -EILSEQ);
	assert_non_null(strstr(why.text, "bad\\xff"));
	assert_int_equal(store_open(s, listing_find(&l, "fifo"), &h, &why), -ENXIO);
	/* A fifo that took a file's place neither blocks nor passes for it. */
	assert_int_equal(rename(at("fifo"), at("ok")), 0);
	assert_int_equal(store_open(s, listing_find(&l, "ok"), &h, &why), -ESTALE);
	assert_null(h);
	assert_null(listing_find(&l, "okay"));
	listing_release(&l);
	store_free(s);
	close(sock);
}

static void test_too_deep(void **state)
{
	char path[200] = "d";
	struct store *s;
	struct listing l;

	for (int i = 0; i < 34; i++) {
		char file[210];

		make_dir(path);
		snprintf(file, sizeof(file), "%s/f", path);
		write_text(file, "");
		strncat(path, "/d", sizeof(path) - strlen(path) - 1);
	}
	s = open_store("", false);
	l = list(s, "");
	assert_int_equal(l.count, 33); /* 32 levels with a file each, and the directory below */
	assert_int_equal(l.v[0].err, ENAMETOOLONG);
	assert_int_equal(strlen(l.v[0].key), 33 * 2 - 1);
	assert_int_equal(l.v[1].err, 0);
	listing_release(&l);
	store_free(s);
}

static void list_as_nobody(void)
{
	struct store *s;
	struct listing l = {0};
	const struct object *o;

	if (geteuid() == 0 && seteuid(65534) < 0)
		_exit(2);
	if (store_dir_new(scratch, false, &s, NULL) < 0 || store_list(s, "", &l, NULL) < 0)
		_exit(3);
	o = listing_find(&l, "file");
	if (o == NULL || o->err != EACCES)
		_exit(4);
	o = listing_find(&l, "dir");
	if (o == NULL || o->err != EACCES)
		_exit(5);
	o = listing_find(&l, "ok");
	if (o == NULL || o->err != 0 || l.count != 3)
		_exit(6);
	listing_release(&l);
	if (store_list(s, "dir/x", &l, NULL) < 0 || l.count != 1 || l.v[0].err != EACCES)
		_exit(7); /* what may lie behind it is not passed over in silence */
	listing_release(&l);
	store_free(s);
}

static void test_unreadable(void **state)
{
	int status;

	assert_int_equal(chmod(scratch, 0755), 0);
	write_text("ok", "x");
	write_text("file", "x");
	make_dir("dir");
	write_text("dir/x", "x");
	assert_int_equal(chmod(at("file"), 0), 0);
	assert_int_equal(chmod(at("dir"), 0), 0);
	status = in_child(list_as_nobody);
	assert_int_equal(chmod(at("dir"), 0700), 0);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
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

static void test_many_files(void **state)
{
	struct store *s;
	struct listing l;
	char name[32];

	make_dir("delta");
	for (int i = 0; i < 3000; i++) {
		snprintf(name, sizeof(name), "delta/%04d", (i * 7) % 3000);
		write_text(name, "");
	}
	s = open_store("", false);
	l = list(s, "delta/");
	assert_int_equal(l.count, 3000);
	for (int i = 0; i < 3000; i++) {
		snprintf(name, sizeof(name), "delta/%04d", i);
		assert_string_equal(l.v[i].key, name);
		assert_ptr_equal(listing_find(&l, name), &l.v[i]);
	}
	listing_release(&l);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		scratch_test(test_new_failures),   scratch_test(test_order_and_prefix),
		scratch_test(test_links_inside),   scratch_test(test_link_turned_outwards),
		scratch_test(test_many_ways),	   scratch_test(test_not_files),
		scratch_test(test_too_deep),	   scratch_test(test_unreadable),
		scratch_test(test_pinned),	   scratch_test(test_rewritten_in_place),
		scratch_test(test_identity),	   scratch_test(test_settled),
		scratch_test(test_settled_by_age), scratch_test(test_settled_race),
		scratch_test(test_many_files),	   scratch_test(test_put),
		scratch_test(test_watch),	   scratch_test(test_root_made_anew),
		scratch_test(test_blob),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
