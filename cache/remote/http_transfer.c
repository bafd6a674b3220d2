/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One hop in curl's hands: options, callbacks, and what its result codes mean.
 *
 * Curl is told to do one plain request and nothing clever: no redirects, no cookies, no netrc, no
 * decoding, no protocols but http and https.  A proxy comes from the usual variables, never for
 * loopback or link-local hosts (metadata services live there).
 *
 * The callbacks never call the client back; they leave what they found in the transfer (`err`,
 * `complete`, `restart`) and stop curl, and http_call.c draws the conclusions.
 *
 * Network thread only.
 */
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cache/clock.h"
#include "cache/remote/http_private.h"

static int fail(struct http_transfer *t, int err)
{
	if (t->err == 0)
		t->err = err;
	return 0;
}

/* "HTTP/1.1 200 OK": a new head begins; what an interim answer (1xx) said is forgotten. */
static bool status_line(struct http_transfer *t, const char *line, size_t len)
{
	const char *space;
	int status = 0;

	if (len < 9 || strncasecmp(line, "HTTP/", 5) != 0)
		return false;
	space = memchr(line, ' ', len);
	if (space == NULL)
		return false;
	for (space++; space < line + len && *space >= '0' && *space <= '9' && status < 1000;)
		status = status * 10 + (*space++ - '0');
	http_answer_release(&t->answer);
	t->answer.status = status;
	return true;
}

static size_t on_header(char *line, size_t size, size_t count, void *user)
{
	struct http_transfer *t = user;
	size_t len = size * count;
	int rc;

	t->active_ns = clock_mono_ns();
	http_count(&t->http->counters.bytes_in, len);
	if (t->headers_done)
		return len; /* trailers */
	if (status_line(t, line, len))
		return len;
	if (len > 2 || (len > 0 && line[0] != '\r' && line[0] != '\n')) {
		rc = http_answer_add(&t->answer, line, len);
		if (rc == 0)
			return len;
		fail(t, why_set(&t->why, -rc, "an answer has headers that are not acceptable"));
		return 0;
	}
	if (t->answer.status < 200)
		return len;
	t->headers_done = true;
	http_answer_judge(t);
	return t->err == 0 ? len : 0;
}

/* What others may be reading already stays as it is. */
static void put_exact(struct http_transfer *t, const char *bytes, size_t n)
{
	struct http_call *c = t->call;
	const size_t known = t->got < c->given ? MIN(n, c->given - t->got) : 0;

	memcpy((char *)c->dst + t->got + known, bytes + known, n - known);
	t->got += n;
	if (t->early && t->got > c->given) {
		c->given = t->got;
		c->more(c, t->got);
	}
}

static size_t take_exact(struct http_transfer *t, const char *bytes, size_t len)
{
	struct http_call *c = t->call;
	size_t n = (size_t)MIN(t->skip, len), room;

	t->skip -= n;
	bytes += n;
	n = len - n;
	if (t->expect != UINT64_MAX) {
		if (n > t->expect) {
			fail(t,
			     why_set(&t->why, EPROTO, "an answer holds more bytes than its range"));
			return 0;
		}
		t->expect -= n;
	}
	room = c->len - t->got;
	put_exact(t, bytes, MIN(n, room));
	if (n > room || (t->got == c->len && t->expect == UINT64_MAX && !c->whole)) {
		if (c->whole && n > room) {
			fail(t, why_set(&t->why, ESTALE,
					"an object is longer than it was when it was listed"));
			return 0;
		}
		t->complete = true;
		return 0;
	}
	return len;
}

static size_t take_buffer(struct http_transfer *t, const char *bytes, size_t len)
{
	struct http_call *c = t->call;
	char shown[200];

	if (len > c->buffer_max || c->buffer->len - t->buffer_before > c->buffer_max - len) {
		fail(t, why_set(&t->why, EFBIG, "the answer of %s is longer than %zu bytes",
				url_show(shown, sizeof(shown), t->request.url), c->buffer_max));
		return 0;
	}
	buf_add(c->buffer, bytes, len);
	if (c->buffer->failed) {
		fail(t, why_set(&t->why, ENOMEM, "out of memory"));
		return 0;
	}
	return len;
}

static size_t take_stream(struct http_transfer *t, const char *bytes, size_t len)
{
	int rc = 0;

	if (__atomic_load_n(&t->cancelled, __ATOMIC_RELAXED))
		return 0;
	t->delivered = true;
	rc = t->call->data(t->call, bytes, len);
	if (rc == 0)
		return len;
	fail(t, rc);
	return 0;
}

/* What nobody wants is read all the same, so that the connection can be used again; not for ever.
 */
static size_t drop(struct http_transfer *t, size_t len)
{
	t->dropped += len;
	if (t->dropped <= HTTP_DROP_MAX)
		return len;
	t->complete = true;
	return 0;
}

static size_t on_body(char *bytes, size_t size, size_t count, void *user)
{
	struct http_transfer *t = user;
	size_t len = size * count, keep;

	t->active_ns = clock_mono_ns();
	t->answer.body_bytes += len;
	http_count(&t->http->counters.bytes_in, len);
	switch (t->sink) {
	case SINK_NOWHERE: return drop(t, len);
	case SINK_ERROR:
		keep = MIN(len, HTTP_ERROR_BODY_MAX -
					MIN(t->answer.error_body.len, (size_t)HTTP_ERROR_BODY_MAX));
		buf_add(&t->answer.error_body, bytes, keep);
		return drop(t, len);
	case SINK_CALLER: break;
	}
	switch (t->call->delivery) {
	case HTTP_EXACT: return take_exact(t, bytes, len);
	case HTTP_BUFFER: return take_buffer(t, bytes, len);
	case HTTP_STREAM: return take_stream(t, bytes, len);
	case HTTP_DISCARD: break;
	}
	return drop(t, len);
}

static size_t on_upload(char *dst, size_t size, size_t count, void *user)
{
	struct http_transfer *t = user;
	const struct source *body = &t->request.body;
	size_t n = (size_t)MIN((uint64_t)(size * count), body->size - t->sent);
	int rc;

	t->active_ns = clock_mono_ns();
	if (n == 0)
		return 0;
	rc = source_read(body, t->sent, dst, n);
	if (rc < 0) {
		fail(t, why_set(&t->why, -rc, "what is to be sent cannot be read: %s",
				strerrordesc_np(-rc)));
		return CURL_READFUNC_ABORT;
	}
	t->sent += n;
	http_count(&t->http->counters.bytes_out, n);
	return n;
}

/* Curl begins the body again on a fresh connection when a kept one turns out to be dead. */
static int on_seek(void *user, curl_off_t offset, int origin)
{
	struct http_transfer *t = user;

	if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > t->request.body.size)
		return CURL_SEEKFUNC_CANTSEEK;
	t->sent = (uint64_t)offset;
	return CURL_SEEKFUNC_OK;
}

static curl_socket_t on_socket(void *user, curlsocktype purpose, struct curl_sockaddr *address)
{
	/* A child process (credential_process) must not inherit it. */
	return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

static bool add_line(struct http_transfer *t, const char *line)
{
	struct curl_slist *lines = curl_slist_append(t->lines, line);

	if (lines == NULL)
		return false;
	t->lines = lines;
	return true;
}

static bool add_header(struct http_transfer *t, const char *name, const char *value)
{
	struct buf line = {0};
	bool good;

	buf_addstr(&line, name);
	/* Curl's way to say "with an empty value". */
	buf_addstr(&line, *value != '\0' ? ": " : ";");
	buf_addstr(&line, value);
	good = !line.failed && add_line(t, buf_str(&line));
	if (line.data != NULL)
		explicit_bzero(line.data, line.len);
	buf_release(&line);
	return good;
}

static bool add_headers(struct http_transfer *t)
{
	const struct request *r = &t->request;

	for (size_t i = 0; i < r->header_count; i++) {
		const char *name = r->headers[i].name;

		if (strcasecmp(name, "Accept-Encoding") == 0 || strcasecmp(name, "Range") == 0 ||
		    strcasecmp(name, "User-Agent") == 0 || strcasecmp(name, "Content-Length") == 0)
			continue;
		if (!add_header(t, name, r->headers[i].value))
			return false;
	}
	if (!add_line(t, "Accept-Encoding: identity") || !add_line(t, "Expect:"))
		return false;
	/* Curl would invent a form's type. */
	return !r->has_body || request_header(r, "Content-Type") != NULL ||
	       add_line(t, "Content-Type:");
}

static void set_method(CURL *e, const struct request *r)
{
	curl_off_t size = r->has_body ? (curl_off_t)r->body.size : 0;

	switch (r->method) {
	case METHOD_GET: curl_easy_setopt(e, CURLOPT_HTTPGET, 1L); break;
	case METHOD_HEAD: curl_easy_setopt(e, CURLOPT_NOBODY, 1L); break;
	case METHOD_PUT:
		curl_easy_setopt(e, CURLOPT_UPLOAD, 1L);
		curl_easy_setopt(e, CURLOPT_INFILESIZE_LARGE, size);
		break;
	case METHOD_POST:
		curl_easy_setopt(e, CURLOPT_POST, 1L);
		curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, size);
		break;
	case METHOD_DELETE: curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, "DELETE"); break;
	}
}

static void set_protocols(CURL *e)
{
#if LIBCURL_VERSION_NUM >= 0x075500
	curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
#else
	curl_easy_setopt(e, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
}

static void set_times(CURL *e, const struct http_transfer *t)
{
	const struct http_options *o = &t->http->options;
	int64_t connect = t->call->connect_ms > 0 ? t->call->connect_ms : o->connect_ms;
	int64_t left = 0;

	if (t->deadline_ns >= 0)
		left = MAX((t->deadline_ns - clock_mono_ns()) / 1000000, 1);
	curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, (long)MIN(connect, INT32_MAX));
	curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, (long)MIN(left, INT32_MAX));
}

static void set_options(struct http_transfer *t, const struct url *u)
{
	const struct request *r = &t->request;
	const char *ca = t->http->ca_file;
	CURL *e = t->easy;
	char range[64];

	curl_easy_setopt(e, CURLOPT_URL, r->url);
	curl_easy_setopt(e, CURLOPT_PATH_AS_IS, 1L);
	curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 0L);
	curl_easy_setopt(e, CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
	curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_2TLS);
	curl_easy_setopt(e, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
	curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L);
	curl_easy_setopt(e, CURLOPT_BUFFERSIZE, 256L << 10);
	curl_easy_setopt(e, CURLOPT_USERAGENT, "weightfs/" WEIGHTFS_VERSION);
	curl_easy_setopt(e, CURLOPT_HTTPHEADER, t->lines);
	curl_easy_setopt(e, CURLOPT_SHARE, t->http->share);
	curl_easy_setopt(e, CURLOPT_PRIVATE, (void *)t);
	curl_easy_setopt(e, CURLOPT_ERRORBUFFER, t->curl_text);
	curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header);
	curl_easy_setopt(e, CURLOPT_HEADERDATA, (void *)t);
	curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_body);
	curl_easy_setopt(e, CURLOPT_WRITEDATA, (void *)t);
	curl_easy_setopt(e, CURLOPT_READFUNCTION, on_upload);
	curl_easy_setopt(e, CURLOPT_READDATA, (void *)t);
	curl_easy_setopt(e, CURLOPT_SEEKFUNCTION, on_seek);
	curl_easy_setopt(e, CURLOPT_SEEKDATA, (void *)t);
	curl_easy_setopt(e, CURLOPT_OPENSOCKETFUNCTION, on_socket);
	if (ca != NULL)
		curl_easy_setopt(e, CURLOPT_CAINFO, ca);
	/* On a kept connection that turns out to be dead curl sends again by itself. */
	if (r->method == METHOD_POST && !t->call->repeatable)
		curl_easy_setopt(e, CURLOPT_FRESH_CONNECT, 1L);
	if (url_is_local(u))
		curl_easy_setopt(e, CURLOPT_PROXY, "");
	if (r->ranged) {
		snprintf(range, sizeof(range), "%llu-%llu", (unsigned long long)r->off,
			 (unsigned long long)(r->off + r->len - 1));
		curl_easy_setopt(e, CURLOPT_RANGE, range);
	}
	set_protocols(e);
	set_method(e, r);
	set_times(e, t);
}

int http_transfer_begin(struct http_transfer *t, const struct url *u)
{
	http_answer_release(&t->answer);
	t->sink = SINK_NOWHERE;
	t->headers_done = t->complete = t->restart = t->early = false;
	t->err = 0;
	t->got_before = t->got;
	t->buffer_before = t->call->delivery == HTTP_BUFFER ? t->call->buffer->len : 0;
	t->skip = t->dropped = t->sent = 0;
	t->expect = UINT64_MAX;
	t->active_ns = clock_mono_ns();
	t->curl_text[0] = '\0';
	t->easy = http_easy_take(t->http);
	if (t->easy == NULL || !add_headers(t)) {
		http_transfer_stop(t);
		return why_set(&t->why, ENOMEM, "out of memory");
	}
	set_options(t, u);
	if (curl_multi_add_handle(t->http->multi, t->easy) != CURLM_OK) {
		http_transfer_stop(t);
		return why_set(&t->why, ENOMEM, "out of memory");
	}
	http_count(&t->http->counters.requests, 1);
	return 0;
}

void http_transfer_stop(struct http_transfer *t)
{
	if (t->easy != NULL) {
		curl_multi_remove_handle(t->http->multi, t->easy);
		http_easy_give(t->http, t->easy);
	}
	t->easy = NULL;
	for (struct curl_slist *l = t->lines; l != NULL; l = l->next)
		explicit_bzero(l->data, strlen(l->data));
	curl_slist_free_all(t->lines);
	t->lines = NULL;
}

static int connect_errno(struct http_transfer *t)
{
	long os = 0;

	curl_easy_getinfo(t->easy, CURLINFO_OS_ERRNO, &os);
	switch (os) {
	case ECONNREFUSED: return ECONNREFUSED;
	case ETIMEDOUT: return ETIMEDOUT;
	default: return EHOSTUNREACH;
	}
}

int http_transfer_errno(struct http_transfer *t, CURLcode code, bool *unsent)
{
	curl_off_t pretransfer = 0;

	curl_easy_getinfo(t->easy, CURLINFO_PRETRANSFER_TIME_T, &pretransfer);
	*unsent = pretransfer == 0 && t->answer.status == 0;
	switch (code) {
	case CURLE_OK: return 0;
	case CURLE_COULDNT_RESOLVE_HOST:
	case CURLE_COULDNT_RESOLVE_PROXY: return EHOSTUNREACH;
	case CURLE_COULDNT_CONNECT: return connect_errno(t);
	case CURLE_OPERATION_TIMEDOUT: return ETIMEDOUT;
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CACERT_BADFILE:
	case CURLE_SSL_ISSUER_ERROR: return EKEYREJECTED;
	case CURLE_SSL_CONNECT_ERROR:
	case CURLE_PARTIAL_FILE:
	case CURLE_GOT_NOTHING:
	case CURLE_SEND_ERROR:
	case CURLE_RECV_ERROR:
	case CURLE_SEND_FAIL_REWIND:
	case CURLE_HTTP2:
	case CURLE_HTTP2_STREAM: return ECONNRESET;
	case CURLE_UNSUPPORTED_PROTOCOL: /* HTTP/0.9: no status line came */
	case CURLE_WEIRD_SERVER_REPLY: return EPROTO;
	case CURLE_OUT_OF_MEMORY: return ENOMEM;
	default: return EIO;
	}
}
