/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a listing to the version directories in it, and to a manifest of them.
 *
 * One pass finds each directory whose name is a word that trainers use and a number; the first word
 * of the table that has a directory with weights decides, so that a folder of logs called step_5
 * changes nothing.  A second pass, upwards by number, takes each directory in: a whole checkpoint
 * starts a chain, a delta goes on with it if it applies to the version before.  One that does not
 * fit is left out with a sentence, and with it the deltas on top of it, until the next whole
 * checkpoint.
 *
 * What is being uploaded has no index yet: it is counted, and looked at again at the next listing.
 */
#include "fs/directories.h"

#include "cache/version_name.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const char index_name[] = "model.safetensors.index.json";
static const char lone_name[] = "model.safetensors";

struct found {
	uint64_t number;
	size_t word;
	const struct object *first; /* in the listing */
	size_t count;		    /* objects in it, of any depth */
	size_t prefix;		    /* length of the directory's key, slash included */
	const struct object *index, *lone;
	bool weights; /* has safetensors directly in it */
};

bool directories_own(const char *key)
{
	uint64_t number;
	size_t at, len, word;

	return strcmp(key, "latest") == 0 || version_name_in(key, &at, &len, &word, &number);
}

/* ---- finding ---- */

static bool is_weights(const char *name)
{
	size_t len = strlen(name);

	return len > 12 && strcmp(name + len - 12, ".safetensors") == 0;
}

static void add_file(struct found *f, const struct object *o)
{
	const char *name = o->key + f->prefix;

	f->count++;
	if (strchr(name, '/') != NULL)
		return;
	if (strcmp(name, index_name) == 0)
		f->index = o;
	else if (strcmp(name, lone_name) == 0)
		f->lone = o;
	f->weights |= is_weights(name) || f->index == o;
}

/* Those directly below `prefix`; malloc'ed.  A directory's keys follow each other. */
static int collect(const struct listing *l, const char *prefix, struct found **out, size_t *out_n)
{
	const size_t plen = strlen(prefix);
	size_t n = 0, cap = 0;
	struct found *v = NULL;

	*out = NULL;
	*out_n = 0;
	for (size_t i = 0; i < l->count; i++) {
		const char *key = l->v[i].key, *slash;
		struct found f = {.first = &l->v[i]};

		if (strncmp(key, prefix, plen) != 0)
			continue;
		slash = strchr(key + plen, '/');
		if (slash == NULL)
			continue;
		f.prefix = (size_t)(slash - key) + 1;
		if (n > 0 && v[n - 1].prefix == f.prefix &&
		    strncmp(v[n - 1].first->key, key, f.prefix) == 0) {
			add_file(&v[n - 1], &l->v[i]);
			continue;
		}
		if (!version_name(key + plen, f.prefix - plen - 1, &f.word, &f.number))
			continue;
		if (n == cap) {
			struct found *grown;

			cap = cap > 0 ? 2 * cap : 64;
			grown = realloc(v, cap * sizeof(*v));
			if (grown == NULL) {
				free(v);
				return -ENOMEM;
			}
			v = grown;
		}
		add_file(&f, &l->v[i]);
		v[n++] = f;
	}
	*out = v;
	*out_n = n;
	return 0;
}

static int compare_found(const void *a, const void *b)
{
	const struct found *x = a, *y = b;

	if (x->number != y->number)
		return x->number < y->number ? -1 : 1;
	return strcmp(x->first->key, y->first->key);
}

/* Keeps the directories of one word, those with weights, by number. */
static size_t choose(struct found *v, size_t n, const size_t *word)
{
	size_t best = VERSION_NAME_WORDS, kept = 0;

	for (size_t i = 0; i < n; i++)
		if (v[i].weights)
			best = MIN(best, v[i].word);
	if (word != NULL)
		best = *word;
	for (size_t i = 0; i < n; i++)
		if (v[i].word == best && v[i].weights)
			v[kept++] = v[i];
	if (kept > 0)
		qsort(v, kept, sizeof(*v), compare_found);
	return kept;
}

static int find(struct directories *d, const struct listing *l, struct found **out, size_t *out_n)
{
	char prefix[sizeof(d->latest.run) + 16];
	static const char *const tops[] = {"", "updates/"};
	int err = 0;

	*out = NULL;
	*out_n = 0;
	for (size_t i = 0; i < ARRAY_LEN(tops) && *out_n == 0 && err == 0; i++) {
		free(*out);
		snprintf(prefix, sizeof(prefix), "%s%s", tops[i], d->latest.run);
		err = collect(l, prefix, out, out_n);
		if (err == 0)
			*out_n = choose(*out, *out_n, d->latest.known ? &d->latest.word : NULL);
	}
	return err;
}

/* ---- taking in ---- */

struct maker {
	struct directories *d;
	struct store *store;
	const struct listing *listing;
	struct manifest *m;
	bool ignore_times;
	int64_t below_ns;      /* when the version taken in last was finished */
	struct identity first; /* of what the first step lies in */
	bool broken;	       /* the version before could not be taken in, and it was said why */
};

static void problems_release(struct directories *d)
{
	for (size_t i = 0; i < d->problem_count; i++) {
		free(d->problems[i].object);
		free(d->problems[i].text);
	}
	free(d->problems);
	d->problems = NULL;
	d->problem_count = 0;
}

static int add_problem(struct directories *d, const char *object, size_t len, const char *fmt, ...)
	PRINTF(4, 5);

static int add_problem(struct directories *d, const char *object, size_t len, const char *fmt, ...)
{
	struct dir_problem *grown =
		realloc(d->problems, (d->problem_count + 1) * sizeof(*d->problems));
	struct dir_problem p = {.object = strndup(object, len)};
	va_list ap;

	if (grown != NULL)
		d->problems = grown;
	va_start(ap, fmt);
	if (vasprintf(&p.text, fmt, ap) < 0)
		p.text = NULL;
	va_end(ap);
	if (grown == NULL || p.object == NULL || p.text == NULL) {
		free(p.object);
		free(p.text);
		return -ENOMEM;
	}
	d->problems[d->problem_count++] = p;
	return 0;
}

static int add_piece(struct maker *k, struct manifest_entry *e, const struct found *f,
		     const char *file)
{
	const struct object *o;
	char *key;
	int err;

	if (asprintf(&key, "%.*s%s", (int)f->prefix, f->first->key, file) < 0)
		return -ENOMEM;
	o = listing_find(k->listing, key);
	err = manifest_entry_object(e, key, file, o != NULL ? o->size : 0);
	free(key);
	return err;
}

/* Can this delta go on top of what was taken in last?  Else it is said why, once per gap. */
static int fits(struct maker *k, const struct found *f, const struct dir_index *x, bool *out)
{
	const struct manifest *m = k->m;
	const bool first = m->step_count == 0;
	const uint64_t below = first ? 0 : m->steps[m->step_count - 1].version;
	const bool said = k->broken;

	const bool stale = !k->ignore_times && f->index->mtime_ns < k->below_ns;

	*out = !first && x->said.base == below && x->said.base < f->number && !stale;
	k->broken = !*out;
	if (*out || said)
		return 0;
	if (!first && x->said.base == below && stale)
		return add_problem(k->d, x->key, strlen(x->key),
				   "is older than version %llu, which it should apply to: it was "
				   "left by an earlier run; if it was not, the times mean nothing: "
				   "--times ignore",
				   (unsigned long long)below);
	if (first && x->said.base == 0)
		return add_problem(k->d, x->key, strlen(x->key),
				   "applies to version 0, the checkpoint that the run started "
				   "from: name its directory with --base");
	if (first)
		return add_problem(k->d, x->key, strlen(x->key),
				   "applies to version %llu, which is not here, and no whole "
				   "checkpoint comes before it",
				   (unsigned long long)x->said.base);
	return add_problem(k->d, x->key, strlen(x->key),
			   "version %llu applies to version %llu, but the one before it here is "
			   "%llu; the next whole checkpoint goes on",
			   (unsigned long long)f->number, (unsigned long long)x->said.base,
			   (unsigned long long)below);
}

/* The entry of a directory whose index is fine, or that has none. */
static int take(struct maker *k, const struct found *f, const struct dir_index *x)
{
	const bool delta = x != NULL && x->said.delta;
	struct manifest_entry *e = &k->m->steps[k->m->step_count];
	int err = 0;

	*e = (struct manifest_entry){
		.kind = delta ? MANIFEST_DELTA : MANIFEST_ANCHOR,
		.version = f->number,
		.base = delta ? x->said.base : 0,
		.time_ns = x != NULL ? f->index->mtime_ns : 0,
	};
	snprintf(e->encoding, sizeof(e->encoding), "%s", delta ? x->said.encoding : "hfdir");
	if (k->m->newest == 0)
		k->first = x != NULL ? f->index->id : f->lone->id;
	k->below_ns = x != NULL ? f->index->mtime_ns : f->lone->mtime_ns;
	k->m->step_count++;
	k->m->newest = f->number;
	if (x == NULL)
		return add_piece(k, e, f, lone_name);
	for (size_t i = 0; i < x->said.file_count && err == 0; i++)
		err = add_piece(k, e, f, x->said.files[i]);
	return err;
}

static int take_in(struct maker *k, const struct found *f)
{
	const struct manifest *m = k->m;
	struct dir_index *x = NULL;
	bool ok = true;
	int err = 0;

	if (f->index == NULL && f->lone == NULL) {
		if (k->d->unfinished++ == 0)
			snprintf(k->d->unfinished_name, sizeof(k->d->unfinished_name), "%.*s",
				 (int)f->prefix, f->first->key);
		return 0;
	}
	if (m->step_count > 0 && m->steps[m->step_count - 1].version == f->number) {
		return f->number == 0 ? 0
				      : add_problem(k->d, f->first->key, f->prefix,
						    "has the number %llu, as another directory; it "
						    "is ignored",
						    (unsigned long long)f->number);
	}
	if (f->index != NULL) {
		x = directory_index(k->d, k->store, f->index);
		if (x == NULL)
			return -ENOMEM;
		k->d->again |= x->again;
		ok = x->why.err == 0;
		if (!ok)
			err = add_problem(k->d, x->key, strlen(x->key), "%s", x->why.text);
		else if (x->said.delta && x->said.says_version && x->said.version != f->number) {
			ok = false;
			err = add_problem(k->d, x->key, strlen(x->key),
					  "says that it is version %llu, and lies in the "
					  "directory of %llu",
					  (unsigned long long)x->said.version,
					  (unsigned long long)f->number);
		} else if (x->said.delta) {
			err = fits(k, f, x, &ok);
		}
	}
	if (err < 0)
		return err;
	if (!ok) {
		k->broken = true;
		return 0;
	}
	k->broken = false;
	return take(k, f, x);
}

/* Version 0, where deltas begin at it. */
static int take_base(struct maker *k, const struct found *v, size_t n, int64_t mtime_ns)
{
	struct dir_index *x;

	if (n == 0 || v[0].number == 0 || v[0].index == NULL)
		return 0;
	x = directory_index(k->d, k->store, v[0].index);
	if (x == NULL)
		return -ENOMEM;
	if (x->why.err != 0 || !x->said.delta || x->said.base != 0)
		return 0;
	k->m->steps[k->m->step_count++] = (struct manifest_entry){
		.kind = MANIFEST_ANCHOR, .time_ns = mtime_ns, .encoding = "base"};
	return 0;
}

struct sweep {
	struct dir_index **gone;
	size_t count;
	bool all;
};

static void collect_index(void *value, void *ctx)
{
	struct dir_index *x = value;
	struct sweep *s = ctx;

	if (s->all || !x->seen)
		s->gone[s->count++] = x;
	x->seen = false;
}

static void sweep_indexes(struct directories *d, bool all)
{
	struct sweep s = {.all = all};

	s.gone = calloc(table_count(d->indexes) + 1, sizeof(struct dir_index *));
	if (s.gone == NULL)
		return; /* next time */
	table_each(d->indexes, collect_index, &s);
	for (size_t i = 0; i < s.count; i++) {
		table_remove_str(d->indexes, s.gone[i]->key);
		directory_index_free(s.gone[i]);
	}
	free(s.gone);
}

/* Up to what `latest` says.  Damaged, it changes nothing; one that was never good shows nothing. */
static int cut(struct directories *d, struct found *v, size_t *n, struct manifest *m)
{
	int err = 0;

	if (d->latest.why.err != 0)
		err = add_problem(d, "latest", 6, "%s", d->latest.why.text);
	if (!d->latest.known) {
		/* Others have a file of that name for purposes of their own. */
		if (d->latest.why.err != 0 && *n > 0 && v[0].word == VERSION_NAME_WEIGHT_V)
			*n = 0;
		return err;
	}
	m->origin = MANIFEST_POINTED;
	while (*n > 0 && v[*n - 1].number > d->latest.version)
		--*n;
	return err;
}

static int make(struct maker *k, struct found *v, size_t n, bool with_base, int64_t base_mtime_ns)
{
	int err = manifest_new("00000000", &k->m);

	if (err < 0)
		return err;
	k->m->origin = MANIFEST_FOUND;
	k->m->steps = calloc(n + 1, sizeof(*k->m->steps));
	if (k->m->steps == NULL)
		return -ENOMEM;
	err = cut(k->d, v, &n, k->m);
	if (err == 0 && with_base)
		err = take_base(k, v, n, base_mtime_ns);
	for (size_t i = 0; i < n && err == 0; i++)
		err = take_in(k, &v[i]);
	return err;
}

int directories_find(struct directories *d, struct store *store, const struct listing *listing,
		     bool ignore_times, bool with_base, int64_t base_mtime_ns,
		     struct manifest **out, struct identity *out_first)
{
	struct maker k = {.d = d,
			  .store = store,
			  .listing = listing,
			  .ignore_times = ignore_times,
			  .below_ns = INT64_MIN};
	struct found *v = NULL;
	size_t n = 0;
	int err;

	problems_release(d);
	d->unfinished = 0;
	d->again = false;
	*out = NULL;
	if (d->indexes == NULL)
		d->indexes = table_new();
	if (d->indexes == NULL)
		return -ENOMEM;
	directory_latest(d, store, listing);
	err = find(d, listing, &v, &n);
	if (err == 0 && n > 0)
		err = make(&k, v, n, with_base, base_mtime_ns);
	*out_first = k.first;
	sweep_indexes(d, false);
	free(v);
	if (err < 0)
		manifest_free(k.m);
	else
		*out = k.m;
	return err;
}

void directories_release(struct directories *d)
{
	problems_release(d);
	if (d->indexes != NULL)
		sweep_indexes(d, true);
	table_free(d->indexes);
	*d = (struct directories){0};
}
