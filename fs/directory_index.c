/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a version's directory says of itself: model.safetensors.index.json, and `latest`.
 *
 * An index is read once per identity; what it says is for its scheme (codec/scheme.h).
 *
 * No state of its own; the run's thread.
 */
#include "cache/blob.h"
#include "cache/fileio.h"
#include "cache/version_name.h"
#include "codec/safetensors.h"
#include "fs/directories.h"
#include "codec/schemes.h"

#include <stdio.h>
#include <stdlib.h>

enum { LATEST_MAX = 1024 };

void directory_index_free(struct dir_index *x)
{
	if (x == NULL)
		return;
	scheme_version_release(&x->said);
	free(x->key);
	free(x);
}

/* ---- an index ---- */

/* The bytes of a small object, malloc'ed. */
static int read_whole(struct store *store, const struct object *o, uint64_t max, char **out,
		      struct why *why)
{
	struct blob *blob = NULL;
	char *text;
	int err;

	if (o->err != 0)
		return why_set(why, o->err, "cannot be used as it is listed");
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

struct dir_index *directory_index(struct directories *d, struct store *store,
				  const struct object *o)
{
	struct dir_index *x = table_get_str(d->indexes, o->key);
	char *text = NULL;
	int err;

	if (x != NULL && identity_equal(&x->id, &o->id) && !x->again) {
		x->seen = true;
		return x;
	}
	if (x != NULL) {
		table_remove_str(d->indexes, o->key);
		directory_index_free(x);
	}
	x = calloc(1, sizeof(*x));
	if (x == NULL)
		return NULL;
	x->key = strdup(o->key);
	x->id = o->id;
	x->seen = true;
	if (x->key == NULL || table_put_str(d->indexes, o->key, x) < 0) {
		directory_index_free(x);
		return NULL;
	}
	err = read_whole(store, o, MANIFEST_MAX, &text, &x->why);
	if (err == 0)
		err = scheme_hfdir.parse(o->key, 0, text, o->size, &x->said, &x->why);
	free(text);
	x->again = !is_final(err);
	return x;
}

/* ---- latest ---- */

static bool parse_latest(struct directories *d, char *text)
{
	char *name;
	size_t n = strlen(text);

	while (n > 0 && strchr(" \t\r\n", text[n - 1]) != NULL)
		text[--n] = '\0';
	name = strrchr(text, '/');
	name = name != NULL ? name + 1 : text;
	n = (size_t)(name - text);
	if (n >= sizeof(d->latest.run) || !path_is_safe(text) ||
	    !version_name(name, strlen(name), &d->latest.word, &d->latest.version))
		return false;
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
	err = read_whole(store, o, LATEST_MAX, &text, &d->latest.why);
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
