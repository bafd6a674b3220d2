/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Hub's store: birth and death, and the line for the status.
 *
 * The work is in hub_list.c, hub_fetch.c and hub_watch.c; the state they share is struct hub, under
 * one lock that is never held over a call.  Opening asks nobody: a handle pins what the listing
 * said and finds out at its first fetch.
 *
 * Going down: the stop cancels every call, ends the feed's wait, and makes later calls end at once;
 * the thread is joined when the store is freed.
 */
#include "cache/remote/store_hub.h"

#include <stdlib.h>
#include <strings.h>

#include "cache/clock.h"
#include "cache/remote/store_hub_private.h"

bool store_hub_is(const char *place)
{
	return hub_place_is(place, getenv("HF_ENDPOINT"));
}

static int list(struct store *s, const char *prefix, struct listing *out, struct why *why)
{
	return hub_list((struct hub *)s, prefix, out, why);
}

static void stop(struct store *s)
{
	struct hub *hub = (struct hub *)s;

	live_stop(&hub->live);
	hub_watch_stop(hub);
}

static void release(struct store *s)
{
	struct hub *hub = (struct hub *)s;

	stop(s);
	hub_watch_join(hub);
	hub_snapshot_unref(hub->snapshot);
	json_decref(hub->paths);
	hub_token_free(hub->token);
	hub_place_release(&hub->place);
	live_destroy(&hub->live);
	condition_destroy(&hub->changed);
	lock_destroy(&hub->lock);
	free(hub->state);
	free(hub->base.name);
	free(hub);
}

/* Somebody asks for the truth: the next listing probes, whatever the pace is. */
static void refresh(struct store *s)
{
	struct hub *hub = (struct hub *)s;

	lock_take(&hub->lock);
	hub->probed_ns = INT64_MIN / 2;
	lock_release(&hub->lock);
}

static void describe_quota(const struct hub *hub, enum hub_quota q, const char *name,
			   struct buf *out)
{
	const struct rate_limit *l = &hub->quota[q].limit;
	int64_t left;

	if (hub->quota[q].seen_ns == 0 || l->remaining < 0)
		return;
	left = hub->quota[q].seen_ns + MAX(l->reset_s, 0) * NSEC_PER_SEC - clock_mono_ns();
	if (left <= 0)
		return; /* another window */
	buf_addf(out, "%lld", (long long)l->remaining);
	if (l->quota >= 0)
		buf_addf(out, " of %lld", (long long)l->quota);
	buf_addf(out, " %s calls left for %lld s; ", name,
		 (long long)((left + NSEC_PER_SEC - 1) / NSEC_PER_SEC));
}

static void describe_changes(struct hub *hub, struct buf *out)
{
	if (hub->place.kind != HUB_BUCKET) {
		buf_addf(out, "%s", hub_place_pinned(&hub->place) ? "pinned to its commit" : "at ");
		if (!hub_place_pinned(&hub->place))
			buf_addf(out, "%s, commit %.12s", hub->place.revision,
				 hub->state != NULL ? hub->state : "not known yet");
		return;
	}
	switch (hub->feed.state) {
	case HUB_FEED_LIVE: buf_addstr(out, "feed live"); break;
	case HUB_FEED_CONNECTING: buf_addstr(out, "feed being connected, probing meanwhile"); break;
	case HUB_FEED_REFUSED: buf_addstr(out, "no feed here, probing for changes"); break;
	case HUB_FEED_NONE: buf_addstr(out, "probing for changes"); break;
	}
}

static bool describe(struct store *s, struct buf *out)
{
	struct hub *hub = (struct hub *)s;

	buf_addstr(out, "hub: ");
	lock_take(&hub->lock);
	describe_quota(hub, HUB_QUOTA_API, "api", out);
	describe_quota(hub, HUB_QUOTA_RESOLVE, "resolve", out);
	describe_changes(hub, out);
	if (hub->hidden > 0)
		buf_addf(out, "; %zu names left out", hub->hidden);
	lock_release(&hub->lock);
	return false;
}

static const struct store_ops hub_ops = {
	.name = "hub",
	.list = list,
	.open = hub_open,
	.fetch = hub_fetch,
	.close = hub_close,
	.watch_fd = hub_watch_fd,
	.watch_drain = hub_watch_drain,
	.free = release,
	.stop = stop,
	.refresh = refresh,
	.describe = describe,
};

static bool says_yes(const char *name)
{
	const char *v = getenv(name);

	return v != NULL && (strcmp(v, "1") == 0 || strcasecmp(v, "true") == 0 ||
			     strcasecmp(v, "yes") == 0 || strcasecmp(v, "on") == 0);
}

/* As the user knows it, without what a pasted URL may carry in its query. */
static char *make_name(const struct hub_place *p)
{
	struct buf name = {0};

	hub_place_uri(p->kind, p->id, &name);
	if (p->revision != NULL && strcmp(p->revision, "main") != 0)
		buf_addf(&name, "@%s", p->revision);
	if (p->prefix[0] != '\0')
		buf_addf(&name, "/%s", p->prefix);
	return hub_text(&name);
}

int store_hub_new(const char *place, const struct store_hub_options *options, struct http *http,
		  struct store **out, struct why *why)
{
	struct hub *hub = calloc(1, sizeof(*hub));
	int rc;

	if (hub == NULL)
		return why_set(why, ENOMEM, "out of memory");
	hub->base.ops = &hub_ops;
	hub->base.remote = true;
	hub->offline = says_yes("HF_HUB_OFFLINE");
	hub->feed.fd = -1;
	live_init(&hub->live, http);
	lock_init(&hub->lock, LOCK_QUEUE);
	condition_init(&hub->changed);
	rc = hub_place_parse(place, getenv("HF_ENDPOINT"), &hub->place, why);
	if (rc == 0) {
		hub->base.name = make_name(&hub->place);
		if (hub->base.name == NULL)
			rc = why_set(why, ENOMEM, "out of memory");
	}
	if (rc == 0)
		rc = hub_token_new(options->token_file, &hub->token, why);
	if (rc < 0) {
		release(&hub->base);
		return rc;
	}
	*out = &hub->base;
	return 0;
}
