/* SPDX-License-Identifier: Apache-2.0 */
/* Other programs, started as children. */
#ifndef CACHE_CHILD_H
#define CACHE_CHILD_H

#include <sys/types.h>

#include "codec/base.h"

enum { CHILD_NULL = -1 };

/* Starts argv[0] (looked for in PATH unless it has a slash) with that environment, no input, and
 * the descriptors `out` and `err` of this process, or CHILD_NULL, as its stdout and stderr.  It is
 * in a process group of its own, with all signals as they are by default; it gets none of the other
 * descriptors that are close-on-exec (all are).  The caller waits for it.  -errno. */
int child_start(char *const argv[], char *const env[], int out, int err, pid_t *out_pid) MUST_CHECK;
/* The same with one of the two going to a pipe: `captured` is STDOUT_FILENO or STDERR_FILENO, the
 * other goes to `other`.  *out_fd is the end to read from; the caller closes it. */
int child_start_pipe(char *const argv[], char *const env[], int captured, int other, pid_t *out_pid,
		     int *out_fd) MUST_CHECK;

#endif
