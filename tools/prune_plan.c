/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What of a run may go.
 *
 * The run is cut at an anchor: everything below goes, the anchor and all that follows stays.  The
 * anchor is the older of the newest two that are complete, so that one that turns out bad is not
 * the end; or an older one still, when more versions are to be kept or a lease names one, since a
 * version needs the anchor below it.
 *
 * What weightfs.json does not name is an upload that was not finished, or what an earlier prune
 * could not delete any more.  It goes when it is old by the store's clock: something younger may be
 * on its way to being named.
 *
 * Pure.
 */
#include "tools/prune.h"

#include "fs/lineage.h"

#include <stdlib.h>

uint64_t prune_cut_at(const uint64_t *anchors, size_t anchor_count, const uint64_t *versions,
		      size_t version_count, const struct prune_rules *rules)
{
	uint64_t least;
	size_t i = anchor_count;

	if (anchor_count < 2 || version_count == 0)
		return 0;
	least = anchors[anchor_count - 2];
	if (rules->keep_versions > 0)
		least = MIN(least, versions[version_count -
					    MIN(rules->keep_versions, (uint64_t)version_count)]);
	for (size_t k = 0; k < rules->leases->count; k++)
		if (rules->leases->v[k].until_ns > rules->now_ns)
			least = MIN(least, rules->leases->v[k].version);
	while (i > 0 && anchors[i - 1] > least)
		i--;
	return i > 0 ? anchors[i - 1] : 0;
}

/* Are all objects of an entry there, in their sizes? */
static bool is_there(const struct manifest_entry *e, const struct listing *listing)
{
	for (size_t i = 0; i < e->object_count; i++) {
		const struct object *o = listing_find(listing, e->objects[i].key);

		if (o == NULL || o->err != 0 || o->size != e->objects[i].size)
			return false;
	}
	return true;
}

uint64_t prune_cut(const struct manifest *m, const struct listing *listing,
		   const struct prune_rules *rules)
{
	uint64_t *anchors = calloc(m->step_count + 1, sizeof(*anchors));
	uint64_t *versions = calloc(m->step_count + 1, sizeof(*versions));
	size_t a = 0, v = 0;
	uint64_t cut = 0;

	for (size_t i = 0; anchors != NULL && versions != NULL && i < m->step_count; i++) {
		const struct manifest_entry *e = &m->steps[i];

		if (e->kind == MANIFEST_ANCHOR && is_there(e, listing))
			anchors[a++] = e->version;
		if (v == 0 || versions[v - 1] != e->version)
			versions[v++] = e->version;
	}
	if (anchors != NULL && versions != NULL)
		cut = prune_cut_at(anchors, a, versions, v, rules);
	free(anchors);
	free(versions);
	return cut;
}

int prune_add(struct prune_plan *p, const struct object *o, const char *why)
{
	struct doomed *grown;

	if ((p->count & (p->count - 1)) == 0) {
		grown = realloc(p->v, (p->count > 0 ? 2 * p->count : 1) * sizeof(*grown));
		if (grown == NULL)
			return -ENOMEM;
		p->v = grown;
	}
	p->v[p->count++] = (struct doomed){o, why};
	p->bytes += o->size;
	return 0;
}

void prune_release(struct prune_plan *p)
{
	free(p->v);
	*p = (struct prune_plan){0};
}

static bool is_data(const char *key)
{
	static const char *const folders[] = {"anchors/", "deltas/", "compact/", "steps/"};

	for (size_t i = 0; i < ARRAY_LEN(folders); i++)
		if (strncmp(key, folders[i], strlen(folders[i])) == 0)
			return true;
	return false;
}

static bool is_older(int64_t mtime_ns, int64_t now_ns, int64_t age_ns)
{
	int64_t age;

	return !__builtin_sub_overflow(now_ns, mtime_ns, &age) && age > age_ns;
}

int prune_declared(const struct listing *listing, const struct manifest *was,
		   const struct manifest *now, const struct prune_rules *rules,
		   int64_t store_now_ns, struct prune_plan *out)
{
	struct keyset before = {0}, after = {0};
	int ret = keyset_of(was, &before);

	if (ret == 0)
		ret = keyset_of(now, &after);
	for (size_t i = 0; ret == 0 && i < listing->count; i++) {
		const struct object *o = &listing->v[i];

		if (o->err != 0 || keyset_has(&after, o->key))
			continue;
		if (keyset_has(&before, o->key))
			ret = prune_add(out, o, "no version that is kept needs it");
		else if (is_data(o->key) && is_older(o->mtime_ns, store_now_ns, rules->orphans_ns))
			ret = prune_add(out, o, "not named by " MANIFEST_KEY);
	}
	for (size_t i = 0; ret == 0 && i < rules->leases->count; i++) {
		const struct lease *l = &rules->leases->v[i];
		const struct object *o = listing_find(listing, l->key);

		if (o != NULL && is_older(l->until_ns, rules->now_ns, rules->orphans_ns))
			ret = prune_add(out, o, "expired lease");
	}
	keyset_release(&before);
	keyset_release(&after);
	return ret;
}
