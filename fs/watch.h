/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watch: the thread that notices new objects (the store's notification, --poll, or a refresh) and
 * runs run_scan(); also the only thread that builds generations, so requests for a pinned version
 * are handed to it.
 */
#ifndef FS_WATCH_H
#define FS_WATCH_H

#include "fs/run.h"
#include "fs/turns.h"

struct watch; /* opaque */
/* No thread yet. */
int watch_new(struct run *run, struct history *history, int64_t poll_ns,
	      struct watch **out) MUST_CHECK;
int watch_start(struct watch *w) MUST_CHECK;
/* Stops and joins the thread; requests that wait get -ECANCELED. */
void watch_stop(struct watch *w);
/* The same, but what the source has under way goes on. */
void watch_retire(struct watch *w);
void watch_free(struct watch *w);
/* Before watch_start(), where there are several: rounds take turns, and log lines say whose they
 * are (log_set_subject()).  Both borrowed. */
void watch_share(struct watch *w, struct turns *turns, const char *subject);
/* Has a round ended? */
bool watch_scanned(struct watch *w);

/* Scans now; with `wait` returns when a scan that began after the call has ended: its result. */
int watch_refresh(struct watch *w, bool wait) MUST_CHECK;
/* The same without asking the place itself where the store knows better; waits. */
int watch_look(struct watch *w) MUST_CHECK;
/* Brings a version into the history and pins it.  Blocks.  *out_pinned (NULL is fine): its number,
 * which is a lower one where the trainer skipped `version`. */
int watch_pin(struct watch *w, uint64_t version, uint64_t *out_pinned, struct why *why) MUST_CHECK;

#endif
