/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an earlier run left among version directories, told by times.
 *
 * In a run with deltas a trainer writes one version after the other, so what is older than a lower
 * number is of an earlier run, whole checkpoints, too.  Where all are whole, a folder may have been
 * copied or downloaded in any order: the highest number counts, and a younger one is noted.
 *
 * A version's time is that of the last of its indexes; one that is not finished has none.  The
 * run's thread.
 */
#include "fs/directories.h"

#include <stdio.h>

/* What says when a version was finished: the last written of its indexes. */
static const struct object *finish_of(const struct dir_found *f)
{
	const struct object *last = f->lone;

	for (size_t i = 0; i < SCHEME_INDEXES; i++)
		if (f->index[i] != NULL &&
		    (last == NULL || last == f->lone || f->index[i]->mtime_ns > last->mtime_ns))
			last = f->index[i];
	return last;
}

static bool has_deltas(struct directories *d, const struct dir_found *v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < SCHEME_INDEXES; k++) {
			const struct dir_index *x = directory_index(d, &v[i], k);

			if (x != NULL && x->why.err == 0 && x->said.delta)
				return true;
		}
	return false;
}

/* Of whole checkpoints: the newest by time, if it is not the one that is shown. */
static void note_younger(struct directories *d, const struct dir_found *v, size_t n)
{
	const struct dir_found *last = NULL, *newest = NULL;

	for (size_t i = 0; i < n; i++) {
		if (!directory_is_finished(&v[i]))
			continue;
		last = &v[i];
		if (newest == NULL || finish_of(last)->mtime_ns >= finish_of(newest)->mtime_ns)
			newest = last;
	}
	if (newest == last)
		return;
	snprintf(d->younger, sizeof(d->younger), "%.*s", (int)newest->prefix, newest->first->key);
	d->younger_than = last->number;
}

int directory_set_aside(struct directories *d, struct dir_found *v, size_t *n)
{
	const struct dir_found *below = NULL;
	bool said = false;
	size_t kept = 0;
	int err = 0;

	if (d->scheme->rising)
		return 0;
	if (!has_deltas(d, v, *n)) {
		note_younger(d, v, *n);
		return 0;
	}
	for (size_t i = 0; i < *n && err == 0; i++) {
		const struct object *o = directory_is_finished(&v[i]) ? finish_of(&v[i]) : NULL;

		if (o == NULL || below == NULL || o->mtime_ns >= finish_of(below)->mtime_ns) {
			v[kept] = v[i];
			if (o != NULL)
				below = &v[kept];
			kept++;
			said = false;
		} else if (!said) {
			err = directory_problem(
				d, o->key, strlen(o->key),
				"is older than version %llu: it was left by an earlier "
				"run; if it was not, the times mean nothing: --times "
				"ignore",
				(unsigned long long)below->number);
			said = true;
		}
	}
	*n = kept;
	return err;
}
