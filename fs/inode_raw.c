/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inodes of the raw view: the objects of the source as they are listed, as files in a tree.
 *
 * Directories are what the keys' slashes make of them: a directory is there as long as a key begins
 * with it.  A listing is sorted by key, so the objects of a directory lie side by side in it.
 *
 * Threads: any; what is looked at is an immutable listing, held by a reference.
 */
#include "fs/inode_private.h"

#include <stdlib.h>

#include "cache/fileio.h"

int inode_of_place(const struct place *p, struct inode *out)
{
	if (!p)
		return -ENOMEM;
	*out = (struct inode){.ino = p->ino, .kind = p->kind, .place = p};
	return 0;
}

/* "a/b" below a place, or just the name below its root; NULL: out of memory. */
char *path_below(const struct place *dir, const char *name)
{
	return *dir->path ? path_join(dir->path, name) : strdup(name);
}

int place_below(struct inodes *t, const struct place *dir, const char *name, enum inode_kind kind,
		const struct object *object, struct inode *out)
{
	char *path = path_below(dir, name);
	int ret = -ENOMEM;

	if (path)
		ret = inode_of_place(places_get(t->places, kind, path, object, 0), out);
	free(path);
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

bool listing_has_dir(const struct listing *l, const char *path)
{
	size_t len = strlen(path), at;
	char *prefix = path_join(path, "");

	if (!prefix)
		return false;
	at = listing_bound(l, prefix);
	free(prefix);
	return at < l->count && strncmp(l->v[at].key, path, len) == 0 && l->v[at].key[len] == '/';
}

int raw_child(struct inodes *t, const struct place *dir, const char *name, struct inode *out)
{
	struct listing_ref *l = inodes_listing(t);
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

int raw_each(struct inodes *t, const struct place *dir, inode_each_fn fn, void *ctx)
{
	struct listing_ref *l = inodes_listing(t);
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
