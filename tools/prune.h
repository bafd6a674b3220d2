/* SPDX-License-Identifier: Apache-2.0 */
/* Which objects of a run may go: see tools/prune_plan.c. */
#ifndef TOOLS_PRUNE_H
#define TOOLS_PRUNE_H

#include "tools/upkeep.h"

struct prune_rules {
	uint64_t keep_versions; /* the newest ones, at least; 0: no rule */
	int64_t orphans_ns;	/* what is not named goes when it is older than that */
	const struct leases *leases;
	int64_t now_ns; /* leases that end before do not count */
};

struct doomed {
	const struct object *object; /* borrowed from the listing */
	const char *why;	     /* a few words */
};

struct prune_plan {
	struct doomed *v;
	size_t count;
	uint64_t bytes;
	uint64_t cut; /* the anchor below which all goes; 0: nothing does */
};

/* The version of the anchor below which a run that weightfs.json describes can do without anything;
 * 0: it needs all.  An anchor counts when its objects are in the listing as they should be. */
uint64_t prune_cut(const struct manifest *m, const struct listing *listing,
		   const struct prune_rules *rules);

/* The same from the anchors and the versions that there are, both ascending. */
uint64_t prune_cut_at(const uint64_t *anchors, size_t anchor_count, const uint64_t *versions,
		      size_t version_count, const struct prune_rules *rules);

/* What can go once weightfs.json is `now`: what it named before (`was`) and does not any more, and
 * orphans.  store_now_ns: the store's time. */
int prune_declared(const struct listing *listing, const struct manifest *was,
		   const struct manifest *now, const struct prune_rules *rules,
		   int64_t store_now_ns, struct prune_plan *out) MUST_CHECK;
int prune_add(struct prune_plan *p, const struct object *o, const char *why) MUST_CHECK;
void prune_release(struct prune_plan *p);

#endif
