/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of what the program does, for status and metrics.  Atomic, relaxed: they are for graphs.
 */
#ifndef FS_COUNTERS_H
#define FS_COUNTERS_H

#include <stdint.h>

struct counters {
	uint64_t reads, read_bytes, read_errors, opens, lookups, versions_published;
	uint64_t scans, scans_alike; /* alike: nothing was new, and nothing left to be done */
	uint64_t looks; /* at what is known of an object, while versions are planned and made */
	/* Deltas of wfp1x made into patches, bytes of the base that were read for it, and time. */
	uint64_t given_base, given_base_bytes, given_base_ns;
};
extern struct counters counters;
#define COUNT(field, n) __atomic_fetch_add(&counters.field, (n), __ATOMIC_RELAXED)

#endif
