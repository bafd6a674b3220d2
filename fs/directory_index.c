/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What versions say of themselves: their indexes, and `latest`; and which indexes are needed now.
 *
 * An index is read once per identity; what it says is for its scheme (codec/scheme.h).  Over a
 * network each costs a round trip, so those that are new are read many at once: entries are made
 * for them first, then filled by several threads, each its own.
 *
 * No state of its own; the run's thread, which waits for the others.
 */
#include "cache/blob.h"
#include "cache/fileio.h"
#include "cache/version_name.h"
#include "fs/directories.h"
#include "fs/parallel.h"

#include <stdio.h>
#include <stdlib.h>

/* Indexes read at once while the newest version waits for them, and in a round beside that; in one
 * where nothing waits. */
enum { BATCH = 256, BESIDE = 1024, ALONE = 4096 };
enum { LATEST_MAX = 1024, INDEX_MAX = 64 << 20, JOBS_REMOTE = 64, JOBS_LOCAL = 4 };
static const uint64_t TEXT_MAX = 32 << 20; /* of indexes that are in memory at once, if each fits */

static void index_free(struct dir_index *x)
{
	if (x == NULL)
		return;
	scheme_version_release(&x->said);
	free(x->key);
	free(x);
}

int directory_text(struct store *store, const struct object *o, uint64_t max, char **out,
		   struct why *why)
{
	struct blob *blob = NULL;
	char *text;
	int err;

	if (o->err != 0)
		return why_set(why, o->err, "%s", store_unusable(o->err));
	if (o->size > max)
		return why_set(why, EFBIG, "has %llu bytes; at most %llu are read",
			       (unsigned long long)o->size, (unsigned long long)max);
	err = blob_open(store, o, false, &blob, why);
	if (err < 0)
		return err;
	err = blob->handle != NULL ? store_settled(blob->handle) : 0;
	if (err < 0)
		why_set(why, -err, "is still being written");
	text = err == 0 ? malloc(o->size + 1) : NULL;
	if (err == 0)
		err = text == NULL ? -ENOMEM : blob_read(blob, 0, text, o->size);
	blob_unref(blob);
	if (err < 0) {
		free(text);
		return why->err != 0 ? err : why_set(why, -err, "cannot be read");
	}
	text[o->size] = '\0';
	*out = text;
	return 0;
}

/* What will not be better at the next look. */
static bool is_final(int err)
{
	return err == 0 || err == -EBADMSG || err == -ENOTSUP || err == -EFBIG;
}

/* ---- reading them ---- */

struct reading {
	struct directories *d;
	struct store *store;
	struct slot {
		struct dir_index *x;
		const struct object *o;
		const char *index; /* as its scheme calls it */
		uint64_t number;
	} *v;
	size_t count, room;
};

static const char *name_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash != NULL ? slash + 1 : path;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(name_of(*(char *const *)a), name_of(*(char *const *)b));
}

/* A file of a whole checkpoint whose name another one has, in another folder; -ENOMEM. */
static int find_twice(const struct scheme_version *v, const char **out)
{
	const char **sorted = NULL;

	*out = NULL;
	if (v->delta || v->file_count == 0)
		return 0;
	sorted = malloc(v->file_count * sizeof(*sorted));
	if (sorted == NULL)
		return -ENOMEM;
	for (size_t i = 0; i < v->file_count; i++)
		sorted[i] = v->files[i];
	qsort(sorted, v->file_count, sizeof(*sorted), compare_names);
	for (size_t i = 1; i < v->file_count && *out == NULL; i++)
		if (strcmp(name_of(sorted[i - 1]), name_of(sorted[i])) == 0)
			*out = sorted[i];
	free(sorted);
	return 0;
}

static void read_one(void *ctx, size_t i)
{
	const struct reading *r = ctx;
	const struct slot *s = &r->v[i];
	struct dir_index *x = s->x;
	char *text = NULL;
	int err = directory_text(r->store, s->o, INDEX_MAX, &text, &x->why);

	if (err == 0)
		err = r->d->scheme->parse(s->index, s->number, text, (size_t)s->o->size, &x->said,
					  &x->why);
	free(text);
	if (err == 0)
		err = find_twice(&x->said, &x->twice);
	if (err == -ENOMEM && x->why.err == 0)
		why_set(&x->why, ENOMEM, "out of memory");
	x->again = !is_final(err);
	x->read = true;
}

/* The entry as it is to be read; NULL in *out: it is known. */
static int renew(struct directories *d, const struct object *o, struct dir_index **out)
{
	struct dir_index *x = table_get_str(d->indexes, o->key);

	*out = NULL;
	if (x != NULL)
		x->seen = true;
	if (x != NULL && x->read && identity_equal(&x->id, &o->id) && !x->again)
		return 0;
	if (x != NULL) {
		table_remove_str(d->indexes, o->key);
		index_free(x);
	}
	x = calloc(1, sizeof(*x));
	if (x == NULL)
		return -ENOMEM;
	x->key = strdup(o->key);
	x->id = o->id;
	x->seen = true;
	if (x->key == NULL || table_put_str(d->indexes, o->key, x) < 0) {
		index_free(x);
		return -ENOMEM;
	}
	*out = x;
	return 0;
}

static int add_slot(struct reading *r, const struct slot *s)
{
	if (r->count == r->room) {
		const size_t room = r->room > 0 ? 2 * r->room : 64;
		struct slot *grown = realloc(r->v, room * sizeof(*grown));

		if (grown == NULL)
			return -ENOMEM;
		r->v = grown;
		r->room = room;
	}
	r->v[r->count++] = *s;
	return 0;
}

/* Is it known, so that nothing has to be read? */
static bool is_known(const struct directories *d, const struct object *o)
{
	const struct dir_index *x = table_get_str(d->indexes, o->key);

	return x != NULL && x->read && identity_equal(&x->id, &o->id) && !x->again;
}

/* A text is ten times as large while it is taken apart, so large ones are read by fewer. */
static unsigned jobs_for(const struct reading *r)
{
	const uint64_t jobs = r->store->remote ? JOBS_REMOTE : JOBS_LOCAL;
	uint64_t largest = 1;

	for (size_t i = 0; i < r->count; i++)
		if (r->v[i].index != NULL)
			largest = MAX(largest, r->v[i].o->size);
	return (unsigned)MAX(MIN(jobs, TEXT_MAX / largest), (uint64_t)1);
}

/* Reads those indexes of the versions that are not known as they are listed, many at once; at most
 * `most` of them, from the last version downwards.  *out_read: how many; *out_left: are there
 * more?  -ENOMEM. */
static int read_indexes(struct directories *d, struct store *store, const struct dir_found *v,
			size_t n, size_t most, size_t *out_read, bool *out_left)
{
	struct reading r = {.d = d, .store = store};
	int err = 0;

	*out_left = false;
	for (size_t i = n; i-- > 0 && err == 0;)
		for (size_t k = 0; k < SCHEME_INDEXES && err == 0; k++) {
			const struct object *o = v[i].index[k];
			struct slot s = {.o = o, .number = v[i].number};

			if (o == NULL)
				continue;
			if (r.count >= most && !is_known(d, o)) {
				*out_left = true;
				continue;
			}
			s.index = d->scheme->indexes[k];
			err = renew(d, o, &s.x);
			if (err == 0 && s.x != NULL)
				err = add_slot(&r, &s);
		}
	if (err == 0 && r.count > 0)
		parallel_for(jobs_for(&r), r.count, read_one, &r);
	*out_read = r.count;
	free(r.v);
	return err;
}

struct dir_index *directory_index(struct directories *d, const struct dir_found *f, size_t i)
{
	const struct object *o = i < SCHEME_INDEXES ? f->index[i] : NULL;
	struct dir_index *x = o != NULL ? table_get_str(d->indexes, o->key) : NULL;

	return x != NULL && x->read ? x : NULL;
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

void directory_indexes_sweep(struct directories *d, bool all)
{
	struct sweep s = {.all = all};

	s.gone = calloc(table_count(d->indexes) + 1, sizeof(struct dir_index *));
	if (s.gone == NULL)
		return; /* next time */
	table_each(d->indexes, collect_index, &s);
	for (size_t i = 0; i < s.count; i++) {
		table_remove_str(d->indexes, s.gone[i]->key);
		index_free(s.gone[i]);
	}
	free(s.gone);
}

/* ---- checksums ---- */

static int compare_sum(const void *key, const void *sum)
{
	return strcmp(key, ((const struct scheme_sum *)sum)->path);
}

static int compare_file(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

bool directory_sum(const struct directories *d, const char *key, enum checksum_kind *out_kind,
		   char out[CHECKSUM_HEX])
{
	const char *const *names = d->scheme != NULL ? d->scheme->indexes : NULL;
	char at[MANIFEST_KEY_MAX + 1];

	/* The version's directory is one of those above the object. */
	for (const char *slash = strchr(key, '/'); slash != NULL; slash = strchr(slash + 1, '/'))
		for (size_t i = 0; names != NULL && names[i] != NULL; i++) {
			const struct dir_index *x;
			const struct scheme_sum *sum;

			if (snprintf(at, sizeof(at), "%.*s%s", (int)(slash + 1 - key), key,
				     names[i]) >= (int)sizeof(at))
				continue;
			x = table_get_str(d->indexes, at);
			if (x == NULL || !x->read || x->why.err != 0 || x->said.sum_count == 0)
				continue;
			sum = bsearch(slash + 1, x->said.sums, x->said.sum_count, sizeof(*sum),
				      compare_sum);
			if (sum == NULL)
				continue;
			*out_kind = sum->kind;
			memcpy(out, sum->hex, sizeof(sum->hex));
			return true;
		}
	return false;
}

/* ---- tensors ---- */

/* What an index says of the tensors of an object, which lies in its directory; NULL: nothing. */
static const struct scheme_names *find_names(const struct directories *d, const char *key,
					     const struct dir_index **out, const char **out_file)
{
	const char *const *indexes = d->scheme != NULL ? d->scheme->indexes : NULL;
	const char *slash = strrchr(key, '/');
	char at[MANIFEST_KEY_MAX + 1];

	for (size_t i = 0; slash != NULL && indexes != NULL && indexes[i] != NULL; i++) {
		const struct dir_index *x;
		char **file;

		if (snprintf(at, sizeof(at), "%.*s%s", (int)(slash + 1 - key), key, indexes[i]) >=
		    (int)sizeof(at))
			continue;
		x = table_get_str(d->indexes, at);
		if (x == NULL || !x->read || x->why.err != 0 || x->said.names == NULL)
			continue;
		*out_file = slash + 1;
		file = bsearch(out_file, x->said.files, x->said.file_count, sizeof(char *),
			       compare_file);
		if (file == NULL)
			continue;
		*out = x;
		return &x->said.names[file - x->said.files];
	}
	return NULL;
}

int directory_agrees(const struct directories *d, struct store *store,
		     const struct listing *listing, const char *key, const struct delta *delta,
		     struct why *why)
{
	const struct st_header *header = delta->original != NULL ? delta->original : delta->header;
	const struct scheme_names *names;
	const struct dir_index *x;
	const struct object *o;
	const char *file;
	char *text = NULL;
	int err;

	names = header != NULL ? find_names(d, key, &x, &file) : NULL;
	if (names == NULL || scheme_names_equal(names, header))
		return 0;
	o = listing_find(listing, x->key);
	if (o == NULL)
		return why_set(why, ESTALE, "its index %s is gone", SHOWN(x->key));
	err = directory_text(store, o, INDEX_MAX, &text, why);
	if (err < 0)
		return why_prefix(why, "its index %s", SHOWN(x->key));
	/* A checkpoint may have more than its index knows, as loaders see it. */
	err = scheme_names_check(text, o->size, file, header, delta->full == 0, why);
	free(text);
	return err;
}

const struct scheme_names *directory_names(const struct directories *d, const char *key)
{
	const struct dir_index *x;
	const char *file;

	return find_names(d, key, &x, &file);
}

/* ---- what they are for ---- */

bool directory_has_index(const struct dir_found *f)
{
	for (size_t i = 0; i < SCHEME_INDEXES; i++)
		if (f->index[i] != NULL)
			return true;
	return false;
}

bool directory_is_finished(const struct dir_found *f)
{
	return f->marked && (directory_has_index(f) || f->lone != NULL);
}

bool directory_adds_nothing(const struct dir_index *x)
{
	return x != NULL && x->why.err == 0 && !x->said.delta && x->said.file_count == 0;
}

bool directory_only_delta(struct directories *d, const struct dir_found *f)
{
	for (size_t i = 0; d->scheme->delta_only && i < SCHEME_INDEXES; i++) {
		const struct dir_index *x = directory_index(d, f, i);

		if (x != NULL && x->said.delta)
			return true;
	}
	return false;
}

/* Does a chain begin here? */
static bool is_whole(struct directories *d, const struct dir_found *f)
{
	if (!directory_is_finished(f) || directory_only_delta(d, f))
		return false;
	if (!directory_has_index(f))
		return true;
	for (size_t i = 0; i < SCHEME_INDEXES; i++) {
		const struct dir_index *x = directory_index(d, f, i);

		if (x != NULL && x->why.err == 0 && !x->said.delta &&
		    (!directory_adds_nothing(x) || f->lone != NULL))
			return true;
	}
	return false;
}

int directory_indexes_needed(struct directories *d, const struct dir_query *q,
			     const struct dir_found *v, size_t n, size_t *out_lo)
{
	struct store *store = q->store;
	size_t got = 0, total = 0, lo = n;
	bool whole = false, left = false;
	int err = 0;

	*out_lo = 0;
	if (q->all)
		return read_indexes(d, store, v, n, SIZE_MAX, &got, &left);
	for (size_t end = n; end > 0 && !whole && err == 0;) {
		const size_t begin = end > BATCH ? end - BATCH : 0;

		err = read_indexes(d, store, v + begin, end - begin, SIZE_MAX, &got, &left);
		total += got;
		for (lo = end; lo > begin && !whole; lo--)
			whole = is_whole(d, &v[lo - 1]);
		end = begin;
	}
	if (err == 0 && lo > 0)
		err = read_indexes(d, store, v, lo,
				   total == 0	    ? ALONE
				   : total < BESIDE ? BESIDE - total
						    : 0,
				   &got, &left);
	d->deferred = left;
	d->again |= left;
	*out_lo = left ? lo : 0;
	return err;
}

/* ---- latest ---- */

static bool parse_latest(struct directories *d, char *text)
{
	size_t n = strlen(text), word;
	uint64_t version;
	char *name;

	while (n > 0 && strchr(" \t\r\n", text[n - 1]) != NULL)
		text[--n] = '\0';
	name = strrchr(text, '/');
	name = name != NULL ? name + 1 : text;
	n = (size_t)(name - text);
	if (n >= sizeof(d->latest.run) || !path_is_safe(text) ||
	    !version_name(name, strlen(name), &word, &version) || word >= sizeof(d->latest.word))
		return false;
	d->latest.version = version;
	printable(d->latest.name, sizeof(d->latest.name), text, strlen(text));
	memcpy(d->latest.word, name, word);
	d->latest.word[word] = '\0';
	memcpy(d->latest.run, text, n);
	d->latest.run[n] = '\0';
	return true;
}

void directory_latest(struct directories *d, struct store *store, const struct listing *listing)
{
	const struct object *o = listing_find(listing, "latest");
	char *text = NULL;
	int err;

	if (o == NULL) {
		memset(&d->latest, 0, sizeof(d->latest));
		return;
	}
	if (identity_equal(&d->latest.id, &o->id))
		return;
	d->latest.why = (struct why){0};
	err = directory_text(store, o, LATEST_MAX, &text, &d->latest.why);
	if (err == 0 && parse_latest(d, text))
		d->latest.known = true;
	else if (err == 0)
		err = why_set(&d->latest.why, EBADMSG,
			      "does not name a version's directory, such as weight_v000042 or "
			      "RUN/weight_v000042");
	d->latest.id = is_final(err) ? o->id : (struct identity){0};
	d->again |= !is_final(err);
	free(text);
}
