/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last few objects that were opened, with their headers parsed.
 *
 * One round asks for the same object several times (what does it cover, is it sound, what do its
 * values say), and the header of a large model takes a tenth of a second to parse.  A few are
 * enough, since the questions about one object come close together; the budget bounds what they
 * hold, and nothing is kept from one round to the next.
 */
#include "fs/run_internal.h"

#include <stdlib.h>

/* Header bytes that may be held besides the ones in use. */
static const uint64_t budget = 40u << 20;

static void opened_free(struct opened *o)
{
	if (o == NULL)
		return;
	delta_free(o->delta);
	blob_unref(o->blob);
	free(o);
}

/* Opens an object that is not being written. */
static int open_settled(struct run *r, const struct object *object, struct blob **out,
			struct why *why)
{
	struct blob *blob = NULL;
	int err;

	if (object->err != 0)
		return listed_error(object, why);
	err = blob_open(r->config.store, object, false, &blob, why);
	if (err == 0 && blob->handle != NULL) {
		err = store_settled(blob->handle);
		if (err < 0)
			why_set(why, -err,
				err == -EAGAIN ? "is still being written"
					       : "changed while it was read");
	}
	if (err < 0)
		blob_unref(blob);
	else
		*out = blob;
	return err;
}

int opened_try(struct run *r, const struct object *object, struct why *why)
{
	struct blob *blob = NULL;
	int err = open_settled(r, object, &blob, why);

	blob_unref(blob);
	return err;
}

/* The format that weightfs.json or a directory's index says of a delta; NULL: the object itself
 * does. */
static const char *said_format(const struct run *r, const struct object *o)
{
	const struct named *n = lineage_named(&r->lineage, o->key);

	if (n == NULL || n->entry->kind == MANIFEST_ANCHOR)
		return NULL;
	if (strcmp(n->entry->encoding, "xor-zstd") == 0)
		return "hfdir-xor";
	return strncmp(n->entry->encoding, "hfdir-", 6) == 0 ? n->entry->encoding : NULL;
}

static int opened_new(struct run *r, const struct object *object, struct opened **out,
		      struct why *why)
{
	struct opened *o;
	struct source src;
	int err;

	o = calloc(1, sizeof(*o));
	if (o == NULL)
		return why_set(why, ENOMEM, "out of memory");
	o->id = object->id;
	err = open_settled(r, object, &o->blob, why);
	if (err == 0) {
		src = blob_source(o->blob);
		err = delta_open_as(&src, said_format(r, object), NULL, &o->delta, why);
	}
	if (err < 0) {
		opened_free(o);
		return err;
	}
	*out = o;
	return 0;
}

/* Drops the least recently used that are not in use until the rest fits, with room for one more. */
static void make_room(struct run *r)
{
	uint64_t held = 0;
	size_t kept = 0;

	for (size_t i = 0; i < r->opened_count; i++) {
		struct opened *o = r->opened[i];

		if (o->uses == 0 && (held > budget || kept + 1 >= OPENED_MAX)) {
			opened_free(o);
			continue;
		}
		held += o->delta->header->length;
		r->opened[kept++] = o;
	}
	r->opened_count = kept;
}

int opened_get(struct run *r, const struct object *object, struct opened **out, struct why *why)
{
	struct opened *o = NULL;
	size_t at = 0;
	int err;

	while (at < r->opened_count && !(identity_equal(&r->opened[at]->id, &object->id) &&
					 strcmp(r->opened[at]->blob->key, object->key) == 0))
		at++;
	if (at < r->opened_count) {
		o = r->opened[at];
	} else {
		err = opened_new(r, object, &o, why);
		if (err < 0)
			return err;
		make_room(r);
		at = r->opened_count++;
	}
	memmove(r->opened + 1, r->opened, at * sizeof(struct opened *));
	r->opened[0] = o;
	o->uses++;
	*out = o;
	return 0;
}

void opened_put(struct opened *o)
{
	if (o != NULL)
		o->uses--;
}

void opened_drop(struct run *r)
{
	for (size_t i = 0; i < r->opened_count; i++)
		opened_free(r->opened[i]);
	r->opened_count = 0;
}
