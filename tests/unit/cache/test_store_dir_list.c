/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A local directory against the store's contract: what a listing has, in which order, and what it
 * says about links, odd files and what cannot be read.
 */
#include "cache/store.h"

#include "tests/unit/cache/dir_rig.h"

#include <sys/socket.h>
#include <sys/un.h>

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		scratch_test(test_order_and_prefix),
		scratch_test(test_links_inside),
		scratch_test(test_link_turned_outwards),
		scratch_test(test_many_ways),
		scratch_test(test_not_files),
		scratch_test(test_too_deep),
		scratch_test(test_unreadable),
		scratch_test(test_many_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
