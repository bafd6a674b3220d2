/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request to S3: credentials, signature, and the repairs that a client is expected to make.
 *
 *   submit -> credentials (may wait for the thread that renews them) -> network -> finish
 *
 * Repaired at once, each a limited number of times: another region (named by a header, by the
 * error's body, or by the endpoint in it), a clock that is off, a redirect within the family (same
 * origin, or from AWS to AWS), a conflict of conditional writes.  Credentials that the server calls
 * expired are renewed once and the request sent again.  SlowDown, 5xx and broken connections are
 * the network client's business.
 *
 * A request is built from scratch for each attempt, with the time of that moment.
 */
#include <stdlib.h>

#include "cache/clock.h"
#include "cache/remote/sigv4.h"
#include "cache/remote/store_s3_private.h"
#include "cache/thread.h"

enum { REGIONS_MAX = 2, MOVES_MAX = 3, REPEATS_MAX = 3 };

static void get_region(struct s3_store *s, char out[S3_REGION_CAP])
{
	lock_take(&s->lock);
	memcpy(out, s->region, S3_REGION_CAP);
	lock_release(&s->lock);
}

/* ---- building ---- */

static int build_plain(struct s3_call *c, struct request *out)
{
	out->method = c->method;
	request_set_url(out, c->link);
	return 0;
}

static int set_url(struct s3_call *c, struct request *out)
{
	struct buf url = {0};

	get_region(c->s3, c->region);
	if (c->moved_to != NULL)
		buf_addstr(&url, c->moved_to);
	else
		s3_place_url(&c->s3->place, c->region, c->key, c->query, &url);
	request_set_url(out, buf_str(&url));
	free(c->origin);
	c->origin = url.failed ? NULL : strdup(buf_str(&url));
	c->live.call.origin = c->origin;
	if (url.failed || c->origin == NULL)
		out->failed = -ENOMEM;
	buf_release(&url);
	return out->failed;
}

static void set_headers(const struct s3_call *c, struct request *out)
{
	if (c->if_match != NULL)
		request_set_headerf(out, "If-Match", "\"%s\"", c->if_match);
	if (c->if_none_match != NULL)
		request_set_header(out, "If-None-Match", c->if_none_match);
	if (c->s3->request_payer)
		request_set_header(out, "x-amz-request-payer", "requester");
	if (c->method == METHOD_PUT)
		request_set_header(out, "Content-Type", "application/octet-stream");
	if (c->method == METHOD_POST)
		request_set_header(out, "Content-Type", "application/xml");
	if (c->probe)
		request_set_range(out, 0, 1);
	if (c->method == METHOD_PUT || c->method == METHOD_POST)
		request_set_body(out, c->body_len > 0 ? c->body : "", c->body_len);
}

static int build(struct http_call *http, const struct http_hop *hop, struct request *out,
		 struct why *why)
{
	struct s3_call *c = (struct s3_call *)http;
	struct sigv4_scope scope = {.service = "s3"};
	struct sigv4_keys keys;

	if (live_stopping(&c->s3->live))
		return why_set(why, ECANCELED, "shutting down");
	if (c->link != NULL)
		return build_plain(c, out);
	out->method = c->method;
	if (set_url(c, out) < 0)
		return out->failed;
	set_headers(c, out);
	if (out->failed < 0 || c->set->anonymous)
		return out->failed;
	keys = (struct sigv4_keys){
		.access_key = c->set->access_key,
		.secret_key = c->set->secret_key,
		.session_token = c->set->session_token,
	};
	scope.region = c->region;
	scope.time_s =
		clock_real_ns() / NSEC_PER_SEC + __atomic_load_n(&c->s3->skew_s, __ATOMIC_RELAXED);
	scope.payload_hash = c->body_hash[0] != '\0' ? c->body_hash : NULL;
	return sigv4_sign(out, &keys, &scope);
}

/* ---- judging ---- */

/* The region in "bucket.s3-eu-west-1.amazonaws.com" or "s3.eu-west-1.amazonaws.com". */
static bool region_of_endpoint(const char *endpoint, char out[S3_REGION_CAP])
{
	const char *end = strstr(endpoint, ".amazonaws.com"), *p = endpoint;
	size_t n;

	if (strncmp(p, "s3-", 3) != 0 && strncmp(p, "s3.", 3) != 0) {
		p = strstr(endpoint, ".s3");
		p = p != NULL ? p + 1 : NULL;
	}
	if (end == NULL || p == NULL || p + 3 >= end || (p[2] != '-' && p[2] != '.'))
		return false;
	n = (size_t)(end - p) - 3;
	if (n >= S3_REGION_CAP)
		return false;
	memcpy(out, p + 3, n);
	out[n] = '\0';
	return true;
}

/* The answer names another region than the request was signed for. */
static bool learn_region(struct s3_call *c, const struct http_answer *a, const struct s3_error *e)
{
	const char *named = http_header(a, "x-amz-bucket-region");
	char region[S3_REGION_CAP] = "";

	if (a->status != 301 && a->status != 307 && a->status != 400 && a->status != 403)
		return false;
	if (named == NULL)
		named = e->region;
	if (named == NULL && e->endpoint != NULL && region_of_endpoint(e->endpoint, region))
		named = region;
	if (named == NULL || !s3_region_valid(named) || strcmp(named, c->region) == 0 ||
	    c->regions >= REGIONS_MAX)
		return false;
	c->regions++;
	lock_take(&c->s3->lock);
	memset(c->s3->region, 0, S3_REGION_CAP);
	memcpy(c->s3->region, named, strlen(named));
	lock_release(&c->s3->lock);
	return true;
}

static bool learn_time(struct s3_call *c, const struct http_answer *a, const struct s3_error *e)
{
	const char *date = http_header(a, "Date");
	int64_t server, skew;

	if (a->status != 403 || !s3_error_is(e, "RequestTimeTooSkewed") || c->skewed ||
	    date == NULL || field_http_date(date, &server) < 0)
		return false;
	c->skewed = true;
	skew = server - clock_real_ns() / NSEC_PER_SEC;
	__atomic_store_n(&c->s3->skew_s, skew, __ATOMIC_RELAXED);
	return true;
}

static bool is_expired(const struct s3_error *e)
{
	static const char *const codes[] = {
		"ExpiredToken",		"ExpiredTokenException", "InvalidToken",
		"TokenRefreshRequired", "RequestExpired",
	};

	for (size_t i = 0; i < ARRAY_LEN(codes); i++)
		if (s3_error_is(e, codes[i]))
			return true;
	return false;
}

static bool is_transient(int status)
{
	return status == 408 || status == 429 || status >= 500;
}

static int judge(struct http_call *http, const struct http_answer *a, struct why *why)
{
	struct s3_call *c = (struct s3_call *)http;
	struct s3_error e = {0};
	int verdict;

	if (c->link != NULL || is_transient(a->status))
		return HTTP_JUDGE_POLICY;
	s3_error_parse(a->error_body.data, a->error_body.len, &e);
	if (learn_region(c, a, &e) || learn_time(c, a, &e))
		verdict = HTTP_JUDGE_AGAIN;
	else if (s3_error_is(&e, "SlowDown"))
		verdict = HTTP_JUDGE_POLICY;
	else if ((s3_error_is(&e, "RequestTimeout") || s3_error_is(&e, "OperationAborted") ||
		  s3_error_is(&e, "ConditionalRequestConflict")) &&
		 c->repeats++ < REPEATS_MAX)
		verdict = HTTP_JUDGE_AGAIN;
	else if (is_expired(&e) && !c->renewed && !c->set->anonymous)
		verdict = why_set(why, EKEYEXPIRED, "the credentials have expired");
	else
		verdict = s3_why(c, a->status, &e, why);
	s3_error_release(&e);
	return verdict;
}

/* ---- the life of a call ---- */

static void fail(struct s3_call *c, int err, const char *text)
{
	c->live.call.err = why_set(&c->live.call.why, -err, "%s", text);
	c->finish(c);
}

static void send_it(struct s3_call *c)
{
	if (!live_submit(&c->s3->live, &c->live))
		fail(c, -ECANCELED, "shutting down");
}

static void on_ready(struct credential_ask *ask)
{
	struct s3_call *c = (struct s3_call *)((char *)ask - offsetof(struct s3_call, ask));
	char shown[200];

	credential_set_unref(c->set);
	c->set = ask->set;
	ask->set = NULL;
	if (ask->err < 0) {
		s3_show(c->s3, NULL, shown, sizeof(shown));
		c->live.call.err =
			why_set(&c->live.call.why, -ask->err, "%s: %s", shown, ask->why.text);
		c->finish(c);
		return;
	}
	send_it(c);
}

/* Credentials that the server calls expired: newer ones, and once more. */
static void renew(struct s3_call *c)
{
	c->renewed = true;
	http_call_release(&c->live.call);
	c->ask.newer_than = c->set->generation;
	credentials_ask(c->s3->credentials, &c->ask);
}

/* A redirect that stays in the family. */
static bool move(struct s3_call *c)
{
	const char *to = c->live.call.answer.location;

	if (!s3_call_redirected(c) || c->link != NULL || c->moves >= MOVES_MAX ||
	    (!url_text_same_origin(c->origin, to) && !s3_place_both_aws(c->origin, to)))
		return false;
	c->moves++;
	free(c->moved_to);
	c->moved_to = strdup(to);
	http_call_release(&c->live.call);
	if (c->moved_to == NULL)
		fail(c, -ENOMEM, "out of memory");
	else
		send_it(c);
	return true;
}

static void on_done(struct http_call *http)
{
	struct s3_call *c = (struct s3_call *)http;

	live_ended(&c->s3->live, &c->live);
	if (http->err == -EKEYEXPIRED && !c->renewed)
		renew(c);
	else if (!move(c))
		c->finish(c);
}

bool s3_call_redirected(const struct s3_call *c)
{
	int status = c->live.call.answer.status;

	return c->live.call.err == 0 && status >= 300 && status < 400 && status != 304 &&
	       c->live.call.answer.location != NULL;
}

void s3_call_submit(struct s3_call *c)
{
	c->live.call.build = build;
	c->live.call.judge = judge;
	c->live.call.done = on_done;
	c->live.call.no_follow = true;
	c->live.call.repeatable = true;
	c->ask.ready = on_ready;
	if (c->method == METHOD_PUT || c->method == METHOD_POST)
		sigv4_sha256_hex(c->body_len > 0 ? c->body : "", c->body_len, c->body_hash);
	if (c->link != NULL)
		send_it(c);
	else
		credentials_ask(c->s3->credentials, &c->ask);
}

void s3_call_release(struct s3_call *c)
{
	http_call_release(&c->live.call);
	credential_set_unref(c->set);
	c->set = NULL;
	free(c->origin);
	free(c->moved_to);
	c->origin = c->moved_to = NULL;
	c->live.call.origin = NULL;
}

static void wake(struct s3_call *c)
{
	event_happen(c->ctx);
}

int s3_call_run(struct s3_call *c, struct why *why)
{
	char shown[200], to[200];
	struct event ended;

	event_init(&ended);
	c->finish = wake;
	c->ctx = &ended;
	s3_call_submit(c);
	event_wait(&ended);
	if (c->purpose == S3_WRITE || c->purpose == S3_DELETE)
		s3_probe_forget(c->s3);
	if (c->live.call.err < 0)
		return why_set(why, -c->live.call.err, "%s", c->live.call.why.text);
	if (s3_call_redirected(c))
		return why_set(why, EPROTO, "%s: redirected to %s: give that as --endpoint-url",
			       s3_show(c->s3, NULL, shown, sizeof(shown)),
			       url_show(to, sizeof(to), c->live.call.answer.location));
	return 0;
}
