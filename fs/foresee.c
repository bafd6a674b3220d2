/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A delta that weightfs.json is about to name.
 *
 * A publisher uploads a delta and then moves weightfs.json.  So when that has changed and a listing
 * has a few new deltas with it, they are asked for while it is read: over a long way the version is
 * there a round trip earlier.  What it does not name then was fetched in vain: an upload that
 * another publisher has not finished, which its own move will name.
 *
 * Nothing is looked at here; the blobs are held until the end of the round, so that what comes is
 * there for whoever opens the same object.  The run's thread.
 */
#include "fs/run_internal.h"

static bool is_delta(const struct object *o)
{
	static const char folder[] = "deltas/", suffix[] = ".safetensors";
	const size_t len = strlen(o->key), n = sizeof(suffix) - 1;

	return o->err == 0 && len > n && strncmp(o->key, folder, sizeof(folder) - 1) == 0 &&
	       strcmp(o->key + len - n, suffix) == 0;
}

/* The deltas that the listing of the round before does not have; more than fit: 0. */
static size_t find_new(const struct run *r, const struct listing *now,
		       const struct object *out[FORESEEN_MAX])
{
	size_t n = 0;

	for (size_t i = 0; i < now->count; i++) {
		const struct object *o = &now->v[i];

		if (!is_delta(o) || listing_find(&r->current->listing, o->key) != NULL)
			continue;
		if (n == FORESEEN_MAX)
			return 0;
		out[n++] = o;
	}
	return n;
}

void foresee(struct run *r, const struct listing *now)
{
	const struct object *fresh[FORESEEN_MAX];
	size_t n;

	if (!r->config.store->remote || r->current == NULL || r->newest == NULL ||
	    r->newest->state == NULL)
		return;
	n = find_new(r, now, fresh);
	for (size_t i = 0; i < n && r->foreseen_count < FORESEEN_MAX; i++) {
		struct blob *blob = NULL;

		if (blob_open(r->config.store, fresh[i], false, &blob, NULL) < 0)
			continue; /* its exam says why, if it is asked for */
		blob_want_beginning(blob);
		r->foreseen[r->foreseen_count++] = blob;
	}
}

void foresee_end(struct run *r)
{
	while (r->foreseen_count > 0)
		blob_unref(r->foreseen[--r->foreseen_count]);
}
