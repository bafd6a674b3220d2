/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs made of version directories: what a scheme (codec/scheme.h) says of the names and the
 * indexes in them, found in a listing and put together.
 *
 *	checkpoint-100/model.safetensors, config.json, ...	a whole checkpoint
 *	weight_v000007/model-00000-of-00001.safetensors, ...	a delta, as its index says
 *	latest							optional: the directory that is
 *current
 *
 * They lie at the source's root or in another place that the scheme names; with a `latest` of the
 * form RUN/weight_v000007 in RUN/ there.  A directory is a version when what its scheme writes last
 * is there.  Every file that an index names must lie where it says.
 *
 * What is found becomes a manifest (fs/manifest.h), as if somebody had written it down, so that all
 * that holds of declared runs holds here, too.  A delta is taken in only if the version it applies
 * to is the one before it, and not younger; version 0 is --base.
 *
 * An index is read once per identity, many at a time.  Of a long run those come first that the
 * newest version needs: the versions from the newest whole checkpoint on; the others are read in
 * later rounds, and then take their place below.
 */
#ifndef FS_DIRECTORIES_H
#define FS_DIRECTORIES_H

#include "cache/store.h"
#include "cache/table.h"
#include "codec/format.h"
#include "codec/scheme.h"
#include "fs/manifest.h"

/* What an index says. */
struct dir_index {
	char *key;
	struct identity id;
	bool seen;	/* since the last sweep */
	bool again;	/* what went wrong may pass by itself */
	bool read;	/* `why` and `said` hold */
	struct why why; /* err 0: it is fine */
	struct scheme_version said;
	const char *twice; /* of a whole checkpoint: a file whose name another one has, in another
			    * folder; of said; NULL: there is none */
};

struct dir_problem {
	char *object, *text;
};

/* A version's directory, or its only object, in a listing. */
struct dir_found {
	uint64_t number;
	size_t rank;		    /* of its word among the scheme's */
	const struct object *first; /* in the listing */
	size_t prefix;		    /* length of the directory's key, slash included */
	const struct object *index[SCHEME_INDEXES], *lone;
	bool sign;		     /* it counts as a version */
	bool weights;		     /* it has some, whether it counts or not */
	bool marked;		     /* it has what is written last */
	bool rewritten;		     /* but that is older than what else it has */
	int64_t marked_ns;	     /* of the newest such; for schemes with marker_last */
	const struct object *newest; /* of its weights and indexes; likewise */
};

/* What is known of version directories from one listing to the next. */
struct directories {
	const struct scheme *forced;  /* --format; NULL: by what is there */
	const struct scheme *scheme;  /* of the last listing; NULL: none */
	struct table *indexes;	      /* key -> struct dir_index */
	struct dir_problem *problems; /* of the last listing */
	size_t problem_count;
	size_t unfinished;	  /* directories without what is written last so far */
	char unfinished_why[500]; /* one of them, and what it lacks */
	char younger[128]; /* a whole checkpoint finished after the one with the highest number,
			    * that; "": none */
	uint64_t younger_than;
	bool again;    /* something may pass by itself: look soon */
	bool deferred; /* indexes of older versions are still to be read */
	struct {
		struct identity id; /* of the object it was read from */
		bool known;
		char run[128]; /* "" or "RUN/" */
		char word[64];
		uint64_t version;
		char name[200]; /* what it says, as far as it fits; printable */
		bool lost;	/* there is nothing of that name, but other versions */
		struct why why;
	} latest;
};

struct dir_query {
	struct store *store;
	const struct listing *listing;
	bool ignore_times;
	bool with_base; /* is there a version 0 (--base), of that time? */
	int64_t base_mtime_ns;
	bool all; /* read every index now */
};

/* Does the key belong to a version, or is it `latest`? */
bool directories_own(const struct directories *d, const char *key);

/* Does an object of that key, as seen from a directory, show that there are versions of any scheme
 * in it? */
bool directories_show(const char *key);

/* Is a place where versions may lie, and cannot be listed; `found`: there are versions of another
 * kind already (TRL's, weightfs.json). */
bool directories_shut(const struct object *o, bool found);

/* Finds them.  *out NULL: there are none.  *out_first: identity of what is first in the run.
 * -ENOMEM. */
int directories_find(struct directories *d, const struct dir_query *q, struct manifest **out,
		     struct identity *out_first) MUST_CHECK;
void directories_release(struct directories *d);

/* ---- directory_find.c ---- */

/* The versions of the first scheme that has any (d->scheme, NULL: none), ascending; malloc'ed.
 * -ENOMEM. */
int directory_search(struct directories *d, const struct listing *l, struct dir_found **out,
		     size_t *out_count) MUST_CHECK;

/* ---- directory_times.c ---- */

/* Takes out of the versions, which are ascending, those that an earlier run left, or notes that a
 * run may have begun anew.  Their indexes have been read, as far as they are needed.  -ENOMEM. */
int directory_set_aside(struct directories *d, struct dir_found *v, size_t *n) MUST_CHECK;

/* ---- directories.c ---- */

/* Adds a sentence about an object.  -ENOMEM. */
int directory_problem(struct directories *d, const char *object, size_t len, const char *fmt, ...)
	PRINTF(4, 5);

/* ---- directory_index.c ---- */

/* The i-th index of a version; NULL: it has none, or it was not read. */
struct dir_index *directory_index(struct directories *d, const struct dir_found *f, size_t i);
/* The checksum that the index of its version's directory has of a whole object; false: none. */
bool directory_sum(const struct directories *d, const char *key, enum checksum_kind *out_kind,
		   char out[CHECKSUM_HEX]);
/* Holds the header of an object against what the index of its version's directory says of its
 * tensors: 0; -EBADMSG; what reading the index again gave. */
int directory_agrees(const struct directories *d, struct store *store,
		     const struct listing *listing, const char *key, const struct delta *delta,
		     struct why *why) MUST_CHECK;
/* What an index says of the tensors of an object; NULL: nothing. */
const struct scheme_names *directory_names(const struct directories *d, const char *key);
/* Has a version any? */
bool directory_has_index(const struct dir_found *f);
/* Is everything there that is written last? */
bool directory_is_finished(const struct dir_found *f);
/* Does an index say nothing of its own? */
bool directory_adds_nothing(const struct dir_index *x);
/* Is a version a delta, and nothing else?  Also one whose index cannot be used. */
bool directory_only_delta(struct directories *d, const struct dir_found *f);
/* Reads indexes, those first that the newest version needs.  *out_lo: the first version that can be
 * taken in now. */
int directory_indexes_needed(struct directories *d, const struct dir_query *q,
			     const struct dir_found *v, size_t n, size_t *out_lo) MUST_CHECK;
void directory_indexes_sweep(struct directories *d, bool all);
/* Reads `latest` where it is new. */
void directory_latest(struct directories *d, struct store *store, const struct listing *listing);
/* The bytes of a small object, and a NUL behind them; malloc'ed. */
int directory_text(struct store *store, const struct object *o, uint64_t max, char **out,
		   struct why *why) MUST_CHECK;
#endif
