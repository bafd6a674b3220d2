/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network client's thread: its queues, the time, and the end of calls.
 *
 * Reads and background calls wait for a slot (FIFO each), others wait for a back-off to end, the
 * rest is running in curl's hands.  All of that belongs to this thread; what others left is taken
 * over under the lock once per turn.  No lock is held while a callback runs.
 *
 * Each list may be walked while calls in it end: an ending call touches no other one, since what
 * its done() submits or cancels only reaches the inbox and the flags.
 */
#include <stdlib.h>

#include "cache/clock.h"
#include "cache/remote/http_private.h"

enum { POLL_MAX_MS = 1000 };

static __thread const struct http *thread_of; /* the client whose thread this is */

static void list_remove(struct http_transfer *t)
{
	struct http_list *l = t->list;

	if (l == NULL)
		return;
	*t->link = t->next;
	if (t->next != NULL)
		t->next->link = t->link;
	else
		l->last = t->link;
	l->count--;
	t->list = NULL;
	t->next = NULL;
}

void http_list_append(struct http_list *l, struct http_transfer *t)
{
	list_remove(t);
	t->list = l;
	t->next = NULL;
	t->link = l->last;
	*l->last = t;
	l->last = &t->next;
	l->count++;
}

static void list_prepend(struct http_list *l, struct http_transfer *t)
{
	list_remove(t);
	t->list = l;
	t->next = l->first;
	t->link = &l->first;
	if (l->first != NULL)
		l->first->link = &t->next;
	else
		l->last = &t->next;
	l->first = t;
	l->count++;
}

/* xorshift64*: spreads back-offs, hides nothing. */
uint32_t http_random(struct http *h)
{
	h->random ^= h->random >> 12;
	h->random ^= h->random << 25;
	h->random ^= h->random >> 27;
	return (uint32_t)((h->random * UINT64_C(0x2545f4914f6cdd1d)) >> 32);
}

CURL *http_easy_take(struct http *h)
{
	return h->pooled > 0 ? h->pool[--h->pooled] : curl_easy_init();
}

void http_easy_give(struct http *h, CURL *easy)
{
	curl_easy_reset(easy);
	if (h->pooled < HTTP_EASY_POOL)
		h->pool[h->pooled++] = easy;
	else
		curl_easy_cleanup(easy);
}

static void give_slot(struct http_transfer *t)
{
	if (t->slot)
		t->http->slots--;
	t->slot = false;
}

void http_wait(struct http_transfer *t, int64_t due_ns)
{
	give_slot(t);
	t->due_ns = due_ns;
	http_list_append(&t->http->waiting, t);
}

/* ---- the end of a call ---- */

static void transfer_free(struct http_transfer *t)
{
	request_release(&t->request);
	http_answer_release(&t->via);
	http_answer_release(&t->answer);
	free(t->etag);
	free(t);
}

static void leave_live(struct http_transfer *t)
{
	lock_take(&t->http->lock);
	if (t->live_link != NULL) {
		*t->live_link = t->live_next;
		if (t->live_next != NULL)
			t->live_next->live_link = t->live_link;
	}
	lock_release(&t->http->lock);
}

void http_notify(struct http_call *c, struct event *w)
{
	if (w == NULL) {
		c->done(c);
		return;
	}
	event_happen(w);
}

/* Fills the results and tells the owner; t is gone afterwards. */
void http_tell(struct http_transfer *t, int err)
{
	struct http_call *c = t->call;
	struct event *w = t->waiter;

	c->err = err;
	if (err != 0)
		c->why = t->why;
	c->answer = t->answer;
	t->answer = (struct http_answer){0};
	c->attempts = t->attempts;
	c->private = NULL;
	transfer_free(t);
	http_notify(c, w);
}

void http_end(struct http_transfer *t, int err)
{
	http_transfer_stop(t);
	give_slot(t);
	list_remove(t);
	leave_live(t);
	http_tell(t, err);
}

static void end_with(struct http_transfer *t, int err)
{
	http_transfer_stop(t);
	http_end(t, http_why_error(t, -err, CURLE_OK));
}

static void end_all(struct http_list *l)
{
	while (l->first != NULL)
		end_with(l->first, -ECANCELED);
}

/* ---- the thread ---- */

static void enqueue(struct http *h, struct http_transfer *t, bool again)
{
	struct http_list *l =
		__atomic_load_n(&t->background, __ATOMIC_RELAXED) ? &h->background : &h->reads;

	/* A second attempt has waited its turn already. */
	if (again)
		list_prepend(l, t);
	else
		http_list_append(l, t);
}

static void end_cancelled(struct http_list *l)
{
	struct http_transfer *t = l->first, *next;

	/* done() may submit and cancel, but that only touches the inbox and flags. */
	for (; t != NULL; t = next) {
		next = t->next;
		if (__atomic_load_n(&t->cancelled, __ATOMIC_RELAXED))
			end_with(t, -ECANCELED);
	}
}

static void promote(struct http *h)
{
	struct http_transfer *t = h->background.first, *next;

	for (; t != NULL; t = next) {
		next = t->next;
		if (!__atomic_load_n(&t->background, __ATOMIC_RELAXED))
			http_list_append(&h->reads, t);
	}
}

/* Takes what other threads left; false: the client is shutting down. */
static bool take_inbox(struct http *h)
{
	bool changed, stopping;

	lock_take(&h->lock);
	while (h->inbox.first != NULL)
		enqueue(h, h->inbox.first, false);
	changed = h->changed;
	stopping = h->stopping;
	h->changed = false;
	lock_release(&h->lock);
	if (changed) {
		end_cancelled(&h->reads);
		end_cancelled(&h->background);
		end_cancelled(&h->waiting);
		end_cancelled(&h->running);
		promote(h);
	}
	return !stopping;
}

static void start(struct http *h, struct http_transfer *t)
{
	t->slot = t->call->class != HTTP_STANDING;
	h->slots += t->slot;
	t->epoch = h->parallelism.epoch;
	http_list_append(&h->running, t);
	http_call_start(t);
}

/* Long-lived calls take no slot and wait for nobody. */
static void start_standing(struct http *h)
{
	struct http_transfer *t = h->reads.first, *next;

	for (; t != NULL; t = next) {
		next = t->next;
		if (t->call->class == HTTP_STANDING)
			start(h, t);
	}
}

static void start_ready(struct http *h)
{
	start_standing(h);
	while (h->reads.first != NULL && h->slots < h->parallelism.limit)
		start(h, h->reads.first);
	while (h->background.first != NULL &&
	       h->slots < MAX(h->parallelism.limit - h->parallelism.limit / 4, 1))
		start(h, h->background.first);
}

static void check_deadlines(struct http_list *l, int64_t now)
{
	struct http_transfer *t = l->first, *next;

	for (; t != NULL; t = next) {
		next = t->next;
		if (t->deadline_ns >= 0 && now >= t->deadline_ns)
			end_with(t, -ETIMEDOUT);
	}
}

static void check_due(struct http *h, int64_t now)
{
	struct http_transfer *t = h->waiting.first, *next;

	for (; t != NULL; t = next) {
		next = t->next;
		if (now >= t->due_ns)
			enqueue(h, t, true);
	}
}

static int64_t inactivity_ns(const struct http_transfer *t)
{
	int64_t ms = t->call->inactivity_ms > 0 ? t->call->inactivity_ms
						: t->http->options.inactivity_ms;

	return MIN(ms, INT32_MAX) * 1000000;
}

static void check_running(struct http *h, int64_t now)
{
	struct http_transfer *t = h->running.first, *next;

	for (; t != NULL; t = next) {
		next = t->next;
		if (now - t->active_ns >= inactivity_ns(t))
			http_call_timed_out(t);
	}
}

/* A negative time is none. */
static int64_t sooner(int64_t a, int64_t b)
{
	return b >= 0 && b < a ? b : a;
}

/* Looks at the time for everything; returns for how long the thread may sleep. */
static int check_times(struct http *h)
{
	int64_t now = clock_mono_ns(), until = now + POLL_MAX_MS * INT64_C(1000000);

	check_deadlines(&h->reads, now);
	check_deadlines(&h->background, now);
	check_deadlines(&h->waiting, now);
	check_running(h, now);
	check_due(h, now);
	start_ready(h);
	for (struct http_transfer *t = h->waiting.first; t != NULL; t = t->next)
		until = sooner(sooner(until, t->due_ns), t->deadline_ns);
	for (struct http_transfer *t = h->reads.first; t != NULL; t = t->next)
		until = sooner(until, t->deadline_ns);
	for (struct http_transfer *t = h->running.first; t != NULL; t = t->next)
		until = MIN(until, t->active_ns + inactivity_ns(t));
	return (int)MAX((until - now + 999999) / 1000000, 0);
}

static void collect_finished(struct http *h)
{
	CURLMsg *m;
	int left;

	while ((m = curl_multi_info_read(h->multi, &left)) != NULL) {
		struct http_transfer *t = NULL;
		CURLcode code = m->data.result;

		if (m->msg != CURLMSG_DONE)
			continue;
		curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&t);
		http_call_hop_done(t, code);
	}
}

void http_publish_counters(struct http *h)
{
	__atomic_store_n(&h->counters.in_flight, h->running.count, __ATOMIC_RELAXED);
	__atomic_store_n(&h->counters.queued,
			 h->reads.count + h->background.count + h->waiting.count, __ATOMIC_RELAXED);
	__atomic_store_n(&h->counters.limit, h->parallelism.limit, __ATOMIC_RELAXED);
}

bool http_on_thread(const struct http *h)
{
	return thread_of == h;
}

void *http_loop(void *arg)
{
	struct http *h = arg;
	int running, sleep_ms;

	thread_of = h;
	while (take_inbox(h)) {
		curl_multi_perform(h->multi, &running);
		collect_finished(h);
		/* After looking at the sockets: a process that was suspended finds bytes there. */
		sleep_ms = check_times(h);
		http_publish_counters(h);
		if (sleep_ms > 0)
			curl_multi_poll(h->multi, NULL, 0, sleep_ms, NULL);
	}
	end_all(&h->running);
	end_all(&h->reads);
	end_all(&h->background);
	end_all(&h->waiting);
	http_publish_counters(h);
	return NULL;
}
