/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the versions in a listing to a manifest of them.
 *
 * Upwards by number each version is taken in: a whole checkpoint starts a chain, a delta goes on
 * with it if it applies to the version before; a version that has both gives both.  One that does
 * not fit is left out with a sentence, and with it the deltas on top of it, until the next whole
 * checkpoint.
 *
 * What an earlier run left in the place is set aside by its times (fs/directory_times.c).
 *
 * What is being uploaded lacks what its scheme writes last: it is counted, and looked at again at
 * the next listing.
 */
#include "fs/directories.h"

#include "cache/version_name.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct maker {
	struct directories *d;
	const struct dir_query *q;
	struct manifest *m;
	int64_t below_ns; /* when the version taken in last was finished */
	bool broken;	  /* the version before could not be taken in, and it was said why */
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

int directory_problem(struct directories *d, const char *object, size_t len, const char *fmt, ...)
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

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash != NULL ? slash + 1 : path;
}

static int add_piece(struct maker *k, struct manifest_entry *e, const struct dir_found *f,
		     const char *file)
{
	const struct object *o;
	char *key;
	int err;

	if (asprintf(&key, "%.*s%s", (int)f->prefix, f->first->key, file) < 0)
		return -ENOMEM;
	o = listing_find(k->q->listing, key);
	err = manifest_entry_object(e, key, base_name(file), o != NULL ? o->size : 0);
	free(key);
	return err;
}

/* ---- an index that names no files ---- */

/* The name of an object that is a safetensors file directly in the version's directory, or NULL. */
static const char *weights_in(const struct dir_found *f, const struct object *o)
{
	const char *name = o->key + f->prefix;
	const size_t len = strlen(name), end = strlen(".safetensors");

	return len > end && strchr(name, '/') == NULL &&
			       strcmp(name + len - end, ".safetensors") == 0
		       ? name
		       : NULL;
}

/* How many files its name says there are: model-00001-of-00002.safetensors. */
static uint64_t says_files(const char *name)
{
	const size_t len = strlen(name) - strlen(".safetensors");
	uint64_t number;
	size_t word;

	if (!version_number(name, len, &word, &number) || word < 4 ||
	    strncmp(name + word - 4, "-of-", 4) != 0)
		return 1;
	return number;
}

static bool is_in(const struct maker *k, const struct dir_found *f, const struct object *o)
{
	const struct listing *l = k->q->listing;

	return o < l->v + l->count && strncmp(o->key, f->first->key, f->prefix) == 0;
}

/* Is one of them missing?  *out_name: one that is there, NULL: none is; *out_want: how many there
 * should be. */
static bool lacks_files(const struct maker *k, const struct dir_found *f, const char **out_name,
			uint64_t *out_want)
{
	uint64_t have = 0;

	*out_name = NULL;
	*out_want = 1;
	for (const struct object *o = f->first; is_in(k, f, o); o++) {
		const char *name = weights_in(f, o);

		if (name == NULL)
			continue;
		have++;
		*out_name = name;
		*out_want = MAX(*out_want, says_files(name));
	}
	return have < *out_want;
}

/* All of them are there, or it is said what is missing. */
static int check_all(struct maker *k, const struct dir_found *f, const struct dir_index *x,
		     bool *out)
{
	const char *name;
	uint64_t want;

	*out = !x->said.all || !lacks_files(k, f, &name, &want);
	if (*out)
		return 0;
	if (name == NULL)
		return directory_problem(k->d, x->key, strlen(x->key),
					 "is there, and no safetensors file beside it yet");
	return directory_problem(k->d, x->key, strlen(x->key),
				 "is there, but not all files beside it yet: %s is one of %llu",
				 SHOWN(name), (unsigned long long)want);
}

static int add_all(struct maker *k, struct manifest_entry *e, const struct dir_found *f)
{
	int err = 0;

	for (const struct object *o = f->first; err == 0 && is_in(k, f, o); o++) {
		const char *name = weights_in(f, o);

		if (name != NULL)
			err = manifest_entry_object(e, o->key, name, o->size);
	}
	return err;
}

/* ---- taking in ---- */

/* The entry to be filled in: the next step. */
static struct manifest_entry *next_step(struct maker *k, const struct dir_found *f)
{
	struct manifest_entry *e = &k->m->steps[k->m->step_count++];

	*e = (struct manifest_entry){.version = f->number};
	k->m->newest = f->number;
	return e;
}

/* A whole checkpoint without an index. */
static int take_lone(struct maker *k, const struct dir_found *f)
{
	struct manifest_entry *e = next_step(k, f);

	snprintf(e->encoding, sizeof(e->encoding), "hfdir");
	k->below_ns = f->lone->mtime_ns;
	return add_piece(k, e, f, k->d->scheme->lone);
}

/* What an index that is fine says. */
static int take(struct maker *k, const struct dir_found *f, const struct object *o,
		const struct dir_index *x)
{
	const struct scheme_version *said = &x->said;
	const char *writer = said->writer;
	struct manifest_entry *e = next_step(k, f);
	int err = 0;

	e->kind = said->delta ? MANIFEST_DELTA : MANIFEST_ANCHOR;
	e->base = said->delta ? said->base : 0;
	e->time_ns = o->mtime_ns;
	snprintf(e->encoding, sizeof(e->encoding), "%s",
		 said->encoding[0] != '\0' ? said->encoding : "hfdir");
	if (k->d->latest.known && k->d->scheme->latest_writer != NULL && said->delta)
		writer = k->d->scheme->latest_writer;
	snprintf(e->writer, sizeof(e->writer), "%s", writer);
	e->whole_kind = said->state.kind;
	memcpy(e->whole, said->state.hex, sizeof(e->whole));
	k->below_ns = MAX(k->below_ns, o->mtime_ns);
	if (!said->delta)
		k->below_ns = o->mtime_ns;
	if (said->side) {
		e->index = strdup(o->key);
		memcpy(e->index_id, o->id.bytes, sizeof(e->index_id));
		if (e->index == NULL)
			return -ENOMEM;
	}
	for (size_t i = 0; i < said->file_count && err == 0; i++)
		err = add_piece(k, e, f, said->files[i]);
	if (err == 0 && said->all)
		err = add_all(k, e, f);
	return err;
}

/* Can this delta go on top of version `below` (NULL: there is none)?  Else it is said why, once per
 * gap. */
static int fits(struct maker *k, const struct dir_found *f, const struct object *o,
		const struct dir_index *x, const uint64_t *below, bool *out)
{
	const bool said = k->broken;
	const uint64_t base = x->said.base;
	const bool stale =
		!k->q->ignore_times && !k->d->scheme->rising && o->mtime_ns < k->below_ns;
	const bool joins = below != NULL && base == *below && base < f->number;

	*out = joins && !stale;
	k->broken = !*out;
	if (*out || said)
		return 0;
	if (joins)
		return directory_problem(
			k->d, x->key, strlen(x->key),
			"is older than version %llu, which it should apply to: it was "
			"left by an earlier run; if it was not, the times mean nothing: "
			"--times ignore",
			(unsigned long long)*below);
	if (below == NULL && base == 0)
		return directory_problem(
			k->d, x->key, strlen(x->key),
			"applies to version 0, the checkpoint that the run started "
			"from: name its directory with --base");
	if (below == NULL)
		return directory_problem(k->d, x->key, strlen(x->key),
					 "applies to version %llu, which is not here, and no whole "
					 "checkpoint comes before it",
					 (unsigned long long)base);
	return directory_problem(
		k->d, x->key, strlen(x->key),
		"version %llu applies to version %llu, but the one before it here is "
		"%llu; the next whole checkpoint goes on",
		(unsigned long long)f->number, (unsigned long long)base,
		(unsigned long long)*below);
}

/* What one of its indexes says, if that can be used; NULL in *out: it cannot, and it was said
 * why. */
static int usable(struct maker *k, const struct dir_found *f, size_t i, struct dir_index **out)
{
	struct dir_index *x = directory_index(k->d, f, i);
	const size_t len = x != NULL ? strlen(x->key) : 0;

	*out = NULL;
	if (x == NULL)
		return 0;
	k->d->again |= x->again;
	if (x->why.err != 0)
		return directory_problem(k->d, x->key, len, "%s", x->why.text);
	if (x->said.delta && x->said.says_version && x->said.version != f->number)
		return directory_problem(
			k->d, x->key, len,
			"says that it is version %llu, and lies in the directory of %llu",
			(unsigned long long)x->said.version, (unsigned long long)f->number);
	if (x->twice != NULL)
		return directory_problem(
			k->d, x->key, len,
			"names two files that are called as \"%s\" is in its folder",
			SHOWN(x->twice));
	*out = x;
	return 0;
}

/* Those of its indexes that are of anchors, or of deltas. */
static int take_indexes(struct maker *k, const struct dir_found *f, bool deltas,
			const uint64_t *below, bool *io_taken)
{
	int err = 0;

	for (size_t i = 0; i < SCHEME_INDEXES && err == 0; i++) {
		struct dir_index *x;
		bool ok = true;

		if (f->index[i] == NULL)
			continue;
		x = directory_index(k->d, f, i);
		if (x == NULL || x->said.delta != deltas || directory_adds_nothing(x))
			continue;
		err = usable(k, f, i, &x);
		if (err == 0 && x != NULL)
			err = check_all(k, f, x, &ok);
		if (err < 0 || x == NULL || !ok)
			continue;
		if (deltas && *io_taken) {
			/* Beside a whole checkpoint it is a way from the version before, if it is
			 * one. */
			const bool broken = k->broken;

			k->broken = true;
			err = fits(k, f, f->index[i], x, below, &ok);
			k->broken = broken;
		} else if (deltas) {
			err = fits(k, f, f->index[i], x, below, &ok);
		}
		if (err < 0 || !ok)
			continue;
		*io_taken = true;
		k->broken = false;
		return take(k, f, f->index[i], x);
	}
	return err;
}

static void count_unfinished(struct directories *d, const struct dir_found *f)
{
	const struct scheme *s = d->scheme;
	struct buf text = {0};
	char shown[200];

	if (d->unfinished++ > 0)
		return;
	buf_addf(&text, "%s ", printable(shown, sizeof(shown), f->first->key, f->prefix));
	if (s->markers != NULL && f->marked) {
		buf_addf(&text, "has its %s and none of what it should be of, ", s->markers[0]);
		for (size_t i = 0; s->indexes != NULL && s->indexes[i] != NULL; i++)
			buf_addf(&text, "%s%s", i > 0 ? " or " : "", s->indexes[i]);
	} else {
		buf_addf(&text, "has weights and no %s yet, which is written last",
			 s->markers != NULL   ? s->markers[0]
			 : s->indexes != NULL ? s->indexes[0]
					      : "index");
	}
	snprintf(d->unfinished_why, sizeof(d->unfinished_why), "%s", buf_str(&text));
	buf_release(&text);
}

/* What is left when no index said anything that could be taken in. */
static int take_rest(struct maker *k, const struct dir_found *f, bool *io_taken)
{
	for (size_t i = 0; i < SCHEME_INDEXES; i++) {
		struct dir_index *x = directory_index(k->d, f, i);

		if (x != NULL && !directory_adds_nothing(x))
			return 0; /* it was said why */
		if (x != NULL && f->lone == NULL)
			return directory_problem(
				k->d, x->key, strlen(x->key),
				"is of a whole checkpoint, and there is none beside it");
	}
	if (f->lone == NULL)
		return 0;
	k->broken = false;
	*io_taken = true;
	return take_lone(k, f);
}

static int take_in(struct maker *k, const struct dir_found *f)
{
	const struct manifest *m = k->m;
	const bool first = m->step_count == 0;
	const uint64_t below = first ? 0 : m->steps[m->step_count - 1].version;
	bool taken = false;
	int err = 0;

	if (f->rewritten)
		return directory_problem(
			k->d, f->newest->key, strlen(f->newest->key),
			"is newer than its version's %s: the version is being written "
			"again, and shown when that is, too; if the times mean nothing: "
			"--times ignore",
			k->d->scheme->markers[0]);
	if (!directory_is_finished(f)) {
		count_unfinished(k->d, f);
		return 0;
	}
	if (!first && below == f->number)
		return f->number == 0
			       ? 0
			       : directory_problem(k->d, f->first->key, f->prefix,
						   "has the number %llu, as another directory; it "
						   "is ignored",
						   (unsigned long long)f->number);
	if (!directory_has_index(f)) {
		k->broken = false;
		return take_lone(k, f);
	}
	if (!directory_only_delta(k->d, f))
		err = take_indexes(k, f, false, NULL, &taken);
	if (err == 0)
		err = take_indexes(k, f, true, first ? NULL : &below, &taken);
	if (err == 0 && !taken)
		err = take_rest(k, f, &taken);
	if (!taken)
		k->broken = true;
	return err;
}

/* ---- which of them ---- */

/* Version 0, where deltas begin at it. */
static void take_base(struct maker *k, const struct dir_found *v, size_t n)
{
	if (!k->q->with_base || n == 0 || v[0].number == 0 || !directory_is_finished(&v[0]))
		return;
	for (size_t i = 0; i < SCHEME_INDEXES; i++) {
		const struct dir_index *x = directory_index(k->d, &v[0], i);

		if (x == NULL || x->why.err != 0 || !x->said.delta || x->said.base != 0)
			continue;
		k->m->steps[k->m->step_count++] =
			(struct manifest_entry){.kind = MANIFEST_ANCHOR,
						.time_ns = k->q->base_mtime_ns,
						.encoding = "base"};
		return;
	}
}

/* Up to what `latest` says.  Damaged, it changes nothing; one that was never good shows nothing. */
static int cut(struct directories *d, const struct dir_found *v, size_t *n, struct manifest *m)
{
	const struct scheme *s = d->scheme;
	int err = 0;

	if (d->latest.why.err != 0)
		err = directory_problem(d, "latest", 6, "%s", d->latest.why.text);
	if (!d->latest.known) {
		/* Others have a file of that name for purposes of their own. */
		if (d->latest.why.err != 0 && *n > 0 && s->latest_word != NULL &&
		    strcmp(s->words[v[0].rank], s->latest_word) == 0)
			*n = 0;
		return err;
	}
	m->origin = MANIFEST_POINTED;
	while (*n > 0 && (d->latest.lost || v[*n - 1].number > d->latest.version))
		--*n;
	if (err == 0 && (*n == 0 || v[*n - 1].number != d->latest.version))
		err = directory_problem(d, "latest", 6,
					"names %s, which is not here; %s until it names a version "
					"that is, or is removed",
					d->latest.name,
					*n == 0 ? "nothing is shown" : "what is below is shown");
	return err;
}

/* The versions that there are; where `latest` names a place without any, those without it. */
static int find(struct directories *d, const struct listing *l, struct dir_found **v, size_t *n)
{
	const bool known = d->latest.known;
	char run[sizeof(d->latest.run)];
	int err = directory_search(d, l, v, n);

	d->latest.lost = false;
	if (err < 0 || *n > 0 || !known)
		return err;
	free(*v);
	*v = NULL;
	memcpy(run, d->latest.run, sizeof(run));
	d->latest.known = false;
	d->latest.run[0] = '\0';
	err = directory_search(d, l, v, n);
	memcpy(d->latest.run, run, sizeof(run));
	d->latest.known = true;
	d->latest.lost = true;
	return err;
}

/* Identity of what the first finished one lies in. */
static struct identity first_of(const struct dir_found *v, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (!directory_is_finished(&v[i]))
			continue;
		for (size_t k = 0; k < SCHEME_INDEXES; k++)
			if (v[i].index[k] != NULL)
				return v[i].index[k]->id;
		return v[i].lone->id;
	}
	return (struct identity){0};
}

/* There is `latest`, and nothing else. */
static int alone(struct directories *d, const struct listing *l)
{
	static const char remedy[] = "; where a source has several runs, mount it with "
				     "--runs several";

	if (listing_find(l, "latest") == NULL)
		return 0;
	if (d->latest.known)
		return directory_problem(d, "latest", 6, "names %s, which is not here%s",
					 d->latest.name, remedy);
	return directory_problem(d, "latest", 6, "%s%s", d->latest.why.text, remedy);
}

static int make(struct maker *k, struct dir_found *v, size_t *n)
{
	size_t lo = 0;
	int err = manifest_new("00000000", &k->m);

	if (err < 0)
		return err;
	k->m->origin = MANIFEST_FOUND;
	k->m->steps = calloc(2 * *n + 1, sizeof(*k->m->steps));
	if (k->m->steps == NULL)
		return -ENOMEM;
	err = cut(k->d, v, n, k->m);
	for (size_t i = 0; i < *n && !k->q->ignore_times; i++) {
		struct dir_found *f = &v[i];

		f->rewritten = f->marked && f->newest != NULL && f->newest->mtime_ns > f->marked_ns;
		f->marked = f->marked && !f->rewritten;
	}
	if (err == 0)
		err = directory_indexes_needed(k->d, k->q, v, *n, &lo);
	if (err == 0 && !k->q->ignore_times) {
		const size_t all = *n;

		err = directory_set_aside(k->d, v, n);
		if (err == 0 && *n < all)
			err = directory_indexes_needed(k->d, k->q, v, *n, &lo);
	}
	if (err == 0 && lo == 0)
		take_base(k, v, *n);
	for (size_t i = lo; i < *n && err == 0; i++)
		err = take_in(k, &v[i]);
	return err;
}

int directories_find(struct directories *d, const struct dir_query *q, struct manifest **out,
		     struct identity *out_first)
{
	struct maker k = {.d = d, .q = q, .below_ns = INT64_MIN};
	struct dir_found *v = NULL;
	size_t n = 0;
	int err;

	problems_release(d);
	d->unfinished = 0;
	d->younger[0] = '\0';
	d->again = d->deferred = false;
	*out = NULL;
	if (d->indexes == NULL)
		d->indexes = table_new();
	if (d->indexes == NULL)
		return -ENOMEM;
	directory_latest(d, q->store, q->listing);
	err = find(d, q->listing, &v, &n);
	if (err == 0 && n > 0)
		err = make(&k, v, &n);
	else if (err == 0)
		err = alone(d, q->listing);
	*out_first = first_of(v, n);
	directory_indexes_sweep(d, false);
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
		directory_indexes_sweep(d, true);
	table_free(d->indexes);
	*d = (struct directories){0};
}
