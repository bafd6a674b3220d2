/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls to engines over cache/remote/http.h, which has the one thread of the network.
 *
 * A call is made once: the plan knows what a repetition means, the transport does not.  Redirects
 * are an answer like any other.  When a call has ended, the network thread puts it into a queue and
 * makes an eventfd readable; everything else happens in the thread that polls it.
 *
 * A key that a server repeats (in an error, say) is blotted out before anybody sees the body.
 *
 * The only file of the tools that names what is in cache/remote.
 */
#include "tools/follow_http.h"

#include "cache/clock.h"
#include "cache/lock.h"
#include "cache/remote/http.h"
#include "cache/remote/url.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { BODY_MAX = 4 << 20, CONNECT_MS = 10 * 1000 };

struct follow_http {
	struct http *http;
	char *key;    /* NULL: none */
	int event_fd; /* readable: the queue is not empty */

	struct lock lock; /* LOCK_QUEUE; guards: */
	struct follow_call *ended;
};

struct follow_call {
	struct http_call call; /* first: done() gets this */
	struct follow_http *home;
	struct follow_call *next;
	struct engine_request request;
	char *origin, *url; /* the replica's, and with the target */
	struct buf body;
	void *ctx;
};

int follow_http_url(const char *text, struct buf *out, struct why *why)
{
	struct url u;
	size_t len;
	int ret = url_parse(text, &u, why);

	if (ret < 0)
		return ret;
	if (u.query != NULL) {
		url_release(&u);
		return why_set(why, EINVAL, "the URL of an engine has no query");
	}
	url_format_origin(&u, out);
	len = strlen(u.path);
	while (len > 0 && u.path[len - 1] == '/')
		len--;
	buf_add(out, u.path, len);
	url_release(&u);
	return out->failed ? why_set(why, ENOMEM, "out of memory") : 0;
}

/* ---- the network thread ---- */

static int build(struct http_call *call, const struct http_hop *hop, struct request *out,
		 struct why *why)
{
	struct follow_call *c = (struct follow_call *)call;
	const char *key = c->home->key;

	out->method = c->request.post ? METHOD_POST : METHOD_GET;
	request_set_url(out, c->url);
	request_set_header(out, "Accept", "application/json");
	if (key != NULL)
		request_set_headerf(out, "Authorization", "Bearer %s", key);
	if (c->request.post) {
		request_set_header(out, "Content-Type", "application/json");
		request_set_body(out, c->request.body.data, c->request.body.len);
	}
	/* The transport's own sentence would show the value. */
	if (out->failed == -EINVAL)
		return why_set(why, EINVAL, "the key has bytes that no header may have");
	return out->failed;
}

static void done(struct http_call *call)
{
	struct follow_call *c = (struct follow_call *)call;
	struct follow_http *h = c->home;
	const uint64_t one = 1;

	lock_take(&h->lock);
	c->next = h->ended;
	h->ended = c;
	lock_release(&h->lock);
	/* Can only fail when the counter is full, and then it is readable. */
	(void)!write(h->event_fd, &one, sizeof(one));
}

/* ---- the caller's ---- */

int follow_http_new(const char *ca_file, const char *key, unsigned parallel,
		    struct follow_http **out, struct why *why)
{
	struct http_options options = {
		.ca_file = ca_file, .parallel = MAX(parallel, 1), .connect_ms = CONNECT_MS};
	struct follow_http *h = calloc(1, sizeof(*h));
	int ret;

	if (h == NULL)
		return why_set(why, ENOMEM, "out of memory");
	lock_init(&h->lock, LOCK_QUEUE);
	h->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	ret = h->event_fd < 0 ? why_set(why, errno, "no event descriptor") : 0;
	if (ret == 0 && key != NULL && (h->key = strdup(key)) == NULL)
		ret = why_set(why, ENOMEM, "out of memory");
	if (ret == 0)
		ret = http_new(&options, &h->http, why);
	if (ret < 0) {
		follow_http_free(h);
		return ret;
	}
	*out = h;
	return 0;
}

void follow_http_free(struct follow_http *h)
{
	struct follow_call *c;

	if (h == NULL)
		return;
	http_free(h->http);
	while ((c = follow_http_next(h)) != NULL)
		follow_call_free(c);
	if (h->event_fd >= 0)
		close(h->event_fd);
	if (h->key != NULL)
		explicit_bzero(h->key, strlen(h->key));
	free(h->key);
	lock_destroy(&h->lock);
	free(h);
}

int follow_http_start(struct follow_http *h, const char *url, struct engine_request *request,
		      int64_t timeout_ns, void *ctx, struct follow_call **out)
{
	struct follow_call *c = calloc(1, sizeof(*c));
	struct buf full = {0};

	if (c == NULL || request->body.failed)
		goto no_memory;
	buf_addf(&full, "%s%s", url, request->target);
	c->url = full.failed ? NULL : strdup(buf_str(&full));
	buf_release(&full);
	c->origin = strdup(url);
	if (c->url == NULL || c->origin == NULL)
		goto no_memory;
	c->home = h;
	c->ctx = ctx;
	c->request = *request;
	request->body = (struct buf){0};
	c->call = (struct http_call){
		.build = build,
		.done = done,
		.origin = c->origin,
		.delivery = HTTP_BUFFER,
		.buffer = &c->body,
		.buffer_max = BODY_MAX,
		.no_follow = true,
		.once = true,
		.deadline_mono_ns = clock_mono_ns() + timeout_ns,
		.inactivity_ms = timeout_ns / 1000000,
	};
	*out = c;
	http_submit(h->http, &c->call);
	return 0;
no_memory:
	if (c != NULL) {
		free(c->url);
		free(c->origin);
	}
	free(c);
	return -ENOMEM;
}

void follow_http_cancel(struct follow_http *h, struct follow_call *c)
{
	http_cancel(h->http, &c->call);
}

int follow_http_fd(const struct follow_http *h)
{
	return h->event_fd;
}

struct follow_call *follow_http_next(struct follow_http *h)
{
	struct follow_call *c;
	uint64_t count;

	/* First, so that one that ends from here on makes it readable again. */
	(void)!read(h->event_fd, &count, sizeof(count));
	lock_take(&h->lock);
	c = h->ended;
	if (c != NULL)
		h->ended = c->next;
	lock_release(&h->lock);
	return c;
}

void *follow_call_ctx(const struct follow_call *c)
{
	return c->ctx;
}

static void blot(struct buf *b, const char *key)
{
	size_t len = key != NULL ? strlen(key) : 0;
	char *at = b->data;

	if (len == 0 || b->data == NULL)
		return;
	while ((at = memmem(at, b->len - (size_t)(at - b->data), key, len)) != NULL) {
		memset(at, '*', len);
		at += len;
	}
}

/* Before anything was sent: the server cannot have seen the request. */
static bool is_unsent(int err)
{
	return err == -ECONNREFUSED || err == -EHOSTUNREACH || err == -EKEYREJECTED ||
	       err == -ENETUNREACH || err == -EPERM || err == -EINVAL;
}

void follow_call_answer(struct follow_call *c, struct engine_answer *out, struct why *why)
{
	const struct http_call *call = &c->call;
	struct buf *body = call->answer.error_body.len > 0 ? &c->call.answer.error_body : &c->body;

	blot(body, c->home->key);
	*out = (struct engine_answer){.status = call->answer.status};
	/* An answer that came is an answer, whatever the transport thinks of its status; unless a
	 * 2xx was cut short. */
	if (call->err != 0 && (out->status == 0 || (out->status >= 200 && out->status < 300))) {
		out->err = call->err;
		out->connected = !is_unsent(call->err);
		*why = call->why;
	}
	out->body = buf_str(body);
	out->len = body->len;
}

void follow_call_free(struct follow_call *c)
{
	if (c == NULL)
		return;
	http_call_release(&c->call);
	buf_release(&c->request.body);
	buf_release(&c->body);
	free(c->url);
	free(c->origin);
	free(c);
}
