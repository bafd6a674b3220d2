/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading files of the Hub.
 *
 * A handle resolves once: the Hub's answer says which content it is about (X-Xet-Hash, or the hash
 * in X-Linked-ETag) and where the bytes are, a signed URL on another host that is good for about an
 * hour and, being named after the content, keeps giving these bytes when the file is overwritten.
 * All ranges of the handle go to that captured URL, without a credential.  When it is refused, the
 * handle resolves again; if the content is another one by then, the fetch ends with -ESTALE.  So
 * bytes of two versions cannot meet in one handle.
 *
 *	no URL -> resolving (fetches wait in line) -> URL captured -> refused: no URL
 *
 * Small files of repositories are not redirected (or only within the Hub): the resolved URL itself
 * gives the bytes, with the token, and every answer is compared with the pinned identity.
 *
 * Sizes come from X-Linked-Size; Content-Length of a redirect is that of its own body.
 *
 * Threads: fetches come from any; what follows an answer happens on the network thread.  A handle
 * is used only while one of its fetches is not yet done, since its owner may close it then.
 */
#include <stdlib.h>
#include <strings.h>

#include "cache/clock.h"
#include "cache/remote/keys.h"
#include "cache/remote/store_hub_private.h"

enum { REFUSALS_MAX = 4, HOPS_MAX = 5 };
static const int64_t FETCH_NS = 60 * NSEC_PER_SEC;

struct resolve {
	struct hub_call c; /* first */
	struct hub_handle *handle;
	unsigned hops;
	bool direct;  /* c.url gives the bytes itself */
	bool matched; /* an answer said that this is our content */
};

struct hub_handle {
	struct handle base;
	char *key;
	char *commit; /* repositories */
	struct identity id;
	struct lock lock; /* LOCK_QUEUE; guards what follows */
	char *url;	  /* captured; NULL: none */
	bool direct;	  /* url is the Hub's own */
	uint64_t seq;	  /* grows with each captured URL */
	bool resolving;
	struct range *waiting;	/* for the URL */
	struct resolve resolve; /* while resolving: the call's */
};

/* A fetch under way. */
struct range {
	struct hub_call c; /* first; c.url: a copy of the captured one */
	struct hub_handle *handle;
	struct fetch *fetch;
	struct range *next; /* in line */
	uint64_t seq;
	bool direct;
	unsigned refused;
	int64_t deadline_ns;
};

void hub_identity_xet(const char *hash, struct identity *out)
{
	char lower[64];
	size_t len = MIN(strlen(hash), sizeof(lower));

	for (size_t i = 0; i < len; i++)
		lower[i] = hash[i] >= 'A' && hash[i] <= 'F' ? (char)(hash[i] + 32) : hash[i];
	identity_of_text("xet", lower, len, out);
}

void hub_identity_oid(const char *oid, struct identity *out)
{
	identity_of_text(strlen(oid) == 64 ? "sha256" : "git", oid, strlen(oid), out);
}

/* ---- open, close ---- */

int hub_open(struct store *s, const struct object *object, struct handle **out, struct why *why)
{
	struct hub *hub = (struct hub *)s;
	struct hub_handle *h = calloc(1, sizeof(*h));

	if (h == NULL)
		return why_set(why, ENOMEM, "out of memory");
	h->base.store = s;
	h->base.size = object->size;
	h->id = object->id;
	lock_init(&h->lock, LOCK_QUEUE);
	h->key = strdup(object->key);
	if (h->key != NULL && hub->place.kind != HUB_BUCKET) {
		/* Before the first listing (one from an earlier process was used): the revision as
		 * it was given, and the identity is checked as always. */
		lock_take(&hub->lock);
		h->commit = strdup(hub->state != NULL ? hub->state : hub->place.revision);
		lock_release(&hub->lock);
	}
	if (h->key == NULL || (hub->place.kind != HUB_BUCKET && h->commit == NULL)) {
		hub_close(&h->base);
		return why_set(why, ENOMEM, "out of memory");
	}
	*out = &h->base;
	return 0;
}

void hub_close(struct handle *handle)
{
	struct hub_handle *h = (struct hub_handle *)handle;

	lock_destroy(&h->lock);
	free(h->key);
	free(h->commit);
	free(h->url);
	free(h);
}

/* ---- what an answer says of its content ---- */

/* "\"abc\"", "W/\"abc\"" -> abc; length 0: none. */
static const char *bare_etag(const char *value, size_t *len)
{
	*len = 0;
	if (value == NULL)
		return NULL;
	if (strncmp(value, "W/", 2) == 0)
		value += 2;
	if (*value == '"')
		value++;
	*len = strcspn(value, "\"");
	return value;
}

static bool etag_is(const char *value, const struct identity *id)
{
	char oid[65];
	struct identity other;
	size_t len;

	value = bare_etag(value, &len);
	if (len != 40 && len != 64)
		return false;
	memcpy(oid, value, len);
	oid[len] = '\0';
	hub_identity_oid(oid, &other);
	return identity_equal(&other, id);
}

/* 1: the pinned content; 0: it does not say; -1: another. */
static int content_of(const struct hub *hub, const struct http_answer *a, const struct identity *id)
{
	const char *hash = http_header(a, "X-Xet-Hash");
	const char *linked = http_header(a, "X-Linked-ETag"), *etag = http_header(a, "ETag");
	struct identity other;

	if (hub->place.kind == HUB_BUCKET) {
		if (hash == NULL)
			return 0;
		hub_identity_xet(hash, &other);
		return identity_equal(&other, id) ? 1 : -1;
	}
	if (linked != NULL)
		return etag_is(linked, id) ? 1 : -1;
	if (etag != NULL && etag_is(etag, id))
		return 1;
	/* A redirect inside the Hub may have an ETag of its own. */
	return a->status >= 300 || etag == NULL ? 0 : -1;
}

/* UINT64_MAX: it does not say. */
static uint64_t size_of(const struct http_answer *a)
{
	const char *linked = http_header(a, "X-Linked-Size");
	uint64_t n;

	if (linked != NULL && field_u64(linked, &n) == 0)
		return n;
	if (a->ranged)
		return a->range.total;
	if (a->status == 200 && a->length >= 0)
		return (uint64_t)a->length;
	return UINT64_MAX;
}

/* ---- ranges ---- */

static void range_go(struct range *r);

static void range_end(struct range *r, int err)
{
	struct fetch *f = r->fetch;

	hub_call_release(&r->c);
	free(r);
	f->done(f, http_store_errno(err));
}

/* The captured URL is no good any more: all that need it resolve anew. */
static void forget_url(struct hub_handle *h, uint64_t seq)
{
	lock_take(&h->lock);
	if (h->seq == seq) {
		free(h->url);
		h->url = NULL;
		h->seq++;
	}
	lock_release(&h->lock);
}

static int range_judge(struct http_call *call, const struct http_answer *a, struct why *why)
{
	struct range *r = (struct range *)call;

	if (r->direct)
		return hub_judge(call, a, why);
	switch (a->status) {
	case 400: /* some stores' word for a signature that ran out */
	case 401:
	case 403:
	case 404:
	case 410: return why_set(why, EKEYEXPIRED, "a signed URL is not accepted any more");
	default: return HTTP_JUDGE_POLICY;
	}
}

static int range_build(struct http_call *call, const struct http_hop *hop, struct request *out,
		       struct why *why)
{
	struct range *r = (struct range *)call;

	if (r->direct)
		return hub_build(call, hop, out, why);
	if (live_stopping(&r->c.hub->live))
		return why_set(why, ECANCELED, "going down");
	request_set_url(out, hop->number == 0 ? r->c.url : hop->url);
	return 0;
}

/* All bytes came; are they the handle's? */
static int range_check(const struct range *r, const struct http_answer *a)
{
	if (r->direct && content_of(r->c.hub, a, &r->handle->id) < 0)
		return -ESTALE;
	if ((a->ranged && a->range.total != r->handle->base.size) ||
	    (a->status == 200 && a->length >= 0 && (uint64_t)a->length != r->handle->base.size))
		return -ESTALE;
	return 0;
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
	struct hub *hub = r->c.hub;
	int err = call->err;
	bool again;

	live_ended(&hub->live, &r->c.live);
	if (r->direct)
		hub_note(hub, HUB_QUOTA_RESOLVE, &call->answer);
	if (err == 0)
		err = range_check(r, &call->answer);
	if (err == -ERANGE)
		err = -ESTALE;
	/* Only the Hub's own word is believed that a file is another one now. */
	again = err == -EKEYEXPIRED || (err == -ESTALE && !r->direct);
	if (!again) {
		range_end(r, err);
		return;
	}
	forget_url(r->handle, r->seq);
	if (++r->refused < REFUSALS_MAX)
		range_go(r);
	else
		range_end(r, -EIO);
}

static void range_submit(struct range *r)
{
	struct http_call *call = &r->c.live.call;
	struct fetch *f = r->fetch;

	call->build = range_build;
	call->judge = range_judge;
	call->done = range_done;
	call->sound = range_sound;
	call->more = range_more;
	call->given = f->got;
	call->origin = r->direct ? r->c.hub->place.endpoint : NULL;
	call->delivery = HTTP_EXACT;
	call->dst = f->dst;
	call->off = f->off;
	call->len = f->len;
	call->whole = f->off == 0 && f->len == r->handle->base.size;
	call->class = f->background ? HTTP_BACKGROUND : HTTP_READ;
	call->patient = !f->background && f->deadline_mono_ns >= 0;
	call->deadline_mono_ns = r->deadline_ns;
	if (!live_submit(&r->c.hub->live, &r->c.live))
		range_end(r, -ECANCELED);
}

/* ---- resolving ---- */

/* Takes the handle out of RESOLVING and sends those in line on their way. */
static void resolve_end(struct resolve *v, int err)
{
	struct hub_handle *h = v->handle;
	struct range *line;

	lock_take(&h->lock);
	if (err == 0) {
		free(h->url);
		h->url = v->c.url;
		h->direct = v->direct;
		h->seq++;
		v->c.url = NULL;
	}
	hub_call_release(&v->c);
	h->resolving = false;
	line = h->waiting;
	h->waiting = NULL;
	lock_release(&h->lock);
	/* The handle, and v in it, may go with the last of them. */
	while (line != NULL) {
		struct range *r = line;

		line = r->next;
		r->next = NULL;
		/* Whose resolve it was had less time than this one has. */
		if (err == -ETIMEDOUT && clock_mono_ns() < r->deadline_ns)
			range_go(r);
		else if (err < 0)
			range_end(r, err);
		else
			range_go(r);
	}
}

/* The answer's meaning.  1: go on at c.url; 0: captured; or an error. */
static int resolve_answer(struct resolve *v)
{
	struct hub *hub = v->c.hub;
	const struct http_answer *a = &v->c.live.call.answer;
	int content = content_of(hub, a, &v->handle->id);
	uint64_t size = a->status >= 300 && http_header(a, "X-Linked-Size") == NULL ? UINT64_MAX
										    : size_of(a);
	bool redirect = a->status >= 300 && a->location != NULL, inside;
	char *target;

	v->matched |= content > 0;
	if (content < 0 || (size != UINT64_MAX && size != v->handle->base.size))
		return -ESTALE;
	if (!redirect && a->status >= 300)
		return -EPROTO;
	inside = redirect && url_text_same_origin(a->location, hub->place.endpoint);
	if (!inside && !v->matched)
		return -EPROTO; /* it does not say which content that is */
	if (inside && ++v->hops > HOPS_MAX)
		return -EPROTO;
	if (redirect) {
		target = strdup(a->location);
		if (target == NULL)
			return -ENOMEM;
		free(v->c.url);
		v->c.url = target;
	}
	v->direct = !redirect;
	return inside ? 1 : 0;
}

static void resolve_done(struct http_call *call)
{
	struct resolve *v = (struct resolve *)call;
	struct hub *hub = v->c.hub;
	int rc = call->err;

	live_ended(&hub->live, &v->c.live);
	hub_note(hub, HUB_QUOTA_RESOLVE, &call->answer);
	if (rc == 0)
		rc = resolve_answer(v);
	if (rc > 0 && live_submit(&hub->live, &v->c.live))
		return;
	resolve_end(v, rc > 0 ? -ECANCELED : rc);
}

static void resolve_begin(struct hub *hub, struct hub_handle *h, int64_t deadline_ns)
{
	struct resolve *v = &h->resolve;
	struct http_call *call = &v->c.live.call;
	struct buf url = {0};

	*v = (struct resolve){.handle = h};
	hub_url_resolve(&hub->place, h->commit, h->key, &url);
	hub_call_init(&v->c, hub, hub_text(&url));
	v->c.accept = "*/*";
	v->c.quota = HUB_QUOTA_RESOLVE;
	v->c.one_byte = true;
	call->done = resolve_done;
	call->no_follow = true;
	call->delivery = HTTP_DISCARD;
	call->patient = true;
	call->deadline_mono_ns = deadline_ns;
	if (v->c.url == NULL)
		resolve_end(v, -ENOMEM);
	else if (!live_submit(&hub->live, &v->c.live))
		resolve_end(v, -ECANCELED);
}

/* To the captured URL; or in line for it. */
static void range_go(struct range *r)
{
	struct hub_handle *h = r->handle;
	struct hub *hub = r->c.hub;
	int64_t deadline_ns = r->deadline_ns;
	bool captured, begin = false;

	free(r->c.url);
	r->c.url = NULL;
	lock_take(&h->lock);
	captured = h->url != NULL;
	if (captured) {
		r->c.url = strdup(h->url);
		r->seq = h->seq;
		r->direct = h->direct;
	} else {
		begin = !h->resolving;
		h->resolving = true;
		r->next = h->waiting;
		h->waiting = r;
	}
	lock_release(&h->lock);
	if (captured && r->c.url == NULL)
		range_end(r, -ENOMEM);
	else if (captured)
		range_submit(r);
	else if (begin)
		resolve_begin(hub, h, deadline_ns);
}

void hub_fetch(struct fetch *f)
{
	struct hub_handle *h = (struct hub_handle *)f->handle;
	struct hub *hub = (struct hub *)h->base.store;
	struct range *r = calloc(1, sizeof(*r));

	if (r == NULL) {
		f->done(f, -ENOMEM);
		return;
	}
	hub_call_init(&r->c, hub, NULL);
	r->c.accept = "*/*";
	r->c.quota = HUB_QUOTA_RESOLVE;
	r->handle = h;
	r->fetch = f;
	r->deadline_ns =
		f->deadline_mono_ns >= 0 ? f->deadline_mono_ns : clock_mono_ns() + FETCH_NS;
	range_go(r);
}
