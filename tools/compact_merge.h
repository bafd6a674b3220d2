/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merging the deltas of some steps into one object.
 */
#ifndef TOOLS_COMPACT_MERGE_H
#define TOOLS_COMPACT_MERGE_H

#include "cache/store.h"
#include "fs/manifest.h"
#include "tools/progress.h"

/* Can the steps from `base` to `version` be merged?  Both are there, every step between has a wfp1
 * delta.  -ENOENT, -ENOTSUP with a sentence. */
int compact_check(const struct manifest *m, uint64_t base, uint64_t version,
		  struct why *why) MUST_CHECK;
/* Bytes of their objects. */
uint64_t compact_bytes(const struct manifest *m, uint64_t base, uint64_t version);

/* Fetches the deltas, checks each against the manifest, and writes the merged patch file into an
 * unlinked file: *out_fd, to be closed, and its size.  `progress` may be NULL. */
int compact_merge(struct store *store, const struct manifest *m, uint64_t base, uint64_t version,
		  struct progress *progress, int *out_fd, uint64_t *out_size,
		  struct why *why) MUST_CHECK;

#endif
