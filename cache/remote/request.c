/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request as a value.
 *
 * What goes into a header line is checked here, once, so that a name or value from a bucket or a
 * token file can never smuggle a second line into the request.  The first failure is kept in
 * `failed` and the client refuses such a request.
 *
 * Pure, no state.
 */
#include "cache/remote/request.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

static void note(struct request *r, int err)
{
	if (r->failed == 0)
		r->failed = err;
}

/* Bearer tokens and session tokens stand here: nothing of them stays in freed memory. */
static void free_value(char *value)
{
	if (value != NULL)
		explicit_bzero(value, strlen(value));
	free(value);
}

void request_release(struct request *r)
{
	for (size_t i = 0; i < r->header_count; i++) {
		free(r->headers[i].name);
		free_value(r->headers[i].value);
	}
	free(r->headers);
	free(r->url);
	memset(r, 0, sizeof(*r));
}

void request_set_url(struct request *r, const char *url)
{
	char *copy = strdup(url);

	if (copy == NULL) {
		note(r, -ENOMEM);
		return;
	}
	free(r->url);
	r->url = copy;
}

static struct request_header *find(const struct request *r, const char *name)
{
	for (size_t i = 0; i < r->header_count; i++)
		if (strcasecmp(r->headers[i].name, name) == 0)
			return &r->headers[i];
	return NULL;
}

const char *request_header(const struct request *r, const char *name)
{
	const struct request_header *h = find(r, name);

	return h != NULL ? h->value : NULL;
}

static bool valid_name(const char *s)
{
	if (*s == '\0')
		return false;
	for (; *s; s++)
		if (strchr("!#$%&'*+-.^_`|~", *s) == NULL &&
		    !((*s >= '0' && *s <= '9') || (*s >= 'a' && *s <= 'z') ||
		      (*s >= 'A' && *s <= 'Z')))
			return false;
	return true;
}

static bool valid_value(const char *s)
{
	for (; *s; s++)
		if (((unsigned char)*s < 0x20 && *s != '\t') || *s == 0x7f)
			return false;
	return true;
}

void request_set_header(struct request *r, const char *name, const char *value)
{
	struct request_header *h = find(r, name);
	char *copy;

	if (!valid_name(name) || !valid_value(value)) {
		note(r, -EINVAL);
		return;
	}
	copy = strdup(value);
	if (copy == NULL) {
		note(r, -ENOMEM);
		return;
	}
	if (h == NULL) {
		char *key = strdup(name);

		h = reallocarray(r->headers, r->header_count + 1, sizeof(*h));
		if (h != NULL)
			r->headers = h;
		if (h == NULL || key == NULL) {
			free(key);
			free_value(copy);
			note(r, -ENOMEM);
			return;
		}
		h = &r->headers[r->header_count++];
		h->name = key;
		h->value = NULL;
	}
	free_value(h->value);
	h->value = copy;
}

void request_set_headerf(struct request *r, const char *name, const char *fmt, ...)
{
	char *value = NULL;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&value, fmt, ap);
	va_end(ap);
	if (n < 0) {
		note(r, -ENOMEM);
		return;
	}
	request_set_header(r, name, value);
	free_value(value);
}

void request_remove_header(struct request *r, const char *name)
{
	struct request_header *h = find(r, name);

	if (h == NULL)
		return;
	free(h->name);
	free_value(h->value);
	r->header_count--;
	memmove(h, h + 1, (size_t)(r->headers + r->header_count - h) * sizeof(*h));
}

void request_set_range(struct request *r, uint64_t off, uint64_t len)
{
	uint64_t end;

	if (len == 0 || add_overflows(off, len, &end)) {
		note(r, -EINVAL);
		return;
	}
	r->ranged = true;
	r->off = off;
	r->len = len;
}

void request_set_body(struct request *r, const void *bytes, size_t len)
{
	r->has_body = true;
	r->body = source_memory(bytes, len);
}

void request_set_body_source(struct request *r, const struct source *body)
{
	r->has_body = true;
	r->body = *body;
}

const char *method_name(enum method m)
{
	switch (m) {
	case METHOD_GET: return "GET";
	case METHOD_HEAD: return "HEAD";
	case METHOD_PUT: return "PUT";
	case METHOD_POST: return "POST";
	case METHOD_DELETE: return "DELETE";
	}
	return "?";
}
