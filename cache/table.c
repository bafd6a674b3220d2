/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hash table.
 *
 * A thin coat over uthash, whose macros stay in this file: an entry is one allocation that holds
 * the link, the key (a number, or a copy of the string behind the struct) and the borrowed value.
 * When uthash cannot grow its own arrays it takes the new entry out again and tells us by the
 * flag `failed`; the table is then as before.
 *
 * Not locked, not ordered, and not a place where values are owned.
 */
#include "cache/table.h"

#include <assert.h>
#include <stdlib.h>

#define HASH_NONFATAL_OOM	 1
#define uthash_nonfatal_oom(elt) ((elt)->failed = true)
#include <uthash.h>

struct entry {
	UT_hash_handle hh;
	void *value;
	uint64_t key; /* tables with number keys */
	bool failed;
	char str[]; /* tables with string keys: the key and a NUL */
};

struct table {
	struct entry *head;
};

struct table *table_new(void)
{
	return calloc(1, sizeof(struct table));
}

void table_free(struct table *t)
{
	struct entry *e, *next;

	if (t == NULL)
		return;
	HASH_ITER(hh, t->head, e, next)
	{
		HASH_DEL(t->head, e);
		free(e);
	}
	free(t);
}

size_t table_count(const struct table *t)
{
	return HASH_COUNT(t->head);
}

static struct entry *find(const struct table *t, uint64_t key)
{
	struct entry *e;

	HASH_FIND(hh, t->head, &key, sizeof(key), e);
	return e;
}

static struct entry *find_str(const struct table *t, const char *key)
{
	struct entry *e;

	HASH_FIND_STR(t->head, key, e);
	return e;
}

static void *take_out(struct table *t, struct entry *e)
{
	void *value;

	if (e == NULL)
		return NULL;
	value = e->value;
	HASH_DEL(t->head, e);
	free(e);
	return value;
}

int table_put(struct table *t, uint64_t key, void *value)
{
	struct entry *e = find(t, key);

	assert(value != NULL);
	if (e != NULL) {
		e->value = value;
		return 0;
	}
	e = calloc(1, sizeof(*e));
	if (e == NULL)
		return -ENOMEM;
	e->key = key;
	e->value = value;
	HASH_ADD(hh, t->head, key, sizeof(e->key), e);
	if (e->failed) {
		free(e);
		return -ENOMEM;
	}
	return 0;
}

void *table_get(const struct table *t, uint64_t key)
{
	struct entry *e = find(t, key);

	return e != NULL ? e->value : NULL;
}

void *table_remove(struct table *t, uint64_t key)
{
	return take_out(t, find(t, key));
}

int table_put_str(struct table *t, const char *key, void *value)
{
	struct entry *e = find_str(t, key);
	size_t len = strlen(key);

	assert(value != NULL);
	if (e != NULL) {
		e->value = value;
		return 0;
	}
	e = calloc(1, sizeof(*e) + len + 1);
	if (e == NULL)
		return -ENOMEM;
	memcpy(e->str, key, len + 1);
	e->value = value;
	HASH_ADD_KEYPTR(hh, t->head, e->str, len, e);
	if (e->failed) {
		free(e);
		return -ENOMEM;
	}
	return 0;
}

void *table_get_str(const struct table *t, const char *key)
{
	struct entry *e = find_str(t, key);

	return e != NULL ? e->value : NULL;
}

void *table_remove_str(struct table *t, const char *key)
{
	return take_out(t, find_str(t, key));
}

void table_each(const struct table *t, void (*fn)(void *value, void *ctx), void *ctx)
{
	for (struct entry *e = t->head; e != NULL; e = e->hh.next)
		fn(e->value, ctx);
}
