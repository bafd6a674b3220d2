/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listing: ListObjectsV2 page by page, without a delimiter.
 *
 * Keys are asked for URL-encoded, because XML cannot carry all that a key may hold, and decoded
 * only when the answer says that they are.  The order of a listing is not relied upon.  A server
 * that says "truncated" and gives no token is asked again with start-after; one that does not get
 * any further is an error, since a listing that breaks off would look like deletions.
 *
 * Left out: what the console writes to make a "folder" (an empty object whose key ends in '/');
 * and, counted, what keys.c says cannot be shown.
 *
 * The ETags of what was listed are kept by identity, for opening.  A long listing is not made anew
 * while a few small ones say that nothing has come (store_s3_probe.c).  Blocks; any thread.
 */
#include <stdlib.h>

#include "cache/remote/keys.h"
#include "cache/remote/store_s3_private.h"
#include "cache/remote/xml.h"

enum { PAGE_MAX = 32 << 20 };

struct row { /* of a page */
	char *key, *etag;
	uint64_t size;
	int64_t mtime_ns;
};

struct page {
	struct row *rows;
	size_t count, cap;
	struct row at; /* being read */
	bool truncated, encoded;
	char *token;
	bool root; /* it is a listing at all */
};

struct lister {
	struct s3_store *s;
	char *prefix; /* complete */
	struct keys keys;
	struct table *etags; /* of what is in keys */
	char *token, *last;  /* how the next page is asked for */
	unsigned pages;
};

/* ---- one page ---- */

static void row_release(struct row *r)
{
	free(r->key);
	free(r->etag);
	memset(r, 0, sizeof(*r));
}

static void page_release(struct page *p)
{
	for (size_t i = 0; i < p->count; i++)
		row_release(&p->rows[i]);
	row_release(&p->at);
	free(p->rows);
	free(p->token);
	memset(p, 0, sizeof(*p));
}

static int replace(char **field, const char *text)
{
	free(*field);
	*field = strdup(text);
	return *field != NULL ? 0 : -ENOMEM;
}

static int end_row(struct page *p)
{
	if (p->at.key == NULL)
		return -EPROTO;
	if (p->count == p->cap) {
		size_t cap = p->cap > 0 ? p->cap * 2 : 1024;
		struct row *rows = reallocarray(p->rows, cap, sizeof(*rows));

		if (rows == NULL)
			return -ENOMEM;
		p->rows = rows;
		p->cap = cap;
	}
	p->rows[p->count++] = p->at;
	memset(&p->at, 0, sizeof(p->at));
	return 0;
}

static int on_element(void *ctx, const char *path, const char *text, size_t len)
{
	static const char root[] = "ListBucketResult", contents[] = "ListBucketResult/Contents";
	struct page *p = ctx;
	const char *name;

	if (strncmp(path, root, sizeof(root) - 1) != 0)
		return 0;
	p->root = true;
	if (strcmp(path, contents) == 0)
		return end_row(p);
	if (strncmp(path, contents, sizeof(contents) - 1) == 0 &&
	    path[sizeof(contents) - 1] == '/') {
		name = path + sizeof(contents);
		if (strcmp(name, "Key") == 0)
			return replace(&p->at.key, text);
		if (strcmp(name, "ETag") == 0)
			return replace(&p->at.etag, text);
		if (strcmp(name, "Size") == 0)
			return field_u64(text, &p->at.size) < 0 ? -EPROTO : 0;
		if (strcmp(name, "LastModified") == 0)
			return field_iso_time(text, &p->at.mtime_ns) < 0 ? -EPROTO : 0;
		return 0;
	}
	name = path[sizeof(root) - 1] == '/' ? path + sizeof(root) : "";
	if (strcmp(name, "IsTruncated") == 0)
		p->truncated = strcmp(text, "true") == 0;
	else if (strcmp(name, "EncodingType") == 0)
		p->encoded = strcmp(text, "url") == 0;
	else if (strcmp(name, "NextContinuationToken") == 0 && len > 0)
		return replace(&p->token, text);
	return 0;
}

static int parse_page(struct s3_store *s, const struct buf *body, struct page *p, struct why *why)
{
	struct xml_reader reader = {.element = on_element, .ctx = p};
	char shown[200];
	int rc;

	if (why != NULL)
		why->err = 0;
	rc = xml_walk(body->data, body->len, &reader, why);
	s3_show(s, NULL, shown, sizeof(shown));
	if (rc == -ENOMEM)
		return why_set(why, ENOMEM, "out of memory");
	if (rc == 0 && !p->root)
		return why_set(why, EPROTO, "%s: what answered is not S3: check --endpoint-url",
			       shown);
	if (rc < 0 && (why == NULL || why->err == 0))
		return why_set(why, EPROTO, "%s: the listing has an entry that makes no sense",
			       shown);
	if (rc < 0)
		why_prefix(why, "%s: listing", shown);
	return rc;
}

static int get_page(struct lister *l, struct page *p, struct why *why)
{
	struct buf query = {0}, body = {0};
	struct s3_call c = {.s3 = l->s, .purpose = S3_LIST, .method = METHOD_GET};
	int rc;

	url_query_add(&query, "list-type", "2");
	url_query_add(&query, "encoding-type", "url");
	url_query_add(&query, "max-keys", "1000");
	url_query_add(&query, "prefix", l->prefix);
	if (l->token != NULL)
		url_query_add(&query, "continuation-token", l->token);
	else if (l->last != NULL)
		url_query_add(&query, "start-after", l->last);
	c.query = buf_str(&query);
	c.live.call.delivery = HTTP_BUFFER;
	c.live.call.buffer = &body;
	c.live.call.buffer_max = PAGE_MAX;
	rc = query.failed ? why_set(why, ENOMEM, "out of memory") : s3_call_run(&c, why);
	if (rc == 0)
		rc = parse_page(l->s, &body, p, why);
	s3_call_release(&c);
	buf_release(&query);
	buf_release(&body);
	return rc;
}

/* ---- collecting ---- */

static void free_value(void *value, void *ctx)
{
	free(value);
}

/* The ETag, for whoever opens an object of this identity. */
static int keep_etag(struct lister *l, const char *text, const struct identity *id)
{
	size_t n = strlen(text);
	struct s3_etag *e = malloc(sizeof(*e) + n + 1);
	uint64_t at = load_le64(id->bytes);

	if (e == NULL)
		return -ENOMEM;
	e->id = *id;
	memcpy(e->text, text, n + 1);
	free(table_remove(l->etags, at));
	if (table_put(l->etags, at, e) < 0) {
		free(e);
		return -ENOMEM;
	}
	return 0;
}

static int add_object(struct lister *l, const char *full, const struct row *r)
{
	const char *key = full + strlen(l->s->place.prefix);
	struct identity id;
	bool weak = false;
	char *etag;
	int rc;

	etag = s3_etag_bare(r->etag, &weak);
	rc = s3_identity(l->s, full, etag, r->size, r->mtime_ns, &id);
	if (rc == 0)
		keys_add(&l->keys, key, r->size, r->mtime_ns, &id);
	if (rc == 0 && etag != NULL && !weak)
		rc = keep_etag(l, etag, &id);
	free(etag);
	return rc == 0 && l->keys.failed ? -ENOMEM : rc;
}

static int take_row(struct lister *l, const struct page *p, const struct row *r)
{
	size_t root = strlen(l->s->place.prefix), n;
	struct buf key = {0};
	const char *full;
	int rc = 0;

	if (p->encoded)
		rc = url_decode(&key, r->key, strlen(r->key), true);
	else
		buf_addstr(&key, r->key);
	full = buf_str(&key);
	n = strlen(full);
	if (key.failed) {
		rc = -ENOMEM;
	} else if (rc == -EINVAL) {
		l->keys.hidden++; /* a NUL in it */
		rc = 0;
	} else if (strncmp(full, l->prefix, strlen(l->prefix)) == 0 && n > root) {
		/* What the console writes to make a folder is no object of anybody's. */
		bool folder = n > 1 && r->size == 0 && full[n - 1] == '/' && full[n - 2] != '/';

		rc = folder ? 0 : add_object(l, full, r);
	}
	buf_release(&key);
	return rc;
}

/* Where the next page begins; *out_more false: there is none. */
static int next_page(struct lister *l, struct page *p, bool *out_more, struct why *why)
{
	struct buf last = {0};
	char shown[200];
	bool stuck;

	*out_more = p->truncated;
	if (!p->truncated)
		return 0;
	if (p->token != NULL) {
		stuck = l->token != NULL && strcmp(l->token, p->token) == 0;
		free(l->token);
		l->token = p->token;
		p->token = NULL;
	} else {
		const char *key = p->count > 0 ? p->rows[p->count - 1].key : "";

		if (p->encoded && url_decode(&last, key, strlen(key), true) < 0)
			last.len = 0;
		else if (!p->encoded)
			buf_addstr(&last, key);
		stuck = last.len == 0 || (l->last != NULL && strcmp(buf_str(&last), l->last) <= 0);
		free(l->token);
		l->token = NULL;
		if (!stuck && replace(&l->last, buf_str(&last)) < 0)
			last.failed = true;
		if (last.failed) {
			buf_release(&last);
			return why_set(why, ENOMEM, "out of memory");
		}
		buf_release(&last);
	}
	if (stuck)
		return why_set(why, EPROTO, "%s: the listing does not come to an end",
			       s3_show(l->s, NULL, shown, sizeof(shown)));
	return 0;
}

static int take_page(struct lister *l, struct page *p, struct why *why)
{
	int rc = get_page(l, p, why);

	l->pages++;
	for (size_t i = 0; rc == 0 && i < p->count; i++)
		if ((rc = take_row(l, p, &p->rows[i])) < 0)
			why_set(why, -rc, "out of memory");
	return rc;
}

static int all_pages(struct lister *l, struct why *why)
{
	bool more = true;
	int rc = 0;

	while (rc == 0 && more) {
		struct page p = {0};

		rc = take_page(l, &p, why);
		if (rc == 0 && l->keys.count > KEYS_COUNT_MAX)
			rc = why_set(why, EFBIG, "%s: there are more than %d objects in it",
				     l->s->base.name, KEYS_COUNT_MAX);
		if (rc == 0)
			rc = next_page(l, &p, &more, why);
		page_release(&p);
	}
	return rc;
}

/* ---- the whole ---- */

static void move_etag(void *value, void *ctx)
{
	struct s3_etag *e = value;
	struct table *into = ctx;
	uint64_t at = load_le64(e->id.bytes);

	free(table_remove(into, at));
	if (table_put(into, at, e) < 0)
		free(e); /* opening it will ask */
}

/* The ETags go to the store; those of a listing of everything replace what was there. */
static void hand_over_etags(struct lister *l, size_t hidden)
{
	struct table *old = l->etags;
	bool all = l->prefix[strlen(l->s->place.prefix)] == '\0';

	lock_take(&l->s->lock);
	if (all) {
		old = l->s->etags;
		l->s->etags = l->etags;
		l->s->hidden = hidden;
	} else {
		table_each(old, move_etag, l->s->etags);
	}
	lock_release(&l->s->lock);
	if (all)
		table_each(old, free_value, NULL);
	table_free(old);
	l->etags = NULL;
}

static int lister_begin(struct lister *l, struct s3_store *s, const char *prefix, const char *after,
			struct why *why)
{
	l->s = s;
	l->etags = table_new();
	l->prefix = s3_full_key(s, prefix);
	l->last = after != NULL ? s3_full_key(s, after) : NULL;
	return l->prefix == NULL || l->etags == NULL || (after != NULL && l->last == NULL)
		       ? why_set(why, ENOMEM, "out of memory")
		       : 0;
}

static int lister_finish(struct lister *l, struct listing *out, struct why *why)
{
	int rc = keys_finish(&l->keys, out);

	return rc < 0 ? why_set(why, ENOMEM, "out of memory") : 0;
}

static void lister_end(struct lister *l)
{
	if (l->etags != NULL)
		table_each(l->etags, free_value, NULL);
	table_free(l->etags);
	keys_release(&l->keys);
	free(l->token);
	free(l->last);
	free(l->prefix);
}

int s3_list(struct store *store, const char *prefix, struct listing *out, struct why *why)
{
	struct s3_store *s = (struct s3_store *)store;
	struct lister l = {0};
	int rc;

	if (*prefix == '\0' && s3_probe_unchanged(s, out))
		return 0;
	rc = lister_begin(&l, s, prefix, NULL, why);
	if (rc == 0)
		rc = all_pages(&l, why);
	if (rc == 0)
		rc = lister_finish(&l, out, why);
	if (rc == 0) {
		hand_over_etags(&l, out->hidden);
		if (*prefix == '\0')
			s3_probe_remember(s, out, l.pages);
	}
	lister_end(&l);
	return rc;
}

int s3_list_some(struct s3_store *s, const char *prefix, const char *after, struct listing *out,
		 bool *out_more, struct why *why)
{
	struct lister l = {0};
	struct page p = {0};
	int rc = lister_begin(&l, s, prefix, after, why);

	if (rc == 0)
		rc = take_page(&l, &p, why);
	if (rc == 0)
		rc = lister_finish(&l, out, why);
	*out_more = p.truncated;
	page_release(&p);
	lister_end(&l);
	return rc;
}
