/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding the runs of a source in its listing.
 *
 * Every key is looked at once, from each of the directories above it, the highest first.  What is
 * found is sorted; a run that lies in another one is none.  A name that merely looks like a
 * version's directory ("v1") is no mark: something has to lie in it that a version is taken in by,
 * because runs, and folders of adapters, are called like that, too.
 */
#include "fs/runs.h"

#include "fs/directories.h"
#include "fs/manifest.h"

#include <stdlib.h>

enum { NAMES_MAX = 12 };

static bool ends_with(const char *text, const char *suffix)
{
	size_t len = strlen(text), n = strlen(suffix);

	return len > n && strcmp(text + len - n, suffix) == 0;
}

static const char *after(const char *key, const char *prefix)
{
	size_t len = strlen(prefix);

	return strncmp(key, prefix, len) == 0 ? key + len : NULL;
}

bool runs_mark(const char *key)
{
	static const char *const steps[] = {"anchors/", "deltas/", "steps/"};

	if (strcmp(key, MANIFEST_KEY) == 0)
		return true;
	for (size_t i = 0; i < ARRAY_LEN(steps); i++)
		if (after(key, steps[i]) != NULL)
			return ends_with(key, ".safetensors");
	return directories_show(key);
}

/* "latest" at the top says where the one run is, also when that is in a directory of its own. */
static bool top_mark(const char *key)
{
	return runs_mark(key) || strcmp(key, "latest") == 0;
}

/* How much of the key is the run's path; SIZE_MAX: none. */
static size_t run_of(const char *key, bool top)
{
	const char *at = key, *slash;

	if (top && top_mark(key))
		return 0;
	for (int depth = 0; depth < RUNS_DEPTH; depth++) {
		slash = strchr(at, '/');
		if (slash == NULL)
			return SIZE_MAX;
		at = slash + 1;
		if (runs_mark(at))
			return (size_t)(slash - key);
	}
	return SIZE_MAX;
}

static int add(struct runs *r, const char *path, size_t len)
{
	char **grown;

	/* Most keys are of the run that the one before is of. */
	if (r->count > 0 && strlen(r->v[r->count - 1]) == len &&
	    strncmp(r->v[r->count - 1], path, len) == 0)
		return 0;
	if ((r->count & (r->count - 1)) == 0) {
		grown = realloc(r->v, MAX(2 * r->count, (size_t)8) * sizeof(*r->v));
		if (grown == NULL)
			return -ENOMEM;
		r->v = grown;
	}
	r->v[r->count] = strndup(path, len);
	if (r->v[r->count] == NULL)
		return -ENOMEM;
	r->count++;
	return 0;
}

static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

bool runs_nested(const char *a, const char *b)
{
	size_t len = MIN(strlen(a), strlen(b));

	return strncmp(a, b, len) == 0 && (a[len] == '\0' || a[len] == '/') &&
	       (b[len] == '\0' || b[len] == '/');
}

/* An order in which what lies in a directory comes right behind it. */
static int compare_paths(const void *a, const void *b)
{
	const char *x = *(char *const *)a, *y = *(char *const *)b;

	while (*x != '\0' && *x == *y) {
		x++;
		y++;
	}
	if (*x == *y)
		return 0;
	if (*x == '\0' || *y == '\0')
		return *x == '\0' ? -1 : 1;
	if (*x == '/' || *y == '/')
		return *x == '/' ? -1 : 1;
	return (unsigned char)*x < (unsigned char)*y ? -1 : 1;
}

static void keep_highest(struct runs *r)
{
	size_t kept = 0;

	if (r->count > 0)
		qsort(r->v, r->count, sizeof(*r->v), compare_paths);
	for (size_t i = 0; i < r->count; i++) {
		if (kept > 0 && runs_nested(r->v[kept - 1], r->v[i]))
			free(r->v[i]);
		else
			r->v[kept++] = r->v[i];
	}
	r->count = kept;
	if (kept > 0)
		qsort(r->v, kept, sizeof(*r->v), compare);
}

int runs_find(const struct listing *l, bool top, struct runs *out)
{
	struct runs r = {0};
	int err = 0;

	for (size_t i = 0; i < l->count && err == 0 && !r.top; i++) {
		size_t len = run_of(l->v[i].key, top);

		if (len == 0)
			r.top = true;
		else if (len != SIZE_MAX)
			err = add(&r, l->v[i].key, len);
	}
	if (err < 0 || r.top) {
		bool is_top = r.top;

		runs_release(&r);
		r.top = is_top;
	}
	keep_highest(&r);
	if (err == 0)
		*out = r;
	return err;
}

void runs_release(struct runs *r)
{
	for (size_t i = 0; i < r->count; i++)
		free(r->v[i]);
	free(r->v);
	*r = (struct runs){0};
}

void runs_names(const struct runs *r, struct buf *out)
{
	for (size_t i = 0; i < MIN(r->count, (size_t)NAMES_MAX); i++)
		buf_addf(out, "%s%s", i > 0 ? ", " : "", SHOWN(r->v[i]));
	if (r->count > NAMES_MAX)
		buf_addf(out, " and %zu more", r->count - NAMES_MAX);
}

size_t runs_slice(const struct listing *l, const char *prefix, size_t *out_begin)
{
	size_t lo = 0, hi = l->count, len = strlen(prefix);

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (strcmp(l->v[mid].key, prefix) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	*out_begin = lo;
	hi = l->count;
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (strncmp(l->v[mid].key, prefix, len) == 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static bool in_a_run(const struct runs *r, const char *key)
{
	for (size_t i = 0; i < r->count; i++)
		if (runs_nested(r->v[i], key))
			return true;
	return false;
}

size_t runs_shut(const struct runs *r, const struct listing *l, const struct object **out_first)
{
	size_t n = 0;

	*out_first = NULL;
	for (size_t i = 0; i < l->count; i++) {
		const struct object *o = &l->v[i];
		unsigned depth = 0;

		/* A file has a time, whoever may read it. */
		if (o->err != EACCES || o->mtime_ns != 0)
			continue;
		for (const char *s = o->key; *s != '\0'; s++)
			depth += *s == '/';
		if (depth >= RUNS_DEPTH || in_a_run(r, o->key))
			continue;
		if (n++ == 0)
			*out_first = o;
	}
	return n;
}
