/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache directory of one run: immutable files under names that say what they hold (patches made
 * from deltas).
 *
 * Files appear whole (temp name, rename), are never changed afterwards, and may be removed at any
 * time by anybody: a mapping stays valid.  They are synced in the background, so what a power cut
 * leaves may be torn: whoever maps one by its name checks it.  So several processes may share the
 * directory without a lock, and a kill at any instant loses at most a temp file, which the next
 * sweep removes. When the directory cannot be made or written, files live in memory (memfd)
 * instead: `in_memory` is set and why says what happened. The same when it is deleted or becomes
 * unwritable later (logged once).  A file that finds the disk full is kept in memory alone:
 * cachedir_spill(). Thread-safe.
 */
#ifndef CACHE_CACHEDIR_H
#define CACHE_CACHEDIR_H

#include "cache/mapping.h"
#include "codec/base.h"
#include "codec/io.h"

struct cachedir; /* opaque */

/* The default parent: $WEIGHTFS_CACHE_DIR, else /var/cache/weightfs for root, else
 * $XDG_CACHE_HOME/weightfs, else ~/.cache/weightfs. malloc'ed; NULL: none. */
char *cachedir_default(void);

/* Opens <parent>/<hash of run>/ (made when absent, mode 0700). `run` is any string that names the
 * run uniquely. parent NULL: default.  Never fails but for -ENOMEM. */
int cachedir_open(const char *parent, const char *run, struct cachedir **out, bool *out_in_memory,
		  struct why *why) MUST_CHECK;
void cachedir_close(struct cachedir *d); /* NULL is fine */

/* Starts a new file; *out_fd is open for reading and writing and belongs to the cachedir until
 * commit or abort. */
int cachedir_create(struct cachedir *d, int *out_fd) MUST_CHECK;
/* After a write to fd failed with err: true when that was for want of space and fd, under the same
 * number, is an empty file in memory now, to be written once more from its beginning. */
bool cachedir_spill(struct cachedir *d, int fd, int err) MUST_CHECK;
/* Truncates to size, renames to name and maps it; the mapping turns out broken when it then cannot
 * be put on the disk. name: [A-Za-z0-9._-]+, not beginning with
 * "." or "tmp.".  Closes fd in any case. */
int cachedir_commit(struct cachedir *d, int fd, const char *name, uint64_t size,
		    struct mapping **out) MUST_CHECK;
void cachedir_abort(struct cachedir *d, int fd);
/* Makes or replaces (`append`: adds to) a file that is worth nothing by itself: it is not synced,
 * may be cut anywhere, and is not there where it cannot be written. */
void cachedir_note(struct cachedir *d, const char *name, const void *bytes, size_t len,
		   bool append);
/* Maps an existing file; -ENOENT. */
int cachedir_map(struct cachedir *d, const char *name, struct mapping **out) MUST_CHECK;
void cachedir_remove(struct cachedir *d, const char *name);
/* Removes every file for which keep(name, ctx) is false, and temp files older than an hour. */
void cachedir_sweep(struct cachedir *d, bool (*keep)(const char *name, void *ctx), void *ctx);

#endif
