/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums that an index has of whole objects, for versions that have none of what they hold. */
#ifndef TOOLS_OBJECT_SUMS_H
#define TOOLS_OBJECT_SUMS_H

#include "fs/run.h"
#include "fs/state.h"

/* Reads what lies in the directories of the state's anchor and of all versions on top of it, as far
 * as the run's index has a checksum of it, and compares.  -EBADMSG with a sentence that names the
 * object, an error of reading, -EINTR when *stop is set, -ENOMEM. */
int object_sums_check(struct run *run, const struct state *state, const volatile bool *stop,
		      struct why *why) MUST_CHECK;

#endif
