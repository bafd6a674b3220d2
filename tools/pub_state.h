/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a publisher keeps on its own machine for one destination: who it is, what it published last,
 * a copy of those weights, and the attempt that is under way.
 *
 *	DIR/HASH-OF-DESTINATION/
 *	    lock		held while a publisher is open; says who holds it
 *	    place		the destination, for people
 *	    state.json		the last published version
 *	    pending.json	what is about to be the last published one, and the keys that are
 *				being uploaded for it; absent most of the time
 *	    slot-a/ slot-b/	copies of the checkpoint's weight files: one belongs to state.json,
 *				the other is written for the next version
 *	    patches/		what has changed since a slot was written, a file a version
 *	    work/		files of the attempt
 *
 * The two .json are replaced as a whole and synced; copies are neither, and are only trusted by
 * their hash.  One thread.
 */
#ifndef TOOLS_PUB_STATE_H
#define TOOLS_PUB_STATE_H

#include "codec/base.h"

#include <jansson.h>

struct pub_record {
	char lineage[9], state[33];
	uint64_t version;   /* 0: nothing was published yet */
	char slot;	    /* 'a' or 'b': where its weights are; 0: nowhere */
	json_t *patches;    /* array of files in patches/, oldest first, on top of it; NULL: none */
	json_t *companions; /* {key: {"hash", "size", "time"}} of what is at the run's root */
	json_t *keys;	    /* pending: array of the keys that are being uploaded */
	json_t *orphans;    /* array of keys of attempts that came to nothing; NULL: none */
};

struct pub_state {
	char *dir, *work, *patches;
	int lock_fd;
	char publisher[33]; /* random, made with the directory */
	struct pub_record now;
	bool has_pending;
	struct pub_record pending;
};

/* parent: NULL for $XDG_STATE_HOME/weightfs or ~/.local/state/weightfs.  `place` names the
 * destination among all.  -EBUSY when another process has it, with a sentence. */
int pub_state_open(const char *parent, const char *place, struct pub_state **out,
		   struct why *why) MUST_CHECK;
void pub_state_close(struct pub_state *s); /* NULL is fine */

/* The slot that is free, and its directory (malloc'ed; NULL: out of memory). */
char pub_state_free_slot(const struct pub_state *s);
char *pub_state_slot_path(const struct pub_state *s, char slot);
/* Removes what attempts left in work/, and patches that no record names. */
void pub_state_clean(const struct pub_state *s);

/* Writes pending.json from s->pending. */
int pub_state_begin(struct pub_state *s, struct why *why) MUST_CHECK;
/* Pending becomes what is. */
int pub_state_commit(struct pub_state *s, struct why *why) MUST_CHECK;
/* Forgets pending; its keys become orphans. */
int pub_state_drop(struct pub_state *s, struct why *why) MUST_CHECK;
/* Writes state.json again, after a change of what the caller may change (orphans). */
int pub_state_save(struct pub_state *s, struct why *why) MUST_CHECK;

void pub_record_release(struct pub_record *r);
/* `bytes` random bytes as hexadecimal digits, and a NUL. */
int pub_random(char *out, size_t bytes) MUST_CHECK;

#endif
