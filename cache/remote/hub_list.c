/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listing a place on the Hub.
 *
 * A listing begins with the *probe*, one small call that says in which state the place is: a
 * bucket's updatedAt, a repository's commit.  The state is remembered only when the listing that
 * followed is complete, and it was read before the listing; so a change in between is noticed by
 * the next probe, and a listing that failed is made again.  While the state is the same, or while
 * the feed is live and silent, or while the quota forbids to ask, a listing is the one before.
 * What a live feed names is asked for by paths-info and put into the listing before; everything is
 * listed again at the next probe behind the feed, or where that does not work.
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

enum { PATHS_MAX = 1000 };			      /* of one question, by the Hub's own rule */
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
	good = s != NULL &&
	       (hub_place_pinned(&hub->place) || (!hub->dirty && hub->paths == NULL && age < gap));
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
	if (hub->snapshot != NULL && !hub->dirty && hub->paths == NULL && hub->state != NULL &&
	    now->state[0] != '\0' && strcmp(hub->state, now->state) == 0) {
		s = snapshot_ref(hub->snapshot);
	}
	hub->dirty = false;
	json_decref(hub->paths);
	hub->paths = NULL;
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

/* ---- changed paths: one question about those instead of a listing ---- */

int hub_changed(struct hub *hub, const json_t *changes)
{
	bool good = json_is_array(changes), ours = false;
	size_t i;
	json_t *e;

	if (!good)
		return -EPROTO;
	lock_take(&hub->lock);
	json_array_foreach (changes, i, e) {
		const char *path = json_string_value(json_object_get(e, "path"));
		const char *op = json_string_value(json_object_get(e, "op"));
		bool there = op == NULL || strcmp(op, "delete") != 0;

		good = good && path != NULL;
		if (path == NULL || keys_below(path, hub->place.prefix) == NULL)
			continue;
		ours = true;
		if (hub->paths == NULL)
			hub->paths = json_object();
		good = json_object_set_new(hub->paths, path, json_boolean(there)) == 0 && good;
	}
	lock_release(&hub->lock);
	return good ? ours : -EPROTO;
}

/* What has changed, and the listing to which; NULL: a listing is needed. */
static struct hub_snapshot *take_changes(struct hub *hub, json_t **out)
{
	struct hub_snapshot *s = NULL;

	lock_take(&hub->lock);
	if (hub->snapshot != NULL && !hub->dirty && hub->paths != NULL &&
	    hub->feed.state == HUB_FEED_LIVE && json_object_size(hub->paths) <= PATHS_MAX) {
		s = snapshot_ref(hub->snapshot);
		*out = hub->paths;
		hub->paths = NULL;
	}
	lock_release(&hub->lock);
	return s;
}

static int ask_paths(struct hub *hub, json_t *changed, json_t **out)
{
	json_t *paths = json_array(), *body, *value;
	struct buf url = {0};
	const char *path;
	char *text;
	int rc;

	json_object_foreach (changed, path, value)
		json_array_append_new(paths, json_string(path));
	body = json_pack("{s:o}", "paths", paths);
	text = body != NULL ? json_dumps(body, JSON_COMPACT) : NULL;
	json_decref(body);
	hub_url_info(&hub->place, &url);
	buf_addstr(&url, "/paths-info");
	rc = text != NULL ? hub_post_json(hub, hub_text(&url), text, out, NULL) : -ENOMEM;
	buf_release(&url);
	free(text);
	return rc;
}

/* Whatever was not deleted has to be in the answer: what is missing there may merely not have got
 * around yet. */
static bool answers_all(json_t *changed, const json_t *answer)
{
	json_t *there = json_object(), *e, *value;
	bool all = there != NULL;
	const char *path;
	size_t i;

	json_array_foreach (answer, i, e) {
		path = json_string_value(json_object_get(e, "path"));
		all = all && path != NULL && json_object_set_new(there, path, json_true()) == 0;
	}
	json_object_foreach (changed, path, value)
		all = all && (!json_is_true(value) || json_object_get(there, path) != NULL);
	json_decref(there);
	return all;
}

/* The old listing with the answer in place of what has changed. */
static int patch_listing(struct hub *hub, const struct listing *old, const json_t *changed,
			 const json_t *answer, struct listing *out, size_t *out_hidden)
{
	const char *prefix = hub->place.prefix;
	struct keys keys = {0};
	struct buf full = {0};
	int rc = add_page(hub, answer, 0, &keys, NULL);

	for (size_t i = 0; rc == 0 && i < old->count; i++) {
		const struct object *o = &old->v[i];

		full.len = 0;
		buf_addf(&full, "%s%s%s", prefix, *prefix != '\0' ? "/" : "", o->key);
		if (json_object_get(changed, buf_str(&full)) == NULL)
			keys_add(&keys, o->key, o->size, o->mtime_ns, &o->id);
	}
	*out_hidden = keys.hidden;
	if (rc == 0)
		rc = full.failed ? -ENOMEM : keys_finish(&keys, out);
	buf_release(&full);
	keys_release(&keys);
	return rc;
}

/* Puts a patched listing in the place of the one that it was made from. */
static int replace_snapshot(struct hub *hub, struct hub_snapshot *old, struct hub_snapshot *fresh,
			    size_t hidden)
{
	bool same;

	lock_take(&hub->lock);
	same = hub->snapshot == old;
	if (same) {
		hub->snapshot = fresh;
		hub->hidden += hidden;
	}
	lock_release(&hub->lock);
	if (same)
		hub_snapshot_unref(old);
	return same ? 0 : -EAGAIN;
}

/* The listing as the feed says that it is now; NULL: by another way.  The state stays that of the
 * last whole listing, so the next probe behind the feed lists everything again. */
static struct hub_snapshot *patched(struct hub *hub)
{
	json_t *changed = NULL, *answer = NULL;
	struct hub_snapshot *old = take_changes(hub, &changed), *fresh;
	size_t hidden = 0;
	int rc;

	if (old == NULL)
		return NULL;
	fresh = calloc(1, sizeof(*fresh));
	rc = fresh != NULL ? ask_paths(hub, changed, &answer) : -ENOMEM;
	if (rc == 0 && !answers_all(changed, answer))
		rc = -EAGAIN;
	if (rc == 0)
		rc = patch_listing(hub, &old->listing, changed, answer, &fresh->listing, &hidden);
	if (rc == 0) {
		fresh->refs = 2; /* the hub's and ours */
		rc = replace_snapshot(hub, old, fresh, hidden);
	}
	if (rc < 0) {
		mark_dirty(hub);
		if (fresh != NULL)
			listing_release(&fresh->listing);
		free(fresh);
		fresh = NULL;
	}
	hub_snapshot_unref(old);
	json_decref(changed);
	json_decref(answer);
	return fresh;
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
		s = patched(hub);
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
