/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listing a web server.
 *
 * Round by round: the index (index.json when there is one, and then with a condition, so that an
 * unchanged one costs a 304; else the listings of all directories), then one HEAD for each object
 * whose line is new or changed, several at a time, for size, ETag and time.  What the HEADs said is
 * kept with the line's hash and used again in the next round.
 *
 * When a read found an object that was not what the listing said, or somebody asks for a refresh,
 * the next round takes nothing from the one before.
 *
 * Threads: any, though one lists at a time; results are swapped in under the lock.
 */
#include <stdlib.h>

#include "cache/clock.h"
#include "cache/remote/autoindex.h"
#include "cache/remote/keys.h"
#include "cache/remote/store_http_private.h"

enum { INDEX_BYTES_MAX = 256 << 20, DIRECTORIES_MAX = 20000, HEADS = 16 };

/* A listing in the making. */
struct round {
	struct web *web;
	bool anew; /* nothing from the round before */
	struct web_object **v;
	size_t count, cap;
	struct table *by_key;
	char **directories; /* to be listed */
	size_t directory_count, directory_cap;
	char *index_etag, *index_modified;
	size_t hidden;
	enum web_index index;
};

static void object_free(struct web_object *o)
{
	if (o == NULL)
		return;
	free(o->key);
	free(o->etag);
	free(o->modified);
	free(o);
}

static void objects_free(struct web_object **v, size_t count, struct table *by_key)
{
	for (size_t i = 0; i < count; i++)
		object_free(v[i]);
	free(v);
	table_free(by_key);
}

void web_forget(struct web *web)
{
	objects_free(web->all, web->all_count, web->known);
	listing_release(&web->listing);
	free(web->index_etag);
	free(web->index_modified);
}

static void round_release(struct round *r)
{
	objects_free(r->v, r->count, r->by_key);
	for (size_t i = 0; i < r->directory_count; i++)
		free(r->directories[i]);
	free(r->directories);
	free(r->index_etag);
	free(r->index_modified);
}

/* ---- names ---- */

static int no_memory(struct why *why)
{
	return why_set(why, ENOMEM, "out of memory");
}

static char *copy_or_null(const char *s)
{
	return s != NULL ? strdup(s) : NULL;
}

static int push_directory(struct round *r, const char *key, struct why *why)
{
	char **v;

	if (r->directory_count >= DIRECTORIES_MAX)
		return why_set(why, EFBIG, "%s has too many directories", r->web->base.name);
	if (r->directory_count == r->directory_cap) {
		size_t cap = r->directory_cap > 0 ? r->directory_cap * 2 : 16;

		v = reallocarray(r->directories, cap, sizeof(*v));
		if (v == NULL)
			return no_memory(why);
		r->directories = v;
		r->directory_cap = cap;
	}
	r->directories[r->directory_count] = strdup(key);
	if (r->directories[r->directory_count] == NULL)
		return no_memory(why);
	r->directory_count++;
	return 0;
}

/* An object to be shown; what was known of it is taken over if its line is the same. */
static int push_object(struct round *r, const char *key, const struct autoindex_entry *e,
		       struct why *why)
{
	struct web_object *o = calloc(1, sizeof(*o)), *old = NULL, **v;

	if (o == NULL)
		return no_memory(why);
	if (r->count == r->cap) {
		size_t cap = r->cap > 0 ? r->cap * 2 : 64;

		v = reallocarray(r->v, cap, sizeof(struct web_object *));
		if (v == NULL) {
			free(o);
			return no_memory(why);
		}
		r->v = v;
		r->cap = cap;
	}
	r->v[r->count++] = o;
	o->key = strdup(key);
	o->row = e->row;
	o->mtime_ns = e->mtime_ns;
	o->size = UINT64_MAX; /* to be asked for */
	if (o->key == NULL)
		return no_memory(why);
	if (!keys_usable(key)) { /* make_listing() leaves it out and counts it */
		o->size = 0;
		return 0;
	}
	lock_take(&r->web->lock);
	if (!r->anew && r->web->known != NULL)
		old = table_get_str(r->web->known, key);
	if (old != NULL && e->row != 0 && old->row == e->row) {
		o->size = old->size;
		o->mtime_ns = old->mtime_ns;
		o->id = old->id;
		o->etag = copy_or_null(old->etag);
		o->modified = copy_or_null(old->modified);
	}
	lock_release(&r->web->lock);
	if (o->size == UINT64_MAX && e->etag != NULL && e->etag[0] == '"' && e->size >= 0) {
		o->etag = strdup(e->etag);
		if (o->etag == NULL ||
		    !web_identity_of_etag(r->web, key, e->etag, (uint64_t)e->size, &o->id))
			return no_memory(why);
		o->size = (uint64_t)e->size;
		if (o->mtime_ns == INT64_MIN)
			o->mtime_ns = 0;
	}
	return 0;
}

static int add_entries(struct round *r, const char *parent, const struct autoindex *x,
		       struct why *why)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < x->count; i++) {
		const struct autoindex_entry *e = &x->v[i];
		struct buf key = {0};

		if (*parent != '\0')
			buf_addf(&key, "%s/", parent);
		buf_addstr(&key, e->name);
		if (key.failed)
			rc = no_memory(why);
		else if (e->directory && keys_usable(buf_str(&key)))
			rc = push_directory(r, buf_str(&key), why);
		else if (!e->directory && strcmp(buf_str(&key), "index.json") != 0)
			rc = push_object(r, buf_str(&key), e, why);
		buf_release(&key);
	}
	return rc;
}

/* ---- the index ---- */

/* GETs into body; the call is left for its answer's headers. */
static int get(struct web_call *c, struct web *web, char *url, struct buf *body, struct why *why)
{
	int rc;

	web_call_init(c, web, url);
	if (url == NULL)
		return no_memory(why);
	c->live.call.delivery = HTTP_BUFFER;
	c->live.call.buffer = body;
	c->live.call.buffer_max = INDEX_BYTES_MAX;
	rc = live_run(&web->live, &c->live);
	if (rc < 0 && why != NULL)
		*why = c->live.call.why;
	return rc;
}

/* 1: read; 0: the server has none; 2: it is the one of the round before. */
static int read_objects(struct round *r, struct why *why)
{
	struct web *web = r->web;
	char *etag = NULL, *modified = NULL;
	struct autoindex x = {0};
	struct buf body = {0};
	struct web_call c;
	int rc;

	if (!r->anew) {
		lock_take(&web->lock);
		etag = copy_or_null(web->index_etag);
		modified = copy_or_null(web->index_modified);
		lock_release(&web->lock);
	}
	web_call_init(&c, web, web_url(web, "index.json", false));
	c.if_none_match = etag;
	c.if_modified_since = etag == NULL ? modified : NULL;
	c.live.call.delivery = HTTP_BUFFER;
	c.live.call.buffer = &body;
	c.live.call.buffer_max = INDEX_BYTES_MAX;
	rc = c.url != NULL ? live_run(&web->live, &c.live) : no_memory(why);
	if (rc == 0 && c.live.call.answer.status == 304) {
		rc = 2;
	} else if (rc == 0) {
		rc = autoindex_objects(buf_str(&body), body.len, &x, why);
		if (rc == 0) {
			r->index_etag = copy_or_null(http_header(&c.live.call.answer, "ETag"));
			r->index_modified =
				copy_or_null(http_header(&c.live.call.answer, "Last-Modified"));
			rc = add_entries(r, "", &x, why);
			rc = rc == 0 ? 1 : rc;
		} else if (rc == -EPROTO) {
			rc = 0; /* somebody else's index.json, or a friendly page */
		} else if (rc == -EBADMSG) {
			why_prefix(why, "%s/index.json", web->base.name);
		}
	} else if (rc == -ENOENT || rc == -EACCES) {
		rc = 0; /* some servers answer 403 for what is not there */
	} else if (why != NULL) {
		*why = c.live.call.why;
	}
	autoindex_release(&x);
	web_call_release(&c);
	buf_release(&body);
	free(etag);
	free(modified);
	return rc;
}

static int parse_directory(struct round *r, const struct web_call *c, struct buf *body,
			   struct autoindex *x)
{
	const char *type = http_header(&c->live.call.answer, "Content-Type");

	if (type != NULL && strncmp(type, "application/json", 16) == 0)
		return autoindex_json(buf_str(body), body->len, x);
	return autoindex_html(buf_str(body), body->len, c->url, x);
}

static int read_directory(struct round *r, const char *key, struct why *why)
{
	struct web *web = r->web;
	struct autoindex x = {0};
	struct buf body = {0};
	struct web_call c;
	int rc = get(&c, web, web_url(web, key, true), &body, why);

	if (rc == 0) {
		rc = parse_directory(r, &c, &body, &x);
		if (rc == 0)
			rc = add_entries(r, key, &x, why);
		else if (rc == -EPROTO)
			rc = why_set(why, ENOENT,
				     "%s has no index.json, and its server does not list "
				     "directories (nginx: autoindex on)",
				     web->base.name);
		else
			rc = why_set(why, -rc, "%s: the listing is too large", web->base.name);
	} else if ((rc == -ENOENT || rc == -EACCES) && *key == '\0') {
		rc = why_set(why, -rc,
			     "%s is not there, or has no index.json and no listing of its files "
			     "(nginx: autoindex on)",
			     web->base.name);
	} else if (rc == -ENOENT && *key != '\0') {
		rc = 0; /* gone since its parent was listed */
	}
	autoindex_release(&x);
	web_call_release(&c);
	buf_release(&body);
	return rc;
}

static int read_directories(struct round *r, struct why *why)
{
	int rc = push_directory(r, "", why);

	for (size_t i = 0; rc == 0 && i < r->directory_count; i++)
		rc = read_directory(r, r->directories[i], why);
	return rc;
}

/* ---- asking for each object ---- */

struct heads {
	struct round *round;
	struct lock lock; /* LOCK_QUEUE; guards what follows */
	struct condition idle;
	size_t next, flying;
	int err;
	struct why why;
};

struct head {
	struct web_call c; /* first */
	struct heads *heads;
	struct web_object *object;
};

static int take_answer(const struct web *web, struct web_object *o, const struct http_answer *a,
		       struct why *why)
{
	const char *name = web->base.name;
	const char *modified = http_header(a, "Last-Modified");
	int64_t s;

	if (a->length < 0)
		return why_set(why, EPROTO, "%s/%s: the server does not say how large it is", name,
			       o->key);
	if (!web_identity(web, o->key, a, (uint64_t)a->length, &o->id))
		return why_set(why, EPROTO,
			       "%s/%s: the server sends neither ETag nor Last-Modified, so a "
			       "change could not be noticed",
			       name, o->key);
	o->size = (uint64_t)a->length;
	free(o->etag);
	o->etag = copy_or_null(web_strong_etag(a));
	free(o->modified);
	o->modified = copy_or_null(modified);
	if (o->mtime_ns == INT64_MIN)
		o->mtime_ns = modified != NULL && field_http_date(modified, &s) == 0 &&
					      s < INT64_MAX / NSEC_PER_SEC
				      ? s * NSEC_PER_SEC
				      : 0;
	return 0;
}

static void head_next(struct heads *h);

static void head_done(struct http_call *call)
{
	struct head *one = (struct head *)call;
	struct heads *h = one->heads;
	struct web *web = one->c.web;
	struct why why = {0};
	int rc = call->err;

	live_ended(&web->live, &one->c.live);
	if (rc == 0)
		rc = take_answer(web, one->object, &call->answer, &why);
	else
		why = call->why;
	/* What has gone since it was listed is not there. */
	if (rc == -ENOENT)
		rc = 0;
	web_call_release(&one->c);
	free(one);
	lock_take(&h->lock);
	if (rc < 0 && h->err == 0) {
		h->err = rc;
		h->why = why;
	}
	lock_release(&h->lock);
	head_next(h);
	lock_take(&h->lock);
	h->flying--;
	if (h->flying == 0)
		condition_broadcast(&h->idle);
	lock_release(&h->lock);
}

/* Sends the next one that is needed, if any. */
static void head_next(struct heads *h)
{
	struct round *r = h->round;
	struct web_object *o = NULL;
	struct head *one;

	lock_take(&h->lock);
	while (h->err == 0 && h->next < r->count && r->v[h->next]->size != UINT64_MAX)
		h->next++;
	if (h->err == 0 && h->next < r->count)
		o = r->v[h->next++];
	if (o != NULL)
		h->flying++;
	lock_release(&h->lock);
	if (o == NULL)
		return;
	one = calloc(1, sizeof(*one));
	if (one != NULL) {
		web_call_init(&one->c, r->web, web_url(r->web, o->key, false));
		one->heads = h;
		one->object = o;
		one->c.method = METHOD_HEAD;
		one->c.live.call.delivery = HTTP_DISCARD;
		one->c.live.call.done = head_done;
		if (one->c.url != NULL && live_submit(&r->web->live, &one->c.live))
			return;
		web_call_release(&one->c);
		free(one);
	}
	lock_take(&h->lock);
	h->flying--;
	if (h->err == 0)
		h->err = why_set(&h->why, live_stopping(&r->web->live) ? ECANCELED : ENOMEM,
				 "the listing was broken off");
	lock_release(&h->lock);
}

static int ask_each(struct round *r, struct why *why)
{
	struct heads h = {.round = r, .flying = 1};
	int rc;

	lock_init(&h.lock, LOCK_QUEUE);
	condition_init(&h.idle);
	for (size_t i = 0; i < HEADS; i++)
		head_next(&h);
	lock_take(&h.lock);
	h.flying--;
	while (h.flying > 0)
		(void)condition_wait(&h.idle, &h.lock, -1);
	rc = h.err;
	lock_release(&h.lock);
	condition_destroy(&h.idle);
	lock_destroy(&h.lock);
	if (rc < 0 && why != NULL)
		*why = h.why;
	return rc;
}

/* ---- the whole ---- */

static int make_listing(struct round *r, struct listing *out, struct why *why)
{
	struct keys keys = {0};

	r->by_key = table_new();
	if (r->by_key == NULL)
		return no_memory(why);
	for (size_t i = 0; i < r->count; i++) {
		struct web_object *o = r->v[i];

		if (o->size == UINT64_MAX)
			continue; /* gone */
		keys_add(&keys, o->key, o->size, o->mtime_ns, &o->id);
		if (table_put_str(r->by_key, o->key, o) < 0)
			keys.failed = true;
	}
	if (keys_finish(&keys, out) < 0)
		return no_memory(why);
	r->hidden += keys.hidden;
	return 0;
}

/* Swaps the round's results in; r then holds the old ones. */
static void adopt(struct round *r, struct listing *fresh)
{
	struct web *web = r->web;
	struct web_object **v;
	struct listing old;
	struct table *known;
	char *etag, *modified;
	size_t count;

	lock_take(&web->lock);
	v = web->all;
	count = web->all_count;
	known = web->known;
	old = web->listing;
	etag = web->index_etag;
	modified = web->index_modified;
	web->all = r->v;
	web->all_count = r->count;
	web->known = r->by_key;
	web->listing = *fresh;
	web->listed = true;
	web->index = r->index;
	web->index_etag = r->index_etag;
	web->index_modified = r->index_modified;
	web->directories = r->directory_count;
	web->hidden = r->hidden;
	lock_release(&web->lock);
	r->v = v;
	r->count = count;
	r->by_key = known;
	r->index_etag = etag;
	r->index_modified = modified;
	*fresh = old;
}

static int copy_matching(struct web *web, const char *prefix, struct listing *out, struct why *why)
{
	struct listing part = {0};
	size_t len = strlen(prefix);
	int rc = 0;

	/* The copy is made under the lock: nobody who waits for it is in a hurry. */
	lock_take(&web->lock);
	part = web->listing;
	while (part.count > 0 && strncmp(part.v[0].key, prefix, len) < 0) {
		part.v++;
		part.count--;
	}
	while (part.count > 0 && strncmp(part.v[part.count - 1].key, prefix, len) > 0)
		part.count--;
	rc = listing_copy(&part, out);
	lock_release(&web->lock);
	return rc < 0 ? no_memory(why) : 0;
}

int web_list(struct web *web, const char *prefix, struct listing *out, struct why *why)
{
	struct round r = {.web = web, .index = WEB_OBJECTS};
	struct listing fresh = {0};
	int rc;

	lock_take(&web->lock);
	r.anew = web->suspect || !web->listed;
	web->suspect = false;
	lock_release(&web->lock);
	rc = read_objects(&r, why);
	if (rc == 0) {
		r.index = WEB_LISTINGS;
		rc = read_directories(&r, why);
	}
	if (rc == 0 || rc == 1) {
		rc = ask_each(&r, why);
		if (rc == 0)
			rc = make_listing(&r, &fresh, why);
		if (rc == 0)
			adopt(&r, &fresh);
	}
	round_release(&r);
	listing_release(&fresh);
	if (rc < 0 && r.anew) {
		lock_take(&web->lock);
		web->suspect = true;
		lock_release(&web->lock);
	}
	return rc < 0 ? rc : copy_matching(web, prefix, out, why);
}
