/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Has anything come since the last listing?  A cheap answer for long listings.
 *
 * A run only grows where its numbers do: behind the last key of anchors/, deltas/ and steps/, whose
 * numbers are padded, or in the version directory with the highest number and behind it.  So
 * between two listings of everything, which take a request per thousand keys, it is enough to ask
 * for what lies there (start-after), and whether weightfs.json and `latest` are what they were: a
 * few small requests.  When there is something new, or when it cannot be known, everything is
 * listed.
 *
 * Where the numbers of directories are not padded, the next one may be longer: then also what lies
 * behind the first of that length is asked for.
 *
 * This sees no deletion, no rewrite and no key anywhere else.  Those wait for the next listing of
 * everything: after a minute, at a refresh, and as soon as a read finds an object gone or changed.
 * It is done only where it saves requests (PAGES_MIN) and where nearly all keys are steps.
 *
 * The last listing is kept under the store's lock; one thread lists at a time, others are correct
 * but may list for nothing.
 */
#include <stdio.h>
#include <stdlib.h>

#include "cache/clock.h"
#include "cache/remote/keys.h"
#include "cache/remote/store_s3_private.h"
#include "cache/version_name.h"

enum {
	PAGES_MIN = 5,	  /* requests of a whole listing, from which on it is worth it */
	WHOLE_EVERY = 60, /* seconds: everything is listed at least that often */
	OTHERS_MAX = 500, /* keys that are no steps */
	SERIES_MAX = 3,	  /* of version directories; more is no run that anybody knows */
};

static const char *const directories[] = {"anchors/", "deltas/", "steps/"};
static const char *const pointers[] = {"weightfs.json", "latest"};

struct series {	       /* version directories of one word in one place */
	size_t stem;   /* length of their common beginning, the word included */
	size_t newest; /* index of the first key of the one with the highest number */
	size_t end;    /* index behind its last key */
	size_t dir;    /* length of its key, slash included */
	uint64_t number;
};

struct ends {				     /* where something may come; indices into listing->v */
	size_t last[ARRAY_LEN(directories)]; /* SIZE_MAX: there is no such directory */
	struct series series[SERIES_MAX];
	size_t series_count;
};

/* Index into directories[], or ARRAY_LEN(directories). */
static size_t directory_of(const char *key)
{
	size_t d = 0;

	while (d < ARRAY_LEN(directories) &&
	       strncmp(key, directories[d], strlen(directories[d])) != 0)
		d++;
	return d;
}

/* Takes in a key of a version directory; false: there are too many series. */
static bool add_to_series(struct ends *e, const struct listing *l, size_t i, size_t stem,
			  size_t dir, uint64_t number)
{
	const char *key = l->v[i].key;
	struct series *s = e->series;

	while (s < e->series + e->series_count &&
	       (s->stem != stem || strncmp(l->v[s->newest].key, key, stem) != 0))
		s++;
	if (s == e->series + e->series_count) {
		if (e->series_count == SERIES_MAX)
			return false;
		e->series_count++;
		*s = (struct series){
			.stem = stem, .newest = i, .end = i, .dir = dir, .number = number};
	}
	if (number > s->number) {
		s->newest = i;
		s->dir = dir;
		s->number = number;
	}
	/* The same number may also be there in another spelling: the first one counts. */
	if (s->dir == dir && strncmp(l->v[s->newest].key, key, dir) == 0)
		s->end = i + 1; /* the listing is sorted */
	return true;
}

/* False when the keys of a step directory are not all equally long (then the newest need not be the
 * last), or most keys lie elsewhere. */
static bool find_ends(const struct listing *l, struct ends *e)
{
	size_t others = 0;

	*e = (struct ends){0};
	for (size_t d = 0; d < ARRAY_LEN(directories); d++)
		e->last[d] = SIZE_MAX;
	for (size_t i = 0; i < l->count; i++) {
		const char *key = l->v[i].key;
		size_t d = directory_of(key), at, len, word;
		uint64_t number;

		if (d < ARRAY_LEN(directories)) {
			if (e->last[d] != SIZE_MAX && strlen(l->v[e->last[d]].key) != strlen(key))
				return false;
			e->last[d] = i; /* the listing is sorted */
		} else if (version_name_in(key, &at, &len, &word, &number)) {
			if (!add_to_series(e, l, i, at + word, at + len + 1, number))
				return false;
		} else {
			others++;
		}
	}
	return others <= OTHERS_MAX;
}

void s3_probe_remember(struct s3_store *s, const struct listing *listing, unsigned pages)
{
	struct listing copy = {0}, old;
	struct ends ends;

	if (pages >= PAGES_MIN && find_ends(listing, &ends) && listing_copy(listing, &copy) < 0)
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

/* The index of the first known key behind this one. */
static size_t index_after(const struct listing *l, const char *key)
{
	size_t low = 0, high = l->count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (strcmp(l->v[mid].key, key) <= 0)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/* Is a page of what comes after `after`, of keys with its first `stem` bytes, just what is known?
 * *out_seen: the index behind the last known key that was in it, SIZE_MAX if nothing comes behind
 * it. */
static bool page_is_known(struct s3_store *s, const struct listing *known, const char *after,
			  size_t stem, size_t *out_seen)
{
	char *prefix = strndup(after, stem);
	struct listing page = {0};
	bool more = true;
	size_t i = index_after(known, after), begin = i;
	bool same = prefix != NULL && s3_list_some(s, prefix, after, &page, &more, NULL) == 0;

	for (size_t k = 0; same && k < page.count; k++) {
		/* A server that knows no start-after gives a page from the beginning. */
		if (strcmp(page.v[k].key, after) <= 0)
			continue;
		same = i < known->count && strcmp(known->v[i].key, page.v[k].key) == 0 &&
		       identity_equal(&known->v[i].id, &page.v[k].id);
		i++;
	}
	/* What is known and has not come was deleted, or that server did not get so far. */
	if (same && i == begin && i < known->count)
		same = strncmp(known->v[i].key, prefix, stem) != 0;
	same = same && page.hidden == 0;
	*out_seen = more ? i : SIZE_MAX;
	listing_release(&page);
	free(prefix);
	return same;
}

/* Nothing longer than the longest number, where numbers are not padded? */
static bool longer_is_known(struct s3_store *s, const struct listing *known, const struct series *e)
{
	const char *key = known->v[e->newest].key;
	char *after;
	size_t seen;
	bool same;

	if (key[e->stem] == '0') /* padded; 0 itself has no successor that is longer */
		return true;
	if (asprintf(&after, "%.*s1%0*d", (int)e->stem, key, (int)(e->dir - 1 - e->stem), 0) < 0)
		return false;
	same = page_is_known(s, known, after, e->stem, &seen);
	free(after);
	return same;
}

/* Nothing new in the newest directory of a series, and none behind it? */
static bool series_is_known(struct s3_store *s, const struct listing *known, const struct series *e)
{
	char *dir = strndup(known->v[e->newest].key, e->dir);
	size_t seen;
	bool same = dir != NULL && page_is_known(s, known, dir, e->stem, &seen);

	if (same && seen <= e->end) /* the page ends where it ends, or before */
		same = page_is_known(s, known, known->v[e->end - 1].key, e->stem, &seen);
	free(dir);
	return same && longer_is_known(s, known, e);
}

static bool pointer_is_known(struct s3_store *s, const struct listing *known, const char *key)
{
	const struct object *now, *then = listing_find(known, key);
	struct listing some = {0};
	bool more, same = s3_list_some(s, key, NULL, &some, &more, NULL) == 0;

	now = same ? listing_find(&some, key) : NULL;
	if (same)
		same = (now == NULL) == (then == NULL) &&
		       (now == NULL || identity_equal(&now->id, &then->id));
	listing_release(&some);
	return same;
}

static bool all_is_known(struct s3_store *s, const struct listing *known)
{
	struct ends e;
	size_t seen;
	bool same = find_ends(known, &e);

	for (size_t p = 0; same && p < ARRAY_LEN(pointers); p++)
		if (p == 0 || e.series_count > 0)
			same = pointer_is_known(s, known, pointers[p]);
	for (size_t d = 0; same && d < ARRAY_LEN(directories); d++)
		same = e.last[d] == SIZE_MAX || page_is_known(s, known, known->v[e.last[d]].key,
							      strlen(directories[d]), &seen);
	for (size_t i = 0; same && i < e.series_count; i++)
		same = series_is_known(s, known, &e.series[i]);
	return same;
}

bool s3_probe_unchanged(struct s3_store *s, struct listing *out)
{
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
	same = all_is_known(s, &copy);
	if (same)
		*out = copy;
	else
		listing_release(&copy);
	return same;
}
