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
#include "cache/fileio.h"

enum { BLOCK_SIZE = 1 << 20 };

struct inodes {
	struct stack *stack;
	struct places *places;
	uid_t uid;
	gid_t gid;
};

/* What lies in .weightfs, in the order of the listing. */
static const struct {
	const char *name;
	uint64_t ino;
	mode_t mode;
} fixed[] = {
	{"version", INO_VERSION, S_IFREG | 0444},
	{"newest", INO_NEWEST, S_IFREG | 0444},
	{"status", INO_STATUS, S_IFREG | 0444},
	{"status.json", INO_STATUS_JSON, S_IFREG | 0444},
	{"metrics", INO_METRICS, S_IFREG | 0444},
	{"control", INO_CONTROL, S_IFREG | 0600},
	{"versions", INO_VERSIONS, S_IFDIR | 0555},
	{"bucket", INO_BUCKET, S_IFDIR | 0555},
	{"current", INO_CURRENT, S_IFLNK | 0777},
};

struct inodes *inodes_new(struct stack *stack)
{
	struct inodes *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->stack = stack;
	t->uid = geteuid();
	t->gid = getegid();
	t->places = places_new(stack->nodes);
	if (t->places && places_get(t->places, INODE_VIEW_DIR, "", NULL, INO_ROOT) &&
	    places_get(t->places, INODE_BUCKET_DIR, "", NULL, INO_BUCKET))
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

static int inode_of_place(const struct place *p, struct inode *out)
{
	if (!p)
		return -ENOMEM;
	*out = (struct inode){.ino = p->ino, .kind = p->kind, .place = p};
	return 0;
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

int inode_get(struct inodes *t, uint64_t ino, struct inode *out)
{
	struct node *node;
	const struct place *p = places_number(t->places, ino);

	if (p)
		return inode_of_place(p, out);
	if (ino < INO_FIXED_END) {
		inode_of_fixed(ino, out);
		return 0;
	}
	node = nodes_get(t->stack->nodes, ino);
	if (!node)
		return -ESTALE;
	inode_of_node(node, out);
	out->ino = ino; /* a node may have several */
	return 0;
}

void inode_put(struct inode *inode)
{
	node_unref(inode->node);
	inode->node = NULL;
}

int inode_view(struct inodes *t, const struct inode *dir, struct generation **out_g,
	       struct node **out_node)
{
	struct generation *g = history_view(t->stack->history, dir->viewer);
	struct node *node = g ? node_walk(g->root, dir->place->path) : NULL;

	if (!node || node->kind != NODE_DIR) {
		generation_unref(g);
		return -ENOENT;
	}
	*out_g = g;
	*out_node = node;
	return 0;
}

/* "a/b" below a place, or just the name below its root; NULL: out of memory. */
static char *path_below(const struct place *dir, const char *name)
{
	return *dir->path ? path_join(dir->path, name) : strdup(name);
}

static int place_below(struct inodes *t, const struct place *dir, const char *name,
		       enum inode_kind kind, const struct object *object, struct inode *out)
{
	char *path = path_below(dir, name);
	int ret = -ENOMEM;

	if (path)
		ret = inode_of_place(places_get(t->places, kind, path, object, 0), out);
	free(path);
	return ret;
}

static int child_of_view(struct inodes *t, const struct inode *in, const char *name,
			 struct inode *out)
{
	const struct place *dir = in->place;
	struct generation *g;
	struct node *node;
	int ret;

	if (dir->ino == INO_ROOT && strcmp(name, ".weightfs") == 0) {
		inode_of_fixed(INO_WEIGHTFS, out);
		return 0;
	}
	ret = inode_view(t, in, &g, &node);
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

/* Can this object be a file of the raw view?  (It may still not open: then the open says why.) */
static bool object_shown(const struct object *o)
{
	return !o->err || o->err == EACCES || o->err == ELOOP;
}

/* Index of the first object whose key is not before `key`. */
static size_t listing_bound(const struct listing *l, const char *key)
{
	size_t lo = 0, hi = l->count;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (strcmp(l->v[mid].key, key) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static bool listing_has_dir(const struct listing *l, const char *path)
{
	size_t len = strlen(path), at;
	char *prefix = path_join(path, "");

	if (!prefix)
		return false;
	at = listing_bound(l, prefix);
	free(prefix);
	return at < l->count && strncmp(l->v[at].key, path, len) == 0 && l->v[at].key[len] == '/';
}

static int child_of_bucket(struct inodes *t, const struct place *dir, const char *name,
			   struct inode *out)
{
	struct listing_ref *l = run_listing(t->stack->run);
	char *path = path_below(dir, name);
	const struct object *o;
	int ret = -ENOENT;

	if (!path)
		ret = -ENOMEM;
	else if (!l)
		ret = -ENOENT;
	else if ((o = listing_find(&l->listing, path)) && object_shown(o))
		ret = inode_of_place(places_get(t->places, INODE_BUCKET_FILE, path, o, 0), out);
	else if (listing_has_dir(&l->listing, path))
		ret = inode_of_place(places_get(t->places, INODE_BUCKET_DIR, path, NULL, 0), out);
	free(path);
	listing_unref(l);
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
		struct buf target = {0};
		bool absent;

		if (strcmp(fixed[i].name, name) != 0)
			continue;
		if (fixed[i].ino == INO_CURRENT) {
			inode_current_target(t, &target);
			absent = target.len == 0;
			buf_release(&target);
			if (absent)
				return -ENOENT;
		}
		return inode_get(t, fixed[i].ino, out);
	}
	return -ENOENT;
}

int inode_child(struct inodes *t, const struct inode *dir, const char *name, struct inode *out)
{
	struct node *node;

	switch (dir->kind) {
	case INODE_FIXED: return child_of_fixed(t, dir->ino, name, out);
	case INODE_VIEW_DIR: return child_of_view(t, dir, name, out);
	case INODE_BUCKET_DIR: return child_of_bucket(t, dir->place, name, out);
	case INODE_BUCKET_FILE: return -ENOTDIR;
	case INODE_NODE: break;
	}
	if (dir->node->kind != NODE_DIR)
		return -ENOTDIR;
	node = node_child(dir->node, name);
	if (!node)
		return -ENOENT;
	inode_of_node(node_ref(node), out);
	return 0;
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
	int ret = inode_view(t, in, &g, &node);

	if (ret < 0)
		return dir->ino == INO_ROOT ? 0 : ret;
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

/* One object of a bucket directory, or the subdirectory that it lies in; *out_next: where to go on.
 */
static int bucket_entry(struct inodes *t, const struct listing *l, const struct place *dir,
			size_t at, size_t skip, size_t *out_next, inode_each_fn fn, void *ctx)
{
	const struct object *o = &l->v[at];
	const char *rest = o->key + skip, *slash = strchr(rest, '/');
	struct inode child = {0};
	char *name, *after;
	int ret;

	*out_next = at + 1;
	if (!slash) {
		if (!object_shown(o))
			return 0;
		ret = inode_of_place(places_get(t->places, INODE_BUCKET_FILE, o->key, o, 0),
				     &child);
		return ret < 0 ? ret : fn(ctx, rest, child.ino, S_IFREG | 0444);
	}
	/* '0' is the byte after '/': all that lies in the subdirectory comes before it. */
	after = strndup(o->key, (size_t)(slash - o->key) + 1);
	name = strndup(rest, (size_t)(slash - rest));
	ret = -ENOMEM;
	if (after && name) {
		after[slash - o->key] = '0';
		*out_next = listing_bound(l, after);
		ret = place_below(t, dir, name, INODE_BUCKET_DIR, NULL, &child);
		if (ret == 0)
			ret = fn(ctx, name, child.ino, S_IFDIR | 0555);
	}
	free(after);
	free(name);
	return ret;
}

static int each_of_bucket(struct inodes *t, const struct place *dir, inode_each_fn fn, void *ctx)
{
	struct listing_ref *l = run_listing(t->stack->run);
	char *prefix = *dir->path ? path_join(dir->path, "") : strdup("");
	size_t len, at;
	int ret = prefix ? 0 : -ENOMEM;

	if (l && prefix) {
		len = strlen(prefix);
		at = listing_bound(&l->listing, prefix);
		while (ret == 0 && at < l->listing.count &&
		       strncmp(l->listing.v[at].key, prefix, len) == 0)
			ret = bucket_entry(t, &l->listing, dir, at, len, &at, fn, ctx);
	}
	free(prefix);
	listing_unref(l);
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
			ret = fn(ctx, fixed[i].name, fixed[i].ino, fixed[i].mode);
	return ret;
}

int inode_each(struct inodes *t, const struct inode *dir, inode_each_fn fn, void *ctx)
{
	switch (dir->kind) {
	case INODE_FIXED: return each_of_fixed(t, dir->ino, fn, ctx);
	case INODE_VIEW_DIR: return each_of_view(t, dir, fn, ctx);
	case INODE_BUCKET_DIR: return each_of_bucket(t, dir->place, fn, ctx);
	case INODE_BUCKET_FILE: return -ENOTDIR;
	case INODE_NODE: break;
	}
	return dir->node->kind == NODE_DIR ? each_of_node(dir->node, fn, ctx) : -ENOTDIR;
}

void inode_current_target(struct inodes *t, struct buf *out)
{
	struct generation *g = history_current(t->stack->history);

	if (g && g->state)
		buf_addf(out, "versions/%llu", (unsigned long long)g->version);
	generation_unref(g);
}

/* When the newest generation came; before there is one, when we started. */
static int64_t newest_mtime(struct inodes *t)
{
	struct generation *g = history_newest(t->stack->history);
	int64_t ns = g ? g->mtime_ns : t->stack->started_real_ns;

	generation_unref(g);
	return ns;
}

static int attr_of_fixed(struct inodes *t, uint64_t ino, struct stat *st, int64_t *out_mtime)
{
	struct buf text = {0};

	st->st_mode = S_IFDIR | 0555;
	for (size_t i = 0; i < ARRAY_LEN(fixed); i++)
		if (fixed[i].ino == ino)
			st->st_mode = fixed[i].mode;
	if (ino == INO_CURRENT)
		inode_current_target(t, &text);
	else if (S_ISREG(st->st_mode))
		special_text(t->stack, ino, &text);
	st->st_size = (off_t)text.len;
	buf_release(&text);
	*out_mtime = newest_mtime(t);
	return 0;
}

static int attr_of_view(struct inodes *t, const struct inode *dir, struct stat *st,
			int64_t *out_mtime)
{
	struct generation *g;
	struct node *node;
	int ret = inode_view(t, dir, &g, &node);

	st->st_mode = S_IFDIR | 0555;
	if (ret == 0) {
		*out_mtime = g->mtime_ns;
		generation_unref(g);
	} else if (dir->ino == INO_ROOT) {
		*out_mtime = t->stack->started_real_ns;
		ret = 0;
	}
	return ret;
}

int inode_attr(struct inodes *t, const struct inode *inode, struct stat *out)
{
	struct stat st = {.st_ino = inode->ino, .st_uid = t->uid, .st_gid = t->gid};
	int64_t mtime = t->stack->started_real_ns;
	int ret = 0;

	switch (inode->kind) {
	case INODE_FIXED: ret = attr_of_fixed(t, inode->ino, &st, &mtime); break;
	case INODE_VIEW_DIR: ret = attr_of_view(t, inode, &st, &mtime); break;
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
