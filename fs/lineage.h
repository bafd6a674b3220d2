/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lineage: from a listing to the ordered steps of the run that is alive in it.  Pure: no I/O, no
 * clock.
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
 * some of the times): its number is no hole that a later delta may be applied across.
 */
#ifndef FS_LINEAGE_H
#define FS_LINEAGE_H

#include "cache/store.h"

struct step {
	uint64_t number;
	/* The objects of this number, borrowed from the listing; at least one is set.  Objects in
	 * steps/ count as delta. */
	const struct object *anchor, *delta;
	int64_t mtime_ns; /* of the newer one */
};

enum stray_kind {
	STRAY_SUPERSEDED, /* older than an object with a lower number */
	STRAY_DUPLICATE,  /* the same number is there under another name, newer */
	STRAY_NAME, /* a .safetensors object in a step directory whose name has no number, or too
		       large a one */
};

struct stray {
	enum stray_kind kind;
	uint64_t number; /* not for STRAY_NAME */
	const struct object *object;
	const struct object *against; /* the object it is older than, or the one preferred */
};

struct lineage {
	struct step *steps; /* ascending by number */
	size_t step_count;
	struct stray *strays;
	size_t stray_count;
};

/* The listing is borrowed as long as the lineage lives. */
int lineage_order(const struct listing *listing, bool ignore_times, struct lineage *out) MUST_CHECK;
void lineage_release(struct lineage *l);
/* The step of that number, or NULL. */
const struct step *lineage_find(const struct lineage *l, uint64_t number);
/* A superseded object with a number between the two that may be this run's own; NULL: none. */
const struct stray *lineage_unsure(const struct lineage *l, uint64_t above, uint64_t below);
/* True for keys under anchors/, deltas/ and steps/. */
bool lineage_owns(const char *key);
/* 8 hex digits from the identity of the lineage's first object. */
void lineage_label(const struct lineage *l, char out[9]);

#endif
