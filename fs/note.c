/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes: what the headers of deltas said, kept for the next start.
 *
 * The header of a large model's delta takes a tenth of a second to read, and says the same each
 * time.  So what exams found is kept in the cache directory, in one file with a record per object:
 * the totals, and that its parts fit a certain layout with certain dtypes.  With a patch file or a
 * fold beside it, a mount that starts opens the object and reads nothing of it.
 *
 * Only deltas that are the same under every cover have one: with changed elements alone and of a
 * run without weightfs.json, whose claims are compared with the header.  Not where the cover is
 * made of the objects' names.  Tools keep and believe none: `verify` reads what is there.
 *
 * A record is of one object (identity and key) and of one --base, and ends in a hash; what is not a
 * sound record is passed over, and who finds none reads the header and makes it again.  Records are
 * appended; when most are of objects that nobody needs any more, the file is made anew.  What
 * checks a header has to pass is part of the format: who adds one changes the magic.
 */
#include "fs/run_internal.h"

#include "codec/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

enum {
	AT_OBJECT = 8,
	AT_LAYOUT = AT_OBJECT + 16,
	AT_DTYPES = AT_LAYOUT + 16,
	AT_PATCHES = AT_DTYPES + 16,
	AT_SPARSE = AT_PATCHES + 8,
	AT_CHANGED = AT_SPARSE + 8,
	AT_BASE = AT_CHANGED + 8,
	AT_HOLES = AT_BASE + 8,
	AT_FORMAT = AT_HOLES + 8,
	AT_HASH = AT_FORMAT + 32,
	NOTE_SIZE = AT_HASH + 8,
	FILE_MAX = 64 << 20,
	SPARE = 256, /* records of objects that are gone, besides as many as there are others */
};

static const char file_name[] = "notes";
static const char magic[8] = "wfnote1";

/* What a note is of. */
static struct identity subject(const struct run *r, const struct exam *e)
{
	struct identity id = e->id;

	identity_mix(&id, e->key, strlen(e->key));
	if (r->base != NULL)
		identity_mix(&id, r->base->id.bytes, sizeof(r->base->id.bytes));
	return id;
}

/* All names, and where they lie. */
static struct identity layout_id(struct layout *l)
{
	const struct identity none = {0};

	if (!identity_equal(&l->id, &none))
		return l->id;
	for (uint32_t i = 0; i < l->file_count; i++) {
		identity_mix(&l->id, l->files[i].name, strlen(l->files[i].name));
		identity_mix(&l->id, l->files[i].head, l->files[i].head_len);
	}
	return l->id;
}

static bool is_of_mount(const struct run *r, const struct exam *e)
{
	return r->config.history != NULL && r->cover.from != COVER_ASSUMED &&
	       lineage_named(&r->lineage, e->key) == NULL;
}

static bool is_sound(const uint8_t *bytes)
{
	return memcmp(bytes, magic, sizeof(magic)) == 0 &&
	       load_le64(bytes + AT_HASH) == XXH3_64bits(bytes, AT_HASH) &&
	       memchr(bytes + AT_FORMAT, '\0', AT_HASH - AT_FORMAT) != NULL;
}

/* Reads the file, once; records that are not sound are stepped over. */
static void load(struct run *r)
{
	struct mapping *mapping = NULL;
	size_t size = 0;

	if (r->noted.table != NULL)
		return;
	r->noted.table = table_new();
	if (r->noted.table == NULL || cachedir_map(r->config.cache, file_name, &mapping) < 0)
		return;
	if (mapping->size <= FILE_MAX)
		size = (size_t)mapping->size;
	else
		cachedir_remove(r->config.cache, file_name);
	r->noted.bytes = malloc(size + 1);
	if (r->noted.bytes != NULL)
		memcpy(r->noted.bytes, mapping->bytes, size);
	if (r->noted.bytes == NULL || mapping_broken(mapping))
		size = 0;
	mapping_unref(mapping);
	for (size_t at = 0; at + NOTE_SIZE <= size;) {
		uint8_t *record = r->noted.bytes + at;

		if (!is_sound(record)) {
			at++;
			continue;
		}
		/* One that finds no memory is one that is not there. */
		if (table_put(r->noted.table, load_le64(record + AT_OBJECT), record) == 0)
			r->noted.count++;
		at += NOTE_SIZE;
	}
}

void notes_release(struct run *r)
{
	table_free(r->noted.table);
	free(r->noted.bytes);
}

bool note_read(struct run *r, struct exam *e)
{
	const struct identity id = subject(r, e);
	const uint8_t *bytes;

	if (!is_of_mount(r, e))
		return false;
	load(r);
	bytes = r->noted.table != NULL ? table_get(r->noted.table, load_le64(id.bytes)) : NULL;
	if (bytes == NULL || memcmp(bytes + AT_OBJECT, id.bytes, sizeof(id.bytes)) != 0)
		return false;
	memcpy(e->noted.layout.bytes, bytes + AT_LAYOUT, 16);
	memcpy(e->noted.dtypes.bytes, bytes + AT_DTYPES, 16);
	e->noted.patches = load_le64(bytes + AT_PATCHES);
	e->noted.there = true;
	e->complete = e->native = e->given_base = e->has_states = false;
	e->foreign = true; /* asked of no exam that has a note */
	e->full = 0;
	e->sparse = load_le64(bytes + AT_SPARSE);
	e->changed = load_le64(bytes + AT_CHANGED);
	e->base_version = (int64_t)load_le64(bytes + AT_BASE);
	e->holes_legal = load_le64(bytes + AT_HOLES) != 0;
	memcpy(e->format, bytes + AT_FORMAT, sizeof(e->format));
	return true;
}

bool note_fits(const struct exam *e, const struct target *target)
{
	const struct identity layout = layout_id(target->layout);

	return e->noted.there && target->now != NULL && identity_equal(&e->noted.layout, &layout) &&
	       identity_equal(&e->noted.dtypes, &target->dtypes);
}

static void encode(const struct run *r, const struct exam *e, uint8_t bytes[NOTE_SIZE])
{
	const struct identity id = subject(r, e);

	_Static_assert(sizeof(e->format) == AT_HASH - AT_FORMAT, "the record's text has its size");
	memset(bytes, 0, NOTE_SIZE);
	memcpy(bytes, magic, sizeof(magic));
	memcpy(bytes + AT_OBJECT, id.bytes, 16);
	memcpy(bytes + AT_LAYOUT, e->noted.layout.bytes, 16);
	memcpy(bytes + AT_DTYPES, e->noted.dtypes.bytes, 16);
	store_le64(bytes + AT_PATCHES, e->noted.patches);
	store_le64(bytes + AT_SPARSE, e->sparse);
	store_le64(bytes + AT_CHANGED, e->changed);
	store_le64(bytes + AT_BASE, (uint64_t)e->base_version);
	store_le64(bytes + AT_HOLES, e->holes_legal);
	snprintf((char *)bytes + AT_FORMAT, AT_HASH - AT_FORMAT, "%s", e->format);
	store_le64(bytes + AT_HASH, XXH3_64bits(bytes, AT_HASH));
}

void note_write(struct run *r, struct exam *e, const struct delta *d, const struct target *target)
{
	uint8_t bytes[NOTE_SIZE];

	if (!is_of_mount(r, e) || target->now == NULL || e->native || d->original != NULL ||
	    d->full > 0 || d->sparse == 0)
		return;
	e->noted.there = true;
	e->noted.layout = layout_id(target->layout);
	e->noted.dtypes = target->dtypes;
	e->noted.patches = e->patches;
	encode(r, e, bytes);
	cachedir_note(r->config.cache, file_name, bytes, sizeof(bytes), true);
	r->noted.count++;
}

struct collected {
	const struct run *r;
	struct buf records;
};

static void collect(void *value, void *ctx)
{
	const struct exam *e = value;
	struct collected *c = ctx;
	uint8_t bytes[NOTE_SIZE];

	if (!e->noted.there || e->state != EXAM_OK)
		return;
	encode(c->r, e, bytes);
	buf_add(&c->records, bytes, sizeof(bytes));
}

bool notes_sweep(struct run *r, const char *name)
{
	struct collected c = {.r = r};

	if (strcmp(name, file_name) != 0)
		return false;
	if (r->noted.count <= SPARE)
		return true;
	table_each(r->exams, collect, &c);
	if (!c.records.failed && r->noted.count > 2 * (c.records.len / NOTE_SIZE) + SPARE) {
		cachedir_note(r->config.cache, file_name, c.records.data, c.records.len, false);
		r->noted.count = c.records.len / NOTE_SIZE;
	}
	buf_release(&c.records);
	return true;
}
