/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listing a place on the Hub.
 *
 * A listing begins with the *probe*, one small call that says in which state the place is: a
 * bucket's updatedAt, a repository's commit.  The state is remembered only when the listing that
 * followed is complete, and it was read before the listing; so a change in between is noticed by
 * the next probe, and a listing that failed is made again.  While the state is the same, or while
 * the feed is live and silent, or while the quota forbids to ask, a listing is the one before.
 *
 * Buckets match prefixes as raw strings, so what only begins with the same letters is left out.  A
 * repository file's size is lfs.size where there is one.
 *
 * Threads: any; the snapshot is shared by reference, and nothing is held over a call.
 */
#include "cache/remote/store_hub_private.h"

#include <stdlib.h>

#include "cache/clock.h"
#include "cache/remote/keys.h"

static const int64_t BACKSTOP_NS = 60 * NSEC_PER_SEC; /* between probes while the feed is live */

static struct hub_snapshot *snapshot_ref(struct hub_snapshot *s)
{
	__atomic_add_fetch(&s->refs, 1, __ATOMIC_RELAXED);
	return s;
}

void hub_snapshot_unref(struct hub_snapshot *s)
{
	if (s == NULL || __atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	listing_release(&s->listing);
	free(s);
}

/* ---- when to ask ---- */

/* The least time between two probes, by what is left of the quota. */
static int64_t gap_locked(const struct hub *hub, int64_t now)
{
	const struct rate_limit *l = &hub->quota[HUB_QUOTA_API].limit;
	int64_t left;

	if (hub->quota[HUB_QUOTA_API].seen_ns == 0 || l->remaining < 0 || l->reset_s < 0)
		return 0;
	left = hub->quota[HUB_QUOTA_API].seen_ns + MIN(l->reset_s, 3600) * NSEC_PER_SEC - now;
	if (left <= 0)
		return 0;
	/* Half of what is left is for us. */
	return l->remaining < 2 ? left : left / (l->remaining / 2);
}

/* A reference to the listing before when that is good enough; NULL: ask. */
static struct hub_snapshot *good_enough(struct hub *hub)
{
	int64_t now = clock_mono_ns(), age, gap;
	struct hub_snapshot *s;
	bool good;

	lock_take(&hub->lock);
	s = hub->snapshot;
	age = now - hub->probed_ns;
	gap = gap_locked(hub, now);
	if (hub->feed.state == HUB_FEED_LIVE)
		gap = MAX(gap, BACKSTOP_NS);
	good = s != NULL && (hub_place_pinned(&hub->place) || (!hub->dirty && age < gap));
	if (good)
		snapshot_ref(s);
	lock_release(&hub->lock);
	return good ? s : NULL;
}

/* ---- the probe ---- */

struct probe {
	char *state; /* owned */
	int64_t time_ns;
};

static int probe(struct hub *hub, struct probe *out, struct why *why)
{
	bool bucket = hub->place.kind == HUB_BUCKET;
	struct buf url = {0};
	const char *state, *time;
	json_t *info = NULL;
	int rc;

	hub_url_info(&hub->place, &url);
	rc = hub_get_json(hub, hub_text(&url), &info, NULL, why);
	if (rc == -ENOENT)
		return hub_explain_missing(hub, why);
	if (rc == -ENODATA && why != NULL) /* no such revision: there is a sentence */
		why->err = ENOENT;
	if (rc == -ENODATA)
		return -ENOENT;
	if (rc < 0)
		return rc;
	state = json_string_value(json_object_get(info, bucket ? "updatedAt" : "sha"));
	time = json_string_value(json_object_get(info, bucket ? "updatedAt" : "lastModified"));
	if (!bucket &&
	    (state == NULL || strlen(state) != 40 || strspn(state, "0123456789abcdef") != 40))
		rc = why_set(why, EPROTO, "%s: the Hub does not say which commit it is at",
			     hub->base.name);
	if (rc == 0) {
		*out = (struct probe){.state = strdup(state != NULL ? state : "")};
		if (out->state == NULL)
			rc = why_set(why, ENOMEM, "out of memory");
		if (time == NULL || field_iso_time(time, &out->time_ns) < 0)
			out->time_ns = 0;
	}
	json_decref(info);
	return rc;
}

/* ---- the tree ---- */

static bool is_hash(const char *s, size_t len)
{
	return s != NULL && strlen(s) == len && strspn(s, "0123456789abcdefABCDEF") == len;
}

static int add_entry(struct hub *hub, const json_t *e, int64_t time_ns, struct keys *keys)
{
	const char *type = json_string_value(json_object_get(e, "type"));
	const char *path = json_string_value(json_object_get(e, "path")), *hash, *key, *time;
	const json_t *size = json_object_get(e, "size"), *lfs = json_object_get(e, "lfs");
	struct identity id;

	if (type == NULL || path == NULL)
		return -EPROTO;
	if (strcmp(type, "file") != 0)
		return 0;
	key = keys_below(path, hub->place.prefix);
	if (key == NULL)
		return 0;
	if (hub->place.kind == HUB_BUCKET) {
		hash = json_string_value(json_object_get(e, "xetHash"));
		if (is_hash(hash, 64))
			hub_identity_xet(hash, &id);
		else if (json_integer_value(size) == 0)
			hub_identity_oid("", &id); /* empty files have no content to hash */
		else
			return -EPROTO;
		time = json_string_value(json_object_get(e, "mtime"));
		if (time == NULL || field_iso_time(time, &time_ns) < 0)
			time = json_string_value(json_object_get(e, "uploadedAt"));
		if (time != NULL && field_iso_time(time, &time_ns) < 0)
			time_ns = 0;
	} else {
		hash = json_string_value(json_object_get(lfs, "oid"));
		if (hash != NULL && strncmp(hash, "sha256:", 7) == 0)
			hash += 7;
		if (hash == NULL)
			hash = json_string_value(json_object_get(e, "oid"));
		if (!is_hash(hash, 64) && !is_hash(hash, 40))
			return -EPROTO;
		hub_identity_oid(hash, &id);
		if (json_is_integer(json_object_get(lfs, "size")))
			size = json_object_get(lfs, "size");
	}
	if (!json_is_integer(size) || json_integer_value(size) < 0)
		return -EPROTO;
	keys_add(keys, key, (uint64_t)json_integer_value(size), time_ns, &id);
	return 0;
}

static int add_page(struct hub *hub, const json_t *page, int64_t time_ns, struct keys *keys,
		    struct why *why)
{
	size_t i;
	json_t *e;

	if (!json_is_array(page))
		return why_set(why, EPROTO, "%s: the Hub's listing is not a list", hub->base.name);
	json_array_foreach (page, i, e) {
		if (add_entry(hub, e, time_ns, keys) < 0)
			return why_set(why, EPROTO,
				       "%s: the Hub's listing has an entry without name, size or "
				       "hash",
				       hub->base.name);
	}
	if (keys->count > KEYS_COUNT_MAX)
		return why_set(why, EFBIG, "%s has too many files: name a prefix", hub->base.name);
	return 0;
}

/* Pages can fail for want of a prefix, which is a directory that does not exist (yet). */
static int read_tree(struct hub *hub, const struct probe *at, struct keys *keys, struct why *why)
{
	const char *commit = hub->place.kind == HUB_BUCKET ? NULL : at->state;
	struct buf url = {0};
	char *next;
	int rc = 0;

	hub_url_tree(&hub->place, commit, &url);
	next = hub_text(&url);
	if (next == NULL)
		return why_set(why, ENOMEM, "out of memory");
	while (rc == 0 && next != NULL) {
		char *page_url = next;
		json_t *page = NULL;

		next = NULL;
		rc = hub_get_json(hub, page_url, &page, &next, why);
		if (rc < 0)
			break;
		rc = add_page(hub, page, at->time_ns, keys, why);
		json_decref(page);
	}
	free(next);
	if (rc == -ENOENT && hub->place.prefix[0] != '\0' && keys->count == 0)
		return why_set(why, ENOENT, "%s: there is no such directory in it", hub->base.name);
	return rc;
}

/* ---- the whole ---- */

static void remember(struct hub *hub, struct hub_snapshot *fresh, struct probe *at, size_t hidden)
{
	struct hub_snapshot *old;
	char *state;

	lock_take(&hub->lock);
	old = hub->snapshot;
	state = hub->state;
	hub->snapshot = fresh;
	hub->state = at->state;
	hub->hidden = hidden;
	hub->listings++;
	condition_broadcast(&hub->changed);
	lock_release(&hub->lock);
	at->state = NULL;
	hub_snapshot_unref(old);
	free(state);
}

static void mark_dirty(struct hub *hub)
{
	lock_take(&hub->lock);
	hub->dirty = true;
	lock_release(&hub->lock);
}

/* Has nothing changed since the last listing?  Then a reference to it. */
static struct hub_snapshot *unchanged(struct hub *hub, const struct probe *now)
{
	struct hub_snapshot *s = NULL;

	lock_take(&hub->lock);
	hub->probed_ns = clock_mono_ns();
	if (hub->snapshot != NULL && !hub->dirty && hub->state != NULL && now->state[0] != '\0' &&
	    strcmp(hub->state, now->state) == 0) {
		s = snapshot_ref(hub->snapshot);
	}
	hub->dirty = false;
	lock_release(&hub->lock);
	return s;
}

static int list_anew(struct hub *hub, struct probe *at, struct hub_snapshot **out, struct why *why)
{
	struct hub_snapshot *fresh = calloc(1, sizeof(*fresh));
	struct keys keys = {0};
	int rc;

	if (fresh == NULL)
		return why_set(why, ENOMEM, "out of memory");
	rc = read_tree(hub, at, &keys, why);
	if (rc == 0 && keys_finish(&keys, &fresh->listing) < 0)
		rc = why_set(why, ENOMEM, "out of memory");
	if (rc < 0) {
		keys_release(&keys);
		free(fresh);
		mark_dirty(hub);
		return rc;
	}
	fresh->refs = 2; /* the hub's and ours */
	remember(hub, fresh, at, keys.hidden);
	*out = fresh;
	return 0;
}

static int copy_part(const struct listing *from, const char *prefix, struct listing *out)
{
	struct listing part = *from;
	size_t len = strlen(prefix);

	while (part.count > 0 && strncmp(part.v[0].key, prefix, len) < 0) {
		part.v++;
		part.count--;
	}
	while (part.count > 0 && strncmp(part.v[part.count - 1].key, prefix, len) > 0)
		part.count--;
	return listing_copy(&part, out);
}

int hub_list(struct hub *hub, const char *prefix, struct listing *out, struct why *why)
{
	struct hub_snapshot *s;
	struct probe now = {0};
	int rc = 0;

	hub_token_refresh(hub->token);
	s = good_enough(hub);
	if (s == NULL)
		rc = probe(hub, &now, why);
	if (rc == 0 && s == NULL)
		s = unchanged(hub, &now);
	if (rc == 0 && s == NULL)
		rc = list_anew(hub, &now, &s, why);
	free(now.state);
	if (rc < 0)
		return rc;
	rc = copy_part(&s->listing, prefix, out);
	hub_snapshot_unref(s);
	return rc < 0 ? why_set(why, ENOMEM, "out of memory") : 0;
}
