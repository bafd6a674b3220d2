/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a plan to what is shown: the state (where every tensor's bytes come from and which patches
 * lie on top) and the tree of files around it.
 *
 * Assembling walks the plan upwards, matching each object to the layout with the tensors as they
 * are stored at that point; an object that turns out bad is marked so and the caller plans again
 * without it.  Nothing here is visible to readers until the whole generation is handed to the
 * history.
 */
#include "fs/run_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

static struct sources *sources_copy(const struct sources *from, uint32_t room)
{
	struct sources *s = calloc(1, sizeof(*s));

	if (s == NULL)
		return NULL;
	s->refs = 1;
	s->count = from->count;
	s->v = calloc(s->count ? s->count : 1, sizeof(*s->v));
	s->blobs = calloc(from->blob_count + room, sizeof(*s->blobs));
	if (s->v == NULL || s->blobs == NULL) {
		sources_unref(s);
		return NULL;
	}
	if (s->count > 0)
		memcpy(s->v, from->v, s->count * sizeof(*s->v));
	for (uint32_t i = 0; i < from->blob_count; i++)
		s->blobs[s->blob_count++] = blob_ref(from->blobs[i]);
	return s;
}

/* Puts an object's full tensors over *s, which is replaced by a copy. */
static int overlay(struct sources **s, const struct exam *e, uint64_t number)
{
	struct sources *n = sources_copy(*s, 1);

	if (n == NULL)
		return -ENOMEM;
	n->blobs[n->blob_count++] = blob_ref(e->blob);
	for (size_t i = 0; i < e->full_count; i++)
		n->v[e->fulls[i].tensor] = (struct tensor_source){
			.offset = e->fulls[i].offset,
			.version = number,
			.blob = n->blob_count - 1,
			.dtype = e->fulls[i].dtype,
		};
	sources_unref(*s);
	*s = n;
	return 0;
}

/* Sources before any object: --base's own, or nothing at all. */
static struct sources *sources_start(const struct run *r, const struct layout *layout,
				     uint64_t number)
{
	struct sources empty = {.count = layout->tensor_count}, *s;

	if (r->base == NULL) {
		empty.v = calloc(layout->tensor_count ? layout->tensor_count : 1, sizeof(*empty.v));
		if (empty.v == NULL)
			return NULL;
		for (uint32_t i = 0; i < empty.count; i++)
			empty.v[i].blob = LAYOUT_NONE;
		s = sources_copy(&empty, 1);
		free(empty.v);
		return s;
	}
	s = sources_copy(r->base->sources, 1);
	for (uint32_t i = 0; s != NULL && i < s->count; i++)
		s->v[i].version = number;
	return s;
}

static int base_step(struct run *r, const struct step *step, struct layout **out_layout,
		     struct sources **out, struct why *why)
{
	const struct object *o, *object = NULL;
	struct exam *e = NULL;
	int err;

	for (size_t i = 0; (o = step_objects(step, i)) != NULL; i++) {
		struct exam *x = exam_get(r, o);

		if (x != NULL && x->state == EXAM_OK && x->complete) {
			e = x;
			object = o;
		}
	}
	if (e == NULL)
		return why_set(why, EAGAIN, "the anchor changed in the meantime");
	err = layout_for(r, object, out_layout, &e->why);
	if (err < 0) {
		e->state = EXAM_BROKEN;
		*why = e->why;
		return err;
	}
	err = exam_match(r, e, object, step->number, *out_layout, NULL);
	if (err < 0) {
		*why = e->why;
		return err;
	}
	*out = sources_start(r, *out_layout, step->number);
	if (*out == NULL)
		return why_set(why, ENOMEM, "out of memory");
	err = overlay(out, e, step->number);
	for (uint32_t i = 0; err == 0 && i < (*out)->count; i++)
		if ((*out)->v[i].blob == LAYOUT_NONE && (*out_layout)->tensors[i].alias == i) {
			e->state = EXAM_BROKEN;
			err = why_set(&e->why, EBADMSG, "%s: lacks tensor \"%.200s\"", e->key,
				      (*out_layout)->tensors[i].name);
			*why = e->why;
		}
	return err;
}

static int delta_step(struct run *r, const struct step *step, struct layout *layout,
		      struct sources **sources, struct why *why)
{
	const struct object *o;
	int err;

	for (size_t i = 0; (o = step_objects(step, i)) != NULL; i++) {
		struct exam *e = exam_get(r, o);

		if (e == NULL)
			return why_set(why, ENOMEM, "out of memory");
		err = e->state == EXAM_OK ? exam_match(r, e, o, step->number, layout, *sources)
					  : -EAGAIN;
		if (err < 0) {
			*why = e->why;
			return err;
		}
		if (e->full_count > 0) {
			err = overlay(sources, e, step->number);
			if (err < 0)
				return why_set(why, ENOMEM, "out of memory");
		}
	}
	return 0;
}

static void hash_step(XXH3_state_t *h, const struct step *s)
{
	const struct object *o;

	for (size_t i = 0; (o = step_objects(s, i)) != NULL; i++)
		XXH3_128bits_update(h, o->id.bytes, sizeof(o->id.bytes));
	XXH3_128bits_update(h, &s->number, sizeof(s->number));
}

static int plan_fingerprint(const struct run *r, const struct plan *p, const struct layout *layout,
			    struct identity *out)
{
	XXH3_state_t *h = XXH3_createState();
	XXH128_canonical_t digest;

	if (h == NULL)
		return -ENOMEM;
	XXH3_128bits_reset(h);
	if (r->base != NULL)
		XXH3_128bits_update(h, r->base->id.bytes, sizeof(r->base->id.bytes));
	for (uint32_t i = 0; i < layout->file_count; i++)
		XXH3_128bits_update(h, layout->files[i].head, layout->files[i].head_len);
	for (size_t i = p->base; p->last != SIZE_MAX && i <= p->last; i++)
		hash_step(h, &r->lineage.steps[i]);
	XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(h));
	memcpy(out->bytes, digest.digest, sizeof(out->bytes));
	XXH3_freeState(h);
	return 0;
}

int assemble_state(struct run *r, const struct plan *p, struct state **out, struct why *why)
{
	const struct step *steps = r->lineage.steps;
	struct identity fingerprint = {0};
	struct sources *sources = NULL;
	struct layout *layout = NULL;
	struct link **links = NULL;
	uint32_t count = 0;
	int err = base_step(r, &steps[p->base], &layout, &sources, why);

	for (size_t i = p->base + 1; err == 0 && i <= p->last; i++)
		err = delta_step(r, &steps[i], layout, &sources, why);
	if (err < 0)
		goto out;
	err = fold_stack(r, p, layout, &links, &count);
	/* A stack this long (a late joiner on a long chain) is not worth serving from: fold first.
	 */
	while (err == 0 && count > 32 && fold_work(r, p, layout)) {
		free(links);
		links = NULL;
		err = fold_stack(r, p, layout, &links, &count);
	}
	if (err == 0)
		err = plan_fingerprint(r, p, layout, &fingerprint);
	if (err == 0)
		err = state_new(steps[p->last].number, steps[p->base].number,
				(unsigned)(p->last - p->base), layout, sources, links, count,
				&fingerprint, out);
	if (err < 0)
		why_set(why, -err, "out of memory");
out:
	free(links);
	sources_unref(sources);
	return err;
}

int assemble_base(struct run *r, struct state **out)
{
	const struct plan none = {.base = 0, .last = SIZE_MAX};
	struct identity fingerprint;
	int err = plan_fingerprint(r, &none, r->base->layout, &fingerprint);

	return err < 0 ? err
		       : state_new(0, 0, 0, r->base->layout, r->base->sources, NULL, 0,
				   &fingerprint, out);
}

/* ---- the tree ---- */

static bool has_suffix(const char *s, const char *suffix)
{
	size_t a = strlen(s), b = strlen(suffix);

	return a >= b && strcmp(s + a - b, suffix) == 0;
}

/* Companion files are everything but weights in any format: stale weights beside current ones would
 * be a trap (an engine may prefer them), so other formats of the same model are left out too. */
bool companion_key(const struct run *r, const char *key)
{
	static const char *const weights[] = {
		".safetensors", ".bin",	    ".pt",   ".pth",  ".ckpt",
		".h5",		".msgpack", ".gguf", ".onnx", ".bin.index.json",
		".patch"};
	const char *name = strrchr(key, '/');

	name = name != NULL ? name + 1 : key;
	if (r->base == NULL && lineage_owns(key))
		return false;
	if (strncmp(name, "adapter_", 8) == 0)
		return true;
	for (size_t i = 0; i < ARRAY_LEN(weights); i++)
		if (has_suffix(name, weights[i]))
			return false;
	/* Our own index stands in for the reference's when we shard; without --base the layout has
	 * one file. */
	if (strcmp(key, LAYOUT_INDEX_NAME) == 0)
		return r->base != NULL && r->config.shard_size == 0;
	return true;
}

static const struct listing *companions_of(const struct run *r)
{
	return r->base != NULL ? &r->base->listing : &r->current->listing;
}

uint64_t companions_signature(struct run *r)
{
	const struct listing *l = companions_of(r);
	uint64_t sig = 0;

	for (size_t i = 0; i < l->count; i++)
		if (l->v[i].err == 0 && companion_key(r, l->v[i].key)) {
			sig = XXH3_64bits_withSeed(l->v[i].key, strlen(l->v[i].key), sig);
			sig = XXH3_64bits_withSeed(l->v[i].id.bytes, sizeof(l->v[i].id.bytes), sig);
		}
	return sig;
}

/* The node of a companion: the same one as long as the object is the same. Borrowed; NULL: cannot
 * be opened. */
static struct node *companion_node(struct run *r, const struct object *o)
{
	struct store *store = r->base != NULL ? r->config.base : r->config.store;
	struct blob *blob = NULL;
	struct node *node;
	struct why why = {0};
	char *slot = NULL, hex[33];

	identity_hex(&o->id, hex);
	if (asprintf(&slot, "%s %s", hex, o->key) < 0)
		return NULL;
	node = table_get_str(r->companions, slot);
	if (node == NULL && blob_open(store, o, true, &blob, &why) == 0) {
		node = node_blob(r->config.nodes, blob, o->mtime_ns);
		blob_unref(blob);
		if (node != NULL && table_put_str(r->companions, slot, node) < 0) {
			node_unref(node);
			node = NULL;
		}
	}
	free(slot);
	return node;
}

static int put_companions(struct run *r, struct node *root)
{
	const struct listing *l = companions_of(r);

	for (size_t i = 0; i < l->count; i++) {
		const struct object *o = &l->v[i];
		struct node *node;
		int err;

		if (!companion_key(r, o->key))
			continue;
		node = o->err == 0 ? companion_node(r, o) : NULL;
		if (node == NULL) {
			run_note(r, "companion file %.200s cannot be read and is left out", o->key);
			continue;
		}
		err = node_put(root, o->key, node);
		if (err == -EEXIST)
			run_note(r, "companion file %.200s is hidden by a weight file of that name",
				 o->key);
		else if (err < 0)
			return err;
	}
	return 0;
}

static int put_weights(struct run *r, struct node *root, struct state *state, int64_t mtime_ns,
		       const struct generation *like)
{
	const struct layout *l = state->layout;
	struct node *node;
	char *copy;
	int err = 0;

	for (uint32_t i = 0; i < l->file_count && err == 0; i++) {
		node = like != NULL && like->state == state
			       ? node_child(like->root, l->files[i].name)
			       : NULL;
		node = node != NULL ? node_ref(node)
				    : node_weights(r->config.nodes, state, i, mtime_ns);
		err = node != NULL ? node_put(root, l->files[i].name, node) : -ENOMEM;
		node_unref(node);
	}
	if (err == 0 && l->index != NULL) {
		copy = malloc(l->index_len);
		if (copy == NULL)
			return -ENOMEM;
		memcpy(copy, l->index, l->index_len);
		node = node_bytes(r->config.nodes, copy, l->index_len, mtime_ns);
		err = node != NULL ? node_put(root, LAYOUT_INDEX_NAME, node) : -ENOMEM;
		node_unref(node);
	}
	return err;
}

int assemble_tree(struct run *r, struct state *state, uint64_t version, int64_t mtime_ns,
		  const char *format, const struct generation *like, struct generation **out)
{
	struct generation *g = calloc(1, sizeof(*g));
	int err = 0;

	if (g == NULL)
		return -ENOMEM;
	*g = (struct generation){.refs = 1, .version = version, .mtime_ns = mtime_ns};
	snprintf(g->lineage, sizeof(g->lineage), "%s",
		 version > 0 || (state != NULL && state->link_count > 0) ? r->label : "");
	snprintf(g->format, sizeof(g->format), "%s", format);
	g->state = state != NULL ? state_ref(state) : NULL;
	g->root = node_dir(r->config.nodes, state, mtime_ns);
	if (g->root == NULL)
		err = -ENOMEM;
	if (err == 0 && state != NULL)
		err = put_weights(r, g->root, state, mtime_ns, like);
	if (err == 0)
		err = put_companions(r, g->root);
	if (err < 0) {
		generation_unref(g);
		return err;
	}
	node_seal(g->root);
	*out = g;
	return 0;
}
