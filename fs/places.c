/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places, in two tables: by number, and by what they are (kind, identity and path in one key).
 *
 * Nothing is ever removed: a number that was given out must keep its meaning for as long as a
 * kernel may ask.  That costs about 200 bytes per object of the bucket that somebody looked at.
 *
 * Locks: `lock` (LOCK_SHARD) guards the tables; a place itself never changes once it is in them.
 */
#include "fs/places.h"

#include <stdio.h>
#include <stdlib.h>

#include "cache/lock.h"
#include "cache/table.h"

struct places {
	struct nodes *nodes; /* borrowed */
	struct lock lock;
	struct table *by_number, *by_name; /* guarded by lock */
};

static void place_free(void *value, void *unused)
{
	struct place *p = value;

	free(p->path);
	free(p);
}

/* The name of a place in the table; NULL: out of memory. */
static char *place_key(enum inode_kind kind, const char *path, const struct object *object)
{
	char id[33] = "", *key;

	if (object)
		identity_hex(&object->id, id);
	return asprintf(&key, "%d%s/%s", (int)kind, id, path) < 0 ? NULL : key;
}

static struct place *place_new(enum inode_kind kind, const char *path, const struct object *object)
{
	struct place *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->kind = kind;
	p->path = strdup(path);
	if (!p->path) {
		free(p);
		return NULL;
	}
	if (object)
		p->object = *object;
	p->object.key = p->path;
	return p;
}

/* Puts a place into both tables; with the lock. */
static int place_insert(struct places *t, struct place *p, const char *key)
{
	int ret = table_put(t->by_number, p->ino, p);

	if (ret == 0) {
		ret = table_put_str(t->by_name, key, p);
		if (ret < 0)
			table_remove(t->by_number, p->ino);
	}
	return ret;
}

const struct place *places_get(struct places *t, enum inode_kind kind, const char *path,
			       const struct object *object, uint64_t number)
{
	char *key = place_key(kind, path, object);
	struct place *p, *fresh = NULL;

	if (!key)
		return NULL;
	lock_take(&t->lock);
	p = table_get_str(t->by_name, key);
	lock_release(&t->lock);
	if (p)
		goto out;
	fresh = place_new(kind, path, object);
	if (!fresh)
		goto out;
	fresh->ino = number ? number : nodes_number(t->nodes);
	lock_take(&t->lock);
	p = table_get_str(t->by_name, key);
	if (!p && place_insert(t, fresh, key) == 0) {
		p = fresh;
		fresh = NULL;
	}
	lock_release(&t->lock);
out:
	free(key);
	if (fresh)
		place_free(fresh, NULL);
	return p;
}

const struct place *places_number(struct places *t, uint64_t ino)
{
	const struct place *p;

	lock_take(&t->lock);
	p = table_get(t->by_number, ino);
	lock_release(&t->lock);
	return p;
}

struct places *places_new(struct nodes *nodes)
{
	struct places *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	lock_init(&t->lock, LOCK_SHARD);
	t->nodes = nodes;
	t->by_number = table_new();
	t->by_name = table_new();
	if (t->by_number && t->by_name)
		return t;
	places_free(t);
	return NULL;
}

void places_free(struct places *t)
{
	if (!t)
		return;
	if (t->by_number)
		table_each(t->by_number, place_free, NULL);
	table_free(t->by_number);
	table_free(t->by_name);
	lock_destroy(&t->lock);
	free(t);
}
