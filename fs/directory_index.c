/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a version's directory says of itself: model.safetensors.index.json, and `latest`.
 *
 * An index is read once per identity.  Its weight_map is reduced to the files it names, each of
 * which must be a plain name: a path would lead out of the directory.  The metadata tell a delta
 * from a whole checkpoint; what is there and cannot be understood makes the directory unusable, for
 * to guess at a delta would show weights that never were.
 *
 * No state of its own; the run's thread.
 */
#include "cache/blob.h"
#include "cache/fileio.h"
#include "codec/safetensors.h"
#include "fs/directories.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

enum { LATEST_MAX = 1024 };

void directory_index_free(struct dir_index *x)
{
	if (x == NULL)
		return;
	for (size_t i = 0; i < x->file_count; i++)
		free(x->files[i]);
	free(x->files);
	free(x->key);
	free(x);
}

/* ---- an index ---- */

/* "000012", "v12", "weight_v000012", 12. */
static bool take_version(const json_t *v, uint64_t *out)
{
	const char *s = json_string_value(v);
	uint64_t n = 0;

	if (json_is_integer(v) && json_integer_value(v) >= 0) {
		*out = (uint64_t)json_integer_value(v);
		return true;
	}
	if (s == NULL)
		return false;
	if (strncmp(s, "weight_", 7) == 0)
		s += 7;
	s += *s == 'v';
	if (*s == '\0' || strspn(s, "0123456789") != strlen(s))
		return false;
	for (; *s != '\0'; s++)
		if (mul_overflows(n, 10, &n) || add_overflows(n, (uint64_t)(*s - '0'), &n) ||
		    n > INT64_MAX)
			return false;
	*out = n;
	return true;
}

static int take_delta(const json_t *meta, struct dir_index *x, struct why *why)
{
	const char *encoding = json_string_value(json_object_get(meta, "delta_encoding"));
	const json_t *packed = json_object_get(meta, "compression_format");
	const char *format = json_string_value(packed);

	x->delta = true;
	if (encoding == NULL ||
	    (strcmp(encoding, "xor") != 0 && strcmp(encoding, "overwrite") != 0))
		return why_set(why, ENOTSUP,
			       "has the delta_encoding \"%s\", which is not known here: xor and "
			       "overwrite are",
			       encoding != NULL ? SHOWN(encoding) : "");
	if (packed != NULL && (format == NULL || strcmp(format, "zstd") != 0))
		return why_set(why, ENOTSUP,
			       "has the compression_format \"%s\", which is not known here: zstd "
			       "is",
			       format != NULL ? SHOWN(format) : "");
	snprintf(x->encoding, sizeof(x->encoding), "hfdir-%s", encoding);
	if (!take_version(json_object_get(meta, "base_version"), &x->base))
		return why_set(why, EBADMSG,
			       "does not say which version it applies to: its base_version is no "
			       "number");
	return 0;
}

static bool file_is_plain(const char *name)
{
	size_t len = strlen(name);

	if (len == 0 || len > MANIFEST_FILE_MAX || name[0] == '.' || strchr(name, '/') != NULL ||
	    strchr(name, '\\') != NULL)
		return false;
	for (const char *s = name; *s != '\0'; s++)
		if ((unsigned char)*s < 0x20 || *s == 0x7f)
			return false;
	return len > 12 && strcmp(name + len - 12, ".safetensors") == 0;
}

static int compare_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int take_files(json_t *map, struct dir_index *x, struct why *why)
{
	const char *tensor, *last = "";
	size_t cap = 0, kept = 0;
	json_t *value;

	json_object_foreach (map, tensor, value) {
		const char *file = json_string_value(value);

		if (file == NULL || strlen(file) != json_string_length(value) ||
		    !file_is_plain(file))
			return why_set(why, EBADMSG,
				       "its weight_map puts tensor \"%s\" into \"%s\", which is no "
				       "plain name of a safetensors file in this directory",
				       SHOWN(tensor), file != NULL ? SHOWN(file) : "");
		if (strcmp(file, last) == 0) /* most of them */
			continue;
		if (x->file_count == cap) {
			char **grown;

			cap = cap > 0 ? 2 * cap : 16;
			grown = realloc(x->files, cap * sizeof(*grown));
			if (grown == NULL)
				return why_set(why, ENOMEM, "out of memory");
			x->files = grown;
		}
		x->files[x->file_count] = strdup(file);
		if (x->files[x->file_count] == NULL)
			return why_set(why, ENOMEM, "out of memory");
		last = x->files[x->file_count++];
	}
	if (x->file_count > 0)
		qsort(x->files, x->file_count, sizeof(*x->files), compare_text);
	for (size_t i = 0; i < x->file_count; i++) {
		if (kept > 0 && strcmp(x->files[kept - 1], x->files[i]) == 0)
			free(x->files[i]);
		else
			x->files[kept++] = x->files[i];
	}
	x->file_count = kept;
	return 0;
}

int directory_index_parse(const char *text, size_t len, struct dir_index *out, struct why *why)
{
	json_error_t error;
	json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error), *meta, *map;
	int err = 0;

	if (root == NULL)
		return why_set(why, EBADMSG, "is not JSON: line %d: %s", error.line,
			       SHOWN(error.text));
	meta = json_object_get(root, "metadata");
	map = json_object_get(root, "weight_map");
	out->says_version = take_version(json_object_get(meta, "version"), &out->version);
	if (!json_is_object(map))
		err = why_set(why, EBADMSG, "has no weight_map, or one that is not a JSON object");
	else if (json_object_get(meta, "delta_encoding") != NULL)
		err = take_delta(meta, out, why);
	if (err == 0)
		err = take_files(map, out, why);
	if (err == 0 && !out->delta && out->file_count == 0)
		err = why_set(why, EBADMSG,
			      "is of a whole checkpoint, and its weight_map names no file");
	json_decref(root);
	return err;
}

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
		err = directory_index_parse(text, o->size, x, &x->why);
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
	    !directory_name(name, strlen(name), &d->latest.word, &d->latest.version))
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
