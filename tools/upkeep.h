/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What compact, prune and lease share: changing weightfs.json while others do, leases, and
 * deleting.
 *
 * One thread; all functions block.  Every step can be the last one: what readers see is a valid run
 * at any moment, and the same command goes on where the last one ended.
 */
#ifndef TOOLS_UPKEEP_H
#define TOOLS_UPKEEP_H

#include "cache/store.h"
#include "fs/manifest.h"

#define LEASES "leases/"

struct lease { /* somebody needs a version for some time */
	char *key;
	uint64_t version;
	int64_t until_ns;
	struct identity id;
};

struct leases {
	struct lease *v;
	size_t count;
};

/* All that are in the listing.  -EBADMSG with a sentence when one cannot be understood: what it
 * protects is not known. */
int leases_read(struct store *store, const struct listing *listing, struct leases *out,
		struct why *why) MUST_CHECK;
void leases_release(struct leases *l);

/* Changes a copy of weightfs.json: 1 it is changed, 0 there is nothing to do (any more), or an
 * error with a sentence.  May be called several times, each time on what is there by then. */
typedef int upkeep_change(struct manifest *m, void *ctx, struct why *why);

/* Reads weightfs.json, changes it, and replaces it unless somebody else did meanwhile; then again.
 * 1: it was changed, 0: nothing to do, -ENOENT: there is none.  *out_now (may be NULL) is what is
 * there afterwards; free it. */
int upkeep_pointer(struct store *store, upkeep_change *change, void *ctx, struct manifest **out_now,
		   struct why *why) MUST_CHECK;

/* Where the run has an index.json (for plain web servers): rewrites it for `m` and, when given, for
 * `old` as well; weightfs.json has pointer_len bytes. */
int upkeep_index(struct store *store, const struct manifest *m, const struct manifest *old,
		 uint64_t pointer_len, struct why *why) MUST_CHECK;

/* The keys that a manifest names, for look-ups; borrowed from it. */
struct keyset {
	const char **v; /* sorted */
	size_t count;
};
int keyset_of(const struct manifest *m, struct keyset *out) MUST_CHECK; /* -ENOMEM */
bool keyset_has(const struct keyset *k, const char *key);
void keyset_release(struct keyset *k);

#endif
