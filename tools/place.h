/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A place that a user names: a mount of ours, or a source.  Asks the mount through its .weightfs
 * directory, as any program can.
 */
#ifndef TOOLS_PLACE_H
#define TOOLS_PLACE_H

#include "codec/base.h"
#include "fs/opts.h"

#include <jansson.h>

/* Opens MOUNTPOINT/.weightfs as a directory; a sentence when it is no mount of ours, or one whose
 * process is gone.  Blocks. */
int place_open(const char *mountpoint, int *out_fd, struct why *why) MUST_CHECK;
/* The same of one run: a sentence when several are mounted there and none is named. */
int place_open_run(const char *mountpoint, int *out_fd, struct why *why) MUST_CHECK;
/* Reads a file of it whole; malloc'ed, NUL-terminated. */
int place_read(int fd, const char *mountpoint, const char *name, char **out,
	       struct why *why) MUST_CHECK;
/* Its status.json, parsed. */
int place_status(const char *mountpoint, json_t **out, struct why *why) MUST_CHECK;
/* Fills o->source from a SOURCE or MOUNTPOINT argument; of a mount also --base, --shard-size and
 * --times, unless they were given. */
int place_source(const char *place, struct opts *o, struct why *why) MUST_CHECK;

#endif
