/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A static web server as a store: opening and reading.
 *
 * A handle pins the identity that the listing made from the server's validators.  Every range asks
 * with If-Match (or If-Unmodified-Since), which servers may ignore; so every answer's validators
 * and total size are compared, too, and bytes of anything else are not handed out: -ESTALE.
 *
 * A server may redirect to another host; conditions go to the root's origin only, the comparison
 * holds everywhere.
 *
 * Threads: any; what follows an answer runs on the network thread.
 */
#include "cache/remote/store_http.h"

#include <stdlib.h>
#include <strings.h>

#include "cache/clock.h"
#include "cache/remote/keys.h"
#include "cache/remote/store_http_private.h"

static const int64_t CALL_NS = 30 * NSEC_PER_SEC;
static const int64_t FETCH_NS = 60 * NSEC_PER_SEC;

struct web_handle {
	struct handle base;
	char *key;
	char *etag, *modified; /* for conditions; NULL: not known */
	struct identity id;
};

struct range {
	struct web_call c; /* first */
	struct web_handle *handle;
	struct fetch *fetch;
};

/* ---- calls ---- */

static int build(struct http_call *call, const struct http_hop *hop, struct request *out,
		 struct why *why)
{
	struct web_call *c = (struct web_call *)call;

	if (live_stopping(&c->web->live))
		return why_set(why, ECANCELED, "going down");
	out->method = c->method;
	if (hop->number > 0)
		out->method = hop->method;
	request_set_url(out, hop->number == 0 ? c->url : hop->url);
	request_set_header(out, "Accept", "*/*");
	if (hop->number > 0 && !hop->trusted)
		return 0;
	if (c->if_match != NULL)
		request_set_header(out, "If-Match", c->if_match);
	if (c->if_unmodified_since != NULL)
		request_set_header(out, "If-Unmodified-Since", c->if_unmodified_since);
	if (c->if_none_match != NULL)
		request_set_header(out, "If-None-Match", c->if_none_match);
	if (c->if_modified_since != NULL)
		request_set_header(out, "If-Modified-Since", c->if_modified_since);
	return 0;
}

void web_call_init(struct web_call *c, struct web *web, char *url)
{
	*c = (struct web_call){.web = web, .url = url, .method = METHOD_GET};
	c->live.call.build = build;
	c->live.call.origin = web->origin;
	c->live.call.deadline_mono_ns = clock_mono_ns() + CALL_NS;
}

void web_call_release(struct web_call *c)
{
	http_call_release(&c->live.call);
	free(c->url);
	c->url = NULL;
}

char *web_url(const struct web *web, const char *key, bool directory)
{
	struct buf b = {0};
	char *text;

	buf_addf(&b, "%s/", web->root);
	url_encode(&b, key, strlen(key), true);
	if (directory && *key != '\0')
		buf_add(&b, "/", 1);
	buf_add(&b, "", 1);
	text = b.failed ? NULL : buf_detach(&b, NULL);
	buf_release(&b);
	return text;
}

const char *web_strong_etag(const struct http_answer *a)
{
	const char *etag = http_header(a, "ETag");

	return etag != NULL && etag[0] == '"' ? etag : NULL;
}

/* Servers make ETags of size and time, so two objects may have the same: the name is part of it. */
static bool identity_from(const struct web *web, const char *key, const char *kind,
			  const char *text, uint64_t size, struct identity *out)
{
	struct buf b = {0};
	bool good;

	buf_addf(&b, "%s/%s\n%llu\n%s", web->root, key, (unsigned long long)size, text);
	good = !b.failed;
	if (good)
		identity_of_text(kind, b.data, b.len, out);
	buf_release(&b);
	return good;
}

bool web_identity_of_etag(const struct web *web, const char *key, const char *etag, uint64_t size,
			  struct identity *out)
{
	return identity_from(web, key, "etag", etag, size, out);
}

bool web_identity(const struct web *web, const char *key, const struct http_answer *a,
		  uint64_t size, struct identity *out)
{
	const char *etag = web_strong_etag(a), *modified = http_header(a, "Last-Modified");

	if (etag != NULL)
		return web_identity_of_etag(web, key, etag, size, out);
	return modified != NULL && identity_from(web, key, "modified", modified, size, out);
}

/* ---- handles ---- */

static void handle_free(struct handle *handle)
{
	struct web_handle *h = (struct web_handle *)handle;

	free(h->key);
	free(h->etag);
	free(h->modified);
	free(h);
}

static int open_object(struct store *s, const struct object *object, struct handle **out,
		       struct why *why)
{
	struct web *web = (struct web *)s;
	struct web_handle *h = calloc(1, sizeof(*h));
	const struct web_object *known;

	if (h == NULL)
		return why_set(why, ENOMEM, "out of memory");
	h->base.store = s;
	h->base.size = object->size;
	h->id = object->id;
	h->key = strdup(object->key);
	lock_take(&web->lock);
	known = web->known != NULL ? table_get_str(web->known, object->key) : NULL;
	/* Without them (a listing of an earlier process) the answers are compared all the same. */
	if (known != NULL && identity_equal(&known->id, &object->id)) {
		h->etag = known->etag != NULL ? strdup(known->etag) : NULL;
		h->modified = known->modified != NULL ? strdup(known->modified) : NULL;
	}
	lock_release(&web->lock);
	if (h->key == NULL) {
		handle_free(&h->base);
		return why_set(why, ENOMEM, "out of memory");
	}
	*out = &h->base;
	return 0;
}

/* ---- reading ---- */

static void range_end(struct range *r, int err)
{
	struct fetch *f = r->fetch;

	web_call_release(&r->c);
	free(r);
	f->done(f, http_store_errno(err));
}

/* All bytes came; are they the handle's? */
static int range_check(const struct range *r, const struct http_answer *a)
{
	uint64_t total = a->ranged	  ? a->range.total
			 : a->length >= 0 ? (uint64_t)a->length
					  : r->handle->base.size;
	struct identity id;

	if (total != r->handle->base.size)
		return -ESTALE;
	if (!web_identity(r->c.web, r->handle->key, a, total, &id))
		return -EIO; /* nothing says whose bytes these are */
	return identity_equal(&id, &r->handle->id) ? 0 : -ESTALE;
}

static bool range_sound(struct http_call *call, const struct http_answer *a)
{
	return range_check((const struct range *)call, a) == 0;
}

static void range_more(struct http_call *call, size_t got)
{
	fetch_more(((struct range *)call)->fetch, got);
}

static void range_done(struct http_call *call)
{
	struct range *r = (struct range *)call;
	struct web *web = r->c.web;
	int err = call->err;

	live_ended(&web->live, &r->c.live);
	if (err == 0)
		err = range_check(r, &call->answer);
	if (err == -ESTALE || err == -ERANGE || err == -ENOENT) {
		lock_take(&web->lock);
		web->suspect = true;
		lock_release(&web->lock);
	}
	range_end(r, err);
}

static void fetch(struct fetch *f)
{
	struct web_handle *h = (struct web_handle *)f->handle;
	struct web *web = (struct web *)h->base.store;
	struct range *r = calloc(1, sizeof(*r));
	struct http_call *call;

	if (r == NULL) {
		f->done(f, -ENOMEM);
		return;
	}
	web_call_init(&r->c, web, web_url(web, h->key, false));
	r->handle = h;
	r->fetch = f;
	if (h->etag != NULL)
		r->c.if_match = h->etag;
	else
		r->c.if_unmodified_since = h->modified;
	call = &r->c.live.call;
	call->done = range_done;
	call->sound = range_sound;
	call->more = range_more;
	call->delivery = HTTP_EXACT;
	call->dst = f->dst;
	call->off = f->off;
	call->len = f->len;
	call->whole = f->off == 0 && f->len == h->base.size;
	call->class = f->background ? HTTP_BACKGROUND : HTTP_READ;
	call->patient = !f->background && f->deadline_mono_ns >= 0;
	call->deadline_mono_ns =
		f->deadline_mono_ns >= 0 ? f->deadline_mono_ns : clock_mono_ns() + FETCH_NS;
	if (r->c.url == NULL)
		range_end(r, -ENOMEM);
	else if (!live_submit(&web->live, &r->c.live))
		range_end(r, -ECANCELED);
}

/* ---- the store ---- */

static int list(struct store *s, const char *prefix, struct listing *out, struct why *why)
{
	return web_list((struct web *)s, prefix, out, why);
}

static void stop(struct store *s)
{
	live_stop(&((struct web *)s)->live);
}

static void release(struct store *s)
{
	struct web *web = (struct web *)s;

	live_stop(&web->live);
	web_forget(web);
	live_destroy(&web->live);
	lock_destroy(&web->lock);
	free(web->root);
	free(web->origin);
	free(web->base.name);
	free(web);
}

static void refresh(struct store *s)
{
	struct web *web = (struct web *)s;

	lock_take(&web->lock);
	web->suspect = true;
	lock_release(&web->lock);
}

static bool describe(struct store *s, struct buf *out)
{
	struct web *web = (struct web *)s;

	lock_take(&web->lock);
	if (web->index == WEB_OBJECTS)
		buf_addstr(out, "http: by index.json");
	else if (web->index == WEB_LISTINGS)
		buf_addf(out, "http: by the server's listings of %zu director%s", web->directories,
			 web->directories == 1 ? "y" : "ies");
	else
		buf_addstr(out, "http: no index seen yet");
	if (web->hidden > 0)
		buf_addf(out, "; %zu names left out", web->hidden);
	lock_release(&web->lock);
	return false;
}

static const struct store_ops http_ops = {
	.name = "http",
	.list = list,
	.open = open_object,
	.fetch = fetch,
	.close = handle_free,
	.free = release,
	.stop = stop,
	.refresh = refresh,
	.describe = describe,
};

static int set_root(struct web *web, const char *place, struct why *why)
{
	static const char index[] = "/index.json";
	struct url u = {0};
	struct buf root = {0}, origin = {0};
	size_t len;
	int rc = url_parse(place, &u, why);

	if (rc < 0)
		return rc;
	if (u.query != NULL) {
		url_release(&u);
		return why_set(why, EINVAL,
			       "a source on a web server is a directory: the address "
			       "must not have a query ('?')");
	}
	len = strlen(u.path);
	if (len >= sizeof(index) - 1 && strcmp(u.path + len - (sizeof(index) - 1), index) == 0)
		u.path[len - (sizeof(index) - 1)] = '\0';
	for (len = strlen(u.path); len > 0 && u.path[len - 1] == '/'; len--)
		u.path[len - 1] = '\0';
	url_format_origin(&u, &origin);
	buf_addstr(&root, buf_str(&origin));
	buf_addstr(&root, u.path);
	web->root = strdup(buf_str(&root));
	web->origin = strdup(buf_str(&origin));
	web->base.name = strdup(buf_str(&root));
	if (root.failed || origin.failed || web->root == NULL || web->origin == NULL ||
	    web->base.name == NULL)
		rc = why_set(why, ENOMEM, "out of memory");
	buf_release(&root);
	buf_release(&origin);
	url_release(&u);
	return rc;
}

int store_http_new(const char *place, struct http *http, struct store **out, struct why *why)
{
	struct web *web = calloc(1, sizeof(*web));
	int rc;

	if (web == NULL)
		return why_set(why, ENOMEM, "out of memory");
	web->base.ops = &http_ops;
	web->base.remote = true;
	live_init(&web->live, http);
	lock_init(&web->lock, LOCK_QUEUE);
	rc = set_root(web, place, why);
	if (rc < 0) {
		release(&web->base);
		return rc;
	}
	*out = &web->base;
	return 0;
}
