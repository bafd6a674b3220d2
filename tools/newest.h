/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for a number in .weightfs/newest or .weightfs/version, both of which are polled.
 */
#ifndef TOOLS_NEWEST_H
#define TOOLS_NEWEST_H

#include "codec/base.h"

/* The number in the file; *out_any is false while there is none.  -errno: the mount has gone;
 * -ENODEV: it was detached (umount -l), and `at`, the path by which it was opened, leads elsewhere:
 * our descriptor is what keeps it. */
int newest_read(int fd, const char *at, bool *out_any, uint64_t *out) MUST_CHECK;
/* Sleeps until the file may have changed, `other` (a descriptor, or -1) is readable, the time
 * `until` (monotonic) has come, or a second has passed.  Never returns so often that a loop around
 * it and newest_read() keeps a processor busy. */
void newest_sleep(int fd, int other, int64_t until);

#endif
