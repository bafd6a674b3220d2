/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The head of an answer: keeping its headers, and deciding from them where the body goes.
 *
 * Headers are kept as "name NUL value NUL" in one buffer; a repeated one is joined to the first
 * with a comma, as if it had come on one line.
 *
 * The decisions about ranges are here, before a byte of body is looked at: a 206 must say exactly
 * what it holds and begin where asked; a 200 to a range is read from its start where that is cheap;
 * a body in a coding that nobody asked for is not the object's bytes.  A resumed range goes on only
 * when the version (ETag and total size) is that of the bytes in place.
 *
 * Network thread; http_header() anywhere.
 */
#include <stdlib.h>
#include <strings.h>

#include "cache/remote/http_private.h"

void http_answer_release(struct http_answer *a)
{
	free(a->location);
	buf_release(&a->headers);
	buf_release(&a->error_body);
	*a = (struct http_answer){.length = -1};
}

const char *http_header(const struct http_answer *a, const char *name)
{
	const char *p = a->headers.data, *end = p != NULL ? p + a->headers.len : NULL;

	while (p < end) {
		const char *value = p + strlen(p) + 1;

		if (strcasecmp(p, name) == 0)
			return value;
		p = value + strlen(value) + 1;
	}
	return NULL;
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void append(struct buf *b, const char *name, const char *value, size_t len)
{
	buf_add(b, name, strlen(name) + 1);
	buf_add(b, value, len);
	buf_add(b, "", 1);
}

/* All again, with ", value" behind the one of that name. */
static void join(struct http_answer *a, const char *name, const char *value, size_t len)
{
	struct buf fresh = {0};
	const char *end = a->headers.data + a->headers.len;

	for (const char *p = a->headers.data; p < end;) {
		const char *old = p + strlen(p) + 1;

		append(&fresh, p, old, strlen(old));
		if (strcasecmp(p, name) == 0 && !fresh.failed) {
			fresh.len--;
			buf_addstr(&fresh, ", ");
			buf_add(&fresh, value, len);
			buf_add(&fresh, "", 1);
		}
		p = old + strlen(old) + 1;
	}
	buf_release(&a->headers);
	a->headers = fresh;
}

int http_answer_add(struct http_answer *a, const char *line, size_t len)
{
	const char *colon = memchr(line, ':', len), *value;
	char name[128];
	size_t n;

	if (memchr(line, '\0', len) != NULL)
		return -EPROTO;
	if (colon == NULL)
		return 0; /* no header: curl passes on what is odd */
	n = (size_t)(colon - line);
	if (n == 0 || n >= sizeof(name))
		return 0;
	if (a->headers.len + len > HTTP_HEADERS_MAX)
		return -EPROTO;
	memcpy(name, line, n);
	name[n] = '\0';
	value = colon + 1;
	len -= n + 1;
	for (; len > 0 && is_blank(*value); value++)
		len--;
	while (len > 0 && is_blank(value[len - 1]))
		len--;
	if (http_header(a, name) != NULL)
		join(a, name, value, len);
	else
		append(&a->headers, name, value, len);
	return a->headers.failed ? -ENOMEM : 0;
}

static void broken(struct http_transfer *t, int err, const char *what)
{
	char shown[200];

	t->err = why_set(&t->why, err, "%s %s", url_show(shown, sizeof(shown), t->request.url),
			 what);
}

/* The body is in some coding; fetched objects are bytes as they are. */
static bool is_encoded(const struct http_answer *a)
{
	const char *coding = http_header(a, "Content-Encoding");

	return coding != NULL && *coding != '\0' && strcasecmp(coding, "identity") != 0;
}

static bool same_version(const struct http_transfer *t, uint64_t total)
{
	const char *etag = http_header(&t->answer, "ETag");

	if (t->total != UINT64_MAX && total != UINT64_MAX && t->total != total)
		return false;
	return t->etag == NULL || etag == NULL || strcmp(t->etag, etag) == 0;
}

static void note_version(struct http_transfer *t, uint64_t total)
{
	const char *etag = http_header(&t->answer, "ETag");

	free(t->etag);
	t->etag = etag != NULL ? strdup(etag) : NULL;
	t->total = total;
}

/* The object ends before the range does: it is not the one that the caller knows. */
static void too_short(struct http_transfer *t)
{
	broken(t, ESTALE, "is shorter than it was when it was listed");
}

static void judge_206(struct http_transfer *t)
{
	const struct http_call *c = t->call;
	const struct http_answer *a = &t->answer;
	uint64_t first = c->off + t->got, last = c->off + c->len - 1, size;

	if (!t->request.ranged) {
		broken(t, EPROTO, "answered with a part that nobody asked for");
		return;
	}
	if (!a->ranged || a->range.first != first || a->range.last > last) {
		broken(t, EPROTO, "answered with another range than was asked for");
		return;
	}
	size = a->range.last - a->range.first + 1;
	if (a->length >= 0 && (uint64_t)a->length != size) {
		broken(t, EPROTO, "answered with a length that is not that of its range");
		return;
	}
	if (a->range.total <= last) {
		too_short(t);
		return;
	}
	if (t->got > 0 && !same_version(t, a->range.total)) {
		t->restart = true;
		t->err = -ESTALE;
		return;
	}
	if (t->got == 0)
		note_version(t, a->range.total);
	t->expect = size;
	t->sink = SINK_CALLER;
}

static void judge_200(struct http_transfer *t)
{
	const struct http_call *c = t->call;
	uint64_t total = t->answer.length >= 0 ? (uint64_t)t->answer.length : UINT64_MAX;

	if (c->off > HTTP_SKIP_MAX) {
		broken(t, EOPNOTSUPP, "ignores ranges, so that parts of a file cannot be read");
		return;
	}
	if (total != UINT64_MAX && total < c->off + c->len) {
		too_short(t);
		return;
	}
	if (c->whole && total != UINT64_MAX && total > c->len) {
		broken(t, ESTALE, "is longer than it was when it was listed");
		return;
	}
	if (t->got > 0 && c->given > 0 && !same_version(t, total)) {
		t->restart = true;
		t->err = -ESTALE;
		return;
	}
	/* From the start, whatever was in place. */
	t->got = t->got_before = 0;
	t->skip = c->off;
	note_version(t, total);
	t->sink = SINK_CALLER;
}

bool http_answer_redirects(const struct http_transfer *t)
{
	switch (t->answer.status) {
	case 301:
	case 302:
	case 303:
	case 307:
	case 308: return !t->call->no_follow && http_header(&t->answer, "Location") != NULL;
	default: return false;
	}
}

/* Some servers (rclone's, for one) send the range that was asked for, with its Content-Range and
 * its length, and call it 200. */
static bool is_range_called_200(const struct http_transfer *t)
{
	const struct http_answer *a = &t->answer;
	const struct content_range *r = &a->range;

	return t->request.ranged && a->status == 200 && r->first == t->request.off &&
	       r->first <= r->last && r->total != UINT64_MAX && a->length >= 0 &&
	       (uint64_t)a->length == r->last - r->first + 1;
}

static void read_fields(struct http_transfer *t)
{
	struct http_answer *a = &t->answer;
	const char *length = http_header(a, "Content-Length");
	const char *range = http_header(a, "Content-Range");
	uint64_t n;

	if (length != NULL && field_u64(length, &n) == 0 && n <= INT64_MAX)
		a->length = (int64_t)n;
	if (range != NULL && field_content_range(range, &a->range) == 0)
		a->ranged = (a->status == 206 && a->range.first <= a->range.last) ||
			    is_range_called_200(t);
}

void http_answer_judge(struct http_transfer *t)
{
	struct http_answer *a = &t->answer;

	read_fields(t);
	t->sink = SINK_NOWHERE;
	if (a->status < 200 || a->status > 299) {
		t->sink = a->status >= 300 && a->status < 400 ? SINK_NOWHERE : SINK_ERROR;
		/* S3 answers 301 without a Location: what it wants is in the body. */
		if (a->status == 301 && http_header(a, "Location") == NULL)
			t->sink = SINK_ERROR;
		return;
	}
	if (t->call->delivery == HTTP_DISCARD || t->request.method == METHOD_HEAD)
		return;
	if (is_encoded(a)) {
		broken(t, EPROTO, "answered with an encoded (compressed) body");
		return;
	}
	if (t->call->delivery != HTTP_EXACT)
		t->sink = SINK_CALLER;
	else if (a->status == 206 || a->ranged)
		judge_206(t);
	else if (a->status == 200)
		judge_200(t);
	else
		broken(t, EPROTO, "answered without the bytes that were asked for");
	if (t->err != 0 || t->sink != SINK_CALLER || t->call->sound == NULL)
		return;
	/* At once: later answers say nothing of what this one would leave behind when it breaks. */
	if (!t->call->sound(t->call, a))
		broken(t, ESTALE, "is not the object that was listed");
	/* Of a length that the transport holds it to. */
	t->early = t->err == 0 && t->call->more != NULL && a->length >= 0;
}
