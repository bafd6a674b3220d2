/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inodes: numbers to things, names to things, attributes.
 *
 * Nothing is kept here: a number is a place, a fixed inode or a node of a generation, and what it
 * shows is looked up in the current generation, the history or the last listing each time.  All
 * three are immutable snapshots held by a reference for as long as an answer is being made.
 *
 * A directory of the view has no node of its own: processes may stand in it while versions pass.
 *
 * Threads: any; no lock is held here, none of the answers waits for anything.
 */
#include "fs/inode.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cache/clock.h"
#include "fs/inode_private.h"

enum { BLOCK_SIZE = 1 << 20 };

/* What lies in .weightfs, in the order of the listing. */
static const struct {
	const char *name;
	uint64_t ino;
	mode_t mode;
	bool top; /* also where there are several runs below */
} fixed[] = {
	{"version", INO_VERSION, S_IFREG | 0444, false},
	{"newest", INO_NEWEST, S_IFREG | 0444, false},
	{"status", INO_STATUS, S_IFREG | 0444, true},
	{"status.json", INO_STATUS_JSON, S_IFREG | 0444, true},
	{"metrics", INO_METRICS, S_IFREG | 0444, true},
	{"control", INO_CONTROL, S_IFREG | 0600, true},
	{"versions", INO_VERSIONS, S_IFDIR | 0555, false},
	{"bucket", INO_BUCKET, S_IFDIR | 0555, true},
	{"current", INO_CURRENT, S_IFLNK | 0777, false},
};

/* The kernel's number of what has that number within the run. */
static uint64_t number(const struct inodes *t, uint64_t within)
{
	return t->run << NODE_RUN_SHIFT | within;
}

struct inodes *inodes_new(struct stack *stack, uint64_t run)
{
	struct inodes *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->stack = stack;
	t->run = run;
	t->uid = geteuid();
	t->gid = getegid();
	t->places = places_new(stack->nodes);
	if (t->places && places_get(t->places, INODE_VIEW_DIR, "", NULL, number(t, INO_ROOT)) &&
	    places_get(t->places, INODE_BUCKET_DIR, "", NULL, number(t, INO_BUCKET)))
		return t;
	inodes_free(t);
	return NULL;
}

void inodes_free(struct inodes *t)
{
	if (!t)
		return;
	places_free(t->places);
	free(t);
}

struct inodes *inodes_ref(struct inodes *t)
{
	__atomic_fetch_add(&t->refs, 1, __ATOMIC_RELAXED);
	return t;
}

void inodes_unref(struct inodes *t)
{
	if (t)
		__atomic_fetch_sub(&t->refs, 1, __ATOMIC_RELEASE);
}

bool inodes_idle(const struct inodes *t)
{
	return __atomic_load_n(&t->refs, __ATOMIC_ACQUIRE) == 0;
}

struct stack *inodes_stack(const struct inodes *t)
{
	return t->stack;
}

void inodes_set_runs(struct inodes *t, const struct inodes_runs *runs)
{
	__atomic_store_n(&t->runs, runs, __ATOMIC_RELEASE);
}

const struct inodes_runs *inodes_runs(const struct inodes *t)
{
	const struct inodes_runs *r = __atomic_load_n(&t->runs, __ATOMIC_ACQUIRE);

	return r && r->several(r->ctx) ? r : NULL;
}

void inodes_set_gone(struct inodes *t)
{
	__atomic_store_n(&t->gone, true, __ATOMIC_RELEASE);
}

bool inodes_are_gone(const struct inodes *t)
{
	return __atomic_load_n(&t->gone, __ATOMIC_ACQUIRE);
}

bool inodes_are_several(const struct inodes *t)
{
	return inodes_runs(t) != NULL;
}

struct listing_ref *inodes_listing(struct inodes *t)
{
	const struct inodes_runs *r = inodes_runs(t);

	return r ? r->listing(r->ctx) : run_listing(t->stack->run);
}

struct store *inodes_store(struct inodes *t)
{
	const struct inodes_runs *r = inodes_runs(t);

	return r ? r->store(r->ctx) : run_store(t->stack->run);
}

/* Takes over the reference. */
static void inode_of_node(struct node *node, struct inode *out)
{
	*out = (struct inode){.ino = node_number(node), .kind = INODE_NODE, .node = node};
}

static void inode_of_fixed(uint64_t ino, struct inode *out)
{
	*out = (struct inode){.ino = ino, .kind = INODE_FIXED};
}

int inode_of_number(struct inodes *t, uint64_t ino, struct inode *out)
{
	struct node *node;
	const struct place *p = places_number(t->places, ino);

	if (p)
		return inode_of_place(p, out);
	if (node_within(ino) < INO_FIXED_END) {
		inode_of_fixed(ino, out);
		return 0;
	}
	node = nodes_get(t->stack->nodes, ino);
	if (!node)
		return -ESTALE;
	inode_of_node(node, out);
	out->ino = ino; /* a node may have two */
	return 0;
}

int inode_get(struct inodes *top, uint64_t ino, struct inode *out)
{
	const struct inodes_runs *r = inodes_runs(top);
	struct inodes *t = NULL;
	int ret;

	if (node_run(ino) == top->run)
		t = inodes_ref(top);
	else if (r)
		t = r->run(r->ctx, node_run(ino));
	ret = t ? inode_of_number(t, ino, out) : -ESTALE;

	if (ret == 0)
		out->of = t;
	else
		inodes_unref(t);
	return ret;
}

void inode_put(struct inode *inode)
{
	node_unref(inode->node);
	inode->node = NULL;
	inodes_unref(inode->of);
	inode->of = NULL;
}

int inode_view(const struct inode *dir, struct generation **out_g, struct node **out_node)
{
	struct generation *g = history_view(dir->of->stack->history, dir->viewer);
	struct node *node = g ? node_walk(g->root, dir->place->path) : NULL;

	if (!node || node->kind != NODE_DIR) {
		generation_unref(g);
		return -ENOENT;
	}
	*out_g = g;
	*out_node = node;
	return 0;
}

static int child_of_view(struct inodes *t, const struct inode *in, const char *name,
			 struct inode *out)
{
	const struct place *dir = in->place;
	struct generation *g;
	struct node *node;
	int ret;

	if (node_within(dir->ino) == INO_ROOT && strcmp(name, ".weightfs") == 0) {
		inode_of_fixed(number(t, INO_WEIGHTFS), out);
		return 0;
	}
	ret = inode_view(in, &g, &node);
	if (ret < 0)
		return ret;
	node = node_child(node, name);
	if (!node)
		ret = -ENOENT;
	else if (node->kind == NODE_DIR)
		ret = place_below(t, dir, name, INODE_VIEW_DIR, NULL, out);
	else
		inode_of_node(node_ref(node), out);
	generation_unref(g);
	return ret;
}

/* A decimal number as we write it ourselves: no sign, no leading zeros. */
static bool version_parse(const char *name, uint64_t *out)
{
	uint64_t v = 0;

	if (!*name || (*name == '0' && name[1]))
		return false;
	for (; *name; name++) {
		if (*name < '0' || *name > '9' || mul_overflows(v, 10, &v) ||
		    add_overflows(v, (uint64_t)(*name - '0'), &v))
			return false;
	}
	*out = v;
	return true;
}

/* The tree of a version with a reference, or NULL.  What has only companions is no version. */
static struct node *version_root(struct inodes *t, uint64_t version)
{
	struct generation *g = history_version(t->stack->history, version);
	struct node *root = g && g->state ? node_ref(g->root) : NULL;

	generation_unref(g);
	return root;
}

static bool no_current(struct inodes *t)
{
	struct generation *g = history_current(t->stack->history);
	bool none = !g || !g->state;

	generation_unref(g);
	return none;
}

static int child_of_fixed(struct inodes *t, uint64_t dir, const char *name, struct inode *out)
{
	uint64_t version;
	struct node *root;

	if (dir == INO_VERSIONS) {
		root = version_parse(name, &version) ? version_root(t, version) : NULL;
		if (!root)
			return -ENOENT;
		inode_of_node(root, out);
		return 0;
	}
	if (dir != INO_WEIGHTFS)
		return -ENOTDIR;
	for (size_t i = 0; i < ARRAY_LEN(fixed); i++) {
		if (strcmp(fixed[i].name, name) != 0)
			continue;
		if ((fixed[i].ino == INO_CURRENT && no_current(t)) ||
		    (!fixed[i].top && inodes_runs(t)))
			return -ENOENT;
		return inode_of_number(t, number(t, fixed[i].ino), out);
	}
	return -ENOENT;
}

static int child_of_node(const struct node *dir, const char *name, struct inode *out)
{
	struct node *node;

	if (dir->kind != NODE_DIR)
		return -ENOTDIR;
	node = node_child(dir, name);
	if (!node)
		return -ENOENT;
	inode_of_node(node_ref(node), out);
	return 0;
}

int inode_child(const struct inode *dir, const char *name, struct inode *out)
{
	struct inodes *t = dir->of;
	int ret = -ENOTDIR;

	switch (dir->kind) {
	case INODE_FIXED: ret = child_of_fixed(t, node_within(dir->ino), name, out); break;
	case INODE_VIEW_DIR:
		if (inodes_runs(t))
			ret = many_child(t, dir->place, name, out);
		else
			ret = child_of_view(t, dir, name, out);
		break;
	case INODE_BUCKET_DIR: ret = raw_child(t, dir->place, name, out); break;
	case INODE_BUCKET_FILE: break;
	case INODE_NODE: ret = child_of_node(dir->node, name, out); break;
	}
	if (ret == 0 && !out->of)
		out->of = inodes_ref(t);
	return ret;
}

static mode_t node_mode(const struct node *n)
{
	return n->kind == NODE_DIR ? S_IFDIR | 0555 : S_IFREG | 0444;
}

static int each_of_node(const struct node *dir, inode_each_fn fn, void *ctx)
{
	int ret = 0;

	for (size_t i = 0; i < dir->entry_count && ret == 0; i++) {
		const struct node *n = dir->entries[i].node;

		ret = fn(ctx, dir->entries[i].name, n->ino, node_mode(n));
	}
	return ret;
}

static int each_of_view(struct inodes *t, const struct inode *in, inode_each_fn fn, void *ctx)
{
	const struct place *dir = in->place;
	struct generation *g;
	struct node *node;
	int ret = inode_view(in, &g, &node);

	if (ret < 0)
		return node_within(dir->ino) == INO_ROOT ? 0 : ret;
	for (size_t i = 0; i < node->entry_count && ret == 0; i++) {
		const struct node_entry *e = &node->entries[i];
		uint64_t ino = e->node->ino;
		struct inode sub;

		if (e->node->kind == NODE_DIR) {
			ret = place_below(t, dir, e->name, INODE_VIEW_DIR, NULL, &sub);
			if (ret == 0)
				ino = sub.ino;
		}
		if (ret == 0)
			ret = fn(ctx, e->name, ino, node_mode(e->node));
	}
	generation_unref(g);
	return ret;
}

static int each_of_versions(struct inodes *t, inode_each_fn fn, void *ctx)
{
	struct history_entry *v;
	size_t count;
	char name[24];
	int ret = history_list(t->stack->history, &v, &count);

	if (ret < 0)
		return ret;
	for (size_t i = 0; i < count && ret == 0; i++) {
		struct node *root;

		/* Two generations of one number: the name means the newer. */
		if (i && v[i].version == v[i - 1].version)
			continue;
		root = version_root(t, v[i].version);
		if (!root)
			continue;
		snprintf(name, sizeof(name), "%llu", (unsigned long long)v[i].version);
		ret = fn(ctx, name, root->ino, S_IFDIR | 0555);
		node_unref(root);
	}
	free(v);
	return ret;
}

static int each_of_fixed(struct inodes *t, uint64_t dir, inode_each_fn fn, void *ctx)
{
	struct inode child;
	int ret = 0;

	if (dir == INO_VERSIONS)
		return each_of_versions(t, fn, ctx);
	if (dir != INO_WEIGHTFS)
		return -ENOTDIR;
	for (size_t i = 0; i < ARRAY_LEN(fixed) && ret == 0; i++)
		if (child_of_fixed(t, dir, fixed[i].name, &child) == 0)
			ret = fn(ctx, fixed[i].name, number(t, fixed[i].ino), fixed[i].mode);
	return ret;
}

int inode_each(const struct inode *dir, inode_each_fn fn, void *ctx)
{
	struct inodes *t = dir->of;

	switch (dir->kind) {
	case INODE_FIXED: return each_of_fixed(t, node_within(dir->ino), fn, ctx);
	case INODE_VIEW_DIR:
		return inodes_runs(t) ? many_each(t, dir->place, fn, ctx)
				      : each_of_view(t, dir, fn, ctx);
	case INODE_BUCKET_DIR: return raw_each(t, dir->place, fn, ctx);
	case INODE_BUCKET_FILE: return -ENOTDIR;
	case INODE_NODE: break;
	}
	return dir->node->kind == NODE_DIR ? each_of_node(dir->node, fn, ctx) : -ENOTDIR;
}

void inode_target(const struct inode *link, struct buf *out)
{
	struct generation *g = history_current(link->of->stack->history);

	if (g && g->state)
		buf_addf(out, "versions/%llu", (unsigned long long)g->version);
	generation_unref(g);
}

void inode_text(const struct inodes *t, uint64_t ino, struct buf *out)
{
	const struct inodes_runs *r = inodes_runs(t);

	if (r)
		r->text(r->ctx, node_within(ino), out);
	else
		special_text(t->stack, node_within(ino), out);
}

/* When the newest generation came; before there is one, when we started. */
static int64_t newest_mtime(struct inodes *t)
{
	struct generation *g = history_newest(t->stack->history);
	int64_t ns = g ? g->mtime_ns : t->stack->started_real_ns;

	generation_unref(g);
	return ns;
}

static void attr_of_fixed(const struct inode *inode, struct stat *st, int64_t *out_mtime)
{
	uint64_t ino = node_within(inode->ino);
	struct buf text = {0};

	st->st_mode = S_IFDIR | 0555;
	for (size_t i = 0; i < ARRAY_LEN(fixed); i++)
		if (fixed[i].ino == ino)
			st->st_mode = fixed[i].mode;
	if (ino == INO_CURRENT)
		inode_target(inode, &text);
	else if (S_ISREG(st->st_mode))
		inode_text(inode->of, ino, &text);
	st->st_size = (off_t)text.len;
	buf_release(&text);
	*out_mtime = newest_mtime(inode->of);
}

static int attr_of_view(const struct inode *dir, struct stat *st, int64_t *out_mtime)
{
	struct generation *g;
	struct node *node;
	int ret;

	st->st_mode = S_IFDIR | 0555;
	if (inodes_runs(dir->of))
		return many_attr(dir->of, dir->place);
	ret = inode_view(dir, &g, &node);
	if (ret == 0) {
		*out_mtime = g->mtime_ns;
		generation_unref(g);
	} else if (node_within(dir->ino) == INO_ROOT) {
		*out_mtime = dir->of->stack->started_real_ns;
		ret = 0;
	}
	return ret;
}

int inode_attr(const struct inode *inode, struct stat *out)
{
	struct inodes *t = inode->of;
	struct stat st = {.st_ino = inode->ino, .st_uid = t->uid, .st_gid = t->gid};
	int64_t mtime = t->stack->started_real_ns;
	int ret = 0;

	switch (inode->kind) {
	case INODE_FIXED: attr_of_fixed(inode, &st, &mtime); break;
	case INODE_VIEW_DIR: ret = attr_of_view(inode, &st, &mtime); break;
	case INODE_BUCKET_DIR: st.st_mode = S_IFDIR | 0555; break;
	case INODE_BUCKET_FILE:
		st.st_mode = S_IFREG | 0444;
		st.st_size = (off_t)inode->place->object.size;
		mtime = inode->place->object.mtime_ns;
		break;
	case INODE_NODE:
		st.st_ino = inode->node->ino;
		st.st_mode = node_mode(inode->node);
		st.st_size = (off_t)inode->node->size;
		mtime = inode->node->mtime_ns;
		break;
	}
	if (ret < 0)
		return ret;
	st.st_nlink = S_ISDIR(st.st_mode) ? 2 : 1;
	st.st_blksize = BLOCK_SIZE;
	st.st_blocks = (blkcnt_t)(((uint64_t)st.st_size + 511) / 512);
	st.st_mtim = st.st_ctim = st.st_atim = clock_timespec(mtime);
	*out = st;
	return 0;
}

bool inode_immutable(const struct inode *inode)
{
	return inode->kind == INODE_NODE || inode->kind == INODE_BUCKET_FILE;
}

bool inode_name_fixed(const struct inode *dir, const struct inode *child)
{
	/* While files may become whole ones, a name may mean another number. */
	return dir->kind == INODE_NODE && !(child->node && child->node->kind == NODE_WEIGHTS &&
					    node_may_be_whole(child->node));
}
