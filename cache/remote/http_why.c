/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sentences for what went wrong on the network: host and path, what happened, what helps.
 *
 * Never in a sentence: the query of a URL (signatures), values of headers, bodies.  Where a store
 * knows better what a status means (a token's variable, a bucket's name), its judge() says so and
 * this text is not used.
 *
 * Network thread.
 */
#include "cache/remote/http_private.h"

static int status_errno(int status)
{
	switch (status) {
	case 401:
	case 403: return EACCES;
	case 404:
	case 410: return ENOENT;
	case 408:
	case 504: return ETIMEDOUT;
	case 409: return EEXIST;
	case 412: return ESTALE;
	case 413:
	case 507: return ENOSPC;
	case 416: return ERANGE;
	default: return EIO;
	}
}

int http_store_errno(int err)
{
	switch (err) {
	case 0:
	case -ENOENT:
	case -ESTALE:
	case -EACCES:
	case -ETIMEDOUT:
	case -ECANCELED:
	case -ENOMEM: return err;
	case -ERANGE: return -ESTALE; /* it ends before the range begins */
	case -EKEYEXPIRED: return -EACCES;
	default: return -EIO;
	}
}

static const char *status_text(int status)
{
	switch (status) {
	case 400: return "the request was not understood";
	case 401: return "credentials are missing or not accepted";
	case 403: return "these credentials do not give access, or a signed link has expired";
	case 404:
	case 410: return "there is no such thing";
	case 407: return "the proxy wants credentials: give them in the proxy's variable";
	case 408:
	case 504: return "it took the server too long";
	case 409: return "it exists already, or is being changed";
	case 412: return "the object has been replaced";
	case 413:
	case 507: return "there is no room for it, or the quota is used up";
	case 416: return "the object is shorter than it was when it was listed";
	case 429: return "too many requests: use fewer clients on these credentials, or wait";
	case 500:
	case 502:
	case 503: return "the server is in trouble or overloaded: try again later";
	default: return "unexpected answer";
	}
}

int http_why_status(struct http_transfer *t)
{
	char shown[200];
	int status = t->answer.status;

	url_show(shown, sizeof(shown), t->request.url);
	if (t->attempts > 1)
		return why_set(&t->why, status_errno(status),
			       "%s answered %d, after %u attempts: %s", shown, status, t->attempts,
			       status_text(status));
	return why_set(&t->why, status_errno(status), "%s answered %d: %s", shown, status,
		       status_text(status));
}

static void host_of(const struct http_transfer *t, char *dst, size_t cap)
{
	char shown[300];

	url_show(shown, sizeof(shown), t->request.url);
	printable(dst, cap, shown, strcspn(shown, "/"));
}

static int tls_sentence(struct http_transfer *t, const char *host)
{
	char reason[160];
	const char *text = t->curl_text;

	printable(reason, sizeof(reason), text, strnlen(text, sizeof(t->curl_text)));
	return why_set(&t->why, EKEYREJECTED,
		       "the certificate of %s is not accepted (%s): for a private authority give "
		       "--ca-file or SSL_CERT_FILE",
		       host, *reason != '\0' ? reason : "it cannot be verified");
}

int http_why_error(struct http_transfer *t, int err, CURLcode code)
{
	char shown[200], host[200];

	if (t->request.url == NULL)
		return why_set(&t->why, err, "the call ended before it was sent: %s",
			       strerrordesc_np(err));
	url_show(shown, sizeof(shown), t->request.url);
	host_of(t, host, sizeof(host));
	switch (err) {
	case EKEYREJECTED: return tls_sentence(t, host);
	case EHOSTUNREACH:
		return why_set(&t->why, err, "%s cannot be %s: check the name and the network",
			       host, code == CURLE_COULDNT_CONNECT ? "reached" : "found");
	case ECONNREFUSED:
		return why_set(&t->why, err,
			       "%s refuses connections: check the endpoint, and that it runs",
			       host);
	case ETIMEDOUT:
		return why_set(&t->why, err, "%s did not answer in time (attempt %u)", shown,
			       t->attempts);
	case ECONNRESET:
		return why_set(&t->why, err, "the connection to %s broke off (attempt %u)", shown,
			       t->attempts);
	case ECANCELED: return why_set(&t->why, err, "the call to %s was cancelled", shown);
	default: return why_set(&t->why, err, "%s: %s", shown, strerrordesc_np(err));
	}
}
