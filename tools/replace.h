/* SPDX-License-Identifier: Apache-2.0 */
/* Making a directory that appears whole or not at all, and replacing one in one step.  Blocks; one
 * thread. */
#ifndef TOOLS_REPLACE_H
#define TOOLS_REPLACE_H

#include "codec/base.h"

/* May `dir` be made?  It must be absent or empty, or with `force` a checkpoint (it has config.json,
 * or weights or an index at its top). *out_temp: malloc'ed name beside it, where the new one is to
 * be built; it does not exist. */
int replace_begin(const char *dir, bool force, char **out_temp, struct why *why) MUST_CHECK;
/* Puts temp in dir's place; what was there is removed. */
int replace_end(const char *dir, bool force, const char *temp, struct why *why) MUST_CHECK;
/* Removes temp with all that is in it. */
void replace_abort(const char *temp);

#endif
