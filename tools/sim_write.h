/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trainer's uploads: what each generation of TRL's delta weight sync would put into the bucket
 * for a sync, with its names, numbers, encodings and metadata.
 */
#ifndef TOOLS_SIM_WRITE_H
#define TOOLS_SIM_WRITE_H

#include "tools/sim_train.h"

enum sim_encoding { SIM_RAW, SIM_GAP_DELTA };

struct sim_generation {
	const char *name;      /* "v1.3" */
	const char *index;     /* suffix of the index tensor */
	const char *values;    /* suffix of the value tensor */
	unsigned interval;     /* of periodic anchors; 0: none */
	bool counted_on_syncs; /* the interval counts syncs, not the numbers of files */
	bool complete;	       /* periodic anchors hold every tensor, not only the changed ones */
	bool holes;	       /* a sync without changes takes a number too */
	bool encodes;	       /* has a choice of index encodings */
	uint8_t second;	       /* enum sim_second */
};

/* What the second sync writes: the change detector of early generations does not exist yet then. */
enum sim_second { SIM_SECOND_DELTA, SIM_SECOND_ANCHOR, SIM_SECOND_FULL_DELTA };

struct sim_writer {
	const struct sim_generation *generation;
	struct store *store;	       /* borrowed */
	const struct sim_train *train; /* borrowed */
	enum sim_encoding encoding;
	uint64_t interval;	/* of periodic anchors; 0: none */
	uint64_t number, syncs; /* the last number taken; syncs so far */
	uint64_t anchor;	/* number of the last anchor */
};

struct sim_report {
	uint64_t number;
	const char *kind; /* "anchor", "partial anchor", "full", "delta", "nothing" */
	char key[64];	  /* of the object; empty when the sync left none */
	uint64_t changed, bytes;
};

/* A generation by name ("v1.0" ... "v3"), or NULL with a sentence. */
const struct sim_generation *sim_generation_find(const char *name, struct why *why);

void sim_writer_init(struct sim_writer *w, const struct sim_generation *generation,
		     struct store *store, const struct sim_train *train);
/* One sync: publishes the train's state (and what its last step changed). */
int sim_writer_sync(struct sim_writer *w, struct sim_report *out, struct why *why) MUST_CHECK;

#endif
