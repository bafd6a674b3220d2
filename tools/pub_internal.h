/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the publisher share: tools/pub_flow.c calls the others in order. */
#ifndef TOOLS_PUB_INTERNAL_H
#define TOOLS_PUB_INTERNAL_H

#include "fs/stack.h"
#include "tools/pointer.h"
#include "tools/pub_chain.h"
#include "tools/pub_checkpoint.h"
#include "tools/pub_diff.h"
#include "tools/pub_slot.h"
#include "tools/pub_state.h"
#include "tools/publisher.h"

/*
 * Adaptive anchors: whoever starts at the newest version reads an anchor and the deltas after it.
 * When these would be more than this share of an anchor's bytes, the next version gets an anchor as
 * well.  So a late joiner never reads more than one and a half anchors; the trainer uploads, in the
 * long run, two bytes of anchors for each byte of deltas, which at one change in a hundred is one
 * anchor in some eighty versions.
 */
#define PUB_CHAIN_SHARE 0.5

struct publisher {
	const struct pub_options *o;
	const struct pub_encoding *encoding, *anchors;
	struct stack *stack;
	struct store *store; /* the stack's */
	struct pub_state *state;
	unsigned jobs;
	bool made;	    /* the destination did not exist before this dry run */
	bool entered;	    /* a checkpoint was published: the run is ours by now */
	volatile bool stop; /* set by pub_stop(), from any context */
};

/* One checkpoint on its way. */
struct attempt {
	struct publisher *p;
	struct pub_report *r;
	/* What the destination says. */
	struct pointer was;
	bool begins;  /* a new lineage */
	bool dropped; /* an earlier attempt came to nothing */
	char lineage[9];
	uint64_t newest; /* of the lineage; 0: none */
	char newest_state[33];
	/* The two states. */
	struct pub_chain chain;		  /* on top of old */
	struct pub_checkpoint *new, *old; /* old: NULL when it is not certain */
	struct pub_companions companions;
	char slot; /* that new is copied to; 0: none */
	char *slot_path;
	bool patched;	 /* new is kept as a patch */
	json_t *patches; /* of the new record; NULL: none */
	bool streamed;	 /* new came as a stream, and is where it belongs */
	struct pub_diff diff;
	/* The decision. */
	bool want_delta, want_anchor;
	char reason[300]; /* for an anchor, for people */
	/* The result. */
	struct pub_input in;
	struct pub_objects delta, anchor;
	struct manifest *next;
	int64_t time_ns;
};

/* ---- pub_base.c ---- */

/* Reads the pointer, settles what an earlier attempt left, and finds out whose run it is: lineage,
 * newest version, and the last state, opened, when there is a copy of it.  -EBUSY and others with a
 * sentence when it is not ours. */
int pub_look(struct attempt *a, struct why *why) MUST_CHECK;
/* May `version` (NULL: the next) be published?  Sets in.version. */
int pub_choose_version(struct attempt *a, const uint64_t *version, struct why *why) MUST_CHECK;
/* Delta or anchor, or both: sets want_*, reason. After the diff. */
int pub_decide(struct attempt *a, struct why *why) MUST_CHECK;

/* ---- pub_copy.c ---- */

/* Chooses how the new state is kept, and opens the files of a copy.  Release the slot. */
int pub_copy_begin(struct attempt *a, struct pub_slot *slot, struct why *why) MUST_CHECK;
/* After comparing: what is missing of it.  Sets slot and patches to what a record has to say. */
int pub_copy_end(struct attempt *a, struct why *why) MUST_CHECK;

/* ---- pub_upload.c ---- */

/* Everything in the right order, the pointer last; `next` is what it then says. */
int pub_upload(struct attempt *a, struct why *why) MUST_CHECK;
/* Removes what earlier attempts left in the destination, where it can; best effort. */
void pub_remove_orphans(struct attempt *a);

/* Says once, in the report, that something unexpected was dealt with. */
void pub_note(struct attempt *a, const char *fmt, ...) PRINTF(2, 3);

#endif
