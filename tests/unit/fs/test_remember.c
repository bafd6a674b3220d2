/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store that remembers its last listing: when it is used, and what a damaged file does.
 */
#include "fs/remember.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>

#include "cache/fileio.h"

static char dir[] = "/tmp/weightfs-remember-XXXXXX";

/* A place that can be told to fail. */
struct place {
	struct store base;
	int err;
	uint64_t size; /* of its one object */
};

static int place_list(struct store *s, const char *prefix, struct listing *out, struct why *why)
{
	struct place *p = (struct place *)s;

	if (p->err != 0)
		return why_set(why, p->err, "the place fails with %d", p->err);
	out->v = calloc(2, sizeof(*out->v));
	assert_non_null(out->v);
	out->v[0] = (struct object){.key = strdup("a/b"), .size = p->size, .mtime_ns = -5};
	out->v[1] = (struct object){.key = strdup("c"), .err = EILSEQ};
	memset(out->v[0].id.bytes, 7, sizeof(out->v[0].id.bytes));
	out->count = 2;
	return 0;
}

static void place_free(struct store *s)
{
	free(s);
}

static const struct store_ops place_ops = {
	.name = "place",
	.list = place_list,
	.free = place_free,
};

static struct place *place_new(uint64_t size, int err)
{
	struct place *p = calloc(1, sizeof(*p));

	assert_non_null(p);
	p->base.ops = &place_ops;
	p->base.name = (char *)"the place";
	p->base.remote = true;
	p->size = size;
	p->err = err;
	return p;
}

/* Lists through a fresh process, so to speak. */
static int once(uint64_t size, int err, const char *salt, uint64_t *out_size, bool *out_offline)
{
	struct store *s;
	struct listing l = {0};
	struct buf text = {0};
	struct why why = {0};
	int rc;

	assert_int_equal(remember_new(&place_new(size, err)->base, dir, salt, &s, NULL), 0);
	assert_true(s->remote);
	rc = store_list(s, "", &l, &why);
	*out_offline = store_describe(s, &text);
	if (rc == 0) {
		assert_int_equal(l.count, 2);
		assert_string_equal(l.v[0].key, "a/b");
		assert_int_equal(l.v[0].mtime_ns, -5);
		assert_int_equal(l.v[0].id.bytes[15], 7);
		assert_int_equal(l.v[1].err, EILSEQ);
		*out_size = l.v[0].size;
	} else {
		assert_int_equal(why.err, -rc);
	}
	if (*out_offline)
		assert_non_null(strstr(buf_str(&text), "the place fails with"));
	listing_release(&l);
	buf_release(&text);
	store_free(s);
	return rc;
}

static void test_once(void **state)
{
	uint64_t size = 0;
	bool offline;

	assert_int_equal(once(1, EHOSTUNREACH, "x", &size, &offline), -EHOSTUNREACH);
	assert_int_equal(once(1, 0, "x", &size, &offline), 0);
	assert_false(offline);
	assert_int_equal(once(9, EHOSTUNREACH, "x", &size, &offline), 0);
	assert_true(offline);
	assert_int_equal(size, 1);
	/* The newer one is remembered. */
	assert_int_equal(once(2, 0, "x", &size, &offline), 0);
	assert_int_equal(once(9, ETIMEDOUT, "x", &size, &offline), 0);
	assert_int_equal(size, 2);
	/* Answers are believed, and other places of that name are other places. */
	assert_int_equal(once(9, EACCES, "x", &size, &offline), -EACCES);
	assert_int_equal(once(9, ENOENT, "x", &size, &offline), -ENOENT);
	assert_int_equal(once(9, ETIMEDOUT, "y", &size, &offline), -ETIMEDOUT);
}

static void test_recovers(void **state)
{
	struct place *p = place_new(3, EIO);
	struct store *s;
	struct listing l = {0};
	struct buf text = {0};
	uint64_t size;
	bool offline;

	assert_int_equal(once(2, 0, "x", &size, &offline), 0);
	assert_int_equal(remember_new(&p->base, dir, "x", &s, NULL), 0);
	assert_int_equal(store_list(s, "", &l, NULL), 0);
	assert_int_equal(l.v[0].size, 2);
	listing_release(&l);
	/* Only the first listing may be a memory. */
	assert_int_equal(store_list(s, "", &l, NULL), -EIO);
	assert_true(store_describe(s, &text));
	p->err = 0;
	assert_int_equal(store_list(s, "", &l, NULL), 0);
	assert_int_equal(l.v[0].size, 3);
	listing_release(&l);
	assert_false(store_describe(s, &text));
	buf_release(&text);
	store_free(s);
}

static void file_path(char *out, size_t cap)
{
	DIR *d = opendir(dir);
	struct dirent *e;

	out[0] = '\0';
	assert_non_null(d);
	while ((e = readdir(d)) != NULL)
		if (e->d_name[0] != '.')
			snprintf(out, cap, "%s/%s", dir, e->d_name);
	closedir(d);
}

static void test_damaged(void **state)
{
	char path[600], *bytes;
	uint64_t size;
	bool offline;
	size_t len;

	assert_int_equal(once(2, 0, "x", &size, &offline), 0);
	file_path(path, sizeof(path));
	assert_int_equal(file_slurp(AT_FDCWD, path, 1 << 20, &bytes, &len), 0);
	for (size_t i = 0; i < len; i++) {
		bytes[i] ^= 4;
		assert_int_equal(file_replace(path, bytes, len), 0);
		assert_int_equal(once(9, EIO, "x", &size, &offline), -EIO);
		bytes[i] ^= 4;
	}
	for (size_t cut = 0; cut < len; cut++) {
		assert_int_equal(file_replace(path, bytes, cut), 0);
		assert_int_equal(once(9, EIO, "x", &size, &offline), -EIO);
	}
	assert_int_equal(file_replace(path, bytes, len), 0);
	assert_int_equal(once(9, EIO, "x", &size, &offline), 0);
	free(bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_once),
		cmocka_unit_test(test_recovers),
		cmocka_unit_test(test_damaged),
	};
	char path[600];
	int rc;

	if (mkdtemp(dir) == NULL)
		return 1;
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	for (file_path(path, sizeof(path)); path[0] != '\0'; file_path(path, sizeof(path)))
		unlink(path);
	rmdir(dir);
	return rc;
}
