/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightfs.json: what a published run consists of.
 *
 * One JSON object at the run's root, written last and replaced by compare-and-swap.  Where it is
 * present it alone says what belongs to the run; all other objects are uploads that were not
 * finished, or leftovers.
 *
 *	{"format": "weightfs-run", "version": 1,
 *	 "lineage": "9f86d081",			8 hex digits, new when a run starts anew
 *	 "publisher": {"id": "32 hex", "host": "h", "pid": 1, "time": "RFC 3339"},
 *	 "newest": 42,				the last step's version; 0: none
 *	 "steps": [ENTRY, ...],			ascending by version; of one version the anchor
 *						first
 *	 "spans": [ENTRY, ...]}			cumulative deltas; the list may be missing
 *
 *	{"version": 41, "kind": "anchor"|"delta",	spans have no kind
 *	 "base": 40,			delta: the version of the step before; span: a lower one
 *	 "state": "32 hex",		of all tensors, see below
 *	 "time": "RFC 3339",		optional
 *	 "encoding": "wfp1",		how the objects are written, [a-z0-9._-]
 *	 "objects": [{"key": "deltas/...", "size": 456, "file":
 *"model-00001-of-00002.safetensors"}]}
 *
 * An anchor has one object or more, a delta any number (none: nothing changed), a span one or more.
 * "file" is required where an anchor has several objects.  The first step is an anchor.  Unknown
 * members are ignored, an unknown version is -ENOTSUP.
 *
 * "state" is the XXH3-128 in canonical form over, for each tensor in strcmp order of names: the
 * name, NUL, the dtype's name in safetensors, NUL, and the 16 canonical bytes of the XXH3-128 of
 * the tensor's bytes.
 *
 * Pure: no I/O, no clock.  A manifest is immutable where several threads see it.
 */
#ifndef FS_MANIFEST_H
#define FS_MANIFEST_H

#include "codec/base.h"
#include "codec/buf.h"
#include "codec/checksum.h"

#define MANIFEST_KEY "weightfs.json"

enum {
	MANIFEST_MAX = 64 << 20, /* bytes of text */
	MANIFEST_KEY_MAX = 1000, /* bytes of a key */
	MANIFEST_FILE_MAX = 200, /* bytes of a file name */
};

enum manifest_kind { MANIFEST_ANCHOR, MANIFEST_DELTA, MANIFEST_SPAN };

struct manifest_object {
	char *key;
	char *file; /* NULL: none is given */
	uint64_t size;
};

struct manifest_entry {
	enum manifest_kind kind;
	uint64_t version;  /* 1 ... INT64_MAX */
	uint64_t base;	   /* DELTA and SPAN: what it applies to */
	uint8_t state[16]; /* of `version` */
	int64_t time_ns;   /* 0: not given */
	char encoding[32];
	struct manifest_object *objects;
	size_t object_count;
	/* Of version directories only: */
	char writer[24];	       /* who writes it so, for people; "": not known */
	enum checksum_kind whole_kind; /* hash of the bytes of all tensors in order of names */
	char whole[CHECKSUM_HEX];
	char *index;	      /* owned: key of the index that its objects are read with, or NULL */
	uint8_t index_id[16]; /* and its identity */
};

enum manifest_origin {
	MANIFEST_READ,	  /* from weightfs.json */
	MANIFEST_FOUND,	  /* made of version directories (fs/directories.h): no states are known */
	MANIFEST_POINTED, /* the same, as far as `latest` says */
};

struct manifest {
	enum manifest_origin origin;
	char lineage[9];
	struct {
		char id[33];	/* "" when there is no publisher */
		char host[256]; /* printable */
		int64_t pid;
		int64_t time_ns;
	} publisher;
	uint64_t newest; /* of the last step; 0: none */
	struct manifest_entry *steps;
	size_t step_count;
	struct manifest_entry *spans; /* ascending by base, then by version */
	size_t span_count;
};

/* A run that begins: no steps.  `lineage`: 8 hex digits, -EINVAL otherwise. */
int manifest_new(const char *lineage, struct manifest **out) MUST_CHECK;
/* Checks everything that can be checked without the objects.  -EBADMSG with a sentence (which does
 * not repeat the file's name), -ENOTSUP an unknown version, -EFBIG, -ENOMEM. */
int manifest_parse(const char *text, size_t len, struct manifest **out, struct why *why) MUST_CHECK;
/* Appends the text, a step a line.  -ENOMEM. */
int manifest_compose(const struct manifest *m, struct buf *out) MUST_CHECK;
void manifest_free(struct manifest *m); /* NULL is fine */
int manifest_copy(const struct manifest *m, struct manifest **out) MUST_CHECK;

/* The entry of that version and kind, or NULL; spans: the one with the lowest base. */
const struct manifest_entry *manifest_find(const struct manifest *m, uint64_t version,
					   enum manifest_kind kind);
/* The state of a version, or NULL. */
const uint8_t *manifest_state(const struct manifest *m, uint64_t version);
/* Adds a copy of an entry: a step above the newest (or the delta beside the newest anchor, or the
 * reverse), or a span between two steps.  -EEXIST when it is there, -EBADMSG with a sentence when
 * it does not fit, -ENOMEM; the manifest is unchanged then. */
int manifest_add(struct manifest *m, const struct manifest_entry *e, struct why *why) MUST_CHECK;
/* Removes all that lies below an anchor's version: older steps, the delta beside it, spans from
 * below.  -ENOENT when there is no such anchor. */
int manifest_cut(struct manifest *m, uint64_t anchor_version) MUST_CHECK;
/* Removes one span; -ENOENT. */
int manifest_drop_span(struct manifest *m, uint64_t base, uint64_t version) MUST_CHECK;

/* A step, by hand: zero it, fill it in, add objects (copied), release it. -ENOMEM. */
int manifest_entry_object(struct manifest_entry *e, const char *key, const char *file,
			  uint64_t size) MUST_CHECK;
void manifest_entry_release(struct manifest_entry *e);

/* May an object of this encoding have that key?  A plain relative path of visible names below
 * anchors/, deltas/ or compact/; foreign encodings also have their own directories. */
bool manifest_key_ok(const char *key, const char *encoding);
/* 32 hex digits <-> 16 bytes. */
void manifest_hex(const uint8_t bytes[16], char out[33]);
int manifest_unhex(const char *text, uint8_t out[16]) MUST_CHECK; /* -EINVAL */

#endif
