/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network client's doors: birth and death, submitting, cancelling, waiting, counters.
 *
 * Other threads touch only what the lock guards (inbox, the list of live calls, two flags) and a
 * transfer's two atomic flags; then they wake the thread, which is in http_loop.c.
 *
 * A call is live from submission until just before done(); a cancelled pointer is looked up among
 * the live ones and never followed.
 *
 * Shutdown ends what is live with -ECANCELED and joins the thread; a call submitted after that is
 * ended in the caller's thread.
 */
#include "cache/remote/http.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#include "cache/clock.h"
#include "cache/remote/http_private.h"
#include "cache/thread.h"

enum { STREAMS_PER_CONNECTION = 4 };

static void submit(struct http *h, struct http_call *c, struct event *w)
{
	struct http_transfer *t = calloc(1, sizeof(*t));
	bool stopping;

	http_call_release(c);
	http_count(&h->counters.calls, 1);
	if (t == NULL) {
		c->err = why_set(&c->why, ENOMEM, "out of memory");
		http_notify(c, w);
		return;
	}
	t->http = h;
	t->call = c;
	t->waiter = w;
	t->total = UINT64_MAX;
	t->background = c->class == HTTP_BACKGROUND;
	t->deadline_ns = c->deadline_mono_ns != 0 ? c->deadline_mono_ns
						  : clock_mono_ns() + h->options.total_ms * 1000000;
	c->private = t;
	lock_take(&h->lock);
	stopping = h->stopping;
	if (!stopping) {
		t->live_next = h->live;
		t->live_link = &h->live;
		if (h->live != NULL)
			h->live->live_link = &t->live_next;
		h->live = t;
		http_list_append(&h->inbox, t);
	}
	lock_release(&h->lock);
	if (stopping)
		http_tell(t, why_set(&t->why, ECANCELED, "the network client is shut down"));
	else
		curl_multi_wakeup(h->multi);
}

void http_submit(struct http *h, struct http_call *c)
{
	submit(h, c, NULL);
}

/* Finds the call among the living and sets or clears one of its flags. */
static void change(struct http *h, const struct http_call *c, bool cancel)
{
	struct http_transfer *t;

	lock_take(&h->lock);
	for (t = h->live; t != NULL && t->call != c; t = t->live_next)
		;
	if (t != NULL) {
		if (cancel)
			__atomic_store_n(&t->cancelled, true, __ATOMIC_RELAXED);
		else
			__atomic_store_n(&t->background, false, __ATOMIC_RELAXED);
		h->changed = true;
	}
	lock_release(&h->lock);
	if (t != NULL)
		curl_multi_wakeup(h->multi);
}

void http_cancel(struct http *h, struct http_call *c)
{
	change(h, c, true);
}

void http_promote(struct http *h, struct http_call *c)
{
	change(h, c, false);
}

int http_run(struct http *h, struct http_call *c)
{
	struct event ended;

	if (http_on_thread(h))
		return c->err = why_set(&c->why, EDEADLK,
					"a call cannot be waited for on the network thread");
	event_init(&ended);
	submit(h, c, &ended);
	event_wait(&ended);
	return c->err;
}

void http_call_release(struct http_call *c)
{
	http_answer_release(&c->answer);
	c->err = 0;
	c->attempts = 0;
	c->why.err = 0;
	c->why.text[0] = '\0';
}

void http_get_counters(struct http *h, struct http_counters *out)
{
	const uint64_t *from = (const uint64_t *)&h->counters;
	uint64_t *to = (uint64_t *)out;
	size_t words = offsetof(struct http_counters, in_flight) / sizeof(uint64_t);

	for (size_t i = 0; i < words; i++)
		to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
	out->in_flight = __atomic_load_n(&h->counters.in_flight, __ATOMIC_RELAXED);
	out->queued = __atomic_load_n(&h->counters.queued, __ATOMIC_RELAXED);
	out->limit = __atomic_load_n(&h->counters.limit, __ATOMIC_RELAXED);
}

/* ---- birth and death ---- */

static void global_init(void)
{
	curl_global_init(CURL_GLOBAL_DEFAULT);
}

static void list_init(struct http_list *l)
{
	l->first = NULL;
	l->last = &l->first;
	l->count = 0;
}

static int choose_ca(struct http *h, const char *given, const char *from, struct why *why)
{
	const char *file = given != NULL ? given : getenv("SSL_CERT_FILE");
	char shown[256];

	if (file == NULL || *file == '\0')
		return 0;
	if (access(file, R_OK) != 0)
		return why_set(why, errno, "the file of certificates '%s' (%s) cannot be read: %s",
			       printable(shown, sizeof(shown), file, strlen(file)),
			       given == NULL  ? "SSL_CERT_FILE"
			       : from != NULL ? from
					      : "--ca-file",
			       strerrordesc_np(errno));
	h->ca_file = strdup(file);
	return h->ca_file != NULL ? 0 : why_set(why, ENOMEM, "out of memory");
}

static void take_options(struct http *h, const struct http_options *o)
{
	h->options = *o;
	h->options.ca_file = NULL;
	if (o->parallel == 0)
		h->options.parallel = 32;
	if (o->connect_ms <= 0)
		h->options.connect_ms = 10000;
	if (o->inactivity_ms <= 0)
		h->options.inactivity_ms = 30000;
	if (o->total_ms <= 0)
		h->options.total_ms = 120000;
	parallelism_init(&h->parallelism, h->options.parallel);
}

static int make_curl(struct http *h, struct why *why)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, global_init);
	h->multi = curl_multi_init();
	h->share = curl_share_init();
	if (h->multi == NULL || h->share == NULL)
		return why_set(why, ENOMEM, "out of memory");
	/* One thread uses it: no lock functions are needed. */
	curl_share_setopt(h->share, CURLSHOPT_SHARE, CURL_LOCK_DATA_SSL_SESSION);
	/* Idle connections are kept for the next burst.  Some connections carry more than one. */
	curl_multi_setopt(h->multi, CURLMOPT_MAXCONNECTS, (long)h->options.parallel * 2 + 16);
	curl_multi_setopt(h->multi, CURLMOPT_MAX_CONCURRENT_STREAMS, (long)STREAMS_PER_CONNECTION);
	return 0;
}

static int start_thread(struct http *h, struct why *why)
{
	int rc = thread_start(&h->thread, "wfs-http", http_loop, h);

	if (rc < 0)
		return why_set(why, -rc, "the network thread cannot be started: %s",
			       strerrordesc_np(-rc));
	h->joined = false;
	return 0;
}

int http_new(const struct http_options *options, struct http **out, struct why *why)
{
	static const struct http_options defaults;
	struct http *h = calloc(1, sizeof(*h));
	int rc;

	if (h == NULL)
		return why_set(why, ENOMEM, "out of memory");
	if (options == NULL)
		options = &defaults;
	h->joined = true;
	lock_init(&h->lock, LOCK_QUEUE);
	list_init(&h->inbox);
	list_init(&h->reads);
	list_init(&h->background);
	list_init(&h->waiting);
	list_init(&h->running);
	take_options(h, options);
	if (getrandom(&h->random, sizeof(h->random), 0) != (ssize_t)sizeof(h->random))
		h->random ^= (uint64_t)clock_real_ns();
	h->random |= 1; /* never zero */
	rc = choose_ca(h, options->ca_file, options->ca_from, why);
	if (rc == 0)
		rc = make_curl(h, why);
	if (rc == 0) {
		http_publish_counters(h);
		rc = start_thread(h, why);
	}
	if (rc < 0) {
		http_free(h);
		return rc;
	}
	*out = h;
	return 0;
}

void http_shutdown(struct http *h)
{
	if (h == NULL || h->joined)
		return;
	lock_take(&h->lock);
	h->stopping = true;
	lock_release(&h->lock);
	curl_multi_wakeup(h->multi);
	pthread_join(h->thread, NULL);
	h->joined = true;
}

void http_free(struct http *h)
{
	if (h == NULL)
		return;
	http_shutdown(h);
	while (h->pooled > 0)
		curl_easy_cleanup(h->pool[--h->pooled]);
	if (h->multi != NULL)
		curl_multi_cleanup(h->multi);
	if (h->share != NULL)
		curl_share_cleanup(h->share);
	lock_destroy(&h->lock);
	free(h->ca_file);
	free(h);
}
