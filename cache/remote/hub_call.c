/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to the Hub, and what its refusals mean.
 *
 * The token goes to the endpoint's origin only; the network client refuses everything else.  A
 * token that is not accepted is read again from its file before anybody is told, because files are
 * rotated.  Every answer says how much of the quota is left; that is kept for the status and for
 * the pace of probing.
 *
 * Sentences name the place as people write it and what to do, never a token and never what a server
 * wrote.  What is missing may be of another kind (a model where a bucket was named): that is asked
 * once more before the sentence is made, in the caller's thread.
 *
 * Threads: build and judge run on the network thread; a refused token's file is read there, which
 * is a few hundred bytes.
 */
#include "cache/remote/store_hub_private.h"

#include <stdlib.h>

#include "cache/clock.h"

enum { PAGE_MAX = 256 << 20 };
static const int64_t CALL_NS = 30 * NSEC_PER_SEC;

char *hub_text(struct buf *b)
{
	char *text;

	buf_add(b, "", 1);
	text = b->failed ? NULL : buf_detach(b, NULL);
	buf_release(b);
	return text;
}

void hub_call_init(struct hub_call *c, struct hub *hub, char *url)
{
	*c = (struct hub_call){.hub = hub, .url = url};
	c->live.call.build = hub_build;
	c->live.call.judge = hub_judge;
	c->live.call.origin = hub->place.endpoint;
	c->live.call.deadline_mono_ns = clock_mono_ns() + CALL_NS;
}

void hub_call_release(struct hub_call *c)
{
	http_call_release(&c->live.call);
	free(c->url);
	c->url = NULL;
}

int hub_build(struct http_call *call, const struct http_hop *hop, struct request *out,
	      struct why *why)
{
	struct hub_call *c = (struct hub_call *)call;
	char token[HUB_TOKEN_MAX];

	if (live_stopping(&c->hub->live))
		return why_set(why, ECANCELED, "going down");
	if (c->hub->offline)
		return why_set(why, ENETDOWN, "%s is not asked because HF_HUB_OFFLINE is set",
			       c->hub->base.name);
	request_set_url(out, hop->number == 0 ? c->url : hop->url);
	if (hop->number > 0)
		out->method = hop->method;
	if (c->post != NULL && (hop->number == 0 || hop->method == METHOD_POST)) {
		out->method = METHOD_POST;
		request_set_body(out, c->post, strlen(c->post));
		request_set_header(out, "Content-Type", "application/json");
	}
	request_set_header(out, "Accept", c->accept != NULL ? c->accept : "application/json");
	if (c->one_byte)
		request_set_range(out, 0, 1);
	if (hop->number > 0 && !hop->trusted)
		return 0;
	c->token = hub_token_get(c->hub->token, token);
	if (token[0] != '\0')
		request_set_headerf(out, "Authorization", "Bearer %s", token);
	explicit_bzero(token, sizeof(token));
	return 0;
}

static int say_unauthorized(struct hub *hub, struct why *why)
{
	const char *origin = hub_token_origin(hub->token);

	if (origin != NULL)
		return why_set(why, EACCES,
			       "%s: the Hub does not accept the token from %s: it has expired or "
			       "was revoked; make a new one at %s/settings/tokens",
			       hub->base.name, origin, hub->place.endpoint);
	return why_set(why, EACCES,
		       "%s is private or does not exist, and there is no token: set HF_TOKEN, "
		       "give --token-file, or log in with `hf auth login`",
		       hub->base.name);
}

static int say_forbidden(struct hub *hub, const char *code, struct why *why)
{
	const char *origin = hub_token_origin(hub->token);
	struct buf web = {0};

	hub_url_web(&hub->place, &web);
	if (code != NULL && strcmp(code, "GatedRepo") == 0)
		why_set(why, EACCES,
			"%s is gated: accept its conditions at %s with the account %s%s",
			hub->base.name, buf_str(&web),
			origin != NULL ? "of the token from " : "whose token you give in HF_TOKEN",
			origin != NULL ? origin : "");
	else
		why_set(why, EACCES,
			"%s: access is refused; the token from %s needs read access to it",
			hub->base.name, origin != NULL ? origin : "nowhere");
	buf_release(&web);
	return -EACCES;
}

int hub_judge(struct http_call *call, const struct http_answer *a, struct why *why)
{
	struct hub_call *c = (struct hub_call *)call;
	const char *code = http_header(a, "X-Error-Code");
	struct hub *hub = c->hub;

	if (a->status == 401 && hub_token_refused(hub->token, c->token))
		return HTTP_JUDGE_AGAIN;
	/* A gated repository answers 401 to those without a token. */
	if ((a->status == 401 || a->status == 403) && code != NULL &&
	    strcmp(code, "GatedRepo") == 0)
		return say_forbidden(hub, code, why);
	if (a->status == 401)
		return say_unauthorized(hub, why);
	if (a->status == 403)
		return say_forbidden(hub, code, why);
	if (a->status == 404 && code != NULL && strcmp(code, "RevisionNotFound") == 0)
		return why_set(why, ENODATA, "%s has no revision %s", hub->base.name,
			       hub->place.revision != NULL ? hub->place.revision : "of that name");
	return HTTP_JUDGE_POLICY;
}

void hub_note(struct hub *hub, enum hub_quota quota, const struct http_answer *a)
{
	struct rate_limit limit;

	if (!field_rate_limit(http_header(a, "RateLimit"), &limit))
		return;
	field_rate_limit_policy(http_header(a, "RateLimit-Policy"), &limit);
	lock_take(&hub->lock);
	hub->quota[quota].limit = limit;
	hub->quota[quota].seen_ns = clock_mono_ns();
	lock_release(&hub->lock);
}

int hub_run(struct hub_call *c, struct why *why)
{
	int rc = live_run(&c->hub->live, &c->live);

	hub_note(c->hub, c->quota, &c->live.call.answer);
	if (rc < 0 && why != NULL)
		*why = c->live.call.why;
	return rc;
}

/* The next page's URL, which gets the token: it must be the endpoint's. */
static int next_page(struct hub_call *c, char **out, struct why *why)
{
	const char *link = http_header(&c->live.call.answer, "Link");
	char *next = NULL, *full = NULL;
	int rc;

	*out = NULL;
	if (link == NULL)
		return 0;
	rc = field_link(link, "next", &next);
	if (rc == -ENOENT)
		return 0;
	if (rc == 0)
		rc = url_resolve(c->url, next, &full, NULL);
	free(next);
	if (rc == -ENOMEM)
		return why_set(why, ENOMEM, "out of memory");
	if (rc < 0 || !url_text_same_origin(full, c->hub->place.endpoint) ||
	    strcmp(full, c->url) == 0) {
		free(full);
		return why_set(why, EPROTO,
			       "%s: the listing goes on at an address that is not the Hub's",
			       c->hub->base.name);
	}
	*out = full;
	return 0;
}

static int ask_json(struct hub *hub, char *url, const char *post, json_t **out, char **out_next,
		    struct why *why)
{
	struct buf body = {0};
	struct hub_call c;
	json_error_t error;
	int rc;

	if (url == NULL)
		return why_set(why, ENOMEM, "out of memory");
	hub_call_init(&c, hub, url);
	c.post = post;
	c.live.call.repeatable = true;
	c.live.call.delivery = HTTP_BUFFER;
	c.live.call.buffer = &body;
	c.live.call.buffer_max = PAGE_MAX;
	rc = hub_run(&c, why);
	if (rc == 0) {
		*out = json_loadb(body.data != NULL ? body.data : "", body.len, 0, &error);
		if (*out == NULL)
			rc = why_set(why, EPROTO, "%s: the Hub's answer is not JSON",
				     hub->base.name);
	}
	if (rc == 0 && out_next != NULL) {
		rc = next_page(&c, out_next, why);
		if (rc < 0)
			json_decref(*out);
	}
	hub_call_release(&c);
	buf_release(&body);
	return rc;
}

int hub_get_json(struct hub *hub, char *url, json_t **out, char **out_next, struct why *why)
{
	return ask_json(hub, url, NULL, out, out_next, why);
}

int hub_post_json(struct hub *hub, char *url, const char *body, json_t **out, struct why *why)
{
	return ask_json(hub, url, body, out, NULL, why);
}

/* Does the Hub know the id as one of this kind? */
static bool exists_as(struct hub *hub, enum hub_kind kind)
{
	struct buf url = {0};
	struct hub_call c;
	int rc;

	hub_url_other(&hub->place, kind, &url);
	hub_call_init(&c, hub, hub_text(&url));
	if (c.url == NULL)
		return false;
	c.live.call.delivery = HTTP_DISCARD;
	c.live.call.once = true;
	c.live.call.deadline_mono_ns = clock_mono_ns() + 10 * NSEC_PER_SEC;
	rc = hub_run(&c, NULL);
	hub_call_release(&c);
	return rc == 0;
}

int hub_explain_missing(struct hub *hub, struct why *why)
{
	struct buf other = {0};
	const char *token = hub_token_origin(hub->token);

	for (int k = 0; k < HUB_KINDS && strchr(hub->place.id, '/') != NULL; k++) {
		if ((enum hub_kind)k == hub->place.kind || !exists_as(hub, (enum hub_kind)k))
			continue;
		hub_place_uri((enum hub_kind)k, hub->place.id, &other);
		why_set(why, ENOENT, "there is no %s %s, but a %s of that name: use %s",
			hub_kind_name(hub->place.kind), hub->place.id,
			hub_kind_name((enum hub_kind)k), buf_str(&other));
		buf_release(&other);
		return -ENOENT;
	}
	return why_set(why, ENOENT, "%s does not exist, or %s%s", hub->base.name,
		       token != NULL ? "is not to be seen with the token from "
				     : "is private: set HF_TOKEN or give --token-file",
		       token != NULL ? token : "");
}
