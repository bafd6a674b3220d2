/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums that a run's writers recorded, against the bytes that a version has.
 *
 * For each tensor the checksum counts that the last delta has which changes it (or the anchor); for
 * a version also a hash of the whole state, where its index has one.  --base adds tensors that a
 * writer does not know, so with it only tensors are compared.
 *
 * Modes (--verify).  eager: before a version becomes visible.  lazy: after it has, by one thread
 * that runs when the machine has nothing else to do, while all bytes are near; of versions that
 * come faster than that the newest only.  off: by nobody (the verbs verify and export do it
 * themselves).  A tensor that was right and has not been changed since is not read again.
 *
 * What is wrong takes a version out: the object that made it so counts as damaged from then on, so
 * the run falls back to the version before, and the versions built on it go, too.
 */
#ifndef FS_CHECK_H
#define FS_CHECK_H

#include "codec/checksum.h"
#include "fs/state.h"

enum verify_mode { VERIFY_LAZY, VERIFY_EAGER, VERIFY_OFF };

/* How much of what is recorded for a version has been compared. */
enum verified { VERIFIED_NO, VERIFIED_PART, VERIFIED_YES };
const char *verified_name(enum verified v); /* "no", "in part", "yes" */

struct check {		  /* what a tensor's checksum should be */
	uint8_t kind;	  /* enum checksum_kind; NONE: nothing is recorded of what it is now */
	bool done;	  /* it is that */
	uint64_t version; /* whose object says it */
	char hex[CHECKSUM_HEX];
};

struct checks {
	struct layout *layout; /* a reference; NULL: empty */
	struct check *v;       /* one for each of its tensors */
	struct check whole;    /* of the bytes of all tensors in order of names */
	bool has_state;	       /* the state as fs/manifest.h has it */
	bool state_done;
	uint8_t state[16];
};

int checks_new(struct layout *layout, struct checks *out) MUST_CHECK; /* -ENOMEM */
int checks_copy(const struct checks *from, struct checks *out) MUST_CHECK;
void checks_release(struct checks *c);
enum verified checks_sum(const struct checks *c);
/* How many are recorded, how many of those are right, and of a kind that is not known here. */
void checks_count(const struct checks *c, size_t *out_recorded, size_t *out_done,
		  size_t *out_unknown);
/* Is there something that can be compared and has not been? */
bool checks_due(const struct checks *c);

struct check_miss {
	uint32_t tensor; /* LAYOUT_NONE: it is the whole state */
	uint64_t version;
	bool of_state;
	char have[CHECKSUM_HEX], want[CHECKSUM_HEX];
};

/* Compares what is not done yet, with that many threads, and marks what is right.  -EBADMSG: *out
 * is not right; -ECANCELED: *stop (atomic, may be NULL) was set; or an error of reading, with a
 * sentence. */
int checks_compare(const struct state *s, struct checks *c, unsigned jobs,
		   const volatile bool *stop, struct check_miss *out, struct why *why) MUST_CHECK;

/* ---- in the background ---- */

struct check_work; /* opaque: one thread at a time */

struct check_work *check_work_new(void);    /* NULL: out of memory */
void check_work_free(struct check_work *w); /* stops it; NULL is fine */
/* Starts comparing a copy of the checks; false: it is busy, or that cannot be had. */
bool check_work_start(struct check_work *w, struct state *s, const struct checks *c);
/* Has it ended?  Then its checks (to be released), what is not right, and its error; the state is
 * that of the start, a reference. */
bool check_work_take(struct check_work *w, struct state **out_state, struct checks *out_checks,
		     struct check_miss *out_miss, int *out_err);
bool check_work_busy(const struct check_work *w);

#endif
