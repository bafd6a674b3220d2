/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checkpoints below a directory that a trainer writes to: what is there, whether it is
 * finished, and which version it is.
 *
 * A checkpoint is a directory, at most three levels down (or the directory itself), with
 * safetensors files in it.  Its number is the one at the end of its name or, without one, of the
 * nearest directory above that has one: checkpoint-100, step_100,
 * global_step_100/actor/huggingface.
 *
 * Finished: nothing in it has changed for a while; the files that its index names are there and as
 * long as their headers say; the index is not older than they are, since it is written last (one
 * that a rewrite in place has left over is); and shards have an index.
 */
#ifndef TOOLS_PUB_FOUND_H
#define TOOLS_PUB_FOUND_H

#include "tools/pub_apart.h"

#include "cache/store.h"

struct found {
	char *name;	    /* below the directory; "" for itself; owned */
	char *path;	    /* for opening; owned */
	uint64_t number;    /* when numbered */
	uint64_t signature; /* of its weight files: changes when one of them does */
	uint64_t activity;  /* of all its files */
	int64_t newest_ns;  /* the latest time of its weight files */
	int64_t quiet_ns;   /* monotonic: since when `activity` is what it is */
	uint64_t checked;   /* the activity for which `ready` and `why` hold; 0: none */
	struct why why;	    /* why it is not finished */
	bool numbered, ready;
	bool sharded, indexed; /* has files of "-00001-of-00002"; has an index */
	bool index_old;	       /* the index is older than a file */
};

struct found_list {
	struct found *v; /* by number, then time, then name; those without a number first */
	size_t count;
};

/* Lists again, without what lies in `places` or is a run.  `io` is the list of the last time
 * (zeroed at first), from which it is taken over since when a checkpoint is quiet.  now_ns:
 * monotonic. */
int found_scan(struct store *dir, const char *path, const struct pub_places *places, int64_t now_ns,
	       struct found_list *io, struct why *why) MUST_CHECK;
void found_release(struct found_list *l);

/* Is it finished, having been quiet for settle_ns?  *out_again: monotonic, when a false may become
 * true by the clock alone; -1: not.  Opens its files. */
bool found_finished(struct found *f, int64_t settle_ns, int64_t now_ns, int64_t *out_again);

/* The number of "checkpoint-100" or "global_step_100/actor": false when there is none. */
bool found_number(const char *name, uint64_t *out);

#endif
