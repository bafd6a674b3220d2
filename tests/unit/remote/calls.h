/* SPDX-License-Identifier: Apache-2.0 */
/* Calls for the tests of the network client: a builder that sends a bearer token to its own origin
 * only, and what is common around it. */
#ifndef TESTS_UNIT_REMOTE_CALLS_H
#define TESTS_UNIT_REMOTE_CALLS_H

#include "tests/unit/remote/server.h"

#include "cache/clock.h"
#include "cache/remote/http.h"

struct plan { /* behind http_call.ctx */
	struct server *server;
	const char *path;
	enum method method;
	const char *body;
	const struct source *upload;
	bool leak; /* a builder with a mistake: credentials to everybody */
	int builds, hops;
	int again;   /* so many times the builder wants to begin again */
	int judged;  /* how often judge() was asked */
	int verdict; /* what it says */
	struct buf streamed;
	int unsound; /* so many answers sound() denies */
	size_t told; /* by more() */
	unsigned tellings;
	int data_err;	 /* what data() says */
	char linked[64]; /* X-Linked-Size of the redirect */
};

static inline int plan_build(struct http_call *c, const struct http_hop *hop, struct request *out,
			     struct why *why)
{
	struct plan *p = c->ctx;
	char url[512];

	p->builds++;
	p->hops = MAX(p->hops, (int)hop->number);
	if (p->again > 0) {
		p->again--;
		return -EAGAIN;
	}
	snprintf(url, sizeof(url), "%s%s", p->server->origin, p->path ? p->path : "/object");
	out->method = hop->number > 0 ? hop->method : p->method;
	request_set_url(out, hop->number > 0 ? hop->url : url);
	if (hop->number == 0 || hop->trusted || p->leak) {
		request_set_header(out, "Authorization", "Bearer marked-token");
		request_set_headerf(out, "X-Attempt", "%u", hop->attempt);
	}
	if (hop->via != NULL && http_header(hop->via, "x-linked-size") != NULL)
		snprintf(p->linked, sizeof(p->linked), "%s",
			 http_header(hop->via, "x-linked-size"));
	if (p->body != NULL && out->method != METHOD_GET)
		request_set_body(out, p->body, strlen(p->body));
	if (p->upload != NULL)
		request_set_body_source(out, p->upload);
	return 0;
}

static inline int plan_judge(struct http_call *c, const struct http_answer *a, struct why *why)
{
	struct plan *p = c->ctx;

	p->judged++;
	if (p->verdict < 0)
		return why_set(why, -p->verdict, "judged: %s",
			       buf_str((struct buf *)&a->error_body));
	return p->judged == 1 ? p->verdict : HTTP_JUDGE_POLICY;
}

static inline int plan_data(struct http_call *c, const void *bytes, size_t len)
{
	struct plan *p = c->ctx;

	buf_add(&p->streamed, bytes, len);
	return p->data_err;
}

static inline bool plan_sound(struct http_call *c, const struct http_answer *a)
{
	struct plan *p = c->ctx;

	return a->status < 300 && p->unsound-- <= 0;
}

/* What it is told of stays as it is. */
static inline void plan_more(struct http_call *c, size_t got)
{
	struct plan *p = c->ctx;

	assert_true(got > p->told && got <= c->len);
	assert_memory_equal(c->dst, p->server->object + c->off, got);
	p->told = got;
	p->tellings++;
}

static struct http_call plan_call(struct plan *p, struct server *s)
{
	p->server = s;
	return (struct http_call){.build = plan_build, .ctx = p, .origin = s->origin};
}

/* A client with short back-offs. */
static struct http *client(struct http_options o)
{
	struct http *h = NULL;
	struct why why = {0};

	if (o.retry.base_ms == 0)
		o.retry.base_ms = 1;
	if (o.retry.cap_ms == 0)
		o.retry.cap_ms = 4;
	if (http_new(&o, &h, &why) != 0)
		print_error("%s\n", why.text);
	assert_non_null(h);
	return h;
}

/* Fetches [off, off + len) and compares with the object.  Returns err. */
static inline int fetch_range(struct http *h, struct server *s, struct http_call *c, uint64_t off,
			      size_t len)
{
	char *dst = malloc(len);
	int err;

	c->delivery = HTTP_EXACT;
	c->dst = dst;
	c->off = off;
	c->len = len;
	err = http_run(h, c);
	if (err == 0 && c->answer.status < 300)
		assert_memory_equal(dst, s->object + off, len);
	free(dst);
	return err;
}

static inline void expect_range(struct server *s, unsigned i, const char *range)
{
	char line[80];

	snprintf(line, sizeof(line), "\r\nRange: bytes=%s\r\n", range);
	if (strstr(server_seen(s, i), line) == NULL)
		print_error("request %u has not %s but: %s\n", i, range, server_seen(s, i));
	assert_non_null(strstr(server_seen(s, i), line));
}

#endif
