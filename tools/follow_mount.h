/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follow does with the mount: waits for versions, brings one near, and keeps those that
 * engines use where they are.
 */
#ifndef TOOLS_FOLLOW_MOUNT_H
#define TOOLS_FOLLOW_MOUNT_H

#include "codec/base.h"

/* A version that must stay: pinned in the mount (which outlives this process, as the engine that
 * uses it may), and one of its files held open (which another program's unpin does not end). */
struct follow_lease {
	uint64_t version;
	int fd;	     /* -1: none */
	char *name;  /* of that file, below .weightfs */
	bool pinned; /* by us: ours to unpin */
};

struct follow_mount {
	char *path; /* absolute */
	int dot_fd; /* .weightfs */
	int newest_fd;
	struct follow_lease *leases;
	size_t lease_count;
};

/* Blocks, as all below. */
int follow_mount_open(const char *mountpoint, struct follow_mount *out, struct why *why) MUST_CHECK;
/* Pins stay. */
void follow_mount_close(struct follow_mount *m);
/* Brings a version here and keeps it; adopt: a pin that is there already was left by an earlier
 * follow, and is ours now.  Leased already: fine. */
int follow_mount_lease(struct follow_mount *m, uint64_t version, bool adopt,
		       struct why *why) MUST_CHECK;
/* Is what lies under a leased version's number no longer what was leased?  A run that has begun
 * again counts through the same numbers.  The lease is of what is there now, then. */
bool follow_mount_renewed(struct follow_mount *m, size_t lease);
/* Pins again what another program has unpinned: it is in use. */
void follow_mount_repin(struct follow_mount *m);
/* Lets go of all leases but those of `count` versions.  A mount that has gone is no error. */
void follow_mount_keep(struct follow_mount *m, const uint64_t *versions, size_t count);
/* Reads all files of a version once, so that they are here and in the page cache.  -ECANCELED when
 * stop_fd became readable; -errno with a sentence that names the file. */
int follow_mount_warm(struct follow_mount *m, uint64_t version, int stop_fd, uint64_t *out_bytes,
		      struct why *why) MUST_CHECK;

#endif
