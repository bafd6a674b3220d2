/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listings of object stores.
 *
 * An object store's keys are just strings; a file system is shown only those that can be paths in
 * it.  What cannot is not an error of the listing: it is left out and counted.  The one rule that
 * is a choice: where `a` and `a/b` both exist, `a` is left out, because the objects below it are
 * what people put there on purpose.
 *
 * Pure, no state.
 */
#include "cache/remote/keys.h"

#include <stdlib.h>
#include <xxhash.h>

#include "cache/fileio.h"

/* Bytes that continue the sequence begun by c, and the least value it may stand for. */
static size_t sequence(unsigned char c, uint32_t *least)
{
	*least = c < 0x80 ? 0 : c < 0xe0 ? 0x80 : c < 0xf0 ? 0x800 : 0x10000;
	return c < 0x80 ? 0 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
}

/* UTF-8, and no control bytes. */
static bool is_plain(const char *key)
{
	const unsigned char *s = (const unsigned char *)key;

	while (*s != '\0') {
		uint32_t least, c = *s;
		size_t more = sequence(*s, &least);

		if (c < 0x20 || c == 0x7f || (c >= 0x80 && c < 0xc0) || c > 0xf7)
			return false;
		c &= more > 0 ? 0x3fU >> more : 0x7fU;
		for (s++; more > 0; more--, s++) {
			if ((*s & 0xc0) != 0x80)
				return false;
			c = c << 6 | (*s & 0x3fU);
		}
		if (c < least || (c >= 0xd800 && c <= 0xdfff) || c > 0x10ffff)
			return false;
	}
	return true;
}

/* A dotfile, or below a dot directory. */
static bool is_dotted(const char *key)
{
	return key[0] == '.' || strstr(key, "/.") != NULL;
}

/* A path in a file system of ours. */
static bool is_path(const char *key)
{
	int depth = 1;

	if (!path_is_safe(key) || !is_plain(key))
		return false;
	for (const char *p = key; *p != '\0'; p++)
		depth += *p == '/';
	return depth <= KEYS_DEPTH_MAX;
}

bool keys_usable(const char *key)
{
	return is_path(key) && !is_dotted(key);
}

static bool make_room(struct keys *k)
{
	size_t cap = k->cap > 0 ? k->cap * 2 : 256;
	struct object *v;

	if (k->count < k->cap)
		return true;
	v = reallocarray(k->v, cap, sizeof(*v));
	if (v == NULL)
		return false;
	k->v = v;
	k->cap = cap;
	return true;
}

void keys_add(struct keys *k, const char *key, uint64_t size, int64_t mtime_ns,
	      const struct identity *id)
{
	char *copy;

	if (k->failed)
		return;
	if (!is_path(key) || size > INT64_MAX) {
		k->hidden++;
		return;
	}
	if (is_dotted(key))
		return;
	copy = strdup(key);
	if (copy == NULL || !make_room(k)) {
		free(copy);
		k->failed = true;
		return;
	}
	k->v[k->count++] = (struct object){
		.key = copy,
		.size = size,
		.mtime_ns = mtime_ns,
		.id = *id,
		.err = (int)(k->count & 0x7fffffff), /* its place, while it is not sorted */
	};
}

static int by_key(const void *a, const void *b)
{
	const struct object *x = a, *y = b;
	int order = strcmp(x->key, y->key);

	return order != 0 ? order : (x->err > y->err) - (x->err < y->err);
}

/* Is there an object below key + "/"? */
static bool is_directory(const struct listing *l, const char *key)
{
	size_t len = strlen(key), low = 0, high = l->count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;
		int order = strncmp(l->v[mid].key, key, len);

		if (order == 0)
			order = (unsigned char)l->v[mid].key[len] < '/' ? -1 : 0;
		if (order < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return low < l->count && strncmp(l->v[low].key, key, len) == 0 && l->v[low].key[len] == '/';
}

int keys_finish(struct keys *k, struct listing *out)
{
	struct listing l = {.v = k->v, .count = k->count};
	size_t kept = 0;
	bool *drop;

	if (k->failed) {
		keys_release(k);
		return -ENOMEM;
	}
	if (l.count > 0)
		qsort(l.v, l.count, sizeof(*l.v), by_key);
	for (size_t i = 0; i < l.count; i++) {
		if (i + 1 < l.count && strcmp(l.v[i].key, l.v[i + 1].key) == 0) {
			free(l.v[i].key);
			continue;
		}
		l.v[i].err = 0;
		l.v[kept++] = l.v[i];
	}
	l.count = k->count = kept;
	drop = calloc(MAX(kept, 1), 1);
	if (drop == NULL) {
		keys_release(k);
		return -ENOMEM;
	}
	for (size_t i = 0; i < l.count; i++)
		drop[i] = is_directory(&l, l.v[i].key);
	kept = 0;
	for (size_t i = 0; i < l.count; i++) {
		if (drop[i])
			free(l.v[i].key);
		else
			l.v[kept++] = l.v[i];
	}
	free(drop);
	k->hidden += l.count - kept;
	l.count = kept;
	l.hidden = k->hidden;
	k->v = NULL;
	k->count = k->cap = 0;
	*out = l;
	return 0;
}

void keys_release(struct keys *k)
{
	struct listing l = {.v = k->v, .count = k->count};

	listing_release(&l);
	k->v = NULL;
	k->count = k->cap = 0;
}

const char *keys_below(const char *path, const char *prefix)
{
	size_t len = strlen(prefix);

	if (len == 0)
		return path;
	if (strncmp(path, prefix, len) != 0 || path[len] != '/' || path[len + 1] == '\0')
		return NULL;
	return path + len + 1;
}

int listing_copy(const struct listing *from, struct listing *out)
{
	struct listing l = {
		.v = calloc(MAX(from->count, 1), sizeof(*l.v)),
		.hidden = from->hidden,
	};

	if (l.v == NULL)
		return -ENOMEM;
	for (; l.count < from->count; l.count++) {
		l.v[l.count] = from->v[l.count];
		l.v[l.count].key = strdup(from->v[l.count].key);
		if (l.v[l.count].key == NULL) {
			listing_release(&l);
			return -ENOMEM;
		}
	}
	*out = l;
	return 0;
}

void identity_of_text(const char *kind, const char *text, size_t len, struct identity *out)
{
	XXH128_canonical_t canonical;
	XXH64_hash_t seed = XXH3_64bits(kind, strlen(kind));

	XXH128_canonicalFromHash(&canonical, XXH3_128bits_withSeed(text, len, seed));
	memcpy(out->bytes, canonical.digest, sizeof(out->bytes));
}
