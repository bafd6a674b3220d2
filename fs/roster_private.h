/* SPDX-License-Identifier: Apache-2.0 */
/* The roster's inside: roster.c (what others ask), roster_runs.c (its thread, which keeps the
 * runs). */
#ifndef FS_ROSTER_PRIVATE_H
#define FS_ROSTER_PRIVATE_H

#include "cache/lock.h"
#include "fs/parts.h"
#include "fs/roster.h"
#include "fs/turns.h"

struct member {
	struct member *next;
	uint64_t run;
	char *path;
	struct opts opts; /* the top's, with source and mount point of its own */
	struct stack *stack;
	struct inodes *inodes;
	bool shown; /* guarded by lock */
	bool plain; /* its directory was listed before it was a run's, and is shown so until then */
	struct why trouble;
	/* the thread's own */
	int64_t retry_at;
	unsigned missing;
	bool begun;
	void *what; /* the front's */
};

struct roster {
	struct stack *top;
	struct inodes *inodes;
	struct inodes_runs runs; /* what they ask us by */
	const char *mountpoint;
	struct roster_ops ops;
	void *ctx;
	struct turns turns, preparing;
	int wake_fd;
	pthread_t thread;
	bool started;
	struct parts *parts; /* atomic: once there are several runs */

	struct lock lock;
	struct condition moved; /* a round has ended, or the thread ends */
	struct member *members; /* by path */
	struct member *gone;	/* not shown any more */
	struct listing_ref *top_listing;
	char shut[600]; /* a sentence on directories that cannot be listed; "": all can */
	struct why listing;
	int64_t listed_real_ns;
	uint64_t rounds_begun, rounds_ended;
	bool several, settled, usable, begun, asked, stop, ended, top_mark;

	/* the thread's own */
	uint64_t last_run;
	size_t made; /* stacks, also of members that are gone and open */
	bool full;   /* it was said that there are too many */
	int64_t round_at, round_cost;
};

struct store *roster_source(const struct roster *r);
/* roster_runs.c */
void *roster_main(void *arg);
void roster_end_member(struct roster *r, struct member *m);
void roster_free_members(struct member *first);

#endif
