/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Has anything come since the last listing?  A cheap answer for long listings.
 *
 * A run of steps only ever grows at the end of its directories: new keys sort behind the ones there
 * are, since numbers are padded.  So between two listings of everything, which take a request per
 * thousand keys, it is enough to ask what lies behind the last key of anchors/, deltas/ and steps/
 * (start-after) and whether weightfs.json is what it was: up to four small requests.  When there is
 * something new, or when it cannot be known, everything is listed.
 *
 * This sees no deletion, no rewrite and no key anywhere else.  Those wait for the next listing of
 * everything: after a minute, at a refresh, and as soon as a read finds an object gone or changed.
 * It is done only where it saves requests (PAGES_MIN) and where nearly all keys are steps.
 *
 * The last listing is kept under the store's lock; one thread lists at a time, others are correct
 * but may list for nothing.
 */
#include <stdlib.h>

#include "cache/clock.h"
#include "cache/remote/keys.h"
#include "cache/remote/store_s3_private.h"

enum {
	PAGES_MIN = 5,	  /* requests of a whole listing, from which on it is worth it */
	WHOLE_EVERY = 60, /* seconds: everything is listed at least that often */
	OTHERS_MAX = 500, /* keys that are no steps */
};

static const char *const directories[] = {"anchors/", "deltas/", "steps/"};
static const char manifest[] = "weightfs.json";

/* The last key of each directory, an index into listing->v; SIZE_MAX: none.  False when the keys of
 * one are not all equally long (then the newest need not be the last) or most lie elsewhere. */
static bool find_ends(const struct listing *listing, size_t ends[ARRAY_LEN(directories)])
{
	size_t others = 0;

	for (size_t d = 0; d < ARRAY_LEN(directories); d++)
		ends[d] = SIZE_MAX;
	for (size_t i = 0; i < listing->count; i++) {
		const char *key = listing->v[i].key;
		size_t d = 0;

		while (d < ARRAY_LEN(directories) &&
		       strncmp(key, directories[d], strlen(directories[d])) != 0)
			d++;
		if (d == ARRAY_LEN(directories)) {
			others++;
			continue;
		}
		if (ends[d] != SIZE_MAX && strlen(listing->v[ends[d]].key) != strlen(key))
			return false;
		ends[d] = i; /* the listing is sorted */
	}
	return others <= OTHERS_MAX;
}

void s3_probe_remember(struct s3_store *s, const struct listing *listing, unsigned pages)
{
	size_t ends[ARRAY_LEN(directories)];
	struct listing copy = {0}, old;

	if (pages >= PAGES_MIN && find_ends(listing, ends) && listing_copy(listing, &copy) < 0)
		copy = (struct listing){0};
	lock_take(&s->lock);
	old = s->known;
	s->known = copy;
	s->known_ns = clock_mono_ns();
	lock_release(&s->lock);
	listing_release(&old);
}

void s3_probe_forget(struct s3_store *s)
{
	lock_take(&s->lock);
	s->known_ns = 0;
	lock_release(&s->lock);
}

/* Nothing behind the last key of a directory? */
static bool ends_there(struct s3_store *s, const char *last)
{
	const char *slash = strchr(last, '/');
	char *directory = strndup(last, (size_t)(slash + 1 - last));
	struct listing after = {0};
	bool same = directory != NULL && s3_list_some(s, directory, last, &after, NULL) == 0;

	/* A server that knows no start-after gives a page from the beginning. */
	for (size_t i = 0; same && i < after.count; i++)
		same = strcmp(after.v[i].key, last) <= 0;
	same = same && after.hidden == 0;
	listing_release(&after);
	free(directory);
	return same;
}

static bool manifest_is(struct s3_store *s, const struct object *known)
{
	struct listing some = {0};
	const struct object *now;
	bool same = s3_list_some(s, manifest, NULL, &some, NULL) == 0;

	now = same ? listing_find(&some, manifest) : NULL;
	if (same)
		same = (now == NULL) == (known == NULL) &&
		       (now == NULL || identity_equal(&now->id, &known->id));
	listing_release(&some);
	return same;
}

bool s3_probe_unchanged(struct s3_store *s, struct listing *out)
{
	size_t ends[ARRAY_LEN(directories)];
	struct listing copy = {0};
	int64_t now = clock_mono_ns();
	bool same;

	lock_take(&s->lock);
	same = s->known.count > 0 && s->known_ns != 0 &&
	       now - s->known_ns < WHOLE_EVERY * NSEC_PER_SEC &&
	       listing_copy(&s->known, &copy) == 0;
	lock_release(&s->lock);
	if (!same)
		return false;
	same = find_ends(&copy, ends) && manifest_is(s, listing_find(&copy, manifest));
	for (size_t d = 0; same && d < ARRAY_LEN(directories); d++)
		same = ends[d] == SIZE_MAX || ends_there(s, copy.v[ends[d]].key);
	if (same)
		*out = copy;
	else
		listing_release(&copy);
	return same;
}
