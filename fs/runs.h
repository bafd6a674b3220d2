/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs: which directories of a source hold a run.
 *
 * A directory is a run when one of these lies in it: weightfs.json; a .safetensors object in its
 * anchors/, deltas/ or steps/; a version of another scheme (fs/directories.h) with what it is taken
 * in by.  What lies in a run belongs to it, so a run is never in another one.  Runs are looked for
 * RUNS_DEPTH levels deep.  Pure: no I/O.
 */
#ifndef FS_RUNS_H
#define FS_RUNS_H

#include "cache/store.h"

enum { RUNS_DEPTH = 3 };

struct runs {
	char **v; /* "team/run1", in strcmp order */
	size_t count;
	bool top; /* the source itself is a run; then there are no others */
};

/* Is an object of that key, as seen from a directory, what makes the directory a run? */
bool runs_mark(const char *key);
/* top false: whatever lies at the top, directories are looked into. */
int runs_find(const struct listing *l, bool top, struct runs *out) MUST_CHECK;
void runs_release(struct runs *r);
/* Directories in which a run might lie and that cannot be listed: how many, and the first. */
size_t runs_shut(const struct runs *r, const struct listing *l, const struct object **out_first);
/* Is one of the paths the other one, or a directory above it? */
bool runs_nested(const char *a, const char *b);
/* Appends their names for people, not all of them when there are many. */
void runs_names(const struct runs *r, struct buf *out);

/* The objects whose keys begin with a prefix lie side by side: from *out_begin up to the return
 * value. */
size_t runs_slice(const struct listing *l, const char *prefix, size_t *out_begin);

#endif
