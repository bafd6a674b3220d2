/* SPDX-License-Identifier: Apache-2.0 */
/* A file without a name, for what is too large for memory: in TMPDIR, or else in /tmp. */
#ifndef TOOLS_SCRATCH_H
#define TOOLS_SCRATCH_H

#include "codec/base.h"

/* Open for reading and writing; gone when it is closed.  An error of open(), with a sentence. */
int scratch_file(int *out_fd, struct why *why) MUST_CHECK;

#endif
