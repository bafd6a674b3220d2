/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole files: versions' files of weights written out in full, in `<cache dir>/whole/`:
 *
 *	<fingerprint>.<number of the file>.<hash>	32 hex, decimal, 32 hex (xxh3-128 of the
 *bytes) tmp.<fingerprint>.<number of the file>		being written; flock()ed by the writer
 *
 * A file appears under its name once it is complete, synced and has been read back; it never
 * changes.  Whoever uses one holds a shared flock() on it: only what nobody holds is removed.
 * Several mounts may share the directory, and a version that two of them show is written once.
 * After a kill nothing is believed: a file is used when all of its bytes hash to its name.
 *
 * One thread per struct; functions block on the disk.
 */
#ifndef FS_WHOLES_H
#define FS_WHOLES_H

#include "fs/state.h"

struct wholes; /* opaque */

struct wholes_config {
	const char *parent; /* the cache directory */
	uint64_t limit;	    /* bytes in the directory at most; 0: only what is current or newest */
	bool (*stopped)(void *ctx); /* asked between chunks: true gives up with -ECANCELED */
	void *ctx;
};

/* Makes the directory and removes what a killed writer left. */
int wholes_new(const struct wholes_config *config, struct wholes **out, struct why *why) MUST_CHECK;
void wholes_free(struct wholes *w); /* NULL is fine */
const char *wholes_path(const struct wholes *w);

/* Makes room for the files of a version that are not there: removes what nobody uses, least
 * recently used first.  -ENOSPC with a sentence. */
int wholes_room(struct wholes *w, const struct state *s, struct why *why) MUST_CHECK;
/* A file of a version: found and checked, or written.  *out_fd is open for reading and holds the
 * lock.  *out_reused: it was there. */
int wholes_get(struct wholes *w, const struct state *s, uint32_t file, int *out_fd,
	       bool *out_reused, struct why *why) MUST_CHECK;
/* Where there is no limit: removes those of versions that were got here, are none of these, and
 * that nobody uses. */
void wholes_tidy(struct wholes *w, const struct identity *keep, size_t count);

#endif
