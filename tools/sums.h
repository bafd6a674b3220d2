/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums that an HF-directory delta has of the tensors it makes. */
#ifndef TOOLS_SUMS_H
#define TOOLS_SUMS_H

#include "fs/run.h"
#include "fs/state.h"

/* Compares every tensor that the version's delta changes with the checksum that its shards have of
 * it.  `state`: the version's.  *out_checked: how many tensors; *out_skipped: those whose checksum
 * is of a kind that is not known here (blake3).  -EBADMSG with a sentence that names the tensor; 0,
 * with nothing checked, for a version of another encoding.  Reads the tensors whole. */
int sums_check(struct run *run, const struct version_info *info, const struct state *state,
	       size_t *out_checked, size_t *out_skipped, struct why *why) MUST_CHECK;

#endif
