/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Companion files: everything beside the weights that a loader wants (configuration, tokenizer),
 * from --base or else from the run's own prefix.
 *
 * Weights in any format are left out: stale ones beside current ones would be a trap, since an
 * engine may prefer them.  A companion's node is the same in all generations as long as its object
 * is, so its inode and cached pages are, too.
 */
#include "fs/run_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

struct companion {
	char *slot; /* 32 hex digits of the identity, a space, the key */
	struct node *node;
};

enum { SLOT_KEY = 33 };

static bool has_suffix(const char *s, const char *suffix)
{
	size_t a = strlen(s), b = strlen(suffix);

	return a >= b && strcmp(s + a - b, suffix) == 0;
}

static bool is_companion(const struct run *r, const char *key)
{
	static const char *const weights[] = {
		".safetensors", ".bin",	 ".pt",	     ".pth",  ".ckpt",
		".h5",		".gguf", ".msgpack", ".onnx", ".bin.index.json"};
	const char *name = strrchr(key, '/');

	name = name != NULL ? name + 1 : key;
	if (r->base == NULL && lineage_owns(key))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(weights); i++)
		if (has_suffix(name, weights[i]))
			return false;
	/* The base's index goes with the base's files.  Where we make the files we make the index,
	 * and without --base there is one file. */
	if (strcmp(name, LAYOUT_INDEX_NAME) == 0)
		return name == key && r->base != NULL && r->config.shard_size == 0;
	return true;
}

static const struct listing *listing_of(const struct run *r)
{
	return r->base != NULL ? &r->base->listing : &r->current->listing;
}

uint64_t companions_signature(const struct run *r)
{
	const struct listing *l = listing_of(r);
	uint64_t sig = 0;

	for (size_t i = 0; i < l->count; i++)
		if (l->v[i].err == 0 && is_companion(r, l->v[i].key)) {
			sig = XXH3_64bits_withSeed(l->v[i].key, strlen(l->v[i].key), sig);
			sig = XXH3_64bits_withSeed(l->v[i].id.bytes, sizeof(l->v[i].id.bytes), sig);
		}
	return sig;
}

static void companion_free(struct companion *c)
{
	if (c == NULL)
		return;
	node_unref(c->node);
	free(c->slot);
	free(c);
}

static struct companion *companion_new(struct run *r, const struct object *o, const char *slot)
{
	struct store *store = r->base != NULL ? r->config.base : r->config.store;
	struct companion *c = calloc(1, sizeof(*c));
	struct blob *blob = NULL;

	if (c == NULL)
		return NULL;
	c->slot = strdup(slot);
	if (c->slot != NULL && blob_open(store, o, true, &blob, NULL) == 0)
		c->node = node_blob(r->config.nodes, blob, o->mtime_ns);
	blob_unref(blob);
	if (c->node == NULL || table_put_str(r->companions, c->slot, c) < 0) {
		companion_free(c);
		return NULL;
	}
	return c;
}

/* Borrowed; NULL: cannot be opened. */
static struct node *companion_node(struct run *r, const struct object *o)
{
	struct companion *c;
	char *slot = NULL, hex[33];

	identity_hex(&o->id, hex);
	if (asprintf(&slot, "%s %s", hex, o->key) < 0)
		return NULL;
	c = table_get_str(r->companions, slot);
	if (c == NULL)
		c = companion_new(r, o, slot);
	free(slot);
	return c != NULL ? c->node : NULL;
}

int companions_put(struct run *r, struct node *root)
{
	const struct listing *l = listing_of(r);

	for (size_t i = 0; i < l->count; i++) {
		const struct object *o = &l->v[i];
		struct node *node;
		int err;

		if (!is_companion(r, o->key))
			continue;
		node = o->err == 0 ? companion_node(r, o) : NULL;
		if (node == NULL) {
			run_note(r, "companion file %.200s cannot be read and is left out", o->key);
			continue;
		}
		err = node_put(root, o->key, node);
		if (err == -EEXIST)
			run_note(r, "companion file %.200s is hidden by a weight file of that name",
				 o->key);
		else if (err < 0)
			return err;
	}
	return 0;
}

struct sweep {
	const struct listing *listing; /* NULL: nothing stays */
	struct companion **gone;
	size_t count;
};

static void collect(void *value, void *ctx)
{
	struct companion *c = value;
	struct sweep *s = ctx;
	const struct object *o =
		s->listing != NULL ? listing_find(s->listing, c->slot + SLOT_KEY) : NULL;
	char hex[33];

	if (o != NULL) {
		identity_hex(&o->id, hex);
		if (memcmp(hex, c->slot, SLOT_KEY - 1) == 0)
			return;
	}
	s->gone[s->count++] = c;
}

void companions_sweep(struct run *r, bool all)
{
	struct sweep s = {.listing = all ? NULL : listing_of(r)};

	s.gone = calloc(table_count(r->companions) + 1, sizeof(struct companion *));
	if (s.gone == NULL)
		return; /* next time */
	table_each(r->companions, collect, &s);
	for (size_t i = 0; i < s.count; i++) {
		table_remove_str(r->companions, s.gone[i]->slot);
		companion_free(s.gone[i]);
	}
	free(s.gone);
}
