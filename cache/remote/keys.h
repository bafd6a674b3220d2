/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making a listing from what a server says: names that cannot be shown are left out and counted,
 * the rest is sorted.
 */
#ifndef CACHE_REMOTE_KEYS_H
#define CACHE_REMOTE_KEYS_H

#include "cache/store.h"

enum { KEYS_DEPTH_MAX = 32, KEYS_COUNT_MAX = 20 * 1000 * 1000 };

/* Zeroed before use. */
struct keys {
	struct object *v;
	size_t count, cap;
	size_t hidden; /* left out, but for dotfiles */
	bool failed;   /* out of memory */
};

/* Can it be shown?  Not with empty, "." or ".." segments, a segment that begins with a dot, more
 * than 32 levels, or bytes that are not UTF-8. */
bool keys_usable(const char *key);
/* Adds an object (the key is copied) unless it cannot be shown. */
void keys_add(struct keys *k, const char *key, uint64_t size, int64_t mtime_ns,
	      const struct identity *id);
/* Sorts into *out and leaves k empty.  Of two entries of one name the later one counts; a name that
 * is also a directory's is left out and counted.  -ENOMEM. */
int keys_finish(struct keys *k, struct listing *out) MUST_CHECK;
void keys_release(struct keys *k);

/* What of a full path lies below a prefix ("" or without a '/' at its end); NULL: nothing. */
const char *keys_below(const char *path, const char *prefix);

int listing_copy(const struct listing *from, struct listing *out) MUST_CHECK; /* -ENOMEM */

/* An identity made of a kind of validator and its text, so that two kinds are never equal. */
void identity_of_text(const char *kind, const char *text, size_t len, struct identity *out);

#endif
