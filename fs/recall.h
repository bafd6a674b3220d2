/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recall: by which path was a file opened?
 *
 * An OPEN request carries a number, not a path, and a version has one number under all its names.
 * But a plain name has no time limit of validity, so that each open by plain path is preceded by a
 * LOOKUP of that name from the same thread, in the same system call.  Remembered is, per thread,
 * the last LOOKUP if it was of a weight file's plain name; any other LOOKUP of the thread (each
 * path through .weightfs/versions has one, of the version's number) clears it, an OPEN uses it up.
 *
 * What this cannot tell, all of it taken for a plain open, that is, for a hold too many:
 * - a thread that looked a plain name up without opening it (stat) and then opens the same file
 *   relative to a directory of versions/N that it stands in;
 * - threads of other pid namespaces, which all have the number 0: the LOOKUP is remembered per file
 *   for them, and stays for as long as it is remembered at all.
 * And what it takes for no plain open: a thread that stood still for a minute between the two
 * requests, and an open of an O_PATH descriptor that another thread made.
 *
 * Fixed memory.  No clock, no lock, no I/O; the caller's.
 */
#ifndef FS_RECALL_H
#define FS_RECALL_H

#include "codec/base.h"

enum { RECALL_SETS = 512, RECALL_WAYS = 4 };

struct recall_entry {
	uint64_t key; /* 0: free */
	uint64_t ino;
	uint64_t epoch; /* of the view, when the name was looked up */
	int64_t when;
	bool again; /* the open was sent back once already */
};

struct recall {
	struct recall_entry entries[RECALL_SETS][RECALL_WAYS];
	/* Until then an OPEN without an entry may be one whose entry had to make room. */
	int64_t lost_until;
	bool lost;
};

/* A thread looked up a weight file's plain name. */
void recall_plain(struct recall *r, int tid, uint64_t ino, uint64_t epoch, int64_t now);
/* A thread looked up something else. */
void recall_other(struct recall *r, int tid);

struct recall_hit {
	uint64_t epoch;
	bool known; /* epoch and again mean something */
	bool again;
};

/* A thread opens a file: was it by plain path?  Uses the entry up. */
bool recall_open(struct recall *r, int tid, uint64_t ino, int64_t now, struct recall_hit *out);
/* That open is sent back, so that the kernel looks the name up again: the next is not. */
void recall_again(struct recall *r, int tid, int64_t now);

#endif
