/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the model is: the --base directory, the set of tensors a complete anchor has, and layouts.
 *
 * The cheap and sure reference is the run's first object: it holds the policy before training,
 * complete in every generation of TRL.  Where it is gone, --base says which tensors there are;
 * without that, the oldest object that is nothing but full tensors is believed to be complete as
 * long as no later object names a tensor that it lacks.
 *
 * Errors of --base are errors of the start: nothing useful can be shown on a wrong base.
 */
#include "fs/run_internal.h"

#include "cache/fileio.h"

#include <jansson.h>
#include <stdlib.h>
#include <xxhash.h>

static const char *const embeddings[] = {
	"model.embed_tokens.weight", "embed_tokens.weight", "transformer.wte.weight",
	"model.language_model.embed_tokens.weight", "language_model.model.embed_tokens.weight"};
static const char *const heads[] = {"lm_head.weight", "language_model.lm_head.weight"};

enum { JSON_MAX = 64 << 20 };

bool tied_name(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(embeddings); i++)
		if (strcmp(name, embeddings[i]) == 0)
			return true;
	for (size_t i = 0; i < ARRAY_LEN(heads); i++)
		if (strcmp(name, heads[i]) == 0)
			return true;
	return false;
}

void layout_tie(struct layout *l)
{
	for (size_t h = 0; h < ARRAY_LEN(heads); h++) {
		uint32_t head = layout_find(l, heads[h]);

		for (size_t e = 0; head != LAYOUT_NONE && e < ARRAY_LEN(embeddings); e++) {
			uint32_t embedding = layout_find(l, embeddings[e]);

			/* A head of another shape or dtype is not tied, whatever the configuration
			 * says. */
			if (embedding != LAYOUT_NONE && layout_alias(l, head, embedding) == 0)
				break;
		}
	}
}

/* Parses a JSON object of the base; *out is NULL when there is no such file. */
static int read_json(struct store *store, const struct listing *listing, const char *key,
		     json_t **out, struct why *why)
{
	const struct object *o = listing_find(listing, key);
	struct blob *blob = NULL;
	json_error_t error;
	char *text;
	int err;

	*out = NULL;
	if (o == NULL)
		return 0;
	if (o->size > JSON_MAX)
		return why_set(why, EFBIG, "%s is larger than any such file should be (%llu bytes)",
			       key, (unsigned long long)o->size);
	err = blob_open(store, o, false, &blob, why);
	if (err < 0)
		return err;
	text = malloc(o->size + 1);
	err = text == NULL ? -ENOMEM : blob_read(blob, 0, text, o->size);
	if (err < 0) {
		why_set(why, -err, "%s cannot be read", key);
	} else {
		*out = json_loadb(text, o->size, JSON_REJECT_DUPLICATES, &error);
		if (*out == NULL || !json_is_object(*out))
			err = why_set(why, EBADMSG, "%s is not a JSON object: %.200s", key,
				      *out ? "another type" : error.text);
	}
	if (err < 0) {
		json_decref(*out);
		*out = NULL;
	}
	free(text);
	blob_unref(blob);
	return err;
}

static bool is_weights(const char *key)
{
	static const char suffix[] = ".safetensors";
	size_t len = strlen(key);

	return strchr(key, '/') == NULL && len > sizeof(suffix) - 1 &&
	       strcmp(key + len - (sizeof(suffix) - 1), suffix) == 0;
}

static int compare_keys(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The base's weight files by the index, else model.safetensors, else all at the top. Names borrowed
 * from index or listing. */
static int pick_files(const struct listing *listing, json_t *index, const char ***out,
		      size_t *out_count, struct why *why)
{
	json_t *map = index != NULL ? json_object_get(index, "weight_map") : NULL, *value;
	size_t n = 0, max = (map != NULL ? json_object_size(map) : listing->count) + 1;
	const char **names = calloc(max, sizeof(*names)), *key;

	if (names == NULL)
		return why_set(why, ENOMEM, "out of memory");
	if (index != NULL) {
		json_object_foreach(map, key, value) names[n++] =
			json_is_string(value) ? json_string_value(value) : "";
		qsort(names, n, sizeof(*names), compare_keys);
		size_t kept = 0;
		for (size_t i = 0; i < n; i++)
			if (kept == 0 || strcmp(names[kept - 1], names[i]) != 0)
				names[kept++] = names[i];
		n = kept;
	} else if (listing_find(listing, "model.safetensors") != NULL) {
		names[n++] = "model.safetensors";
	} else {
		for (size_t i = 0; i < listing->count; i++)
			if (is_weights(listing->v[i].key))
				names[n++] = listing->v[i].key;
	}
	*out = names;
	*out_count = n;
	for (size_t i = 0; i < n; i++) {
		char shown[300];

		printable(shown, sizeof(shown), names[i], strlen(names[i]));
		if (!path_is_safe(names[i]) || strchr(names[i], '/') != NULL)
			return why_set(why, EBADMSG,
				       LAYOUT_INDEX_NAME
				       " names \"%s\", which is not a file beside it",
				       shown);
		if (listing_find(listing, names[i]) == NULL)
			return why_set(why, ENOENT, LAYOUT_INDEX_NAME " names %s, which is missing",
				       shown);
	}
	if (n == 0)
		return why_set(why, ENOENT,
			       index != NULL ? LAYOUT_INDEX_NAME " has no weight_map"
					     : "there are no .safetensors weights in it");
	return 0;
}

/* Every tensor of the index must be in the file it names, and every tensor in the index. */
static int check_index(json_t *index, const struct layout *l, struct why *why)
{
	json_t *value, *map = json_object_get(index, "weight_map");
	const char *key;
	char shown[200];

	json_object_foreach(map, key, value)
	{
		uint32_t t = layout_find(l, key);

		if (t == LAYOUT_NONE ||
		    strcmp(l->files[l->tensors[t].file].name, json_string_value(value)) != 0)
			return why_set(why, EBADMSG,
				       LAYOUT_INDEX_NAME
				       " has tensor \"%s\" in %s, which does not hold it",
				       printable(shown, sizeof(shown), key, strlen(key)),
				       json_string_value(value));
	}
	for (uint32_t i = 0; i < l->tensor_count; i++)
		if (json_object_get(map, l->tensors[i].name) == NULL)
			return why_set(why, EBADMSG,
				       "tensor \"%s\" of %s is not in " LAYOUT_INDEX_NAME,
				       printable(shown, sizeof(shown), l->tensors[i].name,
						 strlen(l->tensors[i].name)),
				       l->files[l->tensors[i].file].name);
	return 0;
}

/* Where each tensor of the (kept or sharded) layout lies in the base's files. */
static int base_sources(struct base *b, const struct layout_input *in, struct blob **blobs,
			size_t count)
{
	struct sources *s = calloc(1, sizeof(*s));

	if (s == NULL)
		return -ENOMEM;
	s->refs = 1;
	b->sources = s;
	s->count = b->layout->tensor_count;
	s->v = calloc(s->count ? s->count : 1, sizeof(*s->v));
	s->blobs = calloc(count, sizeof(*s->blobs));
	if (s->v == NULL || s->blobs == NULL)
		return -ENOMEM;
	for (size_t f = 0; f < count; f++) {
		s->blobs[s->blob_count++] = blob_ref(blobs[f]);
		for (size_t i = 0; i < in[f].header->count; i++) {
			const struct st_tensor *t = &in[f].header->tensors[i];

			s->v[layout_find(b->layout, t->name)] = (struct tensor_source){
				.offset = in[f].header->data + t->begin,
				.blob = (uint32_t)f,
				.dtype = t->dtype,
			};
		}
	}
	return 0;
}

/* Opens the files and makes layout, sources and identity. */
static int base_load(struct base *b, struct store *store, const char *const *names, size_t count,
		     uint64_t shard_size, struct why *why)
{
	struct layout_input *in = calloc(count, sizeof(*in));
	struct blob **blobs = calloc(count, sizeof(*blobs));
	XXH3_state_t *hash = XXH3_createState();
	int err = in == NULL || blobs == NULL || hash == NULL
			  ? why_set(why, ENOMEM, "out of memory")
			  : 0;

	if (err == 0)
		XXH3_128bits_reset(hash);
	for (size_t i = 0; i < count && err == 0; i++) {
		const struct object *o = listing_find(&b->listing, names[i]);
		struct source src;

		in[i].name = names[i];
		err = blob_open(store, o, false, &blobs[i], why);
		if (err < 0)
			break;
		src = blob_source(blobs[i]);
		err = st_read(&src, (struct st_header **)&in[i].header, (char **)&in[i].json, why);
		if (err < 0)
			why_prefix(why, "%s", names[i]);
		XXH3_128bits_update(hash, o->id.bytes, sizeof(o->id.bytes));
		b->mtime_ns = MAX(b->mtime_ns, o->mtime_ns);
	}
	if (err == 0)
		err = shard_size > 0 ? layout_shard(in, count, shard_size, &b->layout, why)
				     : layout_keep(in, count, &b->layout, why);
	if (err == 0) {
		XXH128_canonical_t digest;

		XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(hash));
		memcpy(b->id.bytes, digest.digest, sizeof(b->id.bytes));
		err = base_sources(b, in, blobs, count);
	}
	for (size_t i = 0; in != NULL && blobs != NULL && i < count; i++) {
		blob_unref(blobs[i]);
		st_free((struct st_header *)in[i].header);
		free((char *)in[i].json);
	}
	XXH3_freeState(hash);
	free(in);
	free(blobs);
	return err;
}

static bool config_ties(json_t *config)
{
	json_t *text = json_object_get(config, "text_config");

	return json_is_true(json_object_get(config, "tie_word_embeddings")) ||
	       (text != NULL && json_is_true(json_object_get(text, "tie_word_embeddings")));
}

int base_open(struct store *store, uint64_t shard_size, struct base **out, struct why *why)
{
	struct base *b = calloc(1, sizeof(*b));
	json_t *index = NULL, *config = NULL;
	const char **names = NULL;
	size_t count = 0;
	int err;

	if (b == NULL)
		return why_set(why, ENOMEM, "out of memory");
	err = store_list(store, "", &b->listing, why);
	if (err == 0)
		err = read_json(store, &b->listing, LAYOUT_INDEX_NAME, &index, why);
	if (err == 0)
		err = read_json(store, &b->listing, "config.json", &config, why);
	if (err == 0)
		err = pick_files(&b->listing, index, &names, &count, why);
	if (err == 0)
		err = base_load(b, store, names, count, shard_size, why);
	if (err == 0 && index != NULL && shard_size == 0)
		err = check_index(index, b->layout, why);
	if (err == 0) {
		b->tied = config != NULL && config_ties(config);
		if (b->tied)
			layout_tie(b->layout);
		*out = b;
	} else {
		why_prefix(why, "--base %s", store->name);
		base_free(b);
	}
	json_decref(index);
	json_decref(config);
	free(names);
	return err;
}

void base_free(struct base *b)
{
	if (b == NULL)
		return;
	layout_unref(b->layout);
	sources_unref(b->sources);
	listing_release(&b->listing);
	free(b);
}

/* ---- the cover ---- */

void cover_release(struct cover *c)
{
	for (size_t i = 0; i < c->count; i++)
		free(c->names[i]);
	free(c->names);
	free(c->origin);
	*c = (struct cover){0};
}

static bool cover_add(struct cover *c, const char *name)
{
	c->names[c->count] = strdup(name);
	return c->names[c->count] != NULL && ++c->count;
}

static int compare_strings(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* All tensors of an object that is nothing but full tensors; false: it is not, or cannot be read.
 */
static bool cover_from_object(struct run *r, const struct object *o, struct cover *c)
{
	struct blob *blob = NULL;
	struct delta *d = NULL;
	struct source src;
	bool ok = false;

	if (o->err != 0 || blob_open(r->config.store, o, false, &blob, NULL) < 0)
		return false;
	src = blob_source(blob);
	if (blob->handle != NULL && store_settled(blob->handle) < 0)
		goto out;
	if (delta_open(&src, &d, NULL) < 0 || d->sparse > 0 || d->full == 0)
		goto out;
	c->names = calloc(d->count, sizeof(*c->names));
	c->origin = strdup(o->key);
	c->id = o->id;
	ok = c->names != NULL && c->origin != NULL;
	for (size_t i = 0; i < d->count && ok; i++)
		ok = cover_add(c, d->parts[i].name);
	if (!ok)
		cover_release(c);
out:
	delta_free(d);
	blob_unref(blob);
	return ok;
}

/* Floating-point tensors of --base: what a trainer can have as parameters.  A tied pair counts as
 * its embedding. */
static bool cover_from_base(struct run *r, struct cover *c)
{
	const struct layout *l = r->base->layout;

	c->names = calloc(l->tensor_count ? l->tensor_count : 1, sizeof(*c->names));
	c->origin = strdup("--base");
	c->id = r->base->id;
	if (c->names == NULL || c->origin == NULL)
		return false;
	for (uint32_t i = 0; i < l->tensor_count; i++)
		if (st_dtype_is_float(l->tensors[i].dtype) && l->tensors[i].alias == i &&
		    !cover_add(c, l->tensors[i].name))
			return false;
	qsort(c->names, c->count, sizeof(*c->names), compare_strings);
	return true;
}

/* Does any later object name a tensor that the cover lacks? */
static bool contradicted(struct run *r, size_t first, const struct cover *c)
{
	for (size_t i = first + 1; i < r->lineage.step_count; i++) {
		const struct object *o;

		for (size_t k = 0; (o = step_objects(&r->lineage.steps[i], k)) != NULL; k++) {
			struct blob *blob = NULL;
			struct delta *d = NULL;
			struct source src;
			bool missing = false;

			if (o->err != 0 || blob_open(r->config.store, o, false, &blob, NULL) < 0)
				continue;
			src = blob_source(blob);
			if (delta_open(&src, &d, NULL) == 0)
				for (size_t p = 0; p < d->count && !missing; p++)
					missing =
						bsearch(&d->parts[p].name, c->names, c->count,
							sizeof(*c->names), compare_strings) == NULL;
			delta_free(d);
			blob_unref(blob);
			if (missing)
				return true;
		}
	}
	return false;
}

static bool find_cover(struct run *r, struct cover *c)
{
	const struct lineage *l = &r->lineage;

	if (l->step_count > 0 && l->steps[0].number <= 1) {
		const struct step *s = &l->steps[0];

		return cover_from_object(r, s->anchor != NULL ? s->anchor : s->delta, c);
	}
	if (r->base != NULL)
		return cover_from_base(r, c);
	for (size_t i = 0; i < l->step_count; i++) {
		const struct object *o =
			l->steps[i].anchor != NULL ? l->steps[i].anchor : l->steps[i].delta;

		if (!cover_from_object(r, o, c))
			continue;
		if (!contradicted(r, i, c)) {
			c->assumed = true;
			return true;
		}
		cover_release(c);
	}
	return false;
}

bool cover_update(struct run *r)
{
	struct cover c = {0};

	if (r->cover.origin != NULL) {
		const struct object *o = listing_find(&r->current->listing, r->cover.origin);
		bool first_known = r->lineage.step_count > 0 && r->lineage.steps[0].number <= 1;

		/* Still the same object, or the base with no first object that would be better. */
		if (o != NULL && identity_equal(&o->id, &r->cover.id))
			return true;
		if (r->base != NULL && !first_known && identity_equal(&r->base->id, &r->cover.id))
			return true;
	}
	if (!find_cover(r, &c)) {
		cover_release(&c);
		/* A first object that was pruned since we read it is no reason to forget what it
		 * said, as long as the same run goes on. */
		return r->cover.origin != NULL && r->lineage.step_count > 0 &&
		       r->lineage.steps[0].number > 1;
	}
	cover_release(&r->cover);
	r->cover = c;
	exams_sweep(r, true);
	return true;
}

/* ---- layouts ---- */

int layout_for(struct run *r, const struct object *object, struct layout **out, struct why *why)
{
	struct layout_input in = {.name = "model.safetensors"};
	struct layout *l = NULL, **grown;
	struct st_header *header = NULL;
	struct blob *blob = NULL;
	struct source src;
	char *json = NULL;
	int err;

	if (r->base != NULL) {
		*out = r->base->layout;
		return 0;
	}
	err = blob_open(r->config.store, object, false, &blob, why);
	if (err < 0)
		return err;
	src = blob_source(blob);
	err = st_read(&src, &header, &json, why);
	for (size_t i = 0; err == 0 && i < r->layout_count && l == NULL; i++)
		if (layout_same_tensors(r->layouts[i], header))
			l = r->layouts[i];
	if (err == 0 && l == NULL) {
		in.header = header;
		in.json = json;
		err = r->config.shard_size > 0 ? layout_shard(&in, 1, r->config.shard_size, &l, why)
					       : layout_keep(&in, 1, &l, why);
		grown = err == 0 ? realloc(r->layouts,
					   (r->layout_count + 1) * sizeof(struct layout *))
				 : NULL;
		if (err == 0 && grown == NULL) {
			layout_unref(l);
			err = why_set(why, ENOMEM, "out of memory");
		} else if (err == 0) {
			r->layouts = grown;
			r->layouts[r->layout_count++] = l;
		}
	}
	if (err == 0)
		*out = l;
	else
		why_prefix(why, "%s", object->key);
	st_free(header);
	free(json);
	blob_unref(blob);
	return err;
}
