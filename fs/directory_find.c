/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which scheme a listing is of, and the versions in it.
 *
 * One pass over the listing for each scheme and place, until one has a version: a directory whose
 * name is one of the scheme's words and a number, and in which one of the scheme's signs lies.  So
 * a folder of logs called step_5 changes nothing.  The first word that has a version decides; a run
 * has one.
 *
 * Names only: nothing is read here.  The run's thread.
 */
#include "fs/directories.h"

#include "cache/version_name.h"

#include <stdio.h>
#include <stdlib.h>

/* Where versions lie, when a scheme says nothing else. */
static const char *const usual[] = {"", "updates/", NULL};

static bool owns(const struct scheme *s, const char *key)
{
	const char *name = key, *slash;
	size_t rank, word;
	uint64_t number;

	for (slash = strchr(key, '/'); slash != NULL; slash = strchr(name, '/')) {
		if (version_number(name, (size_t)(slash - name), &word, &number) &&
		    version_word(s->words, name, word, &rank))
			return true;
		name = slash + 1;
	}
	return false;
}

bool directories_own(const struct directories *d, const char *key)
{
	const struct scheme *s = d->scheme != NULL ? d->scheme : scheme_find("hfdir");

	return strcmp(key, "latest") == 0 || (s != NULL && owns(s, key));
}

/* ---- one scheme ---- */

static bool matches_any(const char *const *patterns, const char *name)
{
	for (size_t i = 0; patterns != NULL && patterns[i] != NULL; i++)
		if (scheme_matches(patterns[i], name))
			return true;
	return false;
}

/* What a version can be taken in by: any weights would do for the directory of an adapter, too. */
static bool makes_version(const struct scheme *s, const char *name)
{
	if (matches_any(s->indexes, name) || (s->lone != NULL && strcmp(name, s->lone) == 0))
		return true;
	for (size_t i = 0; s->signs != NULL && s->signs[i] != NULL; i++)
		if (strcmp(name, s->signs[i]) == 0)
			return true;
	return false;
}

static bool shows(const struct scheme *s, const char *key)
{
	const char *slash = strchr(key, '/');
	size_t word, rank;
	uint64_t number;

	return slash != NULL && version_number(key, (size_t)(slash - key), &word, &number) &&
	       version_word(s->words, key, word, &rank) && makes_version(s, slash + 1);
}

bool directories_show(const char *key)
{
	for (size_t i = 0; schemes[i] != NULL; i++) {
		const char *const *under = schemes[i]->under != NULL ? schemes[i]->under : usual;

		for (; *under != NULL; under++)
			if (strncmp(key, *under, strlen(*under)) == 0 &&
			    shows(schemes[i], key + strlen(*under)))
				return true;
	}
	return false;
}

/* Is it one of the directories in a path? */
static bool is_part(const char *path, const char *name, size_t len)
{
	for (const char *slash; (slash = strchr(path, '/')) != NULL; path = slash + 1)
		if ((size_t)(slash - path) == len && memcmp(path, name, len) == 0)
			return true;
	return false;
}

static bool is_part_of_any(const char *const *paths, const char *name, size_t len)
{
	for (size_t i = 0; paths != NULL && paths[i] != NULL; i++)
		if (is_part(paths[i], name, len))
			return true;
	return false;
}

bool directories_shut(const struct object *o, bool found)
{
	static const char *const steps[] = {"anchors/", "deltas/", "steps/", "compact/", NULL};
	const char *slash = strrchr(o->key, '/');
	const char *name = slash != NULL ? slash + 1 : o->key;
	const size_t len = strlen(name);
	uint64_t number;
	size_t word;

	if (o->err == 0)
		return false;
	if (slash == NULL && o->err == EACCES && is_part_of_any(steps, name, len))
		return true;
	if (found)
		return false;
	if (version_name(name, len, &word, &number))
		return true;
	for (size_t i = 0; o->err == EACCES && schemes[i] != NULL; i++)
		if (is_part_of_any(schemes[i]->under != NULL ? schemes[i]->under : usual, name,
				   len) ||
		    is_part_of_any(schemes[i]->indexes, name, len))
			return true;
	return false;
}

static bool is_weights(const char *name)
{
	const size_t len = strlen(name);

	return len > 12 && strcmp(name + len - 12, ".safetensors") == 0;
}

static void add_file(const struct scheme *s, struct dir_found *f, const struct object *o)
{
	const char *name = o->key + f->prefix;

	for (size_t i = 0; s->indexes != NULL && s->indexes[i] != NULL && i < SCHEME_INDEXES; i++)
		if (strcmp(name, s->indexes[i]) == 0)
			f->index[i] = o;
	if (s->lone != NULL && strcmp(name, s->lone) == 0)
		f->lone = o;
	f->sign |= matches_any(s->signs, name) && strcmp(name, "adapter_model.safetensors") != 0;
	f->weights |= is_weights(name) && strchr(name, '/') == NULL &&
		      strcmp(name, "adapter_model.safetensors") != 0;
	if (matches_any(s->markers, name)) {
		f->marked = true;
		f->marked_ns = MAX(f->marked_ns, o->mtime_ns);
	} else if (s->marker_last && (f->newest == NULL || o->mtime_ns > f->newest->mtime_ns) &&
		   (is_weights(name) || matches_any(s->indexes, name))) {
		f->newest = o;
	}
}

struct finds {
	struct dir_found *v;
	size_t count, room;
};

static int add_found(struct finds *a, const struct dir_found *f)
{
	if (a->count == a->room) {
		const size_t room = a->room > 0 ? 2 * a->room : 64;
		struct dir_found *grown = realloc(a->v, room * sizeof(*grown));

		if (grown == NULL)
			return -ENOMEM;
		a->v = grown;
		a->room = room;
	}
	a->v[a->count++] = *f;
	return 0;
}

/* Those directly below `prefix`.  A directory's keys follow each other. */
static int collect(const struct scheme *s, const struct listing *l, const char *prefix,
		   struct finds *out)
{
	const size_t plen = strlen(prefix);
	const char *other = NULL; /* the directory looked at last, when it is none of them */
	size_t other_len = 0;
	int err = 0;

	out->count = 0;
	for (size_t i = 0; i < l->count && err == 0; i++) {
		const char *key = l->v[i].key, *slash;
		struct dir_found f = {.first = &l->v[i]}, *last;
		size_t word;

		if (strncmp(key, prefix, plen) != 0)
			continue;
		last = out->count > 0 ? &out->v[out->count - 1] : NULL;
		if (last != NULL && strncmp(last->first->key, key, last->prefix) == 0) {
			add_file(s, last, &l->v[i]);
			continue;
		}
		if (other != NULL && strncmp(other, key, other_len) == 0)
			continue;
		slash = strchr(key + plen, '/');
		if (slash == NULL)
			continue;
		f.prefix = (size_t)(slash - key) + 1;
		if (!version_number(key + plen, f.prefix - plen - 1, &word, &f.number) ||
		    !version_word(s->words, key + plen, word, &f.rank)) {
			other = key;
			other_len = f.prefix;
			continue;
		}
		f.marked = s->markers == NULL;
		add_file(s, &f, &l->v[i]);
		err = add_found(out, &f);
	}
	return err;
}

static int compare_found(const void *a, const void *b)
{
	const struct dir_found *x = a, *y = b;

	if (x->number != y->number)
		return x->number < y->number ? -1 : 1;
	return strcmp(x->first->key, y->first->key);
}

/* An index that counts alone leaves nothing else of its directory.  false: it is not there. */
static bool alone(const struct scheme *s, struct dir_found *f)
{
	const struct object *sole = NULL;

	for (size_t i = 0; s->sole != NULL && i < SCHEME_INDEXES; i++)
		if (f->index[i] != NULL && strcmp(f->index[i]->key + f->prefix, s->sole) == 0)
			sole = f->index[i];
	for (size_t i = 0; sole != NULL && i < SCHEME_INDEXES; i++)
		if (f->index[i] != sole)
			f->index[i] = NULL;
	if (sole != NULL)
		f->lone = NULL;
	return sole != NULL;
}

/* Keeps those of one word, by number; also those that are unfinished: that lack a marker, or have
 * one and lack what it should be of, or have weights and no index. */
static void choose(const struct directories *d, const struct scheme *s, struct finds *a)
{
	bool ours = s->sole == NULL || d->forced == s, any = false;
	size_t best = SIZE_MAX, kept = 0;

	for (size_t i = 0; i < a->count; i++)
		if (a->v[i].sign)
			best = MIN(best, a->v[i].rank);
	/* Without a sign it is another scheme that `latest` is of. */
	if (best != SIZE_MAX && d->latest.known &&
	    !version_word(s->words, d->latest.word, strlen(d->latest.word), &best))
		best = SIZE_MAX;
	for (size_t i = 0; i < a->count; i++)
		if (a->v[i].rank == best &&
		    (a->v[i].sign || a->v[i].weights || !a->v[i].marked || s->markers != NULL)) {
			ours |= alone(s, &a->v[i]);
			any |= a->v[i].sign;
			a->v[kept++] = a->v[i];
		}
	if (!ours || !any)
		kept = 0;
	a->count = kept;
	if (kept > 0)
		qsort(a->v, kept, sizeof(*a->v), compare_found);
}

static int search(struct directories *d, const struct scheme *s, const struct listing *l,
		  struct finds *out)
{
	const char *const *under = s->under != NULL ? s->under : usual;
	char prefix[sizeof(d->latest.run) + 64];
	int err = 0;

	out->count = 0;
	for (size_t i = 0; under[i] != NULL && out->count == 0 && err == 0; i++) {
		snprintf(prefix, sizeof(prefix), "%s%s", under[i], d->latest.run);
		err = collect(s, l, prefix, out);
		if (err == 0)
			choose(d, s, out);
	}
	return err;
}

int directory_search(struct directories *d, const struct listing *l, struct dir_found **out,
		     size_t *out_count)
{
	const struct scheme *found = NULL;
	struct finds a = {0};
	int err = 0;

	for (size_t i = 0; schemes[i] != NULL && found == NULL && err == 0; i++) {
		if (d->forced != NULL && d->forced != schemes[i])
			continue;
		err = search(d, schemes[i], l, &a);
		if (err == 0 && a.count > 0)
			found = schemes[i];
	}
	if (err < 0) {
		free(a.v);
		return err;
	}
	if (found != d->scheme)
		directory_indexes_sweep(d, true); /* they were read as something else */
	d->scheme = found;
	*out = a.v;
	*out_count = a.count;
	return 0;
}
