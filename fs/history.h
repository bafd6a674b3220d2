/* SPDX-License-Identifier: Apache-2.0 */
/*
 * History: the generations that exist, which one is current (what the plain paths show) and which
 * is newest.
 *
 * The only mutable pointers to generations in the program.  `newest` moves with history_publish();
 * `current` follows it at once unless a hold, the load guard (fs/guard.h) or the gate
 * (history_gate()) keeps it back.  Kept: the last `keep`, and what is current, pinned, has open
 * handles or is being loaded.  One lock (LOCK_HISTORY), held for pointer changes only.
 */
#ifndef FS_HISTORY_H
#define FS_HISTORY_H

#include "fs/node.h"

struct generation {
	int refs; /* atomic */
	uint64_t version;
	char lineage[9]; /* 8 hex digits, or "" for version 0 (the base alone) */
	char format[32]; /* "TRL v3 (gap_delta)" */
	char writer[24]; /* of version directories: who writes them so; "": not known */
	int64_t mtime_ns;
	int verified;	     /* atomic; enum verified (fs/check.h) */
	struct state *state; /* NULL: no weights yet, only companions */
	struct node *root;   /* the tree: weights, index, companions */
};

struct generation *generation_ref(struct generation *g);
void generation_unref(struct generation *g); /* NULL is fine */

struct history; /* opaque */
struct history *history_new(unsigned keep);
void history_free(struct history *h);

/* Adds a generation (takes a reference) as the newest, replacing an earlier one of the same
 * version.  Moves current unless held. */
int history_publish(struct history *h, struct generation *g) MUST_CHECK;
/* Adds a generation that is older than all that are there; it does not become current or newest,
 * and is the first to go. */
int history_add_older(struct history *h, struct generation *g) MUST_CHECK;
/* Adds an older generation that was asked for, pinned. */
int history_add_pinned(struct history *h, struct generation *g) MUST_CHECK;
/* Takes out the versions from first to last: nobody gets them any more, whatever holds current, and
 * what is open or being loaded stays.  Not the newest: publish another before. */
void history_drop(struct history *h, uint64_t first, uint64_t last);
/* Each returns a reference or NULL. */
struct generation *history_current(struct history *h);
struct generation *history_newest(struct history *h);
struct generation *history_version(struct history *h, uint64_t version);

/* Pins a version that is there; -ENOENT. */
int history_pin(struct history *h, uint64_t version) MUST_CHECK;
/* Unpins one; -ENOENT when it is not pinned. */
int history_unpin(struct history *h, uint64_t version) MUST_CHECK;
void history_unpin_all(struct history *h);

/* Keeps current where it is for at most that long; a later call replaces the earlier.  Release ends
 * this and what the load guard holds. */
void history_hold(struct history *h, int64_t ns);
void history_release(struct history *h);
/* Lets current follow when a hold has run out, and retires what need not be kept.  Call about once
 * a second. */
void history_tick(struct history *h);
/* Monotonic time when what history_hold() began ends, or 0. */
int64_t history_held_until(struct history *h);
/* When to call history_tick() at the latest, or INT64_MAX. */
int64_t history_wake_at(struct history *h);

/* ---- the load guard ---- */

/* Before there are threads.  Without it, or with settle 0, nothing is guarded. */
void history_set_guard(struct history *h, int64_t settle_ns, int64_t max_hold_ns);
bool history_guarded(const struct history *h);
/* Another number when the view of any process may be another. */
uint64_t history_epoch(struct history *h);
/* A process opens a weight file (or the index) that it looked up by plain path.  `epoch`: from
 * before the look-up; NULL: unknown, take it as it is.  *out_id: for the two below; *out_new: this
 * began a load. -ESTALE: what was looked up may be of another view than the process has now; it
 * keeps that one for now, so that looking up again helps.  -ENOMEM. */
int history_load_opened(struct history *h, int pid, const char *name, bool index,
			const uint64_t *epoch, uint64_t *out_id, bool *out_new) MUST_CHECK;
void history_load_named(struct history *h, uint64_t id, const char *command);
void history_load_closed(struct history *h, uint64_t id);
/* Does a process see another version than the current one? (cheap) */
bool history_split(const struct history *h);
/* What the plain paths show to a process (0: to others); a reference or NULL. */
struct generation *history_view(struct history *h, int pid);

struct history_load {
	int pid; /* 0: processes that cannot be told apart */
	char command[16];
	uint64_t version;
	bool holds;	    /* keeps current from moving; else only the process's own view */
	int64_t began, end; /* monotonic; end: at the latest */
	unsigned open, opens;
	char *files; /* names, newlines between them */
};
/* Those under way, longest first; history_loads_free() frees. */
int history_loads(struct history *h, struct history_load **out, size_t *out_count) MUST_CHECK;
void history_loads_free(struct history_load *v, size_t count);
/* How many holds have lasted as long as they may so far, and of the last one the longest load. */
uint64_t history_expired(struct history *h, int *out_pid, char out_command[16]);

/* Gate, set before the first publication: current follows a generation only once it was said to be
 * ready (its pages are resident, its files written out).  Where nothing is shown yet it does not
 * wait. */
void history_gate(struct history *h);
void history_ready(struct history *h, const struct generation *g);
/* Waits until current or newest has moved since *seen (0 at first), or for history_wake(); 0 or
 * -ETIMEDOUT. */
int history_moved(struct history *h, uint64_t *seen, int64_t until_mono_ns);
void history_wake(struct history *h);

struct history_entry {
	uint64_t version;
	char lineage[9];
	uint64_t anchor;
	unsigned deltas;
	int opens;
	int64_t mtime_ns;
	bool pinned, current, newest;
};
/* Snapshot, ascending by version; malloc'ed. */
int history_list(struct history *h, struct history_entry **out, size_t *out_count) MUST_CHECK;

/* The lineage under which a state is shown (8 hex digits, or "" for the base alone); false when no
 * generation here has it. */
bool history_lineage(struct history *h, const struct state *state, char out[9]);

/* fn is called, with no lock held, after current or newest changed (from the thread that changed
 * it).  One subscriber. */
void history_subscribe(struct history *h, void (*fn)(void *ctx), void *ctx);
/* Waits until the current (newest when `newest`) version is at least n (any version when n is 0); 0
 * or -ETIMEDOUT. */
int history_wait(struct history *h, bool newest, uint64_t n, int64_t until_mono_ns) MUST_CHECK;

#endif
