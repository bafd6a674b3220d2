/* SPDX-License-Identifier: Apache-2.0 */
/* The herald: gives those who watch the mount with inotify an event when the current version has
 * moved.  A thread of its own. */
#ifndef FS_HERALD_H
#define FS_HERALD_H

#include "fs/stack.h"

struct herald; /* opaque */

/* Once the mount can be used.  Tries first whether it can be done; why not is noted for status.
 * *out is NULL then.  -errno: threads cannot be started. */
int herald_start(struct stack *s, const char *mountpoint, struct herald **out) MUST_CHECK;
void herald_cancel(struct herald *h);
/* Joins it, once the connection has been closed.  NULL is fine, in both. */
void herald_end(struct herald *h);

#endif
