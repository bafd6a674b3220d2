/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the model looks like: the --base directory, and layouts.
 *
 * A base gives the layout, the bytes of tensors that no object has, and, with tie_word_embeddings,
 * one tensor for head and embedding (layout), though version 0 shows the files as they are (own).
 * Errors of --base are errors of the start: nothing useful can be shown on a wrong base.
 *
 * Without one the layout is that of the lineage's first complete anchor, so that a mount that
 * starts late shows the same bytes as one that was there from the beginning.
 */
#include "fs/run_internal.h"

#include "cache/fileio.h"
#include "codec/pack.h"

#include <jansson.h>
#include <stdlib.h>

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

/* Sets the aliases of tied embeddings in a layout being made; true when there are any. */
static bool layout_tie(struct layout *l)
{
	bool any = false;

	for (size_t h = 0; h < ARRAY_LEN(heads); h++) {
		uint32_t head = layout_find(l, heads[h]);

		for (size_t e = 0; head != LAYOUT_NONE && e < ARRAY_LEN(embeddings); e++) {
			uint32_t embedding = layout_find(l, embeddings[e]);

			/* A head of another shape or dtype is not tied, whatever the configuration
			 * says. */
			if (embedding != LAYOUT_NONE && layout_alias(l, head, embedding) == 0) {
				any = true;
				break;
			}
		}
	}
	return any;
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

/* What can be wrong with the index before any file is looked at. */
static int check_map(json_t *index, struct why *why)
{
	json_t *map = json_object_get(index, "weight_map"), *value;
	const char *key;
	char shown[200];

	if (map == NULL)
		return why_set(why, EBADMSG, LAYOUT_INDEX_NAME " has no weight_map");
	if (!json_is_object(map))
		return why_set(why, EBADMSG,
			       LAYOUT_INDEX_NAME " has a weight_map that is not an object");
	if (json_object_size(map) == 0)
		return why_set(why, EBADMSG, LAYOUT_INDEX_NAME " has an empty weight_map");
	json_object_foreach (map, key, value)
		if (!json_is_string(value))
			return why_set(why, EBADMSG,
				       LAYOUT_INDEX_NAME
				       " has tensor \"%s\" in something that is not a file name",
				       printable(shown, sizeof(shown), key, strlen(key)));
	return 0;
}

/* The base's weight files by the index, else model.safetensors, else all at the top. Names borrowed
 * from index or listing. */
static int pick_files(const struct listing *listing, json_t *index, const char ***out,
		      size_t *out_count, struct why *why)
{
	json_t *map = index != NULL ? json_object_get(index, "weight_map") : NULL, *value;
	size_t n = 0, max = (map != NULL ? json_object_size(map) : listing->count) + 1;
	const char **names, *key;
	int err = index != NULL ? check_map(index, why) : 0;

	if (err < 0)
		return err;
	names = calloc(max, sizeof(*names));
	if (names == NULL)
		return why_set(why, ENOMEM, "out of memory");
	if (index != NULL) {
		json_object_foreach (map, key, value)
			names[n++] = json_string_value(value);
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
		if (!path_is_safe(names[i]))
			return why_set(why, EBADMSG,
				       LAYOUT_INDEX_NAME
				       " names \"%s\", which is not a file beside it",
				       shown);
		if (strchr(names[i], '/') != NULL)
			return why_set(why, EBADMSG,
				       LAYOUT_INDEX_NAME
				       " names \"%s\" in a directory; it must lie beside the index",
				       shown);
		if (listing_find(listing, names[i]) == NULL)
			return why_set(why, ENOENT, LAYOUT_INDEX_NAME " names %s, which is missing",
				       shown);
	}
	if (n == 0)
		return why_set(why, ENOENT, "there are no .safetensors weights in it");
	return 0;
}

/* Every tensor of the index must be in the file it names, and every tensor in the index. */
static int check_index(json_t *index, const struct layout *l, struct why *why)
{
	json_t *value, *map = json_object_get(index, "weight_map");
	const char *key;
	char shown[200];

	json_object_foreach (map, key, value) {
		const char *said = json_string_value(value);
		uint32_t t = layout_find(l, key);

		printable(shown, sizeof(shown), key, strlen(key));
		if (t == LAYOUT_NONE)
			return why_set(why, EBADMSG,
				       LAYOUT_INDEX_NAME
				       " has tensor \"%s\" in %s, but no file has such a tensor",
				       shown, said);
		if (strcmp(l->files[l->tensors[t].file].name, said) != 0)
			return why_set(
				why, EBADMSG,
				LAYOUT_INDEX_NAME
				" has tensor \"%s\" in %s, which does not hold it: it is in %s",
				shown, said, l->files[l->tensors[t].file].name);
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
	s->blobs = calloc(count, sizeof(struct blob *));
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

static int base_layout(const struct layout_input *in, size_t count, uint64_t shard_size,
		       struct layout **out, struct why *why)
{
	return shard_size > 0 ? layout_shard(in, count, shard_size, out, why)
			      : layout_keep(in, count, out, why);
}

/* The layout, twice where tied tensors make a difference. */
static int base_layouts(struct base *b, const struct layout_input *in, size_t count,
			uint64_t shard_size, struct why *why)
{
	int err = base_layout(in, count, shard_size, &b->layout, why);

	if (err < 0)
		return err;
	if (b->tied && layout_tie(b->layout))
		return base_layout(in, count, shard_size, &b->own, why);
	b->own = layout_ref(b->layout);
	return 0;
}

static void base_identify(struct base *b, const char *const *names, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		const struct object *o = listing_find(&b->listing, names[i]);

		identity_mix(&b->id, o->id.bytes, sizeof(o->id.bytes));
		b->mtime_ns = MAX(b->mtime_ns, o->mtime_ns);
	}
	/* Patches are matched to names, and what is tied changes which name is meant. */
	identity_mix(&b->id, &b->tied, sizeof(b->tied));
}

/* Opens the files and makes layout, sources and identity. */
static int base_load(struct base *b, struct store *store, const char *const *names, size_t count,
		     uint64_t shard_size, struct why *why)
{
	struct layout_input *in = calloc(count, sizeof(*in));
	struct blob **blobs = calloc(count, sizeof(struct blob *));
	int err = in == NULL || blobs == NULL ? why_set(why, ENOMEM, "out of memory") : 0;

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
	}
	if (err == 0)
		err = base_layouts(b, in, count, shard_size, why);
	if (err == 0) {
		base_identify(b, names, count);
		err = base_sources(b, in, blobs, count);
		if (err < 0)
			why_set(why, -err, "out of memory");
	}
	for (size_t i = 0; in != NULL && blobs != NULL && i < count; i++) {
		blob_unref(blobs[i]);
		st_free((struct st_header *)in[i].header);
		free((char *)in[i].json);
	}
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
	b->tied = config != NULL && config_ties(config);
	if (err == 0)
		err = base_load(b, store, names, count, shard_size, why);
	if (err == 0 && index != NULL && shard_size == 0)
		err = check_index(index, b->layout, why);
	if (err == 0) {
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
	layout_unref(b->own);
	sources_unref(b->sources);
	listing_release(&b->listing);
	free(b);
}

/* ---- layouts ---- */

/* Anchors of so few files are asked for among the opened objects, where their headers have just
 * been read. */
enum { OPENED_FILES = 2 };

struct headers { /* of the files of an anchor */
	struct layout_input *in;
	size_t count;
	struct opened *opened[OPENED_FILES]; /* whose header in[i] has; NULL: it is our own */
};

static void headers_release(struct headers *h)
{
	for (size_t i = 0; h->in != NULL && i < h->count; i++) {
		if (i >= OPENED_FILES || h->opened[i] == NULL)
			st_free((struct st_header *)h->in[i].header);
		else
			opened_put(h->opened[i]);
		free((char *)h->in[i].json);
	}
	free(h->in);
	*h = (struct headers){0};
}

/* The header that a packed file's original had, in place of its own. */
static int unpacked_header(struct layout_input *in, struct why *why)
{
	struct st_header *original;
	char *json;
	int err;

	if (!pack_is(in->header))
		return 0;
	err = pack_header(in->header, &original, &json, why);
	if (err < 0)
		return err;
	st_free((struct st_header *)in->header);
	free((char *)in->json);
	in->header = original;
	in->json = json;
	return 0;
}

/* Header and text of an opened object; 1: it is packed and its original's header is wanted. */
static int take_opened(struct run *r, const struct object *o, struct layout_input *in,
		       struct opened **out, struct why *why)
{
	struct opened *opened = NULL;
	uint64_t length;
	int err = opened_get(r, o, &opened, why);

	if (err < 0)
		return err;
	if (opened->delta->original != NULL || opened->delta->header == NULL) {
		opened_put(opened);
		return 1;
	}
	length = opened->delta->header->length;
	in->json = malloc(length);
	if (in->json == NULL)
		err = why_set(why, ENOMEM, "out of memory");
	if (err == 0)
		err = blob_read(opened->blob, 8, (char *)in->json, length);
	if (err < 0) {
		why_set(why, -err, "cannot read the header of %llu bytes",
			(unsigned long long)length);
		opened_put(opened);
		return err;
	}
	in->header = opened->delta->header;
	*out = opened;
	return 0;
}

static int headers_read(struct run *r, const struct pieces *anchor, struct headers *out,
			struct why *why)
{
	struct headers h = {calloc(anchor->count, sizeof(*h.in)), anchor->count, {NULL}};
	int err = h.in == NULL ? why_set(why, ENOMEM, "out of memory") : 0;

	for (size_t i = 0; i < anchor->count && err == 0; i++) {
		const struct piece *p = &anchor->v[i];
		struct blob *blob = NULL;
		struct source src;

		h.in[i].name = p->file != NULL ? p->file : "model.safetensors";
		err = anchor->count > OPENED_FILES
			      ? 1
			      : take_opened(r, p->object, &h.in[i], &h.opened[i], why);
		if (err <= 0)
			continue;
		err = blob_open(r->config.store, p->object, false, &blob, why);
		if (err < 0)
			break;
		src = blob_source(blob);
		err = st_read(&src, (struct st_header **)&h.in[i].header, (char **)&h.in[i].json,
			      why);
		if (err == 0)
			err = unpacked_header(&h.in[i], why);
		blob_unref(blob);
	}
	if (err < 0)
		headers_release(&h);
	else
		*out = h;
	return err;
}

static struct layout *layout_in_use(const struct run *r, const struct headers *h)
{
	for (size_t i = 0; i < r->layout_count; i++)
		if (layout_same_tensors(r->layouts[i], h->in, h->count))
			return r->layouts[i];
	return NULL;
}

/* Makes a layout and keeps it as one in use. */
static int layout_add(struct run *r, const struct headers *h, struct layout **out, struct why *why)
{
	struct layout **grown =
		realloc(r->layouts, (r->layout_count + 1) * sizeof(struct layout *));
	struct layout *l = NULL;
	int err;

	if (grown == NULL)
		return why_set(why, ENOMEM, "out of memory");
	r->layouts = grown;
	err = r->config.shard_size > 0
		      ? layout_shard(h->in, h->count, r->config.shard_size, &l, why)
		      : layout_keep(h->in, h->count, &l, why);
	if (err == 0 && l->file_count > 1 && l->index == NULL && layout_make_index(l) < 0) {
		layout_unref(l);
		err = why_set(why, ENOMEM, "out of memory");
	}
	if (err == 0)
		*out = r->layouts[r->layout_count++] = l;
	return err;
}

const struct pieces *complete_pieces(struct run *r, const struct step *step)
{
	const struct pieces *both[] = {&step->anchor, &step->delta};

	for (size_t i = 0; i < ARRAY_LEN(both); i++) {
		bool complete = both[i]->count > 0 && exams_ok(r, both[i], NULL);

		for (size_t k = 0; k < both[i]->count && complete; k++)
			complete = exam_get(r, both[i]->v[k].object)->complete;
		if (complete)
			return both[i];
	}
	return NULL;
}

/* The lineage's first complete anchor. */
static const struct pieces *first_complete(struct run *r)
{
	const struct pieces *p = NULL;

	for (size_t i = 0; i < r->lineage.step_count && p == NULL; i++)
		if (r->lineage.manifest == NULL || r->lineage.steps[i].anchor.present)
			p = complete_pieces(r, &r->lineage.steps[i]);
	return p;
}

/* A new layout from the first complete anchor if that has these tensors, else false. */
static bool layout_from_first(struct run *r, const struct pieces *anchor, const struct headers *h,
			      struct layout **out)
{
	const struct pieces *first = first_complete(r);
	struct headers mine = {0};
	struct layout *l = NULL;
	bool made = false;

	if (first == NULL || first == anchor || headers_read(r, first, &mine, NULL) < 0)
		return false;
	made = layout_add(r, &mine, &l, NULL) == 0;
	if (made && !layout_same_tensors(l, h->in, h->count)) {
		layout_unref(l);
		r->layout_count--;
		made = false;
	}
	if (made)
		*out = l;
	headers_release(&mine);
	return made;
}

int layout_for(struct run *r, const struct pieces *anchor, struct layout **out, struct why *why)
{
	struct headers h = {0};
	int err;

	if (r->base != NULL) {
		*out = r->base->layout;
		return 0;
	}
	err = headers_read(r, anchor, &h, why);
	if (err < 0)
		return err;
	*out = layout_in_use(r, &h);
	if (*out == NULL && !layout_from_first(r, anchor, &h, out))
		err = layout_add(r, &h, out, why);
	headers_release(&h);
	return err;
}

void layouts_sweep(struct run *r)
{
	size_t kept = 0;

	for (size_t i = 0; i < r->layout_count; i++) {
		/* Only this thread makes references from a layout that has no other. */
		if (__atomic_load_n(&r->layouts[i]->refs, __ATOMIC_ACQUIRE) > 1)
			r->layouts[kept++] = r->layouts[i];
		else
			layout_unref(r->layouts[i]);
	}
	r->layout_count = kept;
}
