/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every store shares: the checks in front of its operations, and the forms that are built on
 * top of them (a blocking read on the asynchronous one, looking up a key in a listing).
 *
 * A store's own functions may rely on it: keys to put are safe relative paths, an object to open
 * was usable when listed, a range to fetch is not empty and lies inside the pinned object.  There
 * is no state here.  Waiting happens only in store_read(), on a condition of its own.
 */
#include "cache/store.h"

#include <assert.h>
#include <stdlib.h>

#include "cache/fileio.h"
#include "cache/thread.h"
#include "codec/io.h"

bool identity_equal(const struct identity *a, const struct identity *b)
{
	return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

void identity_hex(const struct identity *id, char out[33])
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < sizeof(id->bytes); i++) {
		out[2 * i] = digits[id->bytes[i] >> 4];
		out[2 * i + 1] = digits[id->bytes[i] & 15];
	}
	out[32] = '\0';
}

int store_list(struct store *s, const char *prefix, struct listing *out, struct why *why)
{
	return s->ops->list(s, prefix != NULL ? prefix : "", out, why);
}

void listing_release(struct listing *l)
{
	for (size_t i = 0; i < l->count; i++)
		free(l->v[i].key);
	free(l->v);
	l->v = NULL;
	l->count = l->hidden = 0;
}

static int compare_key(const void *key, const void *object)
{
	return strcmp(key, ((const struct object *)object)->key);
}

bool object_same(const struct object *a, const struct object *b)
{
	return identity_equal(&a->id, &b->id) && a->size == b->size && a->mtime_ns == b->mtime_ns &&
	       a->err == b->err && strcmp(a->key, b->key) == 0;
}

bool listing_same(const struct listing *a, const struct listing *b)
{
	bool same = a->count == b->count && a->hidden == b->hidden;

	for (size_t i = 0; same && i < a->count; i++)
		same = object_same(&a->v[i], &b->v[i]);
	return same;
}

void store_front(struct store *s, const struct store *inner)
{
	s->remote = inner->remote;
	s->far = inner->far;
	s->blocks = inner->blocks;
}

const struct object *listing_find(const struct listing *l, const char *key)
{
	if (l->count == 0)
		return NULL;
	return bsearch(key, l->v, l->count, sizeof(l->v[0]), compare_key);
}

void fetch_more(struct fetch *f, size_t got)
{
	f->got = got;
	if (f->more != NULL)
		f->more(f, got);
}

const char *store_unusable(int err)
{
	switch (err) {
	case ELOOP: return "is a symbolic link that leads out of the store or in a circle";
	case ENOENT: return "is a symbolic link to nothing";
	case EACCES: return "cannot be read: permission denied";
	case ENAMETOOLONG: return "lies too deep or has too long a path";
	case EILSEQ: return "has a name that is not UTF-8";
	default: return "is not a regular file";
	}
}

int store_open(struct store *s, const struct object *object, struct handle **out, struct why *why)
{
	char shown[256];

	if (object->err != 0)
		return why_set(why, object->err, "'%s' %s",
			       printable(shown, sizeof(shown), object->key, strlen(object->key)),
			       store_unusable(object->err));
	return s->ops->open(s, object, out, why);
}

void store_close(struct handle *h)
{
	if (h != NULL)
		h->store->ops->close(h);
}

int store_settled(struct handle *h)
{
	return h->store->ops->settled != NULL ? h->store->ops->settled(h) : 0;
}

void store_fetch(struct fetch *f)
{
	uint64_t end;

	assert(f->handle != NULL && f->done != NULL);
	if (add_overflows(f->off, f->len, &end) || end > f->handle->size)
		f->done(f, -EBADMSG);
	else if (f->len == 0)
		f->done(f, 0);
	else
		f->handle->store->ops->fetch(f);
}

struct waiter {
	struct event ended;
	int err;
};

static void waiter_done(struct fetch *f, int err)
{
	struct waiter *w = f->ctx;

	w->err = err;
	event_happen(&w->ended);
}

int store_read(struct handle *h, uint64_t off, void *dst, size_t len)
{
	struct waiter w = {0};
	struct fetch f = {
		.handle = h,
		.off = off,
		.len = len,
		.dst = dst,
		.deadline_mono_ns = -1,
		.done = waiter_done,
		.ctx = &w,
	};

	event_init(&w.ended);
	store_fetch(&f);
	/* No deadline of our own: the store keeps its own, and until done() the buffer is its. */
	event_wait(&w.ended);
	return w.err;
}

int store_lend(struct handle *h, uint64_t off, size_t len, struct loan *out)
{
	uint64_t end;

	if (h->store->ops->lend == NULL)
		return -ENOTSUP;
	if (add_overflows(off, len, &end) || end > h->size)
		return -EBADMSG;
	return h->store->ops->lend(h, off, len, out);
}

int store_put(struct store *s, const char *key, const struct source *src, struct why *why)
{
	char shown[256];

	if (!path_is_safe(key))
		return why_set(why, EINVAL, "'%s' cannot be the name of an object",
			       printable(shown, sizeof(shown), key, strlen(key)));
	if (s->ops->put == NULL)
		return why_set(why, ENOTSUP, "%s cannot be written to", s->name);
	return s->ops->put(s, key, src, why);
}

int store_put_if(struct store *s, const char *key, const struct source *src,
		 const struct put_condition *condition, struct why *why)
{
	char shown[256];

	if (!path_is_safe(key))
		return why_set(why, EINVAL, "'%s' cannot be the name of an object",
			       printable(shown, sizeof(shown), key, strlen(key)));
	if (s->ops->put_if == NULL)
		return why_set(why, ENOTSUP, "%s cannot be written to under a condition", s->name);
	return s->ops->put_if(s, key, src, condition, why);
}

int store_remove(struct store *s, const char *key, const struct identity *id, struct why *why)
{
	if (!path_is_safe(key))
		return why_set(why, EINVAL, "'%s' is not a path inside the store", SHOWN(key));
	if (s->ops->remove == NULL)
		return why_set(why, ENOTSUP, "%s: nothing can be deleted in a place of this kind",
			       s->name);
	return s->ops->remove(s, key, id, why);
}

int store_watch_fd(struct store *s)
{
	return s->ops->watch_fd != NULL ? s->ops->watch_fd(s) : -1;
}

void store_watch_drain(struct store *s)
{
	if (s->ops->watch_drain != NULL)
		s->ops->watch_drain(s);
}

void store_refresh(struct store *s)
{
	if (s->ops->refresh != NULL)
		s->ops->refresh(s);
}

bool store_describe(struct store *s, struct buf *out)
{
	return s->ops->describe != NULL && s->ops->describe(s, out);
}

void store_stop(struct store *s)
{
	if (s != NULL && s->ops->stop != NULL)
		s->ops->stop(s);
}

void store_free(struct store *s)
{
	if (s != NULL)
		s->ops->free(s);
}
