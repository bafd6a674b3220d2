/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts finished files on the disk behind the back of who made them: what is in use should not wait
 * for that.  A file that turns out not to get there makes its mapping broken (cache/mapping.h),
 * since what was written is lost once its pages leave memory.  Thread-safe; one thread, from the
 * first file on.
 */
#ifndef CACHE_SYNCER_H
#define CACHE_SYNCER_H

#include "cache/mapping.h"

struct syncer; /* opaque */

enum { SYNCER_MOST = 256 }; /* files that wait; beyond that whoever comes syncs its own */

struct syncer *syncer_new(void);    /* NULL: out of memory */
void syncer_free(struct syncer *s); /* once all is synced; NULL is fine */
/* Takes over fd, which is closed afterwards; the mapping is kept until then.  `what`: for the log.
 * Blocks on the disk only when SYNCER_MOST files wait, or there is no memory. */
void syncer_take(struct syncer *s, int fd, struct mapping *m, const char *what);

#endif
