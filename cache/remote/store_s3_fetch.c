/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading: handles and ranges.
 *
 *   fetch -> the ETag is known, and GETs bring bytes:   GET with If-Match
 *         -> GETs bring links (found out by the first): GET on the handle's link
 *         -> otherwise it waits while the handle is prepared, once for all that wait
 *
 * Preparing: a GET of the first byte.  It brings ETag and size, to be compared with the pinned
 * identity; or it is redirected elsewhere, and then the target is kept as the handle's link, and a
 * HEAD afterwards must still show the pinned identity: the object was listed before and is
 * unchanged after, so the link leads to it.  Links are signed for a time; when one is refused, it
 * is dropped and the handle prepared again, with the same comparison.  So bytes of another version
 * are never handed out, and credentials never leave the endpoint.
 *
 * A server that ignores If-Match is caught by the ETag of its own answer, which is compared when
 * the bytes have come and before anybody sees them.
 *
 * Fields of handles are under the store's lock.  Completions run on the network thread.
 */
#include <stdlib.h>

#include "cache/clock.h"
#include "cache/remote/store_s3_private.h"

enum { LINKS_MAX = 3 };

struct s3_read;

struct s3_handle {
	struct handle base; /* first */
	struct s3_store *s;
	char *key; /* complete */
	struct identity id;
	int64_t mtime_ns;
	/* Under the store's lock: */
	bool known; /* etag is what it is */
	char *etag; /* NULL: the server gives none that is good for If-Match */
	char *link; /* NULL: none yet */
	bool preparing;
	struct s3_read *waiting;
};

struct s3_read {	     /* one fetch under way */
	struct s3_call call; /* first */
	struct fetch *fetch;
	struct s3_handle *h;
	struct s3_read *next;
	char *etag, *link; /* what the call uses */
	unsigned links;
};

struct s3_prepare {
	struct s3_call call; /* first */
	struct s3_handle *h;
	char *etag, *link;
	int64_t deadline_ns; /* of the read that it was begun for; < 0: none */
};

static void read_start(struct s3_read *r);

/* ---- opening ---- */

int s3_open(struct store *store, const struct object *object, struct handle **out, struct why *why)
{
	struct s3_store *s = (struct s3_store *)store;
	struct s3_handle *h = calloc(1, sizeof(*h));
	const struct s3_etag *e;

	if (h == NULL || (h->key = s3_full_key(s, object->key)) == NULL) {
		free(h);
		return why_set(why, ENOMEM, "out of memory");
	}
	h->base.store = store;
	h->base.size = object->size;
	h->s = s;
	h->id = object->id;
	h->mtime_ns = object->mtime_ns;
	lock_take(&s->lock);
	e = table_get(s->etags, load_le64(object->id.bytes));
	if (e != NULL && identity_equal(&e->id, &object->id))
		h->etag = strdup(e->text);
	h->known = h->etag != NULL;
	lock_release(&s->lock);
	*out = &h->base;
	return 0;
}

void s3_close(struct handle *handle)
{
	struct s3_handle *h = (struct s3_handle *)handle;

	free(h->key);
	free(h->etag);
	free(h->link);
	free(h);
}

/* ---- ending ---- */

static void read_done(struct s3_read *r, int err)
{
	struct fetch *f = r->fetch;

	if (err == -ENOENT || err == -ESTALE)
		s3_probe_forget(r->h->s); /* what is listed is not so any more */
	s3_call_release(&r->call);
	free(r->etag);
	free(r->link);
	free(r);
	f->done(f, http_store_errno(err));
}

/* ---- preparing ---- */

static bool has_time(const struct s3_read *r)
{
	const int64_t deadline = r->fetch->deadline_mono_ns;

	return deadline < 0 || clock_mono_ns() < deadline;
}

/* Sends on, or fails, all that waited. */
static void prepare_end(struct s3_prepare *p, int err)
{
	struct s3_handle *h = p->h;
	struct s3_read *waiting;

	lock_take(&h->s->lock);
	if (err == 0) {
		free(h->etag);
		h->etag = p->etag;
		h->known = true;
		p->etag = NULL;
	}
	if (err == 0 && p->link != NULL) {
		free(h->link);
		h->link = p->link;
		p->link = NULL;
	}
	h->preparing = false;
	waiting = h->waiting;
	h->waiting = NULL;
	lock_release(&h->s->lock);
	s3_call_release(&p->call);
	free(p->etag);
	free(p->link);
	free(p);
	while (waiting != NULL) {
		struct s3_read *r = waiting;

		waiting = r->next;
		/* Whose it was had less time than this one has. */
		if (err == 0 || (err == -ETIMEDOUT && has_time(r)))
			read_start(r);
		else
			read_done(r, err);
	}
}

/* Goes on as long as the read may that it is for. */
static void prepare_submit(struct s3_prepare *p)
{
	p->call.s3 = p->h->s;
	p->call.purpose = S3_READ;
	p->call.key = p->h->key;
	p->call.live.call.patient = p->deadline_ns >= 0;
	p->call.live.call.deadline_mono_ns = MAX(p->deadline_ns, 0);
	s3_call_submit(&p->call);
}

/* Is it, by what this answer says, the object that was pinned?  Takes the ETag. */
static int compare_head(struct s3_prepare *p)
{
	struct s3_handle *h = p->h;
	struct identity id;
	uint64_t size;
	char *etag = NULL;
	int rc = s3_read_head(h->s, h->key, &p->call.live.call.answer, &etag, &size, &id);

	if (rc == 0 && (size != h->base.size || !identity_equal(&id, &h->id)))
		rc = -ESTALE;
	if (rc == 0) {
		const char *sent = http_header(&p->call.live.call.answer, "ETag");

		free(p->etag);
		/* A weak one is no good for If-Match, and not compared either. */
		p->etag = sent != NULL && strncmp(sent, "W/", 2) == 0 ? NULL : etag;
		if (p->etag != NULL)
			etag = NULL;
	}
	free(etag);
	return rc;
}

static void on_checked(struct s3_call *c)
{
	struct s3_prepare *p = (struct s3_prepare *)c;
	int rc = c->live.call.err;

	if (rc == 0 && s3_call_redirected(c))
		rc = -EPROTO;
	prepare_end(p, rc == 0 ? compare_head(p) : rc);
}

static void on_probed(struct s3_call *c)
{
	struct s3_prepare *p = (struct s3_prepare *)c;
	struct s3_store *s = c->s3;
	int rc = c->live.call.err;

	if (rc < 0 || !s3_call_redirected(c)) {
		prepare_end(p, rc == 0 ? compare_head(p) : rc);
		return;
	}
	p->link = strdup(c->live.call.answer.location);
	if (p->link == NULL) {
		prepare_end(p, -ENOMEM);
		return;
	}
	__atomic_store_n(&s->links, true, __ATOMIC_RELAXED);
	s3_call_release(c);
	*c = (struct s3_call){.method = METHOD_HEAD, .finish = on_checked};
	prepare_submit(p);
}

static void prepare_start(struct s3_handle *h, int64_t deadline_ns)
{
	struct s3_prepare *p = calloc(1, sizeof(*p));
	struct s3_read *waiting;

	if (p == NULL) {
		lock_take(&h->s->lock);
		h->preparing = false;
		waiting = h->waiting;
		h->waiting = NULL;
		lock_release(&h->s->lock);
		while (waiting != NULL) {
			struct s3_read *r = waiting;

			waiting = r->next;
			read_done(r, -ENOMEM);
		}
		return;
	}
	p->h = h;
	p->deadline_ns = deadline_ns;
	p->call = (struct s3_call){.method = METHOD_GET, .probe = true, .finish = on_probed};
	prepare_submit(p);
}

/* ---- ranges ---- */

/* Are the bytes that came, by their answer's own words, those of the pinned object? */
static int check_answer(const struct s3_read *r, const struct http_answer *a)
{
	const struct s3_handle *h = r->h;
	const char *sent = http_header(a, "ETag");
	const char *modified = http_header(a, "Last-Modified");
	bool weak, same = true;
	char *etag;
	int64_t mtime_s;

	if (a->ranged && a->range.total != UINT64_MAX && a->range.total != h->base.size)
		return -ESTALE;
	etag = s3_etag_bare(sent, &weak);
	if (r->etag != NULL && etag != NULL)
		same = strcmp(r->etag, etag) == 0;
	else if (r->etag == NULL && modified != NULL && field_http_date(modified, &mtime_s) == 0)
		same = mtime_s == h->mtime_ns / NSEC_PER_SEC;
	free(etag);
	return same ? 0 : -ESTALE;
}

/* The link was refused: it has expired, so another one is asked for. */
static void drop_link(struct s3_read *r)
{
	struct s3_handle *h = r->h;

	lock_take(&h->s->lock);
	if (h->link != NULL && strcmp(h->link, r->link) == 0) {
		free(h->link);
		h->link = NULL;
	}
	lock_release(&h->s->lock);
	read_start(r);
}

static void on_link_read(struct s3_read *r)
{
	const struct http_answer *a = &r->call.live.call.answer;
	int rc = r->call.live.call.err;

	if ((rc == -EACCES || rc == -ENOENT) && r->links < LINKS_MAX) {
		drop_link(r);
		return;
	}
	if (rc == 0 && s3_call_redirected(&r->call))
		rc = -EPROTO;
	if (rc == 0 && a->ranged && a->range.total != UINT64_MAX &&
	    a->range.total != r->h->base.size)
		rc = -ESTALE;
	/* The object itself was seen to be there. */
	read_done(r, rc == -ENOENT || rc == -EACCES ? -EIO : rc);
}

static void on_read(struct s3_call *c)
{
	struct s3_read *r = (struct s3_read *)c;
	int rc = c->live.call.err;

	if (r->link != NULL) {
		on_link_read(r);
	} else if (rc == 0 && s3_call_redirected(c)) {
		__atomic_store_n(&c->s3->links, true, __ATOMIC_RELAXED);
		if (r->links++ < LINKS_MAX)
			read_start(r);
		else
			read_done(r, -EPROTO);
	} else {
		read_done(r, rc == 0 ? check_answer(r, &c->live.call.answer) : rc);
	}
}

static bool link_answer(const struct s3_read *r, const struct http_answer *a)
{
	return !a->ranged || a->range.total == UINT64_MAX || a->range.total == r->h->base.size;
}

static bool on_sound(struct http_call *call, const struct http_answer *a)
{
	const struct s3_read *r = (const struct s3_read *)call;

	return r->link != NULL ? link_answer(r, a) : check_answer(r, a) == 0;
}

static void on_more(struct http_call *call, size_t got)
{
	fetch_more(((struct s3_read *)call)->fetch, got);
}

/* Says how this read goes on; true: it waits for the handle, and *prepare whether to begin that. */
static bool choose_way(struct s3_read *r, bool *prepare, int *err)
{
	struct s3_handle *h = r->h;
	bool links = __atomic_load_n(&h->s->links, __ATOMIC_RELAXED), wait;

	free(r->etag);
	free(r->link);
	r->etag = r->link = NULL;
	*prepare = false;
	*err = 0;
	lock_take(&h->s->lock);
	wait = !h->known || (links && h->link == NULL);
	if (wait) {
		r->next = h->waiting;
		h->waiting = r;
		*prepare = !h->preparing;
		h->preparing = true;
	} else {
		r->etag = h->etag != NULL ? strdup(h->etag) : NULL;
		r->link = h->link != NULL ? strdup(h->link) : NULL;
		if ((h->etag != NULL && r->etag == NULL) || (h->link != NULL && r->link == NULL))
			*err = -ENOMEM;
	}
	lock_release(&h->s->lock);
	return wait;
}

static void read_start(struct s3_read *r)
{
	struct s3_handle *h = r->h;
	const struct fetch *f = r->fetch;
	bool prepare;
	int err;

	s3_call_release(&r->call);
	if (choose_way(r, &prepare, &err)) {
		if (prepare)
			prepare_start(h, f->deadline_mono_ns);
		return;
	}
	if (err < 0) {
		read_done(r, err);
		return;
	}
	r->links += r->link != NULL;
	r->call = (struct s3_call){
		.s3 = h->s,
		.purpose = S3_READ,
		.method = METHOD_GET,
		.key = h->key,
		.if_match = r->etag,
		.link = r->link,
		.finish = on_read,
		.live.call =
			{
				.delivery = HTTP_EXACT,
				.sound = on_sound,
				.more = on_more,
				.given = f->got,
				.dst = f->dst,
				.off = f->off,
				.len = f->len,
				.whole = f->off == 0 && f->len == h->base.size,
				.class = f->background ? HTTP_BACKGROUND : HTTP_READ,
				.patient = !f->background && f->deadline_mono_ns >= 0,
				.deadline_mono_ns =
					f->deadline_mono_ns >= 0 ? f->deadline_mono_ns : 0,
			},
	};
	s3_call_submit(&r->call);
}

void s3_fetch(struct fetch *f)
{
	struct s3_read *r = calloc(1, sizeof(*r));

	if (r == NULL) {
		f->done(f, -ENOMEM);
		return;
	}
	r->fetch = f;
	r->h = (struct s3_handle *)f->handle;
	read_start(r);
}
