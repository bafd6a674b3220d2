/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a call: attempts and hops, and what follows each answer.
 *
 * Every hop is built from scratch by the caller and then checked here: towards an origin that is
 * not the call's own, only a handful of harmless headers may go.  Redirects are followed by hand.
 * When an attempt fails, retry.c says whether and when there is another; it begins at the first hop
 * again, and a range asks only for the bytes that are missing.
 *
 * A redirect's body and an error's body never reach the caller's buffer, and what a failed attempt
 * put into a growable one is taken back.
 *
 * Network thread only.
 */
#include <stdlib.h>
#include <strings.h>

#include "cache/clock.h"
#include "cache/remote/http_private.h"

static void after_failure(struct http_transfer *t, int err, bool unsent, CURLcode code);

/* What may go to anybody. */
static bool harmless(const char *name)
{
	static const char *const names[] = {
		"Accept",	"Accept-Encoding", "Accept-Language",
		"Content-Type", "Range",	   "User-Agent",
	};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (strcasecmp(name, names[i]) == 0)
			return true;
	return false;
}

static int check_headers(struct http_transfer *t, const struct url *u)
{
	struct url origin = {0};
	bool own = t->call->origin != NULL && url_parse(t->call->origin, &origin, NULL) == 0 &&
		   url_same_origin(&origin, u);

	url_release(&origin);
	for (size_t i = 0; !own && i < t->request.header_count; i++)
		if (!harmless(t->request.headers[i].name))
			return why_set(&t->why, EPERM,
				       "the header %s is not for %s: this is a mistake in weightfs",
				       t->request.headers[i].name, u->host);
	return 0;
}

static int check_request(struct http_transfer *t, struct url *u)
{
	struct request *r = &t->request;
	int rc = r->failed;

	if (rc == 0 && r->url == NULL)
		rc = -EINVAL;
	if (rc < 0)
		return why_set(&t->why, -rc, "a request cannot be made: %s",
			       rc == -EINVAL ? "a header or a range is not valid"
					     : strerrordesc_np(-rc));
	rc = url_parse(r->url, u, &t->why);
	if (rc == 0)
		rc = check_headers(t, u);
	if (rc == 0 && t->call->delivery == HTTP_EXACT) {
		r->ranged = false;
		if (!t->call->whole || t->got > 0)
			request_set_range(r, t->call->off + t->got, t->call->len - t->got);
		rc = r->failed;
	}
	return rc;
}

/* Attempts without progress that use up patience. */
static unsigned counted(const struct http_transfer *t)
{
	return t->since_progress - MIN(t->since_progress, t->unanswered);
}

/* Builds and sends the next hop.  `url` NULL: the first. */
static void start_hop(struct http_transfer *t, const char *url)
{
	struct http_call *c = t->call;
	struct http_hop hop = {
		.attempt = t->attempts,
		.number = t->hop,
		.url = url,
		.trusted = url != NULL && url_text_same_origin(c->origin, url),
		.via = url != NULL ? &t->via : NULL,
		.method = t->method,
	};
	struct url u = {0};
	int rc;

	request_release(&t->request);
	t->why.err = 0;
	rc = c->build(c, &hop, &t->request, &t->why);
	if (rc == 0)
		rc = check_request(t, &u);
	if (rc == 0)
		rc = http_transfer_begin(t, &u);
	url_release(&u);
	if (rc == 0)
		return;
	if (rc == -EAGAIN && counted(t) < 4) {
		http_wait(t, clock_mono_ns());
		return;
	}
	if (t->why.err == 0)
		why_set(&t->why, -rc, "a request cannot be made: %s", strerrordesc_np(-rc));
	http_end(t, rc);
}

void http_call_start(struct http_transfer *t)
{
	struct http_counters *n = &t->http->counters;

	t->attempts++;
	t->since_progress++;
	if (t->attempts > 1)
		http_count(&n->retries, 1);
	if (t->got > 0)
		http_count(&n->resumes, 1);
	t->hop = 0;
	t->method = METHOD_GET;
	start_hop(t, NULL);
}

static enum method redirected_method(enum method was, int status)
{
	if (status == 303 && was != METHOD_HEAD)
		return METHOD_GET;
	if ((status == 301 || status == 302) && was == METHOD_POST)
		return METHOD_GET;
	return was;
}

static void resolve_location(struct http_transfer *t, struct why *why)
{
	const char *location = http_header(&t->answer, "Location");

	if (t->answer.status >= 300 && t->answer.status < 400 && location != NULL &&
	    url_resolve(t->request.url, location, &t->answer.location, why) < 0)
		t->answer.location = NULL;
}

static void follow(struct http_transfer *t)
{
	char shown[200];

	http_transfer_stop(t);
	if (t->answer.location == NULL) { /* the sentence is there */
		after_failure(t, EPROTO, false, CURLE_OK);
		return;
	}
	if (t->hop == HTTP_HOPS_MAX) {
		http_end(t, why_set(&t->why, EPROTO, "%s redirects in circles",
				    url_show(shown, sizeof(shown), t->request.url)));
		return;
	}
	t->hop++;
	http_count(&t->http->counters.redirects, 1);
	t->method = redirected_method(t->request.method, t->answer.status);
	http_answer_release(&t->via);
	t->via = t->answer;
	t->answer = (struct http_answer){.length = -1};
	start_hop(t, t->via.location);
}

static int64_t read_waits(const struct http_transfer *t, struct retry_event *e)
{
	struct rate_limit limit;

	field_rate_limit(http_header(&t->answer, "RateLimit"), &limit);
	e->rate_remaining = limit.remaining;
	e->rate_reset_ms = limit.reset_s < 0 ? -1 : MIN(limit.reset_s, 31536000) * 1000;
	return field_retry_after_ms(http_header(&t->answer, "Retry-After"),
				    clock_real_ns() / NSEC_PER_SEC);
}

static bool says_slow_down(struct http_transfer *t)
{
	return t->answer.status >= 400 &&
	       strstr(buf_str(&t->answer.error_body), "<Code>SlowDown</Code>") != NULL;
}

static struct retry_event event_of(struct http_transfer *t, int err, bool unsent)
{
	struct http_call *c = t->call;
	struct retry_event e = {
		.attempt = t->since_progress,
		.unanswered = t->unanswered,
		.status = t->answer.status,
		.err = err,
		.repeatable = c->repeatable || t->request.method != METHOD_POST,
		.unsent = unsent && t->hop == 0,
		.redirected = t->hop > 0 && !url_text_same_origin(c->origin, t->request.url),
		.slow_down = err == 0 && says_slow_down(t),
		.budget_ms = -1,
		.random = http_random(t->http),
	};

	e.retry_after_ms = read_waits(t, &e);
	if (t->deadline_ns >= 0)
		e.budget_ms = MAX((t->deadline_ns - clock_mono_ns()) / 1000000, 0);
	return e;
}

/* The bytes that a failed attempt brought: kept for a range, unless the answer contradicted
 * itself; taken back from a buffer. */
static void keep_progress(struct http_transfer *t, int err)
{
	struct http_call *c = t->call;

	if (c->delivery == HTTP_BUFFER)
		c->buffer->len = MIN(c->buffer->len, t->buffer_before);
	if (err == EPROTO)
		t->got = t->got_before;
	if (t->got >= t->got_before + HTTP_PROGRESS) {
		t->since_progress = 1;
		t->unanswered = 0;
	}
	if (t->restart)
		t->got = 0;
}

static bool may_repeat(const struct http_transfer *t)
{
	return !t->call->once && !t->delivered && t->attempts < HTTP_ATTEMPTS_MAX &&
	       !__atomic_load_n(&t->cancelled, __ATOMIC_RELAXED);
}

/* An answer, good or bad, is somebody's; for a patient call silence is an outage. */
static bool is_outage(const struct http_transfer *t, int err)
{
	switch (err) {
	case ETIMEDOUT:
	case ECONNRESET:
	case ECONNREFUSED:
	case EHOSTUNREACH:
	case ENETUNREACH: return t->call->patient;
	default: return false;
	}
}

/* err: positive errno of the transport or of a broken answer; 0: the status is the failure. */
static void after_failure(struct http_transfer *t, int err, bool unsent, CURLcode code)
{
	const struct http_options *o = &t->http->options;
	struct retry_decision d;
	struct retry_event e;

	keep_progress(t, err);
	t->unanswered += is_outage(t, err);
	e = event_of(t, err, unsent);
	d = retry_decide(&o->retry, &e);
	if (d.fewer) {
		http_count(&t->http->counters.refused, 1);
		parallelism_fewer(&t->http->parallelism, t->epoch);
	}
	if (d.again && may_repeat(t)) {
		http_wait(t, clock_mono_ns() + d.wait_ms * 1000000);
		return;
	}
	if (err != 0 && t->why.err == 0)
		http_why_error(t, err, code);
	/* Its time was over, whatever the last attempt met. */
	if (is_outage(t, err))
		t->why.err = ETIMEDOUT;
	http_end(t, err == 0 ? http_why_status(t) : -t->why.err);
}

/* A final answer that is not good: the caller's opinion first. */
static void bad_status(struct http_transfer *t)
{
	int verdict = HTTP_JUDGE_POLICY;

	http_transfer_stop(t);
	t->why.err = 0;
	if (t->call->judge != NULL)
		verdict = t->call->judge(t->call, &t->answer, &t->why);
	if (verdict == HTTP_JUDGE_AGAIN && counted(t) < 6 && may_repeat(t)) {
		keep_progress(t, 0);
		http_wait(t, clock_mono_ns());
	} else if (verdict < 0) {
		if (t->why.err == 0)
			http_why_status(t);
		http_end(t, verdict);
	} else {
		after_failure(t, 0, false, CURLE_OK);
	}
}

static void good_answer(struct http_transfer *t)
{
	struct http_call *c = t->call;

	http_transfer_stop(t);
	/* A part of the range, properly delivered: the rest is asked for. */
	if (c->delivery == HTTP_EXACT && t->got < c->len && t->answer.status < 300) {
		after_failure(t, ECONNRESET, false, CURLE_OK);
		return;
	}
	parallelism_good(&t->http->parallelism);
	http_end(t, 0);
}

static void status_decides(struct http_transfer *t)
{
	int status = t->answer.status;

	if (http_answer_redirects(t))
		follow(t);
	else if ((status >= 200 && status < 300) || status == 304 ||
		 (status >= 300 && status < 400 && t->call->no_follow &&
		  t->answer.location != NULL))
		good_answer(t);
	else
		bad_status(t);
}

/* A callback stopped curl on purpose. */
static void stopped(struct http_transfer *t)
{
	int err = -t->err;

	http_transfer_stop(t);
	if (t->restart && t->call->given > 0) {
		/* What others have of it cannot be taken back. */
		http_end(t, why_set(&t->why, ESTALE, "an object was another one halfway through"));
		return;
	}
	if (t->restart) {
		t->why.err = 0;
		after_failure(t, ECONNRESET, false, CURLE_OK);
		return;
	}
	if (t->why.err == 0)
		why_set(&t->why, err, "the answer was not accepted: %s", strerrordesc_np(err));
	after_failure(t, err, false, CURLE_OK);
}

/* Every byte of the range came, even if the connection's end was not a nice one. */
static bool all_there(const struct http_transfer *t)
{
	return t->headers_done && t->sink == SINK_CALLER && t->call->delivery == HTTP_EXACT &&
	       t->got == t->call->len;
}

void http_call_hop_done(struct http_transfer *t, CURLcode code)
{
	struct http_counters *n = &t->http->counters;
	int status = t->answer.status, err;
	bool unsent = false;

	http_count(&n->by_class[t->headers_done && status < 600 ? status / 100 : 0], 1);
	if (__atomic_load_n(&t->cancelled, __ATOMIC_RELAXED)) {
		http_transfer_stop(t);
		http_end(t, http_why_error(t, ECANCELED, code));
		return;
	}
	if (t->err != 0) {
		stopped(t);
		return;
	}
	resolve_location(t, &t->why);
	if (t->complete || (code == CURLE_OK && t->headers_done) || all_there(t)) {
		status_decides(t);
		return;
	}
	/* An error's body may break off: its status says enough. */
	if (t->headers_done && status >= 300) {
		status_decides(t);
		return;
	}
	err = http_transfer_errno(t, code, &unsent);
	http_transfer_stop(t);
	t->why.err = 0;
	after_failure(t, err != 0 ? err : EPROTO, unsent, code);
}

void http_call_timed_out(struct http_transfer *t)
{
	http_count(&t->http->counters.by_class[0], 1);
	http_transfer_stop(t);
	t->why.err = 0;
	after_failure(t, ETIMEDOUT, false, CURLE_OK);
}
