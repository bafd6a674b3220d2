/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last few objects that were opened, with their headers parsed.
 *
 * One round asks for the same object several times (what does it cover, is it sound, what do its
 * values say), and the header of a large model takes a tenth of a second to parse.  A few are
 * enough, since the questions about one object come close together; the budget bounds what they
 * hold, and nothing is kept from one round to the next.
 *
 * What a reader of a format wants beside the object is put together here: the text of its index,
 * and of an object that is one zstd frame what comes out of it.  That is unpacked in one stream
 * into a file of the cache directory, which is gone with the opened object; memory is bounded, and
 * so is the file, since a frame may say anything.
 */
#include "fs/run_internal.h"

#include "cache/fileio.h"
#include "codec/frame.h"

#include <stdlib.h>

enum { WANTED_MAX = 4 };
/* A larger frame is not unpacked into memory where the disk is full. */
enum { SPILL_MAX = 64 << 20 };

/* Header bytes that may be held besides the ones in use. */
static const uint64_t budget = 40u << 20;

void opened_free(struct opened *o)
{
	if (o == NULL)
		return;
	delta_free(o->delta);
	if (o->fd >= 0)
		cachedir_abort(o->cache, o->fd);
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

/* The format that weightfs.json or a version's index says of an object; NULL: the object itself
 * does. */
static const char *said_format(const struct named *n)
{
	const char *said = n != NULL ? n->entry->encoding : "";

	/* A published checkpoint is what it was, whatever its metadata and keys look like. */
	if (strcmp(said, "xor-zstd") == 0)
		return n->entry->kind == MANIFEST_ANCHOR ? "safetensors" : "hfdir-xor";
	if (strcmp(said, "safetensors") == 0)
		return said;
	return format_named(said) != NULL ? said : NULL;
}

/* The text of its index, where the format wants it: malloc'ed, or NULL. */
static int read_side(struct run *r, const struct object *object, struct side *out, char **out_text,
		     struct why *why)
{
	const struct named *n = lineage_named(&r->lineage, object->key);
	const struct object *index;
	const char *slash;
	size_t folder;
	int err;

	*out_text = NULL;
	if (n == NULL || n->entry->index == NULL)
		return 0;
	index = listing_find(&r->current->listing, n->entry->index);
	if (index == NULL)
		return why_set(why, ESTALE, "its index %s is gone", SHOWN(n->entry->index));
	err = directory_text(r->config.store, index, MANIFEST_MAX, out_text, why);
	if (err < 0)
		return why_prefix(why, "its index %s", SHOWN(n->entry->index));
	/* It names what lies in its folder. */
	slash = strrchr(n->entry->index, '/');
	folder = slash != NULL ? (size_t)(slash - n->entry->index) + 1 : 0;
	*out = (struct side){*out_text, index->size, object->key};
	if (strncmp(object->key, n->entry->index, folder) == 0)
		out->file += folder;
	return 0;
}

/* ---- objects that are one zstd frame ---- */

/* Into a file of the cache directory that has no name, or of memory where that cannot be. */
static int unpack(struct run *r, struct opened *o, struct why *why)
{
	const struct block_range all = {0, o->blob->size};
	const struct source packed = blob_source(o->blob);
	struct cachedir *cache = r->config.cache;
	struct sink sink = sink_fd(&o->fd);
	uint64_t size = 0;
	int err = cachedir_create(cache, &o->fd);

	if (err < 0) {
		o->fd = -1;
		return why_set(why, -err, "no file for it can be made in the cache directory");
	}
	o->cache = cache;
	blob_want(o->blob, &all, 1);
	err = frame_unpack(&packed, frame_most(o->blob->size), &sink, &size, why);
	if (err < 0 && o->blob->size <= SPILL_MAX && cachedir_spill(cache, o->fd, err)) {
		if (why != NULL)
			*why = (struct why){0};
		err = frame_unpack(&packed, frame_most(o->blob->size), &sink, &size, why);
	}
	if (err == 0) {
		err = source_fd(o->fd, &o->src);
		if (err < 0)
			why_set(why, -err, "it cannot be read again");
	}
	return err;
}

static int unframe(struct run *r, struct opened *o, const char *name, struct why *why)
{
	const struct format *format = name != NULL ? format_named(name) : NULL;
	bool framed = false;
	int err = 0;

	o->src = blob_source(o->blob);
	if (format == NULL || format->framed == FRAMED_NEVER)
		return 0;
	framed = format->framed == FRAMED_ALWAYS;
	if (!framed)
		err = frame_probe(&o->src, &framed);
	if (err < 0)
		return why_set(why, -err, "cannot be read");
	return framed ? unpack(r, o, why) : 0;
}

/* Is it the one step that has come since the newest version, in few objects?  Then all of it will
 * be wanted.  Of several steps, an anchor or a cumulative delta may stand for some; what many
 * objects hold is too much to be under way at once. */
static bool is_next_step(const struct run *r, const struct object *object)
{
	const size_t steps = r->lineage.step_count;
	const struct step *s;
	uint64_t newest;

	if (r->newest == NULL || r->newest->state == NULL || steps < 2)
		return false;
	s = &r->lineage.steps[steps - 1];
	newest = r->newest->state->version;
	if (s->anchor.count > 0 || s->delta.count > WANTED_MAX || s->number <= newest ||
	    s[-1].number > newest)
		return false;
	for (size_t i = 0; i < s->delta.count; i++)
		if (s->delta.v[i].object == object)
			return true;
	return false;
}

int opened_new(struct run *r, const struct object *object, struct opened **out, struct why *why)
{
	const struct named *n = lineage_named(&r->lineage, object->key);
	const char *name = said_format(n);
	struct side side = {NULL, 0, NULL};
	struct opened *o;
	char *text = NULL;
	int err;

	o = calloc(1, sizeof(*o));
	if (o == NULL)
		return why_set(why, ENOMEM, "out of memory");
	o->id = object->id;
	o->fd = -1;
	err = open_settled(r, object, &o->blob, why);
	if (err == 0 && is_next_step(r, object))
		blob_want_beginning(o->blob);
	if (err == 0)
		err = read_side(r, object, &side, &text, why);
	if (err == 0)
		err = unframe(r, o, name, why);
	if (err == 0 && name == NULL && n != NULL && n->entry->kind == MANIFEST_ANCHOR)
		err = delta_open_whole(&o->src, &o->delta, why);
	else if (err == 0)
		err = delta_open_as(&o->src, name, text != NULL ? &side : NULL, &o->delta, why);
	if (err == 0 && o->fd >= 0 && o->delta->full > 0)
		err = why_set(why, ENOTSUP,
			      "is compressed as a whole and has a whole tensor (\"%s\"); such a "
			      "tensor has to be in a file that is not compressed",
			      SHOWN(o->delta->parts[0].name));
	free(text);
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
		held += o->delta->header != NULL ? o->delta->header->length : 0;
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
	foresee_end(r);
	for (size_t i = 0; i < r->opened_count; i++)
		opened_free(r->opened[i]);
	r->opened_count = 0;
}
