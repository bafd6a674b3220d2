/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeping credentials: one current set, replaced when a newer one has come.
 *
 *   ask -> usable set there: handed out at once (and a renewal is begun when it ends soon)
 *       -> otherwise it waits for the thread, which asks the source and serves all that wait
 *
 * A set is usable until it expires by this machine's clock, unless the asker says that the server
 * has refused it.  What the source has just given is served even when it looks expired: this
 * machine's clock may be wrong, and the server will say.
 *
 * A renewal ahead of time is tried at most every 10 seconds.  The thread holds no lock while it
 * asks the source; the sets are counted references, so one that is in use outlives its
 * replacement.
 */
#include "cache/remote/credentials_private.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cache/clock.h"
#include "cache/thread.h"

#define AHEAD_NS (300 * NSEC_PER_SEC)
#define PAUSE_NS (10 * NSEC_PER_SEC)

struct credential_set *credential_set_ref(struct credential_set *s)
{
	__atomic_add_fetch(&s->refs, 1, __ATOMIC_RELAXED);
	return s;
}

static void wipe(char *s)
{
	if (s != NULL)
		explicit_bzero(s, strlen(s));
	free(s);
}

void credential_set_unref(struct credential_set *s)
{
	if (s == NULL || __atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	wipe(s->access_key);
	wipe(s->secret_key);
	wipe(s->session_token);
	free(s);
}

/* They end up in a header. */
static bool printable_key(const char *s)
{
	for (; s != NULL && *s != '\0'; s++)
		if (*s <= ' ' || *s > '~')
			return false;
	return true;
}

int credential_set_fill(struct credential_set *s, const char *access, const char *secret,
			const char *token, struct why *why)
{
	if (!printable_key(access) || !printable_key(secret) || !printable_key(token))
		return why_set(why, EINVAL,
			       "there are blanks or characters beyond ASCII in the credentials");
	s->expires_ns = INT64_MAX;
	s->access_key = strdup(access);
	s->secret_key = strdup(secret);
	s->session_token = token != NULL && *token != '\0' ? strdup(token) : NULL;
	if (s->access_key == NULL || s->secret_key == NULL ||
	    (s->session_token == NULL && token != NULL && *token != '\0'))
		return why_set(why, ENOMEM, "out of memory");
	return 0;
}

int credentials_call(struct credentials *c, struct http_call *call)
{
	bool stopping;
	int rc;

	lock_take(&c->lock);
	stopping = c->stopping;
	c->call = call;
	lock_release(&c->lock);
	/* Stopped between here and the submission: the call has a short deadline of its own. */
	rc = stopping ? -ECANCELED : http_run(c->http, call);
	lock_take(&c->lock);
	c->call = NULL;
	lock_release(&c->lock);
	return rc;
}

static int ask_source(struct credentials *c, struct credential_set *out, struct why *why)
{
	switch (c->source.kind) {
	case CREDENTIALS_ANONYMOUS: out->anonymous = true; return 0;
	case CREDENTIALS_ENVIRONMENT: return credentials_read_environment(out, why);
	case CREDENTIALS_PROFILE: return credentials_read_profile(&c->source, out, why);
	case CREDENTIALS_PROCESS: return credentials_run_process(c, out, why);
	case CREDENTIALS_WEB_IDENTITY: return credentials_ask_sts(c, out, why);
	case CREDENTIALS_CONTAINER: return credentials_ask_container(c, out, why);
	case CREDENTIALS_INSTANCE: return credentials_ask_instance(c, out, why);
	}
	return why_set(why, EINVAL, "there are no credentials");
}

static int new_set(struct credentials *c, struct credential_set **out, struct why *why)
{
	struct credential_set *s = calloc(1, sizeof(*s));
	int rc;

	if (s == NULL)
		return why_set(why, ENOMEM, "out of memory");
	s->refs = 1;
	s->from = c->source.from;
	s->expires_ns = INT64_MAX;
	rc = ask_source(c, s, why);
	if (rc == 0)
		*out = s;
	else
		credential_set_unref(s);
	return rc;
}

static bool same_text(const char *a, const char *b)
{
	return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static bool same_keys(const struct credential_set *a, const struct credential_set *b)
{
	return a->anonymous == b->anonymous && same_text(a->access_key, b->access_key) &&
	       same_text(a->secret_key, b->secret_key) &&
	       same_text(a->session_token, b->session_token);
}

/* Under the lock: takes `fresh` in, or drops it when it is what was there. */
static void take_in(struct credentials *c, struct credential_set *fresh)
{
	if (c->set != NULL && same_keys(c->set, fresh)) {
		fresh->generation = c->set->generation;
	} else {
		fresh->generation = ++c->generation;
	}
	credential_set_unref(c->set);
	c->set = fresh;
}

static void serve(struct credentials *c, struct credential_ask *asks, struct credential_set *set,
		  int err, const struct why *why)
{
	while (asks != NULL) {
		struct credential_ask *ask = asks;

		asks = ask->next;
		if (set != NULL && set->generation > ask->newer_than) {
			ask->err = 0;
			ask->set = credential_set_ref(set);
		} else if (err < 0) {
			ask->err = err;
			ask->why = *why;
		} else {
			ask->err = why_set(&ask->why, EKEYEXPIRED,
					   "the credentials from %s have expired, and there are no "
					   "newer ones",
					   c->source.from);
		}
		ask->ready(ask);
	}
}

static void renew(struct credentials *c)
{
	struct credential_set *fresh = NULL, *set = NULL;
	struct credential_ask *asks;
	struct why why = {0};
	int rc = new_set(c, &fresh, &why);

	lock_take(&c->lock);
	if (rc == 0)
		take_in(c, fresh);
	/* Old ones that still hold will do for whoever has not been refused with them. */
	if (c->set != NULL && (rc == 0 || c->set->expires_ns > clock_real_ns()))
		set = credential_set_ref(c->set);
	asks = c->asks;
	c->asks = NULL;
	c->wanted = false;
	c->next_try_ns = clock_mono_ns() + PAUSE_NS;
	if (c->stopping) {
		credential_set_unref(set);
		set = NULL;
		rc = why_set(&why, ECANCELED, "shutting down");
	}
	lock_release(&c->lock);
	serve(c, asks, set, rc, &why);
	credential_set_unref(set);
}

static void *work(void *ctx)
{
	struct credentials *c = ctx;
	bool end = false;

	while (!end) {
		lock_take(&c->lock);
		while (!c->wanted && !c->stopping)
			(void)condition_wait(&c->changed, &c->lock, -1);
		end = c->stopping;
		lock_release(&c->lock);
		if (!end)
			renew(c);
	}
	return NULL;
}

void credentials_ask(struct credentials *c, struct credential_ask *ask)
{
	int64_t now = clock_real_ns();
	bool queued = false;

	ask->set = NULL;
	ask->err = 0;
	lock_take(&c->lock);
	if (c->stopping) {
		ask->err = why_set(&ask->why, ECANCELED, "shutting down");
	} else if (c->set != NULL && c->set->generation > ask->newer_than &&
		   c->set->expires_ns > now) {
		ask->set = credential_set_ref(c->set);
		if (c->set->expires_ns != INT64_MAX && c->set->expires_ns - now < AHEAD_NS &&
		    clock_mono_ns() >= c->next_try_ns)
			c->wanted = true;
	} else {
		ask->next = c->asks;
		c->asks = ask;
		queued = c->wanted = true;
	}
	if (c->wanted)
		condition_broadcast(&c->changed);
	lock_release(&c->lock);
	if (!queued)
		ask->ready(ask);
}

struct waiter {
	struct credential_ask ask; /* first */
	struct event ready;
};

static void waiter_ready(struct credential_ask *ask)
{
	struct waiter *w = (struct waiter *)ask;

	event_happen(&w->ready);
}

int credentials_get(struct credentials *c, uint64_t newer_than, struct credential_set **out,
		    struct why *why)
{
	struct waiter w = {.ask = {.ready = waiter_ready, .newer_than = newer_than}};

	event_init(&w.ready);
	credentials_ask(c, &w.ask);
	event_wait(&w.ready);
	if (w.ask.err < 0)
		return why_set(why, -w.ask.err, "%s", w.ask.why.text);
	*out = w.ask.set;
	return 0;
}

static int start(struct credentials *c)
{
	int err = thread_start(&c->thread, NULL, work, c);

	c->joined = err != 0;
	return err;
}

int credentials_new(const struct credentials_options *options, struct http *http,
		    struct credentials **out, struct why *why)
{
	struct credentials *c = calloc(1, sizeof(*c));
	int rc;

	if (c == NULL)
		return why_set(why, ENOMEM, "out of memory");
	lock_init(&c->lock, LOCK_SHARD);
	condition_init(&c->changed);
	c->http = http;
	c->joined = true;
	c->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	rc = credentials_find(options, &c->source, why);
	if (rc == 0 && c->stop_fd < 0)
		rc = why_set(why, errno, "too many open files (raise ulimit -n)");
	if (rc == 0 && (rc = start(c)) < 0)
		why_set(why, -rc, "a thread cannot be started");
	if (rc == 0)
		*out = c;
	else
		credentials_free(c);
	return rc;
}

void credentials_stop(struct credentials *c)
{
	struct credential_ask *asks;
	struct why why = {0};
	uint64_t one = 1;
	int rc = why_set(&why, ECANCELED, "shutting down");

	if (c == NULL)
		return;
	lock_take(&c->lock);
	c->stopping = true;
	asks = c->asks;
	c->asks = NULL;
	if (c->call != NULL)
		http_cancel(c->http, c->call);
	condition_broadcast(&c->changed);
	lock_release(&c->lock);
	if (write(c->stop_fd, &one, sizeof(one)) < 0)
		one = 0; /* it is full: readable all the same */
	serve(c, asks, NULL, rc, &why);
}

void credentials_free(struct credentials *c)
{
	if (c == NULL)
		return;
	credentials_stop(c);
	if (!c->joined)
		pthread_join(c->thread, NULL);
	credential_set_unref(c->set);
	credential_source_release(&c->source);
	if (c->stop_fd >= 0)
		close(c->stop_fd);
	condition_destroy(&c->changed);
	lock_destroy(&c->lock);
	free(c);
}

const char *credentials_from(const struct credentials *c)
{
	return c->source.from;
}
