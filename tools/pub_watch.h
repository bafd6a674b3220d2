/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `weightfs publish --watch DIR DEST`: publishes each checkpoint that a trainer finishes below DIR,
 * oldest first, until it is told to end.
 *
 * A checkpoint that cannot be published is reported and tried again, a while later each time; one
 * that is damaged holds the ones behind it back for a few tries only.  What has been published is
 * remembered in DIR itself, in a file for each destination whose name begins with
 * ".weightfs-published-", so that a watch that starts again goes on where it was.
 */
#ifndef TOOLS_PUB_WATCH_H
#define TOOLS_PUB_WATCH_H

#include "tools/publisher.h"

struct pub_watch_options {
	const char *dir;
	const char *dest;    /* as the publisher has it */
	int64_t settle_ns;   /* a checkpoint is finished when nothing changed for that long */
	bool count_versions; /* the next number, and not that of the directory's name */
	bool latest_only;    /* skips those that are not the newest finished one */
	bool once;	     /* what is there, then the end */
	bool new_run;	     /* what was published before does not count */
	bool json, quiet;    /* a report as JSON; none */
};

/* Blocks.  Takes SIGTERM, SIGINT and SIGHUP: the first ends it after the publication under way,
 * another one interrupts that.  0 when it was ended so, or is through (once). */
int pub_watch(struct publisher *p, const struct pub_watch_options *options,
	      struct why *why) MUST_CHECK;

#endif
