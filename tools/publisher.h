/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The publisher behind `weightfs publish`: what the verb, and whatever watches for checkpoints,
 * calls for each of them.
 *
 * A publisher belongs to one destination and one thread; while it is open no other process can open
 * one with the same state directory.  It may live for many checkpoints.  All functions block.
 *
 * After any failure, or a kill at any moment, the next call (of this process or another) finds out
 * how far the last one came, finishes or forgets it, and goes on; what readers see is a valid run
 * all the time.
 */
#ifndef TOOLS_PUBLISHER_H
#define TOOLS_PUBLISHER_H

#include "fs/opts.h"
#include "tools/pub_apart.h"
#include "tools/pub_encode.h"

struct pub_options {
	const char *dest;      /* a directory, s3://..., hf://buckets/... */
	struct opts *source;   /* credentials, time limits and so on for it; borrowed */
	const char *state_dir; /* NULL: the default */
	const char *against;   /* a checkpoint, or a source, with the last published state; NULL */
	const char *encoding;  /* NULL: wfp1 */
	const char *anchor_encoding; /* NULL: as the encoding has it */
	uint64_t anchor_every;	     /* 0: adaptive */
	unsigned jobs;		     /* 0: all cores */
	bool anchor;		     /* each time */
	bool no_state, take_over, new_run,
		dry_run; /* take_over, new_run: for the first checkpoint */
	bool quiet;	 /* no progress */
};

/* What has been done for one checkpoint. */
struct pub_report {
	uint64_t version;
	const char *kind; /* "anchor", "delta", "unchanged", "already there" */
	bool with_anchor; /* there is one, alone or beside the delta */
	char reason[300]; /* why there is an anchor, for people; or empty */
	char encoding[32];
	char state[33];
	uint64_t tensors, elements, changed; /* changed: 0 for an anchor without a base */
	bool compared;			     /* there was a base, so `changed` means something */
	uint64_t weights;		     /* bytes of all tensors */
	uint64_t objects, bytes;	     /* uploaded, of the version itself */
	uint64_t delta_bytes;		     /* of them, the delta's */
	uint64_t companions;		     /* files uploaded beside it */
	int64_t diff_ns, encode_ns, upload_ns, total_ns;
	char note[300]; /* a sentence about something unexpected that was dealt with; or empty */
};

struct publisher; /* opaque */

/* options are borrowed until pub_close().  Takes the state directory's lock: -EBUSY with a sentence
 * that names the process that has it. */
int pub_open(const struct pub_options *options, struct publisher **out, struct why *why) MUST_CHECK;

/* Publishes a checkpoint: a directory, a .safetensors file, or "-" for a stream on standard input.
 * version: NULL for the next.  -EBUSY, -ESTALE: somebody else's run; -EINTR: pub_stop(). */
int pub_publish(struct publisher *p, const char *checkpoint, const uint64_t *version,
		struct pub_report *out, struct why *why) MUST_CHECK;

/* The newest version in the destination; 0: none yet.  Asks the store. */
int pub_newest(struct publisher *p, uint64_t *out, struct why *why) MUST_CHECK;

/* Where it writes on this machine; valid as long as the publisher. */
void pub_own_places(const struct publisher *p, struct pub_places *out);
/* Is this directory the destination? */
bool pub_is_dest(const struct publisher *p, const char *path);

/* Makes a call that is under way end soon, with nothing lost.  Safe in a signal handler. */
void pub_stop(struct publisher *p);
void pub_close(struct publisher *p); /* NULL is fine */

/* One line for people, and one JSON object, with a newline. */
void pub_report_print(const struct pub_report *r, const char *dest);
void pub_report_json(const struct pub_report *r, const char *dest);

#endif
