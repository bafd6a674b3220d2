/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Following a bucket's changes: its feed of server-sent events, for as long as the server has one.
 *
 *	waiting for a listing -> connecting -> live -> (cut) -> connecting ...
 *	connecting -> refused: for good
 *
 * The feed only says that a listing is out of date, and in which paths.  It resumes after a cursor,
 *or from the state (updatedAt) of the last listing, so nothing falls between a listing and the
 *stream; where it can do neither ("reset", or a stream that begins now), the listing is marked out
 *of date once more. Changes outside the prefix are of no interest; what cannot be understood is
 *taken as a change. The slow probe of hub_list.c goes on behind it.
 *
 * A 400 may be about the cursor: the resume point is taken back step by step (cursor, state, none)
 * before the feed is given up.
 *
 * Threads: one of our own, which connects, waits for the stream's end and rests in between; events
 * are handled on the network thread, while the former waits in live_run().
 */
#include "cache/remote/store_hub_private.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "cache/clock.h"
#include "cache/remote/sse.h"
#include "cache/thread.h"

enum { SILENCE_MS = 90000, REST_MIN_MS = 1000, REST_MAX_MS = 80000, SERVER_REST_MAX_MS = 300000 };

enum resume { RESUME_CURSOR, RESUME_STATE, RESUME_NOW };

struct stream {
	struct hub_call c; /* first */
	struct sse sse;
	bool resumed; /* from a cursor or a state */
};

/* ---- events ---- */

static void notify(struct hub *hub)
{
	uint64_t one = 1;

	/* A full counter is as good a wake-up as any. */
	if (write(hub->feed.fd, &one, sizeof(one)) < 0)
		return;
}

static void out_of_date(struct hub *hub)
{
	lock_take(&hub->lock);
	hub->dirty = true;
	lock_release(&hub->lock);
	notify(hub);
}

static void keep_cursor(struct hub *hub, const json_t *data)
{
	const char *cursor = json_string_value(json_object_get(data, "cursor"));
	char *copy = cursor != NULL ? strdup(cursor) : NULL, *old;

	if (copy == NULL)
		return;
	lock_take(&hub->lock);
	old = hub->feed.cursor;
	hub->feed.cursor = copy;
	lock_release(&hub->lock);
	free(old);
}

static void on_event(void *ctx, const char *name, const char *text, bool cut)
{
	struct stream *s = ctx;
	struct hub *hub = s->c.hub;
	json_t *data = cut ? NULL : json_loads(text, 0, NULL);
	bool known = true;

	if (strcmp(name, "changes") == 0) {
		int ours = hub_changed(hub, json_object_get(data, "changes"));

		if (ours < 0)
			out_of_date(hub);
		else if (ours > 0)
			notify(hub);
	} else if (strcmp(name, "ready") == 0) {
		lock_take(&hub->lock);
		hub->feed.state = HUB_FEED_LIVE;
		lock_release(&hub->lock);
		hub->feed.ready = true;
		/* What happened between the last listing and this moment? */
		if (!s->resumed)
			out_of_date(hub);
	} else if (strcmp(name, "reset") == 0) {
		hub->feed.reset = true;
		known = false;
	} else if (strcmp(name, "reconnect") != 0) {
		known = false;
	}
	if (known && data != NULL)
		keep_cursor(hub, data);
	json_decref(data);
}

static int on_data(struct http_call *call, const void *bytes, size_t len)
{
	struct stream *s = (struct stream *)call;

	sse_feed(&s->sse, bytes, len);
	/* The server ends the stream after these two; we need not wait for it. */
	return s->c.hub->feed.reset ? -ESTALE : 0;
}

/* ---- one stream ---- */

/* What to resume from, *from or a later one; value malloc'ed. */
static const char *resume_key(struct hub *hub, enum resume *from, char **value)
{
	const char *key = NULL, *text = NULL;

	lock_take(&hub->lock);
	if (*from == RESUME_CURSOR && hub->feed.cursor != NULL) {
		key = "cursor";
		text = hub->feed.cursor;
	} else if (*from <= RESUME_STATE && hub->state != NULL && hub->state[0] != '\0') {
		*from = RESUME_STATE;
		key = "since";
		text = hub->state;
	} else {
		*from = RESUME_NOW;
	}
	*value = text != NULL ? strdup(text) : NULL;
	lock_release(&hub->lock);
	return *value != NULL ? key : NULL;
}

struct ended {
	int err, status;
	int64_t retry_after_ms;
	bool events;	  /* it was a stream of them */
	enum resume from; /* it was asked to resume from this */
	uint64_t token;
};

static int feed_judge(struct http_call *call, const struct http_answer *a, struct why *why)
{
	/* Any end is looked at by the thread; nothing is repeated here. */
	return -EIO;
}

static struct ended follow(struct hub *hub, enum resume from)
{
	char *value;
	const char *key = resume_key(hub, &from, &value), *type;
	struct stream s = {.sse = {.event = on_event, .ctx = &s}, .resumed = key != NULL};
	struct http_call *call = &s.c.live.call;
	struct ended e = {.from = from};
	struct buf url = {0};

	hub_url_events(&hub->place, key, value, &url);
	hub_call_init(&s.c, hub, hub_text(&url));
	free(value);
	s.c.accept = "text/event-stream";
	call->judge = feed_judge;
	call->delivery = HTTP_STREAM;
	call->data = on_data;
	call->class = HTTP_STANDING;
	call->once = true;
	call->deadline_mono_ns = -1;
	call->inactivity_ms = SILENCE_MS;
	hub->feed.ready = hub->feed.reset = false;
	e.err = s.c.url != NULL ? hub_run(&s.c, NULL) : -ENOMEM;
	e.status = call->answer.status;
	type = http_header(&call->answer, "Content-Type");
	e.events = type != NULL && strncmp(type, "text/event-stream", 17) == 0;
	e.token = s.c.token;
	e.retry_after_ms = field_retry_after_ms(http_header(&call->answer, "Retry-After"),
						clock_real_ns() / NSEC_PER_SEC);
	sse_release(&s.sse);
	hub_call_release(&s.c);
	return e;
}

/* ---- the thread ---- */

static void set_state(struct hub *hub, enum hub_feed_state state)
{
	lock_take(&hub->lock);
	hub->feed.state = state;
	lock_release(&hub->lock);
}

/* Rests, or less when the store stops.  False: it does. */
static bool rest(struct hub *hub, int64_t ms)
{
	int64_t until = clock_mono_ns() + ms * 1000000;
	bool stop;

	lock_take(&hub->lock);
	while (!hub->feed.stop && clock_mono_ns() < until)
		(void)condition_wait(&hub->changed, &hub->lock, until);
	stop = hub->feed.stop;
	lock_release(&hub->lock);
	return !stop;
}

/* Waits until more than `before` listings have succeeded. */
static bool wait_listing(struct hub *hub, uint64_t before)
{
	bool stop;

	lock_take(&hub->lock);
	while (!hub->feed.stop && hub->listings <= before)
		(void)condition_wait(&hub->changed, &hub->lock, -1);
	stop = hub->feed.stop;
	lock_release(&hub->lock);
	return !stop;
}

/* Up to a quarter more, so that a fleet does not come back in step. */
static int64_t jitter(int64_t ms)
{
	uint16_t random = 0;

	if (getrandom(&random, sizeof(random), GRND_NONBLOCK) != (ssize_t)sizeof(random))
		random = 0;
	return ms + ms * random / (4 * 65536);
}

/* The server cannot say what happened meanwhile: list, and begin at that listing. */
static bool begin_anew(struct hub *hub)
{
	uint64_t listings;
	char *cursor;

	lock_take(&hub->lock);
	cursor = hub->feed.cursor;
	hub->feed.cursor = NULL;
	listings = hub->listings;
	lock_release(&hub->lock);
	free(cursor);
	out_of_date(hub);
	return wait_listing(hub, listings) && rest(hub, jitter(REST_MIN_MS));
}

static bool no_feed(const struct ended *e)
{
	return e->status == 404 || e->status == 501 || e->status == 405 ||
	       (e->status == 200 && !e->events);
}

static void *feed_main(void *arg)
{
	struct hub *hub = arg;
	enum resume from = RESUME_CURSOR;
	int64_t pause = REST_MIN_MS;
	bool go = wait_listing(hub, 0);

	while (go) {
		struct ended e = follow(hub, from);

		set_state(hub, HUB_FEED_CONNECTING);
		if (no_feed(&e) || (e.status == 400 && e.from == RESUME_NOW)) {
			set_state(hub, HUB_FEED_REFUSED);
			break;
		}
		if (hub->feed.reset) {
			go = begin_anew(hub);
		} else if (e.status == 400) {
			from = e.from + 1;
		} else if (e.status == 401 && hub_token_refused(hub->token, e.token)) {
			continue;
		} else if (hub->feed.ready) {
			pause = REST_MIN_MS;
			from = RESUME_CURSOR;
			go = rest(hub, jitter(REST_MIN_MS) / 2);
		} else {
			int64_t ms = MAX(pause, MIN(e.retry_after_ms, SERVER_REST_MAX_MS));

			go = rest(hub, jitter(ms));
			pause = MIN(pause * 2, REST_MAX_MS);
		}
	}
	return NULL;
}

int hub_watch_fd(struct store *s)
{
	struct hub *hub = (struct hub *)s;
	struct hub_feed *f = &hub->feed;

	if (f->started || hub->place.kind != HUB_BUCKET || hub->offline)
		return f->fd;
	f->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (f->fd < 0)
		return -1;
	set_state(hub, HUB_FEED_CONNECTING);
	f->started = thread_start(&f->thread, "wfs-feed", feed_main, hub) == 0;
	if (!f->started)
		set_state(hub, HUB_FEED_NONE); /* the probe remains */
	return f->fd;
}

void hub_watch_drain(struct store *s)
{
	struct hub *hub = (struct hub *)s;
	uint64_t count;

	if (hub->feed.fd >= 0 && read(hub->feed.fd, &count, sizeof(count)) < 0)
		return;
}

void hub_watch_stop(struct hub *hub)
{
	lock_take(&hub->lock);
	hub->feed.stop = true;
	condition_broadcast(&hub->changed);
	lock_release(&hub->lock);
}

void hub_watch_join(struct hub *hub)
{
	hub_watch_stop(hub);
	if (hub->feed.started)
		pthread_join(hub->feed.thread, NULL);
	hub->feed.started = false;
	if (hub->feed.fd >= 0)
		close(hub->feed.fd);
	hub->feed.fd = -1;
	free(hub->feed.cursor);
	hub->feed.cursor = NULL;
}
