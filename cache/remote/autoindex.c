/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listings of web servers.
 *
 * HTML is not parsed as such: each link's target is resolved like a browser would, and counts when
 * it is a name directly in the listed directory; so links to parents, to sorted views of the page
 * and to other sites drop out by themselves.  The text behind a link (date and size, in a dozen
 * dialects) is not understood, only hashed: when it changes, the object is asked for again.
 *
 * A page is taken for a listing when it says so in the words that such pages have; a site's
 * friendly front page is not an empty directory.
 *
 * Pure, no state.
 */
#include "cache/remote/autoindex.h"

#include <jansson.h>
#include <stdlib.h>
#include <strings.h>
#include <xxhash.h>

#include "cache/remote/fields.h"
#include "cache/remote/url.h"

static const int64_t NSEC = 1000000000;

void autoindex_release(struct autoindex *x)
{
	for (size_t i = 0; i < x->count; i++) {
		free(x->v[i].name);
		free(x->v[i].etag);
	}
	free(x->v);
	memset(x, 0, sizeof(*x));
}

/* Room for one more, with defaults; NULL: out of memory or too many. */
static struct autoindex_entry *add(struct autoindex *x, const char *name)
{
	struct autoindex_entry *e;

	if (x->count == x->cap) {
		size_t cap = x->cap > 0 ? x->cap * 2 : 64;

		e = x->count < AUTOINDEX_MAX ? reallocarray(x->v, cap, sizeof(*e)) : NULL;
		if (e == NULL) {
			x->failed = true;
			return NULL;
		}
		x->v = e;
		x->cap = cap;
	}
	e = &x->v[x->count];
	*e = (struct autoindex_entry){.size = -1, .mtime_ns = INT64_MIN};
	e->name = strdup(name);
	if (e->name == NULL) {
		x->failed = true;
		return NULL;
	}
	x->count++;
	return e;
}

static int finish(const struct autoindex *x)
{
	if (!x->failed)
		return 0;
	return x->count >= AUTOINDEX_MAX ? -EFBIG : -ENOMEM;
}

/* Hands out what was read, or lets go of it. */
static int end(struct autoindex *x, int rc, struct autoindex *out)
{
	if (rc == 0)
		rc = finish(x);
	if (rc < 0)
		autoindex_release(x);
	else
		*out = *x;
	return rc;
}

static void mix(uint64_t *row, const void *bytes, size_t len)
{
	*row = XXH3_64bits_withSeed(bytes, len, *row + 1);
}

static void mix_entry(struct autoindex_entry *e)
{
	mix(&e->row, &e->size, sizeof(e->size));
	mix(&e->row, &e->mtime_ns, sizeof(e->mtime_ns));
	if (e->etag != NULL)
		mix(&e->row, e->etag, strlen(e->etag));
}

/* ---- JSON ---- */

/* Seconds, ISO or an HTTP date; INT64_MIN: not understood. */
static int64_t time_of(const json_t *j)
{
	const char *text = json_string_value(j);
	int64_t v;

	if (json_is_number(j)) {
		double s = json_number_value(j);

		return s > -9e9 && s < 9e9 ? (int64_t)(s * 1e9) : INT64_MIN;
	}
	if (text == NULL)
		return INT64_MIN;
	if (field_iso_time(text, &v) == 0)
		return v;
	if (field_http_date(text, &v) == 0 && !__builtin_mul_overflow(v, NSEC, &v))
		return v;
	return INT64_MIN;
}

static bool copy_etag(struct autoindex *x, struct autoindex_entry *e, const char *etag)
{
	if (etag == NULL)
		return true;
	for (const char *p = etag; *p != '\0'; p++)
		if (*p < 0x20 || *p == 0x7f)
			return true; /* not one that a header can hold */
	e->etag = strdup(etag);
	x->failed |= e->etag == NULL;
	return e->etag != NULL;
}

int autoindex_objects(const char *text, size_t len, struct autoindex *out, struct why *why)
{
	json_t *root = json_loadb(text, len, 0, NULL), *list, *o;
	struct autoindex x = {0};
	size_t i;
	int rc = 0;

	list = json_object_get(root, "objects");
	if (!json_is_array(list)) {
		json_decref(root);
		return -EPROTO;
	}
	json_array_foreach (list, i, o) {
		const char *key = json_string_value(json_object_get(o, "key"));
		const json_t *size = json_object_get(o, "size");
		struct autoindex_entry *e;

		if (key == NULL || !json_is_integer(size) || json_integer_value(size) < 0) {
			rc = why_set(why, EBADMSG, "object %zu has no \"key\" or no \"size\"", i);
			break;
		}
		e = add(&x, key);
		if (e == NULL)
			break;
		e->size = json_integer_value(size);
		e->mtime_ns = time_of(json_object_get(o, "mtime"));
		if (!copy_etag(&x, e, json_string_value(json_object_get(o, "etag"))))
			break;
		mix_entry(e);
		if (json_is_string(json_object_get(o, "xxh3")))
			mix(&e->row, json_string_value(json_object_get(o, "xxh3")),
			    json_string_length(json_object_get(o, "xxh3")));
	}
	json_decref(root);
	return end(&x, rc, out);
}

int autoindex_json(const char *text, size_t len, struct autoindex *out)
{
	json_t *root = json_loadb(text, len, 0, NULL), *o;
	struct autoindex x = {0};
	size_t i;
	int rc = json_is_array(root) ? 0 : -EPROTO;

	json_array_foreach (root, i, o) {
		const char *name = json_string_value(json_object_get(o, "name"));
		const char *type = json_string_value(json_object_get(o, "type"));
		const json_t *size = json_object_get(o, "size");
		struct autoindex_entry *e;

		if (name == NULL || type == NULL) {
			rc = -EPROTO;
			break;
		}
		e = add(&x, name);
		if (e == NULL)
			break;
		e->directory = strcmp(type, "directory") == 0;
		if (json_is_integer(size) && json_integer_value(size) >= 0)
			e->size = json_integer_value(size);
		e->mtime_ns = time_of(json_object_get(o, "mtime"));
		mix_entry(e);
	}
	json_decref(root);
	return end(&x, rc, out);
}

/* ---- HTML ---- */

/* The character references that servers write into links. */
static void unescape(const char *s, size_t len, struct buf *out)
{
	static const struct {
		const char *name, *text;
	} entities[] = {
		{"&amp;", "&"},	 {"&quot;", "\""}, {"&#34;", "\""}, {"&#39;", "'"},
		{"&apos;", "'"}, {"&#x27;", "'"},  {"&lt;", "<"},   {"&gt;", ">"},
	};

	while (len > 0) {
		size_t i, n = 1;
		const char *text = s;

		for (i = 0; *s == '&' && i < ARRAY_LEN(entities); i++) {
			size_t name = strlen(entities[i].name);

			if (len >= name && strncasecmp(s, entities[i].name, name) == 0) {
				n = name;
				text = entities[i].text;
				break;
			}
		}
		buf_add(out, text, 1);
		s += n;
		len -= n;
	}
}

/* The name that a link leads to when it lies directly in the directory: 1 with the decoded name, 0
 * when not. */
static int link_name(const char *url, const struct url *dir, const char *href, struct buf *name,
		     bool *directory)
{
	struct url target = {0};
	size_t base = strlen(dir->path);
	char *full = NULL, *rest;
	int good = 0;

	if (url_resolve(url, href, &full, NULL) == 0 && url_parse(full, &target, NULL) == 0 &&
	    target.query == NULL && url_same_origin(&target, dir) &&
	    strncmp(target.path, dir->path, base) == 0) {
		rest = target.path + base;
		*directory = false;
		if (*rest != '\0' && rest[strlen(rest) - 1] == '/') {
			*directory = true;
			rest[strlen(rest) - 1] = '\0';
		}
		good = *rest != '\0' && strchr(rest, '/') == NULL &&
		       url_decode(name, rest, strlen(rest), false) == 0 &&
		       strchr(buf_str(name), '/') == NULL && !name->failed;
	}
	url_release(&target);
	free(full);
	return good;
}

static bool is_listing(const char *text)
{
	static const char *const words[] = {"Index of ", "Directory listing for ", "Directory: "};

	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (strcasestr(text, words[i]) != NULL)
			return true;
	return false;
}

/* The quoted value behind href= in a tag that begins at p; NULL: none.  *end: behind the tag, where
 * it has an end. */
static const char *find_href(const char *p, size_t *len, const char **end)
{
	const char *close = strchr(p, '>'), *h;
	char quote;

	if (close == NULL)
		return NULL;
	*end = close + 1;
	h = strcasestr(p, "href=");
	if (h == NULL || h > close)
		return NULL;
	quote = h[5];
	if (quote != '"' && quote != '\'')
		return NULL;
	h += 6;
	p = strchr(h, quote);
	if (p == NULL)
		return NULL;
	*len = (size_t)(p - h);
	close = strchr(p, '>');
	*end = close != NULL ? close + 1 : p + 1;
	return h;
}

/* What stands behind the link's text: without a digit it has neither a date nor a size. */
static bool has_digit(const char *s, size_t len)
{
	const char *text = memmem(s, len, "</", 2);

	if (text == NULL)
		return false;
	len -= (size_t)(text - s);
	s = text;
	while (len > 0 && (s[len - 1] < '0' || s[len - 1] > '9'))
		len--;
	return len > 0;
}

int autoindex_html(const char *text, size_t len, const char *url, struct autoindex *out)
{
	struct autoindex x = {0};
	struct url dir = {0};
	int rc = 0;

	if (len == 0 || strlen(text) != len || !is_listing(text) || url_parse(url, &dir, NULL) < 0)
		return -EPROTO;
	for (const char *p = text; rc == 0 && (p = strcasestr(p, "<a ")) != NULL;) {
		struct buf name = {0}, href = {0};
		size_t n = 0, row;
		bool directory;
		const char *tag = p, *value;

		p += 3; /* at least */
		value = find_href(tag, &n, &p);
		if (value == NULL)
			continue;
		unescape(value, n, &href);
		if (link_name(url, &dir, buf_str(&href), &name, &directory) > 0) {
			struct autoindex_entry *e = add(&x, buf_str(&name));

			row = MIN(strcspn(p, "\r\n"), 1024);
			if (e != NULL) {
				e->directory = directory;
				if (has_digit(p, row))
					mix(&e->row, p, row);
			} else {
				rc = finish(&x);
			}
		}
		if (href.failed || name.failed)
			rc = -ENOMEM;
		buf_release(&href);
		buf_release(&name);
	}
	url_release(&dir);
	return end(&x, rc, out);
}
