/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes and their registry.
 *
 * A node is immutable from the moment its tree is sealed; only the reference count and the count of
 * open handles (in its state) move.  The registry maps numbers to nodes and owns no reference: a
 * node takes itself out when its last reference goes.  Between the count reaching 0 and the removal
 * the registry still has the pointer, so nodes_get() takes a reference only on a count that is not
 * 0.
 *
 * Directories own references on their children, trees are as deep as the store's keys (32 levels),
 * so recursion is bounded.  Entries are kept in strcmp order while a tree grows: keys come sorted,
 * which makes nearly every insertion an append.
 *
 * Locks: `lock` (LOCK_INODE) guards the table and nothing else; nothing is freed while it is held.
 * Numbers come from an atomic counter and are never used twice.
 */
#include "fs/node.h"

#include <assert.h>
#include <stdlib.h>

#include "cache/fileio.h"
#include "fs/node_internal.h"

struct nodes *nodes_new_in(uint64_t run)
{
	struct nodes *n = calloc(1, sizeof(*n));

	if (!n)
		return NULL;
	n->table = table_new();
	if (!n->table) {
		free(n);
		return NULL;
	}
	lock_init(&n->lock, LOCK_INODE);
	n->next = run << NODE_RUN_SHIFT | NODE_FIRST;
	return n;
}

struct nodes *nodes_new(void)
{
	return nodes_new_in(0);
}

void nodes_free(struct nodes *n)
{
	if (!n)
		return;
	assert(table_count(n->table) == 0);
	table_free(n->table);
	lock_destroy(&n->lock);
	free(n);
}

uint64_t nodes_number(struct nodes *n)
{
	return __atomic_fetch_add(&n->next, 1, __ATOMIC_RELAXED);
}

/* Takes a reference unless the last one is already gone. */
static bool ref_unless_dead(struct node *n)
{
	int refs = __atomic_load_n(&n->refs, __ATOMIC_RELAXED);

	while (refs > 0) {
		if (__atomic_compare_exchange_n(&n->refs, &refs, refs + 1, true, __ATOMIC_ACQUIRE,
						__ATOMIC_RELAXED))
			return true;
	}
	return false;
}

struct node *nodes_get(struct nodes *n, uint64_t ino)
{
	struct node *node;

	lock_take(&n->lock);
	node = table_get(n->table, ino);
	if (node && !ref_unless_dead(node))
		node = NULL;
	lock_release(&n->lock);
	return node;
}

static struct node *node_new(struct nodes *nodes, enum node_kind kind, int64_t mtime_ns)
{
	struct node *n = calloc(1, sizeof(*n));
	int ret;

	if (!n)
		return NULL;
	n->ino = nodes_number(nodes);
	n->kind = kind;
	n->refs = 1;
	n->nodes = nodes;
	n->mtime_ns = mtime_ns;
	lock_take(&nodes->lock);
	ret = table_put(nodes->table, n->ino, n);
	lock_release(&nodes->lock);
	if (ret < 0) {
		free(n);
		return NULL;
	}
	return n;
}

struct node *node_weights(struct nodes *nodes, struct state *state, uint32_t file, int64_t mtime_ns)
{
	struct node *n = node_new(nodes, NODE_WEIGHTS, mtime_ns);

	if (!n)
		return NULL;
	n->state = state_ref(state);
	n->file = file;
	n->size = state->layout->files[file].size;
	return n;
}

struct node *node_blob(struct nodes *nodes, struct blob *blob, int64_t mtime_ns)
{
	struct node *n = node_new(nodes, NODE_BLOB, mtime_ns);

	if (!n)
		return NULL;
	n->blob = blob_ref(blob);
	n->size = blob->size;
	return n;
}

struct node *node_bytes(struct nodes *nodes, char *bytes, size_t size, int64_t mtime_ns)
{
	struct node *n = node_new(nodes, NODE_BYTES, mtime_ns);

	if (!n) {
		free(bytes);
		return NULL;
	}
	n->bytes = bytes;
	n->size = size;
	return n;
}

struct node *node_dir(struct nodes *nodes, struct state *state, int64_t mtime_ns)
{
	struct node *n = node_new(nodes, NODE_DIR, mtime_ns);

	if (n && state)
		n->state = state_ref(state);
	return n;
}

/* Index of the first entry whose name is not before the len bytes of `name`; *out_found when equal.
 */
static size_t entry_position(const struct node *dir, const char *name, size_t len, bool *out_found)
{
	size_t lo = 0, hi = dir->entry_count;

	*out_found = false;
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		const char *at = dir->entries[mid].name;
		int order = strncmp(at, name, len);

		if (order == 0 && at[len])
			order = 1;
		if (order == 0) {
			*out_found = true;
			return mid;
		}
		if (order < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Inserts a child, taking over the reference; on failure the reference stays the caller's. */
static int entry_insert(struct node *dir, size_t at, const char *name, size_t len,
			struct node *child)
{
	size_t count = dir->entry_count;
	char *copy;

	/* Capacities are the powers of two, so the count says when the array is full. */
	if (count == 0 || (count >= 8 && (count & (count - 1)) == 0)) {
		size_t cap = count ? count * 2 : 8;
		struct node_entry *v = realloc(dir->entries, cap * sizeof(*v));

		if (!v)
			return -ENOMEM;
		dir->entries = v;
	}
	copy = strndup(name, len);
	if (!copy)
		return -ENOMEM;
	memmove(dir->entries + at + 1, dir->entries + at, (count - at) * sizeof(*dir->entries));
	dir->entries[at].name = copy;
	dir->entries[at].node = child;
	dir->entry_count = count + 1;
	return 0;
}

int node_put(struct node *root, const char *path, struct node *file)
{
	struct node *dir = root;
	const char *slash;

	if (!path_is_safe(path))
		return -EINVAL;
	for (;; path = slash + 1) {
		bool found;
		size_t len, at;
		struct node *child;
		int ret;

		slash = strchr(path, '/');
		len = slash ? (size_t)(slash - path) : strlen(path);
		at = entry_position(dir, path, len, &found);
		if (found) {
			child = dir->entries[at].node;
			if (!slash || child->kind != NODE_DIR)
				return -EEXIST;
			dir = child;
			continue;
		}
		child = slash ? node_dir(root->nodes, root->state, root->mtime_ns) : node_ref(file);
		if (!child)
			return -ENOMEM;
		ret = entry_insert(dir, at, path, len, child);
		if (ret < 0) {
			node_unref(child);
			return ret;
		}
		if (!slash)
			return 0;
		dir = child;
	}
}

void node_seal(struct node *root)
{
	struct node_entry *fit;

	if (root->kind != NODE_DIR || !root->entry_count)
		return;
	for (size_t i = 0; i < root->entry_count; i++) {
		assert(!i || strcmp(root->entries[i - 1].name, root->entries[i].name) < 0);
		node_seal(root->entries[i].node);
	}
	/* Trees live for hours: give back what the doubling left over. */
	fit = realloc(root->entries, root->entry_count * sizeof(*fit));
	if (fit)
		root->entries = fit;
}

struct node *node_ref(struct node *n)
{
	__atomic_fetch_add(&n->refs, 1, __ATOMIC_RELAXED);
	return n;
}

void node_unref(struct node *n)
{
	if (!n || __atomic_fetch_sub(&n->refs, 1, __ATOMIC_ACQ_REL) > 1)
		return;
	lock_take(&n->nodes->lock);
	table_remove(n->nodes->table, n->ino);
	for (unsigned i = 0; i < n->other_count; i++)
		table_remove(n->nodes->table, n->others[i]);
	lock_release(&n->nodes->lock);
	whole_unref(n->whole);
	free(n->others);
	for (size_t i = 0; i < n->entry_count; i++) {
		free(n->entries[i].name);
		node_unref(n->entries[i].node);
	}
	free(n->entries);
	state_unref(n->state);
	blob_unref(n->blob);
	free(n->bytes);
	free(n);
}

static struct node *child_of(const struct node *dir, const char *name, size_t len)
{
	bool found;
	size_t at;

	if (dir->kind != NODE_DIR)
		return NULL;
	at = entry_position(dir, name, len, &found);
	return found ? dir->entries[at].node : NULL;
}

struct node *node_child(const struct node *dir, const char *name)
{
	return child_of(dir, name, strlen(name));
}

struct node *node_walk(struct node *dir, const char *path)
{
	while (dir && *path) {
		const char *slash = strchrnul(path, '/');

		dir = child_of(dir, path, (size_t)(slash - path));
		path = *slash ? slash + 1 : slash;
	}
	return dir;
}

int node_read(struct node *n, uint64_t off, void *dst, size_t len)
{
	uint64_t end;

	switch (n->kind) {
	case NODE_WEIGHTS: return state_read(n->state, n->file, off, dst, len);
	case NODE_BLOB: return blob_read(n->blob, off, dst, len);
	case NODE_BYTES:
		if (add_overflows(off, len, &end) || end > n->size)
			return -EBADMSG;
		if (len)
			memcpy(dst, n->bytes + off, len);
		return 0;
	case NODE_DIR: break;
	}
	return -EISDIR;
}

int node_lend(struct node *n, uint64_t off, size_t len, struct blob_loan *out)
{
	switch (n->kind) {
	case NODE_WEIGHTS: return state_lend(n->state, n->file, off, len, out);
	case NODE_BLOB: return blob_lend(n->blob, off, len, out);
	case NODE_BYTES:
	case NODE_DIR: break;
	}
	return -EAGAIN;
}

void node_opened(struct node *n)
{
	if (n->state)
		__atomic_fetch_add(&n->state->opens, 1, __ATOMIC_RELAXED);
}

void node_closed(struct node *n)
{
	if (n->state)
		__atomic_fetch_sub(&n->state->opens, 1, __ATOMIC_RELAXED);
}
