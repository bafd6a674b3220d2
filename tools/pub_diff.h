/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Comparing a checkpoint with the last published state: hashes of both, a patch for each tensor
 * that changes, and a copy of the new bytes for the next time, in one pass over each.
 *
 * Threads take whole tensors, the largest first.  Each needs some 20 MiB, whatever the model's
 * size.
 */
#ifndef TOOLS_PUB_DIFF_H
#define TOOLS_PUB_DIFF_H

#include "tools/pub_chain.h"
#include "tools/pub_checkpoint.h"
#include "tools/progress.h"

struct pub_diff {
	/* in */
	struct pub_checkpoint *new;    /* hash, patch, blob, changed and old are filled in */
	struct pub_checkpoint *old;    /* alike; its tensors' hashes are filled in.  NULL: none */
	const struct pub_chain *chain; /* on top of old; NULL: none */
	const int *copies; /* for each file of new: where its bytes go, too; -1: nowhere.
			      NULL: none */
	const char *work_dir;
	unsigned jobs;
	const volatile bool *stop; /* set: -EINTR soon */
	struct progress *progress; /* NULL: none */
	/* out */
	uint64_t changed;   /* elements */
	uint64_t encoded;   /* bytes of all blobs */
	char state[33];	    /* of new */
	char old_state[33]; /* of old */
	int fd;		    /* -1 */
	/* private */
	uint8_t *map;
	uint64_t map_size;
	struct patch *views;
};

/* Headers of `new` are copied as well.  -errno with a sentence; pub_diff_release() in any case. */
int pub_diff_run(struct pub_diff *d, struct why *why) MUST_CHECK;
/* The tensors of `new` have no patches any more. */
void pub_diff_release(struct pub_diff *d);

#endif
