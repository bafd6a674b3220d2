/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Companion files: everything beside the weights that a loader wants (configuration, tokenizer),
 * from --base or else from the run's own prefix.
 *
 * Weights in any format are left out: stale ones beside current ones would be a trap, since an
 * engine may prefer them.  So is a trainer's state (optimizer.pt and the like), which is large and
 * nobody's who loads a model; all of it can be read below .weightfs/bucket.  Adapters are no
 * weights of the model, and are shown.  A companion's node is the same in all generations as long
 * as its object is, so its inode and cached pages are, too.
 *
 * One that is being written where it lies, or cannot be opened at the moment, is shown as it was
 * before, or not yet: every round asks again, so the signature is made of what is shown, not of
 * what is listed.
 */
#include "fs/companions.h"
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

bool companions_weights(const char *key)
{
	static const char *const weights[] = {
		".safetensors", ".bin",	    ".pt",   ".pth",	".ckpt",	  ".h5",
		".gguf",	".msgpack", ".onnx", ".distcp", ".bin.index.json"};

	for (size_t i = 0; i < ARRAY_LEN(weights); i++)
		if (has_suffix(key, weights[i]))
			return true;
	return false;
}

static const struct listing *listing_of(const struct run *r)
{
	return r->base != NULL ? &r->base->listing : &r->current->listing;
}

/* ---- adapters ---- */

static const char adapter_config[] = "adapter_config.json";

void companions_listed(struct run *r)
{
	const struct listing *l = listing_of(r);

	r->adapters = false;
	for (size_t i = 0; i < l->count && !r->adapters; i++) {
		const char *slash = strrchr(l->v[i].key, '/');

		r->adapters = strcmp(slash != NULL ? slash + 1 : l->v[i].key, adapter_config) == 0;
	}
}

static bool is_there(const struct listing *l, const char *dir, size_t len, const char *name)
{
	char *key;
	bool there;

	if (asprintf(&key, "%.*s%s", (int)len, dir, name) < 0)
		return false; /* out of memory: it is not shown */
	there = listing_find(l, key) != NULL;
	free(key);
	return there;
}

/* Does the key lie in the directory of an adapter (of LoRA, say), or below it?  *out_len: the
 * length of that directory's key, slash included; the innermost one. */
static bool in_adapter(const struct run *r, const char *key, size_t *out_len)
{
	const struct listing *l = listing_of(r);
	size_t len = r->adapters ? strlen(key) : 0;

	while (len > 0) {
		while (len > 0 && key[len - 1] != '/')
			len--;
		if (is_there(l, key, len, adapter_config)) {
			*out_len = len;
			return true;
		}
		len -= len > 0;
	}
	return false;
}

/* A file of an adapter's directory, which is shown as it is; where the model lies in the same one,
 * only the adapter's own weights. */
static bool is_adapters(const struct run *r, const char *key, const char *shown)
{
	size_t len;

	if (!in_adapter(r, key, &len))
		return false;
	return key + len != shown || strcmp(shown, "adapter_model.safetensors") == 0 ||
	       strcmp(shown, "adapter_model.bin") == 0;
}

/* Does it lie in a directory that is called as a version's and holds nothing but an adapter? */
static bool is_lone_adapter(const struct run *r, const char *key)
{
	const struct listing *l = listing_of(r);
	size_t len, above;
	char *parent;
	bool lone;

	if (!in_adapter(r, key, &len) || len == 0 || is_there(l, key, len, "model.safetensors") ||
	    is_there(l, key, len, LAYOUT_INDEX_NAME))
		return false;
	for (above = len - 1; above > 0 && key[above - 1] != '/';)
		above--;
	parent = strndup(key, above);
	lone = parent != NULL && !directories_own(&r->directories, parent);
	free(parent);
	return lone;
}

/* ---- what is shown ---- */

/* Of an object, by the name that it would be shown by. */
static bool is_companion(const struct run *r, const struct object *o, const char *key)
{
	const char *name = strrchr(key, '/');

	name = name != NULL ? name + 1 : key;
	if (r->base == NULL && lineage_owns(key))
		return false;
	/* What a publisher lists for plain web servers. */
	if (r->base == NULL && r->lineage.manifest != NULL && strcmp(key, "index.json") == 0)
		return false;
	if (companions_weights(name))
		return is_adapters(r, o->key, key);
	/* The base's index goes with the base's files.  Where we make the files we make the index,
	 * and without --base there is one file. */
	if (strcmp(name, LAYOUT_INDEX_NAME) == 0)
		return name == key && r->base != NULL && r->config.shard_size == 0;
	return true;
}

/* The directory of a state's version, or where it has none of its own that of its anchor; NULL: the
 * run has no such directories, or it is not known. */
static const char *directory_of(const struct run *r, const struct state *state, size_t *out_len)
{
	const struct step *s;

	if (r->base != NULL || !r->lineage.directories || state == NULL)
		return NULL;
	s = lineage_find(&r->lineage, state->version);
	if (s == NULL || !s->anchor.present)
		s = lineage_find(&r->lineage, state->anchor);
	if (s == NULL || s->anchor.count == 0)
		return NULL;
	*out_len =
		(size_t)(strrchr(s->anchor.v[0].object->key, '/') - s->anchor.v[0].object->key) + 1;
	return s->anchor.v[0].object->key;
}

bool companions_known(const struct run *r, const struct state *state)
{
	size_t len;

	return r->base != NULL || !r->lineage.directories || state == NULL ||
	       directory_of(r, state, &len) != NULL;
}

/* Does it say of its directory what that is?  Of what is shown it would not be true: a version made
 * of deltas has the companions of its checkpoint, and shows as a checkpoint. */
static bool is_index(const struct run *r, const char *name)
{
	const struct scheme *s = r->directories.scheme;

	for (size_t i = 0; s != NULL && s->indexes != NULL && s->indexes[i] != NULL; i++)
		if (strcmp(name, s->indexes[i]) == 0)
			return true;
	return false;
}

/* The two passes over a listing: what is in the version's directory, then what lies beside all of
 * them.  The name it is shown by, or NULL when this is not its pass. */
enum pass { PASS_OWN, PASS_BESIDE, PASSES };

static const char *shown_name(const struct run *r, const struct state *state, enum pass pass,
			      const char *key)
{
	size_t len = 0;
	const char *dir = directory_of(r, state, &len);

	if (pass == PASS_BESIDE)
		return r->base == NULL && r->lineage.directories &&
				       directories_own(&r->directories, key) &&
				       !is_lone_adapter(r, key)
			       ? NULL
			       : key;
	if (dir == NULL || strncmp(key, dir, len) != 0 || is_index(r, key + len))
		return NULL;
	return key + len;
}

static void companion_free(struct companion *c)
{
	if (c == NULL)
		return;
	node_unref(c->node);
	free(c->slot);
	free(c);
}

/* Opens a companion unless somebody is writing it: -EAGAIN. */
static int companion_open(struct run *r, const struct object *o, struct blob **out)
{
	struct store *store = r->base != NULL ? r->config.base : r->config.store;
	struct blob *blob = NULL;
	int err = blob_open(store, o, false, &blob, NULL);

	if (err == 0 && blob->handle != NULL)
		err = store_settled(blob->handle);
	blob_unref(blob);
	return err < 0 ? err : blob_open(store, o, true, out, NULL);
}

static int companion_new(struct run *r, const struct object *o, const char *slot,
			 struct companion **out)
{
	struct companion *c = calloc(1, sizeof(*c));
	struct blob *blob = NULL;
	int err = companion_open(r, o, &blob);

	if (err == 0 && c != NULL) {
		c->slot = strdup(slot);
		c->node = node_blob(r->config.nodes, blob, o->mtime_ns);
	}
	blob_unref(blob);
	if (err == 0 && (c == NULL || c->slot == NULL || c->node == NULL))
		err = -ENOMEM;
	if (err == 0)
		err = table_put_str(r->companions, c->slot, c);
	if (err < 0)
		companion_free(c);
	else
		*out = c;
	return err;
}

/* The node for a companion as it is listed; borrowed. */
static int companion_node(struct run *r, const struct object *o, struct node **out)
{
	struct companion *c;
	char *slot = NULL, hex[33];
	int err = 0;

	if (o->err != 0)
		return -o->err;
	identity_hex(&o->id, hex);
	if (asprintf(&slot, "%s %s", hex, o->key) < 0)
		return -ENOMEM;
	c = table_get_str(r->companions, slot);
	if (c == NULL)
		err = companion_new(r, o, slot, &c);
	free(slot);
	if (err == 0)
		*out = c->node;
	return err;
}

/* What is shown of it, borrowed: as listed, or as it was.  NULL: nothing; *out_err says why. */
static struct node *shown_node(struct run *r, const struct object *o, const char *name,
			       int *out_err)
{
	struct node *node = NULL;

	*out_err = companion_node(r, o, &node);
	if (*out_err == -EAGAIN)
		r->unsettled = true;
	r->waited |= *out_err < 0 && o->err == 0;
	if (*out_err < 0 && o->err == 0 && r->newest != NULL) {
		node = node_walk(r->newest->root, name);
		if (node != NULL && node->kind != NODE_BLOB)
			node = NULL;
	}
	return node;
}

static uint64_t sign(uint64_t sig, const char *key, const struct node *node)
{
	sig = XXH3_64bits_withSeed(key, strlen(key), sig);
	return XXH3_64bits_withSeed(&node->ino, sizeof(node->ino), sig);
}

uint64_t companions_signature(struct run *r, const struct state *state)
{
	const struct listing *l = listing_of(r);
	uint64_t sig = 0;

	for (enum pass pass = 0; pass < PASSES; pass++)
		for (size_t i = 0; i < l->count; i++) {
			const struct object *o = &l->v[i];
			const char *name = shown_name(r, state, pass, o->key);
			const struct node *node;
			int err;

			if (name == NULL || !is_companion(r, o, name))
				continue;
			node = shown_node(r, o, name, &err);
			if (node != NULL)
				sig = sign(sig, name, node);
		}
	return sig;
}

static int put_one(struct run *r, struct node *root, enum pass pass, const struct object *o,
		   const char *name, uint64_t *out_sig)
{
	struct node *node;
	int err;

	node = shown_node(r, o, name, &err);
	if (node == NULL) {
		run_note(r,
			 err == -EAGAIN ? "companion file %.200s is still being written"
					: "companion file %.200s cannot be read and is left out",
			 o->key);
		return 0;
	}
	*out_sig = sign(*out_sig, name, node);
	err = node_put(root, name, node);
	/* What a version has of its own goes before what lies beside all of them. */
	if (err == -EEXIST && pass == PASS_BESIDE && r->lineage.directories)
		return 0;
	if (err == -EEXIST)
		run_note(r, "companion file %.200s is hidden by a weight file of that name",
			 o->key);
	return err == -EEXIST ? 0 : err;
}

int companions_put(struct run *r, const struct state *state, struct node *root, uint64_t *out_sig)
{
	const struct listing *l = listing_of(r);

	*out_sig = 0;
	for (enum pass pass = 0; pass < PASSES; pass++)
		for (size_t i = 0; i < l->count; i++) {
			const struct object *o = &l->v[i];
			const char *name = shown_name(r, state, pass, o->key);
			int err = 0;

			if (name != NULL && is_companion(r, o, name))
				err = put_one(r, root, pass, o, name, out_sig);
			if (err < 0)
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
