/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changing a run that others read, and perhaps write, at the same time.
 *
 * The pointer is replaced by compare-and-swap on what was read.  Who loses reads again and makes
 * the change anew; a change is written so that it finds by itself whether there is still something
 * to do.  index.json, where there is one, is written just before and may name more than the pointer
 * does, never less.
 */
#include "tools/upkeep.h"

#include "cache/clock.h"
#include "fs/lineage.h"
#include "fs/rfc3339.h"
#include "tools/pointer.h"

#include <jansson.h>
#include <stdlib.h>

#define INDEX_KEY "index.json"

enum { TRIES = 50, LEASE_MAX = 65536, INDEX_MAX = 256 << 20 };

/* A whole object; malloc'ed. */
static int slurp(struct store *store, const struct object *o, size_t max, char **out,
		 struct why *why)
{
	struct handle *h = NULL;
	char *text;
	int ret;

	if (o->size > max)
		return why_set(why, EFBIG, "%s is larger than any such file", SHOWN(o->key));
	ret = store_open(store, o, &h, why);
	if (ret < 0)
		return ret;
	text = malloc((size_t)o->size + 1);
	ret = text != NULL ? store_read(h, 0, text, (size_t)o->size) : -ENOMEM;
	store_close(h);
	if (ret < 0) {
		free(text);
		return why_set(why, -ret, "%s cannot be read: %s", SHOWN(o->key),
			       strerrordesc_np(-ret));
	}
	*out = text;
	return 0;
}

/* ---- keys ---- */

static int compare_keys(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static size_t take_keys(const struct manifest_entry *v, size_t n, const char **keys, size_t at)
{
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < v[i].object_count; k++, at++)
			if (keys != NULL)
				keys[at] = v[i].objects[k].key;
	return at;
}

int keyset_of(const struct manifest *m, struct keyset *out)
{
	size_t n = take_keys(m->spans, m->span_count, NULL,
			     take_keys(m->steps, m->step_count, NULL, 0));

	*out = (struct keyset){calloc(n + 1, sizeof(char *)), n};
	if (out->v == NULL)
		return -ENOMEM;
	take_keys(m->spans, m->span_count, out->v, take_keys(m->steps, m->step_count, out->v, 0));
	qsort(out->v, n, sizeof(char *), compare_keys);
	return 0;
}

bool keyset_has(const struct keyset *k, const char *key)
{
	return k->count > 0 && bsearch(&key, k->v, k->count, sizeof(char *), compare_keys) != NULL;
}

void keyset_release(struct keyset *k)
{
	free(k->v);
	*k = (struct keyset){0};
}

/* ---- leases ---- */

static int lease_parse(const char *text, size_t len, struct lease *out)
{
	json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
	const json_t *version = json_object_get(root, "version");
	const char *until = json_string_value(json_object_get(root, "until"));
	int ret = 0;

	if (!json_is_integer(version) || json_integer_value(version) < 1 || until == NULL ||
	    rfc3339_parse(until, &out->until_ns) < 0)
		ret = -EBADMSG;
	else
		out->version = (uint64_t)json_integer_value(version);
	json_decref(root);
	return ret;
}

static int lease_read(struct store *store, const struct object *o, struct lease *out,
		      struct why *why)
{
	char *text = NULL;
	int ret = slurp(store, o, LEASE_MAX, &text, why);

	if (ret == 0 && lease_parse(text, (size_t)o->size, out) < 0)
		ret = why_set(why, EBADMSG,
			      "%s is no lease, so what it protects is not known: correct it or "
			      "delete it",
			      SHOWN(o->key));
	free(text);
	if (ret < 0)
		return ret;
	out->id = o->id;
	out->key = strdup(o->key);
	return out->key != NULL ? 0 : why_set(why, ENOMEM, "out of memory");
}

int leases_read(struct store *store, const struct listing *listing, struct leases *out,
		struct why *why)
{
	struct leases l = {.v = calloc(listing->count + 1, sizeof(*l.v))};
	int ret = l.v == NULL ? why_set(why, ENOMEM, "out of memory") : 0;

	for (size_t i = 0; ret == 0 && i < listing->count; i++) {
		const struct object *o = &listing->v[i];

		if (strncmp(o->key, LEASES, strlen(LEASES)) != 0)
			continue;
		ret = lease_read(store, o, &l.v[l.count], why);
		if (ret == -ENOENT || ret == -ESTALE) {
			/* Released, or renewed this very moment: the caller lists again. */
			why_set(why, EAGAIN, "%s is being changed; try again", SHOWN(o->key));
			ret = -EAGAIN;
		}
		l.count += ret == 0;
	}
	if (ret < 0)
		leases_release(&l);
	else
		*out = l;
	return ret;
}

void leases_release(struct leases *l)
{
	for (size_t i = 0; i < l->count; i++)
		free(l->v[i].key);
	free(l->v);
	*l = (struct leases){0};
}

/* ---- index.json ---- */

static void add_line(json_t *list, const char *key, uint64_t size, int64_t time_ns)
{
	char time[RFC3339_LEN];

	rfc3339_format(time_ns, time);
	json_array_append_new(list, json_pack("{s:s, s:I, s:s}", "key", key, "size",
					      (json_int_t)size, "mtime", time));
}

static void add_objects(json_t *list, const struct manifest_entry *v, size_t n,
			const struct keyset *except)
{
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < v[i].object_count; k++)
			if (except == NULL || !keyset_has(except, v[i].objects[k].key))
				add_line(list, v[i].objects[k].key, v[i].objects[k].size,
					 v[i].time_ns);
}

/* Everything of the old index that is no part of a run: companions. */
static int keep_others(const char *text, size_t len, json_t *list)
{
	json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL), *value;
	json_t *objects = json_object_get(root, "objects");
	size_t i;

	if (!json_is_array(objects)) {
		json_decref(root);
		return -EBADMSG;
	}
	json_array_foreach (objects, i, value) {
		const char *key = json_string_value(json_object_get(value, "key"));

		if (key != NULL && !lineage_owns(key))
			json_array_append(list, value);
	}
	json_decref(root);
	return 0;
}

int upkeep_index(struct store *store, const struct manifest *m, const struct manifest *old,
		 uint64_t pointer_len, struct why *why)
{
	struct listing l = {0};
	struct keyset named = {0};
	const struct object *o;
	json_t *list = json_array(), *root = NULL;
	char *text = NULL, *made = NULL;
	struct source src;
	int ret = store_list(store, INDEX_KEY, &l, why);

	o = ret == 0 ? listing_find(&l, INDEX_KEY) : NULL;
	if (o == NULL)
		goto out; /* there is none, and none is needed */
	ret = slurp(store, o, INDEX_MAX, &text, why);
	if (ret == 0 && keep_others(text, (size_t)o->size, list) < 0)
		ret = why_set(why, EBADMSG, INDEX_KEY " is not what a publisher writes");
	if (ret == 0 && keyset_of(m, &named) < 0)
		ret = why_set(why, ENOMEM, "out of memory");
	if (ret < 0)
		goto out;
	add_objects(list, m->steps, m->step_count, NULL);
	add_objects(list, m->spans, m->span_count, NULL);
	if (old != NULL) {
		add_objects(list, old->steps, old->step_count, &named);
		add_objects(list, old->spans, old->span_count, &named);
	}
	add_line(list, MANIFEST_KEY, pointer_len, clock_real_ns());
	root = json_pack("{s:O}", "objects", list);
	made = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
	if (made == NULL) {
		ret = why_set(why, ENOMEM, "out of memory");
		goto out;
	}
	src = source_memory(made, strlen(made));
	ret = store_put(store, INDEX_KEY, &src, why);
out:
	keyset_release(&named);
	free(made);
	free(text);
	json_decref(root);
	json_decref(list);
	listing_release(&l);
	return ret;
}

/* ---- the pointer ---- */

/* One try: 1, 0, or an error; -ESTALE and -EEXIST: somebody was faster. */
static int change_once(struct store *store, upkeep_change *change, void *ctx,
		       struct manifest **out_now, struct why *why)
{
	struct pointer was = {0};
	struct manifest *next = NULL;
	struct buf text = {0};
	int ret = pointer_read(store, &was, why);

	if (ret == 0 && was.manifest == NULL)
		ret = why_set(why, ENOENT, "%s has no " MANIFEST_KEY, store->name);
	if (ret == 0 && manifest_copy(was.manifest, &next) < 0)
		ret = why_set(why, ENOMEM, "out of memory");
	if (ret == 0)
		ret = change(next, ctx, why);
	if (ret == 1 && manifest_compose(next, &text) < 0)
		ret = why_set(why, ENOMEM, "out of memory");
	if (ret == 1) {
		int err = upkeep_index(store, next, was.manifest, text.len, why);

		if (err == 0)
			err = pointer_write(store, &was, &text, why);
		if (err < 0)
			ret = err;
	}
	if (ret >= 0 && out_now != NULL) {
		*out_now = next;
		next = NULL;
	}
	manifest_free(next);
	pointer_release(&was);
	buf_release(&text);
	return ret;
}

int upkeep_pointer(struct store *store, upkeep_change *change, void *ctx, struct manifest **out_now,
		   struct why *why)
{
	int ret = -ESTALE;

	for (int i = 0; i < TRIES && (ret == -ESTALE || ret == -EEXIST); i++) {
		*why = (struct why){0};
		ret = change_once(store, change, ctx, out_now, why);
	}
	return ret;
}
