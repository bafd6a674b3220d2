/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory is left for page cache, and whether it is short.  Reads /proc and the control
 * group's files; any thread. */
#ifndef FS_MEMORY_H
#define FS_MEMORY_H

#include "codec/base.h"

/* Bytes that can be filled without pushing out what is in use: MemAvailable, or what this process's
 * control group may still take, where that is less.  UINT64_MAX when neither says. */
uint64_t memory_available(void);
/* Is memory short now?  Processes have waited for it in more than a tenth of the last ten seconds,
 * or less than a twentieth of the machine's, or of the control group's limit, is available. */
bool memory_short(void);

/* The number after "key" in a text of lines "key... number", e.g. "MemAvailable:" in kB; false: not
 * there.  For the two above, and their tests. */
bool memory_field(const char *text, const char *key, double *out);

struct memory_room {
	double left, total; /* bytes */
};
/* Of a control group (path below `root`, beginning with a slash): what it or one above it leaves,
 * whichever leaves least; false: none has a limit.  For the two above, and their tests. */
bool memory_of_group(const char *root, const char *group, struct memory_room *out);

#endif
