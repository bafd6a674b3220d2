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

struct syncer *syncer_new(void); /* NULL: out of memory */
/* NULL is fine.  Waits for one file at the most: what waits for its turn then is left to the
 * kernel.
 */
void syncer_free(struct syncer *s);
/* Takes over fd, which is closed afterwards; the mapping is kept until then.  `what`: for the log.
 * Blocks on the disk only when there is no memory or thread. */
void syncer_take(struct syncer *s, int fd, struct mapping *m, const char *what);

#endif
