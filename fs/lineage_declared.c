/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lineage that weightfs.json declares.
 *
 * Each entry's objects are looked up in the listing.  One that is not there is stood for by an
 * object with an err of its own, so that whoever needs it learns why it cannot be had: it may just
 * not be listed yet.  What lies in the run's directories and is not named is a stray, whatever its
 * name: an upload that was not finished, or something that has been pruned.
 */
#include "fs/lineage.h"

#include <stdlib.h>

static int compare_named(const void *a, const void *b)
{
	return strcmp(((const struct named *)a)->key, ((const struct named *)b)->key);
}

const struct named *lineage_named(const struct lineage *l, const char *key)
{
	const struct named wanted = {.key = key};

	if (l->named_count == 0)
		return NULL;
	return bsearch(&wanted, l->named, l->named_count, sizeof(wanted), compare_named);
}

/* Of a version that is a directory everything in it is named: its index and companions, too. */
static bool is_beside(const struct manifest_entry *e, const struct manifest_object *o)
{
	static const char suffix[] = ".safetensors";
	size_t len = strlen(o->key), n = sizeof(suffix) - 1;

	return strcmp(e->encoding, "xor-zstd") == 0 &&
	       (len < n || strcmp(o->key + len - n, suffix) != 0);
}

static struct pieces add_pieces(struct lineage *l, const struct listing *listing,
				const struct manifest_entry *e)
{
	struct pieces p = {.v = l->pieces + l->piece_count, .present = true, .entry = e};

	for (size_t i = 0; i < e->object_count; i++) {
		const struct manifest_object *named = &e->objects[i];
		const struct object *o = listing_find(listing, named->key);

		l->named[l->named_count++] =
			(struct named){.key = named->key, .entry = e, .size = named->size};
		if (is_beside(e, named)) {
			l->directories = true;
			continue;
		}
		p.count++;
		if (o == NULL) {
			struct object *missing = &l->missing[l->missing_count++];

			*missing = (struct object){.key = named->key,
						   .size = named->size,
						   .mtime_ns = e->time_ns,
						   .err = l->own != NULL ? LINEAGE_UNINDEXED
									 : LINEAGE_MISSING};
			o = missing;
		}
		l->pieces[l->piece_count++] = (struct piece){.object = o, .file = named->file};
	}
	return p;
}

/* When the entry was made, as it says itself or its newest object does. */
static int64_t entry_time(const struct pieces *p)
{
	int64_t newest = 0;

	if (p->entry->time_ns != 0)
		return p->entry->time_ns;
	for (size_t i = 0; i < p->count; i++)
		newest = MAX(newest, p->v[i].object->mtime_ns);
	return newest;
}

static void add_step(struct lineage *l, const struct listing *listing,
		     const struct manifest_entry *e)
{
	struct step *s = l->step_count > 0 ? &l->steps[l->step_count - 1] : NULL;
	struct pieces p = add_pieces(l, listing, e);

	if (s == NULL || s->number != e->version) {
		s = &l->steps[l->step_count++];
		*s = (struct step){.number = e->version};
	}
	*(e->kind == MANIFEST_ANCHOR ? &s->anchor : &s->delta) = p;
	s->mtime_ns = MAX(s->mtime_ns, entry_time(&p));
}

static size_t count_objects(const struct manifest *m)
{
	size_t n = 0;

	for (size_t i = 0; i < m->step_count; i++)
		n += m->steps[i].object_count;
	for (size_t i = 0; i < m->span_count; i++)
		n += m->spans[i].object_count;
	return n;
}

static bool is_run_data(const char *key)
{
	return lineage_owns(key) && strcmp(key, MANIFEST_KEY) != 0 &&
	       strncmp(key, "leases/", strlen("leases/")) != 0;
}

/* *out has what is there to begin with, and is released on failure. */
static int declare(const struct listing *listing, struct lineage *out)
{
	struct lineage l = *out;
	const struct manifest *m = l.manifest;
	size_t objects = count_objects(m);

	l.steps = calloc(m->step_count + 1, sizeof(*l.steps));
	l.spans = calloc(m->span_count + 1, sizeof(*l.spans));
	l.strays = calloc(listing->count + 1, sizeof(*l.strays));
	l.pieces = calloc(objects + 1, sizeof(*l.pieces));
	l.missing = calloc(objects + 1, sizeof(*l.missing));
	l.named = calloc(objects + 1, sizeof(*l.named));
	if (l.steps == NULL || l.spans == NULL || l.strays == NULL || l.pieces == NULL ||
	    l.missing == NULL || l.named == NULL) {
		lineage_release(&l);
		*out = l;
		return -ENOMEM;
	}
	for (size_t i = 0; i < m->step_count; i++)
		add_step(&l, listing, &m->steps[i]);
	for (size_t i = 0; i < m->span_count; i++)
		l.spans[l.span_count++] = (struct span){
			.base = m->spans[i].base,
			.version = m->spans[i].version,
			.pieces = add_pieces(&l, listing, &m->spans[i]),
		};
	qsort(l.named, l.named_count, sizeof(*l.named), compare_named);
	for (size_t i = 0; i < listing->count && l.own == NULL; i++)
		if (is_run_data(listing->v[i].key) && lineage_named(&l, listing->v[i].key) == NULL)
			l.strays[l.stray_count++] =
				(struct stray){.kind = STRAY_UNNAMED, .object = &listing->v[i]};
	*out = l;
	return 0;
}

int lineage_declare(const struct listing *listing, const struct manifest *m, struct lineage *out)
{
	*out = (struct lineage){.manifest = m};
	return declare(listing, out);
}

int lineage_found(const struct listing *listing, struct manifest *m, const struct identity *origin,
		  struct lineage *out)
{
	*out = (struct lineage){.manifest = m, .directories = true, .own = m, .origin = *origin};
	return declare(listing, out);
}
