/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the mount has got from the kernel, as read back and tried out, for status and metrics; and
 * how far the newest version's preparation is.  Written by the front and the preparing thread, read
 * by anybody.
 */
#ifndef FS_SERVING_H
#define FS_SERVING_H

#include "cache/lock.h"
#include "codec/base.h"

enum feature { FEATURE_PASSTHROUGH, FEATURE_INOTIFY, FEATURES };

struct serving_feature {
	bool on;
	char why[200]; /* a sentence when it is not on; "" while it is not known */
};

struct serving_view {
	unsigned read_ahead_kb;	 /* what took effect; 0: not known */
	unsigned max_background; /* likewise */
	struct serving_feature features[FEATURES];
	char preparing[200];		   /* what the preparing thread does now, "" nothing */
	char prepared[200];		   /* how its last piece of work went, "" none yet */
	uint64_t warm_bytes;		   /* put into the page cache since the start */
	uint64_t whole_files, whole_bytes; /* written out or taken over, in use */
};

struct serving {
	struct lock lock; /* LOCK_QUEUE; guards v */
	struct serving_view v;
	int herald; /* atomic: the thread whose changes of attributes are let through, or 0 */
	/* Atomic: the state that was current when the herald last looked, NULL: there is no herald.
	 * Those who watch its files have not been told yet when it is replaced, so its nodes stay
	 * as they are. */
	const void *announced;
};

void serving_init(struct serving *s);
void serving_destroy(struct serving *s);
void serving_get(struct serving *s, struct serving_view *out);
void serving_settings(struct serving *s, unsigned read_ahead_kb, unsigned max_background);
/* why NULL: it is on; else it is off for that reason. */
void serving_feature(struct serving *s, enum feature f, const char *why);
/* The preparing thread's line, now (done false) or of what has ended. */
void serving_preparing(struct serving *s, bool done, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void serving_warmed(struct serving *s, uint64_t bytes);
/* Files may go as well as come. */
void serving_whole(struct serving *s, int64_t files, int64_t bytes);

#endif
