/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The beginning of a round: list the store and order what is there.
 *
 * Either all of it is taken (listing, weightfs.json, lineage, label) or, when the store cannot be
 * listed, nothing is, and what is served stays.  The listing is shared with the raw view; the
 * lineage borrows from it and from the manifest, so they are replaced in that order.
 */
#include "fs/run_internal.h"

#include <stdlib.h>

enum { LOOKS = 3 }; /* more at most, one after the other */
/* After so many nothing changes any more without a cause: the second lets go of what the first did
 * not need, and the third reports that. */
enum { QUIET_ROUNDS = 3 };

/* Do the lineages have an object in common? */
static bool share(const struct pieces *a, const struct pieces *b)
{
	return a->count > 0 && b->count > 0 &&
	       identity_equal(&a->v[0].object->id, &b->v[0].object->id);
}

static bool have_common(const struct lineage *a, const struct lineage *b)
{
	for (size_t i = 0; i < a->step_count; i++) {
		const struct step *x = &a->steps[i], *y = lineage_find(b, x->number);

		if (y != NULL && (share(&x->anchor, &y->anchor) || share(&x->delta, &y->delta)))
			return true;
	}
	return false;
}

/* The label of a lineage is its first object's, and stays when that is pruned while the run goes
 * on. */
static void update_label(struct run *r, const struct lineage *now)
{
	const struct identity *first = lineage_origin(now);
	bool pruned;

	if (lineage_is_declared(now))
		lineage_label(now, r->label);
	if (lineage_is_declared(now) || first == NULL)
		return;
	pruned = r->label[0] != '\0' && now->steps[0].number > 1 && have_common(&r->lineage, now);
	if (!pruned && (r->label[0] == '\0' || !identity_equal(first, &r->first_id)))
		lineage_label(now, r->label);
	r->first_id = *first;
}

bool run_object_sum(struct run *r, const char *key, enum checksum_kind *out_kind,
		    char out[CHECKSUM_HEX])
{
	return directory_sum(&r->directories, key, out_kind, out);
}

/* Version directories, where there is nothing else. */
static int order_directories(struct run *r, const struct listing *listing, struct lineage *out)
{
	const struct dir_query q = {
		.store = r->config.store,
		.listing = listing,
		.ignore_times = r->config.ignore_times,
		.with_base = r->base != NULL,
		.base_mtime_ns = r->base != NULL ? r->base->mtime_ns : 0,
		.all = r->config.history == NULL,
	};
	struct manifest *m = NULL;
	struct identity first;
	int err;

	if (out->step_count > 0 || out->stray_count > 0)
		return 0;
	err = directories_find(&r->directories, &q, &m, &first);
	if (err < 0 || m == NULL)
		return err;
	lineage_release(out);
	return lineage_found(listing, m, &first, out);
}

static bool forced(const struct run *r, const char *format)
{
	return r->config.format != NULL && strcmp(r->config.format, format) == 0;
}

/* What it looks like, whatever --format says: a name for --format, or NULL. */
static const char *looks_like(struct run *r, const struct listing *listing)
{
	struct directories any = {.latest = r->directories.latest, .indexes = table_new()};
	struct lineage l;
	struct dir_found *v = NULL;
	const char *name = NULL;
	size_t n = 0;

	if (listing_find(listing, MANIFEST_KEY) != NULL)
		name = "weightfs";
	if (name == NULL && lineage_order(listing, true, &l) == 0) {
		name = l.step_count > 0 ? "trl" : NULL;
		lineage_release(&l);
	}
	if (name == NULL && any.indexes != NULL && directory_search(&any, listing, &v, &n) == 0 &&
	    any.scheme != NULL)
		name = any.scheme->name;
	free(v);
	table_free(any.indexes);
	return name;
}

/* Nothing is there of the format that was asked for: is there something else? */
static void check_format(struct run *r, const struct listing *listing, const struct lineage *l)
{
	const char *looks;

	r->misfit = (struct why){0};
	if (r->config.format == NULL || l->step_count > 0 || r->pointer.blocked ||
	    (l->own != NULL && r->directories.problem_count + r->directories.unfinished > 0))
		return;
	looks = looks_like(r, listing);
	if (looks != NULL && strcmp(looks, r->config.format) != 0)
		why_set(&r->misfit, EINVAL,
			"--format %s: no version here is laid out so, but some look like %s: leave "
			"--format out, or say --format %s",
			r->config.format, looks, looks);
}

/* What the listing says, by weightfs.json, by names and times, or by version directories.  With a
 * pointer that was never good nothing is known. */
static int order(struct run *r, const struct listing *listing, struct lineage *out,
		 struct manifest **out_old, struct why *why)
{
	const bool any = r->config.format == NULL;
	int err = any || forced(r, "weightfs") ? pointer_update(r, listing, out_old, why) : 0;

	if (err < 0)
		return err;
	*out = (struct lineage){0};
	if (r->pointer.manifest != NULL)
		err = lineage_declare(listing, r->pointer.manifest, out);
	else if (!r->pointer.blocked && (any || forced(r, "trl")))
		err = lineage_order(listing, r->config.ignore_times, out);
	if (err == 0 && r->pointer.manifest == NULL && !r->pointer.blocked &&
	    (any || r->directories.forced != NULL))
		err = order_directories(r, listing, out);
	if (err == 0)
		check_format(r, listing, out);
	return err < 0 ? why_set(why, -err, "out of memory") : 0;
}

/* One look at the store; for run_relist(). */
static int relist(struct run *r, bool *out_same, struct why *why)
{
	struct listing_ref *fresh = calloc(1, sizeof(*fresh)), *old;
	struct manifest *unused = NULL;
	struct lineage lineage;
	int err;

	*out_same = false;
	if (fresh == NULL)
		return why_set(why, ENOMEM, "out of memory");
	fresh->refs = 2; /* ours and the shared one */
	err = store_list(r->config.store, "", &fresh->listing, why);
	*out_same = err == 0 && r->quiet >= QUIET_ROUNDS &&
		    listing_same(&fresh->listing, &r->current->listing);
	if (*out_same) {
		listing_release(&fresh->listing);
		free(fresh);
		return 0;
	}
	if (err == 0)
		err = order(r, &fresh->listing, &lineage, &unused, why);
	if (err < 0) {
		if (unused != NULL) { /* the old lineage stays, and borrows from it */
			manifest_free(r->pointer.manifest);
			r->pointer.manifest = unused;
			r->pointer.tried = (struct identity){0};
		}
		listing_release(&fresh->listing);
		free(fresh);
		return err;
	}
	update_label(r, &lineage);
	lineage_release(&r->lineage);
	manifest_free(unused);
	r->lineage = lineage;
	r->orders++;
	run_walk_end(r);
	listing_unref(r->current);
	r->current = fresh;
	companions_listed(r);
	lock_take(&r->lock);
	old = r->listing;
	r->listing = fresh;
	lock_release(&r->lock);
	listing_unref(old);
	err = known_update(r);
	return err < 0 ? why_set(why, -err, "out of memory") : 0;
}

int run_relist(struct run *r, bool *out_same, struct why *why)
{
	int err = relist(r, out_same, why);
	bool same = err == 0 && *out_same;

	/* A listing is not made in one moment: what was published meanwhile may be half in it. That
	 * a further look finds no more does not make what the first one found old. */
	for (int i = 0; i < LOOKS && err == 0 && !same; i++) {
		if (!r->pointer.moved && !(r->pointer.fresh && r->lineage.missing_count > 0))
			break;
		store_refresh(r->config.store);
		err = relist(r, &same, why);
	}
	return err;
}
