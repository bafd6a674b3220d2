/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs made of version directories: a directory per version, named by a word and a number.
 *
 *	checkpoint-100/model.safetensors, config.json, ...	a whole checkpoint
 *	step_200/model-00001-of-00002.safetensors, ..., model.safetensors.index.json
 *	weight_v000007/model-00000-of-00001.safetensors, ...	an HF-directory delta: its index
 *says delta_encoding and base_version latest
 *optional: the directory that is current
 *
 * They lie at the source's root or in updates/; with a `latest` of the form RUN/weight_v000007 in
 * RUN/ or updates/RUN/.  A directory is a version when its index is there, which writers write
 * last, or else when it has a model.safetensors.  Every file that an index names must lie beside
 * it.
 *
 * What is found becomes a manifest (fs/manifest.h), as if somebody had written it down, so that all
 * that holds of declared runs holds here, too.  A delta is taken in only if the version it applies
 * to is the one before it, and not younger; version 0 is --base.
 *
 * Sources: slime's slime/utils/disk_delta.py and SGLang's weight_sync/local_checkpoint.py
 * (weight_v), ModelExpress's docs/S3_DELTA_WEIGHT_REFIT.md (v1, v2), stitch's
 *src/stitch/stores/s3.py (updates/, latest), and what transformers, verl and others call their
 *checkpoints.
 */
#ifndef FS_DIRECTORIES_H
#define FS_DIRECTORIES_H

#include "cache/store.h"
#include "cache/table.h"
#include "codec/scheme.h"
#include "fs/manifest.h"

/* What an index says. */
struct dir_index {
	char *key;
	struct identity id;
	bool seen;	/* since the last sweep */
	bool again;	/* what went wrong may pass by itself */
	struct why why; /* err 0: it is fine */
	struct scheme_version said;
};

struct dir_problem {
	char *object, *text;
};

/* What is known of version directories from one listing to the next. */
struct directories {
	struct table *indexes;	      /* key -> struct dir_index */
	struct dir_problem *problems; /* of the last listing */
	size_t problem_count;
	size_t unfinished;	   /* directories without an index so far */
	char unfinished_name[128]; /* one of them */
	bool again;		   /* something may pass by itself: look soon */
	struct {
		struct identity id; /* of the object it was read from */
		bool known;
		char run[128]; /* "" or "RUN/" */
		size_t word;
		uint64_t version;
		struct why why;
	} latest;
};

/* Does the key belong to a version's directory, or is it `latest`? */
bool directories_own(const char *key);

/* Finds them.  *out NULL: there are none.  `with_base`: is there a version 0 (--base), of that
 * time? *out_first: identity of what is first in the run.  -ENOMEM. */
int directories_find(struct directories *d, struct store *store, const struct listing *listing,
		     bool ignore_times, bool with_base, int64_t base_mtime_ns,
		     struct manifest **out, struct identity *out_first) MUST_CHECK;
void directories_release(struct directories *d);

/* directory_index.c: the index as it is listed, read once; NULL: out of memory. */
struct dir_index *directory_index(struct directories *d, struct store *store,
				  const struct object *o);
void directory_index_free(struct dir_index *x);
/* Reads `latest` where it is new. */
void directory_latest(struct directories *d, struct store *store, const struct listing *listing);
#endif
