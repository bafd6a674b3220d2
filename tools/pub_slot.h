/* SPDX-License-Identifier: Apache-2.0 */
/* A directory that receives a copy of a checkpoint's weight files. */
#ifndef TOOLS_PUB_SLOT_H
#define TOOLS_PUB_SLOT_H

#include "tools/pub_checkpoint.h"

/* Zero-initialise. */
struct pub_slot {
	int *fds; /* for each of the checkpoint's files: what is to be written; -1: it is there */
	size_t count;
};

/* Makes files of the right names and sizes in `dir`, without others.  Where the file system can
 * share blocks they have their contents at once; clone: only that, else -EOPNOTSUPP (without a
 * sentence).  -ENOSPC and others with a sentence.  Release it in any case. */
int pub_slot_open(const char *dir, const struct pub_checkpoint *c, bool clone, struct pub_slot *out,
		  struct why *why) MUST_CHECK;
/* Copies what is to be written. */
int pub_slot_fill(const struct pub_slot *s, const struct pub_checkpoint *c,
		  struct progress *progress, const volatile bool *stop, struct why *why) MUST_CHECK;
void pub_slot_release(struct pub_slot *s);
/* Removes the files. */
void pub_slot_clear(const char *dir);

#endif
