/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Roster: the runs of a source that holds several, which come and go while it is mounted.
 *
 * A run is in it from the moment that its directory is listed; it is shown once it has been looked
 * at for the first time, and goes when two listings after each other have nothing of it.  What was
 * a run stays one as long as anything lies in its directory.  A run that comes back is another one
 * with other numbers.
 *
 * A mount shows at most ROSTER_MOST of them, fewer where the process may have few files open; of
 * the others it is said that they are not shown, and they come when there is room.
 *
 * One thread, which lists the source, makes and takes down stacks; each run has its watch besides,
 * and what the front begins for it.
 */
#ifndef FS_ROSTER_H
#define FS_ROSTER_H

#include "fs/inode.h"

enum { ROSTER_MOST = 1000 };

struct roster; /* opaque */

/* What the front does for a run; called by the roster's thread. */
struct roster_ops {
	/* The stack is there, its watch has not begun. */
	void (*made)(void *ctx, struct stack *s);
	/* It is shown and the mount can be used; *out goes to `ended`. */
	void (*begun)(void *ctx, struct stack *s, void **out);
	/* It is not shown any more, or the connection has been closed. */
	void (*ended)(void *ctx, struct stack *s, void *what);
	/* What is listed at the top has changed. */
	void (*changed)(void *ctx);
};

/* `top` is the source's own stack, with a gate, and `inodes` its; both borrowed.  mountpoint: as
 * resolved, borrowed. */
int roster_new(struct stack *top, struct inodes *inodes, const char *mountpoint,
	       const struct roster_ops *ops, void *ctx, struct roster **out) MUST_CHECK;
/* Starts the thread, which sleeps until the source turns out to hold several runs. */
int roster_start(struct roster *r) MUST_CHECK;
/* Waits until all runs that are there at the start have been looked at.  At once where the source
 * is one run, or nobody knows; -ECANCELED. */
int roster_settle(struct roster *r) MUST_CHECK;
/* The mount can be used by its own process.  Waits until what the front begins for the runs at the
 * start has begun. */
void roster_usable(struct roster *r);
/* All that waits ends soon.  Any thread. */
void roster_cancel(struct roster *r);
/* Joins the thread and ends what the front began; after the connection has been closed. */
void roster_end(struct roster *r);
/* Once nobody has a reference to a run's inodes.  NULL is fine, in all three. */
void roster_free(struct roster *r);

/* ---- from any thread ---- */

/* Are there several runs, or is the source one (so far)? */
bool roster_several(const struct roster *r);
/* Lists the source now and has every run look at its part. */
int roster_refresh(struct roster *r, struct why *why) MUST_CHECK;

struct roster_entry { /* a run, as it is now */
	char *path;
	struct inodes *inodes; /* a reference; NULL: it could not be set up */
	bool shown;
	struct why trouble; /* why not */
};

struct roster_view {
	struct roster_entry *v; /* by path */
	size_t count;
	struct why listing; /* err 0: the source could be listed */
	int64_t listed_real_ns;
	bool top;	/* something at the top would make the source one run */
	char shut[600]; /* directories that cannot be listed, in a sentence; "": none */
};

int roster_view(struct roster *r, struct roster_view *out) MUST_CHECK;
void roster_view_release(struct roster_view *v);

/* roster_status.c: what .weightfs at the top says. */
void roster_line(struct roster *r, struct buf *out);
void roster_text(struct roster *r, struct buf *out);
void roster_json(struct roster *r, struct buf *out);
void roster_metrics(struct roster *r, struct buf *out);
struct stack *roster_top(const struct roster *r);

#endif
