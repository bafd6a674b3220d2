/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inodes above the runs: where a source holds several, its directories down to the runs, and what
 * else lies in them.
 *
 * A directory that is a run leads to that run's own inodes.  One that is to become a run's, which
 * has not been looked at yet, is not there.  All others, and every object in them, are as the raw
 * view has them: the same places, hence the same numbers and pages.
 *
 * Threads: any; answers are made from the roster and the listing that goes with it.
 */
#include "fs/inode_private.h"

#include <stdlib.h>

/* The directory of a run: its root.  Takes over the reference. */
static int of_run(struct inodes *run, struct inode *out)
{
	int ret = inode_of_number(run, run->run << NODE_RUN_SHIFT | INO_ROOT, out);

	if (ret == 0)
		out->of = run;
	else
		inodes_unref(run);
	return ret;
}

/* A directory that the listing has. */
static int of_directory(struct inodes *t, const char *path, struct inode *out)
{
	const struct inodes_runs *r = inodes_runs(t);
	struct inodes *run = NULL;
	int ret = r->look(r->ctx, path, &run);

	if (ret < 0)
		return ret;
	if (ret > 0)
		return of_run(run, out);
	return inode_of_place(places_get(t->places, INODE_VIEW_DIR, path, NULL, 0), out);
}

int many_child(struct inodes *t, const struct place *dir, const char *name, struct inode *out)
{
	char *path;
	int ret;

	if (!*dir->path && strcmp(name, ".weightfs") == 0) {
		*out = (struct inode){.ino = t->run << NODE_RUN_SHIFT | INO_WEIGHTFS,
				      .kind = INODE_FIXED};
		return 0;
	}
	ret = raw_child(t, dir, name, out);
	if (ret < 0 || out->kind != INODE_BUCKET_DIR)
		return ret;
	path = path_below(dir, name);
	ret = path ? of_directory(t, path, out) : -ENOMEM;
	free(path);
	return ret;
}

struct each {
	struct inodes *t;
	const struct place *dir;
	inode_each_fn fn;
	void *ctx;
};

static int each_child(void *ctx, const char *name, uint64_t ino, mode_t type)
{
	const struct each *e = ctx;
	struct inode child = {0};
	char *path;
	int ret;

	if (!S_ISDIR(type))
		return e->fn(e->ctx, name, ino, type);
	path = path_below(e->dir, name);
	ret = path ? of_directory(e->t, path, &child) : -ENOMEM;
	free(path);
	if (ret == -ENOENT)
		return 0;
	if (ret == 0)
		ret = e->fn(e->ctx, name, child.ino, type);
	inode_put(&child);
	return ret;
}

int many_each(struct inodes *t, const struct place *dir, inode_each_fn fn, void *ctx)
{
	struct each e = {t, dir, fn, ctx};

	return raw_each(t, dir, each_child, &e);
}

int many_attr(struct inodes *t, const struct place *dir)
{
	struct listing_ref *l = *dir->path ? inodes_listing(t) : NULL;
	bool there = !*dir->path || (l && listing_has_dir(&l->listing, dir->path));

	listing_unref(l);
	return there ? 0 : -ENOENT;
}
