/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schemes: how the versions of other people's runs lie in a store.
 *
 * A version is a directory whose name is a word and a number, with an index (one object or several,
 * each of which describes an anchor or a delta).
 * fs/directories.c finds them in a listing and reads the indexes; what an index says, and which
 * names there are, is known here, and what is in the objects it names is for a reader
 * (codec/format.h).
 *
 * Adding a scheme: one codec/scheme_NAME.c with a `struct scheme` and its parse(), one line in
 * schemes[] (schemes.c).  Where its objects are not yet read, a codec/read_NAME.c goes with it.
 *
 * Pure and thread-safe: no I/O, no state.  Everything comes from input: a parse() never guesses,
 * and what it does not understand makes the version unusable with a sentence.
 */
#ifndef CODEC_SCHEME_H
#define CODEC_SCHEME_H

#include "codec/base.h"
#include "codec/checksum.h"

enum { SCHEME_FILE_MAX = 200 }; /* bytes of a name in an index */

/* The checksum of a whole object. */
struct scheme_sum {
	char *path; /* relative to the version's directory */
	enum checksum_kind kind;
	char hex[CHECKSUM_HEX];
};

/* What one index says: one anchor or one delta of its version. */
/* Which tensors an index puts into a file: how many, and the sum of the XXH3-64 of their names. */
struct scheme_names {
	uint64_t count, sum;
};

struct scheme_version {
	bool delta;
	bool says_version; /* delta: the number that the index has; the version's must be the same
			    */
	uint64_t version;
	uint64_t base;	   /* delta: the version it applies to, below its own; 0 is --base */
	char encoding[32]; /* delta: the name of the struct format that reads its objects;
			      anchor: "" for plain safetensors, or a name as above */
	char writer[24];   /* who writes it so, for people: "slime", "ModelExpress"; "": nobody */
	char **files; /* its objects, relative to the version's directory, ascending, each once;
			 the reader looks at them as one list of tensors.  None: a delta
			 without a change */
	size_t file_count;
	struct scheme_names *names; /* of each file; NULL: the index names no tensors */
	bool all;  /* it names no files: its objects are all safetensors files beside it, as many as
		      such a name says (model-00001-of-00002.safetensors: 2) */
	bool side; /* the reader wants the text of this index: struct side */
	struct {   /* of the bytes of all tensors in strcmp order of names, after this version */
		enum checksum_kind kind; /* CHECKSUM_NONE: not given */
		char hex[CHECKSUM_HEX];
	} state;
	struct scheme_sum *sums; /* of objects in the directory, also of those without weights;
				    ascending by path after scheme_files_end() */
	size_t sum_count;
};

struct scheme {
	const char *name; /* for people and --format: "hfdir", "grail" */
	/* Where the versions lie, each with a slash at its end, NULL-terminated, the first that has
	 * any is taken; NULL: {"", "updates/"}. */
	const char *const *under;
	/* What stands before the number in a directory's name, NULL-terminated; lower ones are
	 * preferred, and a run has one of them. */
	const char *const *words;
	/* Objects of a version's directory, relative to it, that are its index; any that is there
	 * is parsed, and gives an anchor or a delta.  At most SCHEME_INDEXES, an anchor's first. */
	const char *const *indexes;
	/* One of them that counts alone where it is there, whatever the others say; and without one
	 * in any of its directories a run is not of this scheme.  NULL: none. */
	const char *sole;
	/* Without an index: an object that is a whole anchor, written in one go; NULL: none. */
	const char *lone;
	/* A directory with none of these (relative; `*` in the last part stands for anything) is
	 * unfinished.  NULL: an index, or `lone`, is enough. */
	const char *const *markers;
	/* A marker is written anew after everything else of its version: one that is older than
	 * the weights or an index is of an earlier time, and the version is being written again. */
	bool marker_last;
	/* A version with an index of a delta is that delta only, whatever whole checkpoint lies
	 * there as well; parse() has to say `delta` also of one that it refuses.  Otherwise a
	 * version can be both. */
	bool delta_only;
	/* The run is of this scheme when one of its directories has one of these; `*` as above. */
	const char *const *signs;
	/* The text of an index by that name (one of `indexes`), of the version `number`.  *out is
	 * zero; what was put there is released by the caller, also after a failure.  -EBADMSG,
	 * -ENOTSUP or -ENOMEM with a sentence, which does not repeat the object's name. */
	int (*parse)(const char *index, uint64_t number, const char *text, size_t len,
		     struct scheme_version *out, struct why *why);
	/* Numbers only ever rise, also when the trainer starts again, so that what is older than
	 * the version before it was not left by an earlier run. */
	bool rising;
	/* `latest`: of directories of this word it is believed, so that a damaged one shows
	 * nothing; NULL: others have a file of that name for purposes of their own.  And who writes
	 * deltas with one. */
	const char *latest_word, *latest_writer;
};

enum { SCHEME_INDEXES = 4 };

/* NULL-terminated, in order of preference: what is told apart by its signs first. */
extern const struct scheme *const schemes[];
/* By name; NULL: there is none. */
const struct scheme *scheme_find(const char *name);

void scheme_version_release(struct scheme_version *v);

/* ---- for parse() ---- */

struct json_t;

/* The text as JSON (json_decref() it), not always an object: json_object_get() of anything else is
 * NULL.  NULL with a sentence. */
struct json_t *scheme_json(const char *text, size_t len, struct why *why);
/* A number of 0 or more: as one, or as text of digits after `prefix` (NULL: none) or without it. */
bool scheme_number(const struct json_t *value, const char *prefix, uint64_t *out);
/* Adds a file; the list is sorted and freed of doubles by scheme_files_end().  -EBADMSG when it is
 * no plain relative path of visible names, -ENOMEM; the sentence does not say where it stands. */
int scheme_file(struct scheme_version *v, const char *path, struct why *why) MUST_CHECK;
void scheme_files_end(struct scheme_version *v);
/* What a weight_map, {tensor: file}, says of each of the files, which are as scheme_files_end()
 * left them; values that are no string are passed over.  -ENOMEM. */
int scheme_names(struct scheme_version *v, struct json_t *map, struct why *why) MUST_CHECK;
/* Adds the sum of an object.  One that no listing shows is dropped.  -EBADMSG when `hex` is no sum
 * of that kind, -ENOMEM. */
int scheme_sum(struct scheme_version *v, const char *path, enum checksum_kind kind, const char *hex,
	       struct why *why) MUST_CHECK;
/* Has a file just so many tensors of such names? */
bool scheme_names_equal(const struct scheme_names *names, const struct st_header *header);
/* The text of an index with a weight_map against a file that it names: 0; -EBADMSG when the file
 * lacks a tensor that the index puts there, or, if `exact`, has one that the index does not;
 * -ENOMEM. */
int scheme_names_check(const char *text, size_t len, const char *file,
		       const struct st_header *header, bool exact, struct why *why) MUST_CHECK;
/* Does a path match a pattern whose last part may have one `*`? */
bool scheme_matches(const char *pattern, const char *path);

#endif
