/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lineage: from a listing to the ordered steps of the run that is alive in it.  Pure: no I/O, no
 * clock.
 *
 * Where the run has a weightfs.json, that alone says what the steps are (lineage_declare()): a step
 * may have several objects, and what it does not name is a stray.  Without one the keys and times
 * say it (lineage_order()):
 *
 * Keys are anchors/step_N.safetensors, deltas/step_N.safetensors and steps/step_N.safetensors (N
 * one or more digits, compared as numbers). One trainer writes its objects one after the other, so
 * in number order their times never descend.  An object that is older than one with a lower number
 * was left behind by an earlier run in the same place: a trainer's counter starts from 1 at every
 * restart and overwrites low numbers only.  Such an object is *superseded* and never chained.  A
 * bucket that was copied without its times needs ignore_times.
 *
 * What an earlier run left is older than all of this one.  An object that is superseded and yet not
 * older than the run's first may be this run's own (a clock that was set back, a copy that kept
 * some of the times): its number is no hole that a later delta may be applied across.  Nor is
 * one that the earlier run's last object has, if the delta above it came as soon after that as that
 * run's objects used to come: two trainers write into one place, and it was made for that object.
 */
#ifndef FS_LINEAGE_H
#define FS_LINEAGE_H

#include "cache/store.h"
#include "fs/manifest.h"

struct piece {
	const struct object *object; /* from the listing, or what stands for a missing one */
	const char *file;	     /* the file that it is of the model; NULL: not said */
};

struct pieces { /* what an anchor, a delta or a span consists of */
	const struct piece *v;
	size_t count;
	bool present; /* a declared delta may be present with no objects: nothing changed */
	const struct manifest_entry *entry; /* borrowed; NULL: ordered by keys */
};

struct step {
	uint64_t number;
	struct pieces anchor, delta; /* at least one is present; objects in steps/ count as delta */
	int64_t mtime_ns;	     /* of the newest object, or as declared */
};

struct span { /* a cumulative delta: from the state of `base` to that of `version` */
	uint64_t base, version;
	struct pieces pieces;
};

enum stray_kind {
	STRAY_SUPERSEDED, /* older than an object with a lower number */
	STRAY_DUPLICATE,  /* the same number is there under another name, newer */
	STRAY_NAME,    /* a .safetensors object in a step directory whose name has no number, or too
			  large a one */
	STRAY_UNNAMED, /* in a step directory, and not named by weightfs.json */
	STRAY_DIRECTORY, /* a directory called like a step's object; `object` may lie in it */
};

struct stray {
	enum stray_kind kind;
	uint64_t number; /* not for STRAY_NAME and STRAY_DIRECTORY */
	const struct object *object;
	const struct object *against; /* the object it is older than, or the one preferred */
};

struct lineage {
	struct step *steps; /* ascending by number */
	size_t step_count;
	struct stray *strays;
	size_t stray_count;
	/* Of a declared lineage, or one of version directories: */
	const struct manifest *manifest; /* borrowed; NULL: ordered by keys */
	struct span *spans;		 /* ascending by base, then by version */
	size_t span_count;
	bool directories;	/* a version has a directory, with companions of its own */
	struct manifest *own;	/* owned: the manifest, where it was made for this lineage */
	struct identity origin; /* with `own`: of the run's first object */
	/* private */
	struct piece *pieces;
	struct object *missing; /* stand for objects that are named and not listed */
	struct named *named;
	size_t piece_count, missing_count, named_count;
};

/* An object that weightfs.json names and the store does not list has this err. */
#define LINEAGE_MISSING ENODATA
/* The same of one that a directory's index names. */
#define LINEAGE_UNINDEXED ENOMSG

/* The listing is borrowed as long as the lineage lives. */
int lineage_order(const struct listing *listing, bool ignore_times, struct lineage *out) MUST_CHECK;
/* The same from a manifest, which is borrowed, too. */
int lineage_declare(const struct listing *listing, const struct manifest *m,
		    struct lineage *out) MUST_CHECK;
/* The same from one that was made of version directories, and goes over to the lineage. */
int lineage_found(const struct listing *listing, struct manifest *m, const struct identity *origin,
		  struct lineage *out) MUST_CHECK;
/* Is it weightfs.json that says what belongs to it? */
bool lineage_is_declared(const struct lineage *l);
/* Identity of the first object, which names the run; NULL: there is none. */
const struct identity *lineage_origin(const struct lineage *l);
/* What the manifest says of the object with this key: the entry it belongs to, and its size.
 * NULL: nothing, or there is no manifest. */
struct named {
	const char *key;
	const struct manifest_entry *entry;
	uint64_t size;
};
const struct named *lineage_named(const struct lineage *l, const char *key);
void lineage_release(struct lineage *l);
/* The step of that number, or NULL. */
const struct step *lineage_find(const struct lineage *l, uint64_t number);
/* A superseded object with a number between the two that what is at `below` may build on; NULL:
 * none. */
const struct stray *lineage_unsure(const struct lineage *l, uint64_t above, uint64_t below);
/* True for keys that belong to a run and not to its model: anchors/, deltas/, steps/, compact/,
 * leases/, weightfs.json. */
bool lineage_owns(const char *key);
/* The first object of a step, anchor before delta; NULL: it has none. */
const struct object *step_first(const struct step *s);
/* 8 hex digits: as declared, or from the identity of the lineage's first object. */
void lineage_label(const struct lineage *l, char out[9]);

#endif
