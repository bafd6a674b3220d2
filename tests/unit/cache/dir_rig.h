/* SPDX-License-Identifier: Apache-2.0 */
/* Short ways to use a directory store in a test; every step must succeed. */
#ifndef TESTS_UNIT_CACHE_DIR_RIG_H
#define TESTS_UNIT_CACHE_DIR_RIG_H

#include "tests/unit/cache/scratch.h"

#include "cache/store.h"

static inline struct store *open_store(const char *name, bool follow)
{
	struct store *s = NULL;
	struct why why = {0};

	assert_int_equal(store_dir_new(at(name), follow, &s, &why), 0);
	return s;
}

static inline struct listing list(struct store *s, const char *prefix)
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
static inline void expect_list(struct store *s, const char *prefix, const char *expected)
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

static inline struct handle *open_key(struct store *s, const char *key)
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

static inline void expect_bytes(struct handle *h, const char *expected)
{
	char got[256];

	assert_int_equal(h->size, strlen(expected));
	assert_int_equal(store_read(h, 0, got, strlen(expected)), 0);
	assert_memory_equal(got, expected, strlen(expected));
}

static inline void make_dir(const char *name)
{
	assert_int_equal(mkdir(at(name), 0755), 0);
}

static inline void make_link(const char *target, const char *name)
{
	assert_int_equal(symlink(target, at(name)), 0);
}

#endif
