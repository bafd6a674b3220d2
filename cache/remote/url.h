/* SPDX-License-Identifier: Apache-2.0 */
/*
 * URLs: parsing, percent-encoding, origins, where a redirect leads, and a form fit for messages.
 * Pure.
 *
 * Only absolute http and https URLs without user names exist here.  An *origin* is scheme + host +
 * port. Encoded form is kept as given: what was signed is what is sent.
 */
#ifndef CACHE_REMOTE_URL_H
#define CACHE_REMOTE_URL_H

#include "codec/base.h"
#include "codec/buf.h"

struct url {
	bool https;
	char host[256]; /* lower case; an IPv6 address keeps its brackets */
	uint16_t port;	/* 80 or 443 where the text has none */
	char *path;	/* owned; percent-encoded as given; begins with '/' */
	char *query;	/* owned; without '?'; NULL: none */
};

/* -EINVAL with a sentence (never showing the query): not http(s), user name, bad host or port,
 * blanks or control bytes.  A fragment is dropped. */
int url_parse(const char *text, struct url *out, struct why *why) MUST_CHECK;
void url_release(struct url *u);
/* "https://host[:port]/path[?query]"; the port only where it is not the scheme's own. */
void url_format(const struct url *u, struct buf *out);
/* "https://host[:port]". */
void url_format_origin(const struct url *u, struct buf *out);
/* "host[:port]", as the Host header has it. */
void url_format_host(const struct url *u, struct buf *out);

bool url_same_origin(const struct url *a, const struct url *b);
/* The same for texts; false when one cannot be parsed or is NULL. */
bool url_text_same_origin(const char *a, const char *b);
/* Loopback and link-local hosts (localhost, 127/8, ::1, 169.254/16, fe80::/10, and EC2's
 * fd00:ec2::): never through a proxy. */
bool url_is_local(const struct url *u);

/* Where Location leads when it came from `base` (RFC 3986 §5, dot segments removed from relative
 * ones).  *out is malloc'ed. -EPROTO with a sentence: not http(s), user name in it, https → http,
 * malformed. */
int url_resolve(const char *base, const char *location, char **out, struct why *why) MUST_CHECK;

/* Appends s percent-encoded: all but unreserved (A-Z a-z 0-9 - . _ ~), upper-case hex; '/' is kept
 * when keep_slash. This is S3's rule for paths (keep_slash) and query values (not), and good for
 * the Hub too. */
void url_encode(struct buf *out, const char *s, size_t len, bool keep_slash);
/* Appends "name=value", both encoded, with '&' before it unless the buffer is empty; value NULL:
 * "name=". */
void url_query_add(struct buf *query, const char *name, const char *value);
/* Appends the decoded text; plus: '+' means a blank (encoding-type=url of some servers).  -EINVAL:
 * a bad escape or an encoded NUL. */
int url_decode(struct buf *out, const char *s, size_t len, bool plus) MUST_CHECK;

/* "host/path" for messages and logs: no scheme, no user name, no query, printable, cut to cap.  Any
 * text is fine.  Returns dst. */
const char *url_show(char *dst, size_t cap, const char *text);

#endif
