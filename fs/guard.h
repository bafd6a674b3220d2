/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The load guard: while a load is under way, the version that the plain paths show does not move.
 *
 * A *load* is one process opening weight files by plain path.  It begins with the first open, on
 * the view (an opaque token: a version) that the plain paths showed then, and is *active* while a
 * file of it is open or mapped, and for `settle` after the last open or close; at most `max_hold`
 * after its begin.  What it has open after that does not count any more.  The process's next open
 * is a new load.  So is an open of the index after one of a shard: nobody reads the index again in
 * the middle of a load, and a process that reloads without a pause has no other sign of it.
 *
 * The *hold* is what all processes share: it keeps the plain paths on their view, so that ranks of
 * one engine, which start seconds apart, get the same version.
 *
 *	hold | event                          | next | effect
 *	-----+--------------------------------+------+-------------------------------------
 *	FREE | new load on the current view   | HELD | current stays
 *	FREE | another open of a load         | FREE | none: a new hold needs a new load
 *	HELD | open, close                    | HELD | settle begins again for that load
 *	HELD | last active load of view ended | FREE | current may move
 *	HELD | max_hold since it began        | FREE | current may move; counted
 *	HELD | release                        | FREE | current may move
 *	HELD | current moved                  | FREE | none
 *
 *	load           | event                   | next
 *	---------------+-------------------------+---------------------------------------------
 *	none           | open                    | OPEN, on the current view
 *	none           | announced               | SETTLING, on the current view
 *	OPEN           | open                    | OPEN
 *	OPEN, SETTLING | index after a shard,    | as it is, max_hold counts from now; a FREE
 *	               |   view is current       |   hold becomes HELD
 *	OPEN, SETTLING | the same, view is not   | OPEN, a new load on the current view
 *	OPEN           | last close              | SETTLING
 *	SETTLING       | open                    | OPEN, on the same view
 *	SETTLING       | settle over             | none
 *	OPEN, SETTLING | max_hold since it began | none; what it has open does not count any more
 *
 * When current moves and a load is still active (max_hold, release), that process keeps its view:
 * guard_view() says which, and its plain paths go on showing it until the load has ended.  So even
 * then a load is of one version, and others move on.
 *
 * Process 0 stands for all that cannot be told apart (another pid namespace): one load.
 *
 * A state machine and nothing else: no clock (times are arguments, monotonic, which must not go
 * back), no lock (the caller's), no I/O.
 */
#ifndef FS_GUARD_H
#define FS_GUARD_H

#include "codec/base.h"

enum { GUARD_NAMES = 64, GUARD_COMMAND = 16 };

/* Of one process.  Read only outside guard.c. */
struct guard_load {
	struct guard_load *next;
	uint64_t id; /* never used twice */
	int pid;     /* 0: processes that cannot be told apart */
	char command[GUARD_COMMAND];
	const void *view;
	int64_t began, last;	  /* last: of its opens and closes */
	unsigned open;		  /* handles, mapped ones too */
	unsigned opens;		  /* all that were opened */
	bool sharded;		  /* a shard was opened after the index, if there was one */
	char *names[GUARD_NAMES]; /* of its files, each once; the first so many */
	unsigned name_count;
};

struct guard {
	int64_t settle, max_hold; /* settle 0: off */
	int64_t began;		  /* of the hold */
	bool held;
	const void *current;
	uint64_t last_id;
	uint64_t expired; /* holds that max_hold ended */
	int expired_pid;  /* of the last of them, the longest load */
	char expired_command[GUARD_COMMAND];
	uint64_t epoch; /* another one when the view of any process may be another */
	struct guard_load *loads;
};

void guard_init(struct guard *g, int64_t settle, int64_t max_hold);
void guard_release_all(struct guard *g); /* frees; the guard is as after guard_init() */

/* A process is going to open the index by plain path: before guard_opened(). */
void guard_index(struct guard *g, int pid, int64_t now);
/* A shard (or the index) was opened by plain path; `open` false: it is going to be, keep the view
 * for it.  *out_id goes to guard_closed() when `open`.  *out_new: this began a load, whose command
 * can be set with guard_name().  -ENOMEM: nothing was noted. */
int guard_opened(struct guard *g, int pid, const char *name, bool index, bool open, int64_t now,
		 uint64_t *out_id, bool *out_new) MUST_CHECK;
void guard_name(struct guard *g, uint64_t id, const char *command);
void guard_closed(struct guard *g, uint64_t id, int64_t now);

/* Time passes: ends what is over.  Call before the two below, with the same `now`. */
void guard_tick(struct guard *g, int64_t now);
/* Must current stay? */
bool guard_held(const struct guard *g);
/* When guard_tick() could next end something by itself, or INT64_MAX. */
int64_t guard_deadline(const struct guard *g);
/* Ends the hold, not the loads. */
void guard_release(struct guard *g);
/* Current is `view` now. */
void guard_moved(struct guard *g, const void *view);

/* The view that a process's load keeps, or NULL: the current one. */
const void *guard_view(const struct guard *g, int pid);
/* Does a load keep this view? */
bool guard_uses(const struct guard *g, const void *view);
/* Does a load keep another view than the current? */
bool guard_split(const struct guard *g);
/* When that load will be over although its files stay open. */
int64_t guard_load_end(const struct guard *g, const struct guard_load *l);

#endif
