/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pointer: reading weightfs.json, and holding objects against what it says of them.
 *
 * It is read only when its identity has changed.  One that is damaged, or of a version that is not
 * known here, changes nothing: the last good one stays, and the report says why.  Where there was
 * none before, nothing is shown, for to guess by names and times what a publisher has written down
 * could show what was never a version.  When it is gone with all that it named, the run is gone.
 *
 * An object must say of itself what weightfs.json says of it, so that a delta made for another base
 * is never applied, whatever lies under its key.
 */
#include "fs/run_internal.h"

#include "cache/blob.h"

#include <stdio.h>
#include <stdlib.h>

static int read_pointer(struct run *r, const struct object *o, struct manifest **out,
			struct why *why)
{
	struct blob *blob = NULL;
	char *text = NULL;
	int err;

	if (o->err != 0)
		return listed_error(o, why);
	if (o->size > MANIFEST_MAX)
		return why_set(why, EFBIG, "has %llu bytes; at most %d are read",
			       (unsigned long long)o->size, MANIFEST_MAX);
	err = blob_open(r->config.store, o, false, &blob, why);
	if (err < 0)
		return err;
	text = malloc(o->size + 1);
	err = text == NULL ? -ENOMEM : blob_read(blob, 0, text, o->size);
	if (err < 0)
		why_set(why, -err, "cannot be read");
	else
		err = manifest_parse(text, o->size, out, why);
	free(text);
	blob_unref(blob);
	return err;
}

/* Is anything left of what it names? */
static bool names_any(const struct manifest *m, const struct listing *listing)
{
	for (size_t i = 0; i < m->step_count; i++)
		for (size_t k = 0; k < m->steps[i].object_count; k++)
			if (listing_find(listing, m->steps[i].objects[k].key) != NULL)
				return true;
	return false;
}

static void pointer_gone(struct pointer *p, const struct listing *listing,
			 struct manifest **out_old)
{
	p->tried = (struct identity){0};
	p->blocked = p->again = false;
	p->why = (struct why){0};
	if (p->manifest == NULL)
		return;
	if (names_any(p->manifest, listing)) {
		why_set(&p->why, ENOENT, "is gone; the run is shown as it was last described");
		return;
	}
	*out_old = p->manifest;
	p->manifest = NULL;
	p->id = (struct identity){0};
}

int pointer_update(struct run *r, const struct listing *listing, struct manifest **out_old,
		   struct why *why)
{
	const struct object *o = listing_find(listing, MANIFEST_KEY);
	struct pointer *p = &r->pointer;
	struct manifest *m = NULL;
	struct why local = {0};
	bool final;
	int err;

	*out_old = NULL;
	p->fresh = p->moved = false;
	if (o == NULL) {
		pointer_gone(p, listing, out_old);
		return 0;
	}
	if (identity_equal(&p->tried, &o->id))
		return 0;
	if (p->manifest != NULL)
		foresee(r, listing);
	err = read_pointer(r, o, &m, &local);
	if (err == -ENOMEM) {
		*why = local;
		return err;
	}
	p->moved = err == -ESTALE || err == -ENOENT;
	/* What may pass by itself is tried again in the next round. */
	final = err == 0 || err == -EBADMSG || err == -ENOTSUP || err == -EFBIG;
	p->tried = final ? o->id : (struct identity){0};
	p->again = !final;
	p->why = local;
	p->blocked = err < 0 && p->manifest == NULL;
	if (err < 0)
		return 0;
	*out_old = p->manifest;
	p->manifest = m;
	p->id = o->id;
	p->fresh = true;
	return 0;
}

bool pointer_rewound(const struct run *r)
{
	const struct manifest *m = r->lineage.manifest;

	return m != NULL && m->origin != MANIFEST_FOUND && r->newest != NULL &&
	       m->newest < r->newest->version;
}

/* ---- what is said of an object ---- */

/* The state that the entry applies to, or NULL. */
static const uint8_t *base_state(const struct run *r, const struct manifest_entry *e)
{
	return e->kind == MANIFEST_ANCHOR || !lineage_is_declared(&r->lineage)
		       ? NULL
		       : manifest_state(r->lineage.manifest, e->base);
}

struct identity declared_identity(const struct run *r, const struct named *named)
{
	struct identity id = {0};
	const struct scheme_names *names;
	const struct manifest_entry *e;
	const uint8_t *base;

	if (named == NULL)
		return id;
	e = named->entry;
	base = base_state(r, e);
	identity_mix(&id, r->lineage.manifest->lineage, 8);
	identity_mix(&id, &e->kind, sizeof(e->kind));
	identity_mix(&id, &e->version, sizeof(e->version));
	identity_mix(&id, &e->base, sizeof(e->base));
	identity_mix(&id, e->state, sizeof(e->state));
	if (base != NULL)
		identity_mix(&id, base, sizeof(e->state));
	identity_mix(&id, e->encoding, strlen(e->encoding));
	identity_mix(&id, &named->size, sizeof(named->size));
	if (e->index != NULL)
		identity_mix(&id, e->index_id, sizeof(e->index_id));
	names = r->lineage.own != NULL ? directory_names(&r->directories, named->key) : NULL;
	if (names != NULL)
		identity_mix(&id, names, sizeof(*names));
	return id;
}

int declared_admit(const struct named *named, const struct object *o, struct why *why)
{
	if (named == NULL || o->err != 0)
		return 0;
	if (!delta_encoding_known(named->entry->encoding))
		return why_set(why, ENOTSUP,
			       "is in the encoding \"%s\", which this weightfs does not know: a "
			       "newer one reads it",
			       named->entry->encoding);
	if (named->size != o->size)
		return why_set(why, EBADMSG,
			       "has %llu bytes, and " MANIFEST_KEY
			       " says %llu: it is not what was published",
			       (unsigned long long)o->size, (unsigned long long)named->size);
	return 0;
}

/* One member of a delta's metadata against what it should be. */
static int check_meta(const struct delta *d, const char *key, const char *want, struct why *why)
{
	const char *have = st_meta(d->header, key);

	if (have == NULL)
		return why_set(why, EBADMSG, "does not say its %s", key);
	if (strcmp(have, want) != 0)
		return why_set(why, EBADMSG,
			       "has the %s %s, and " MANIFEST_KEY
			       " says %s: it was made for another place and is not applied",
			       key, SHOWN(have), want);
	return 0;
}

static int check_number(const struct delta *d, const char *key, uint64_t want, struct why *why)
{
	char text[32];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)want);
	return check_meta(d, key, text, why);
}

static int check_state(const struct delta *d, const char *key, const uint8_t *want, struct why *why)
{
	char hex[33];

	manifest_hex(want, hex);
	return check_meta(d, key, hex, why);
}

int declared_check(const struct run *r, const struct named *named, const struct delta *d,
		   struct why *why)
{
	const struct manifest_entry *e = named != NULL ? named->entry : NULL;
	int err;

	if (e == NULL)
		return 0;
	err = r->lineage.own == NULL ? 0
				     : directory_agrees(&r->directories, r->config.store,
							&r->current->listing, named->key, d, why);
	if (err < 0)
		return err;
	if (e->kind == MANIFEST_ANCHOR)
		return d->sparse == 0 && d->full > 0 ? 0
		       : d->count == 0
			       ? why_set(why, EBADMSG, "is no checkpoint: it has no tensor")
			       : why_set(why, EBADMSG, "is no anchor: it has changed elements");
	if (d->format->native != (strncmp(e->encoding, "wfp1", 4) == 0))
		return why_set(why, EBADMSG,
			       "is not in the encoding that " MANIFEST_KEY " says, \"%s\", but %s",
			       e->encoding, d->generation);
	if (!d->format->native)
		return 0;
	err = check_meta(d, "lineage", r->lineage.manifest->lineage, why);
	if (err == 0)
		err = check_number(d, "model_version", e->version, why);
	if (err == 0)
		err = check_number(d, "base_version", e->base, why);
	if (err == 0)
		err = check_state(d, "state", e->state, why);
	if (err == 0)
		err = check_state(d, "base_state", base_state(r, e), why);
	return err;
}
