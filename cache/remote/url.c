/* SPDX-License-Identifier: Apache-2.0 */
/*
 * URLs.
 *
 * A small parser that knows what this program talks to: absolute http and https URLs.  It is strict
 * where leniency has been other clients' trouble: user names, blanks, control bytes and backslashes
 * are refused, and the port is a number in range.  Path and query are kept byte for byte, since a
 * signature covers them.
 *
 * Redirect targets are resolved by RFC 3986 §5.2; dot segments go only where a relative reference
 * has been merged, because an object's key may well contain what looks like one.
 *
 * Pure, no state.
 */
#include "cache/remote/url.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

void url_release(struct url *u)
{
	free(u->path);
	free(u->query);
	memset(u, 0, sizeof(*u));
}

/* What must be percent-encoded everywhere, and what begins surprises in other parsers. */
static bool bad_byte(unsigned char c)
{
	return c <= 0x20 || c == 0x7f || c == '\\' || c == '"' || c == '<' || c == '>';
}

static bool scheme_of(const char *text, bool *https, const char **rest)
{
	if (strncasecmp(text, "https://", 8) == 0) {
		*https = true;
		*rest = text + 8;
	} else if (strncasecmp(text, "http://", 7) == 0) {
		*https = false;
		*rest = text + 7;
	} else {
		return false;
	}
	return true;
}

static bool host_byte(unsigned char c, bool bracketed)
{
	if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '.')
		return true;
	return bracketed ? c == ':' || c == '%' : c == '-' || c == '_';
}

static char lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* "host", "host:port", "[v6]:port" of len bytes. */
static bool parse_authority(const char *s, size_t len, struct url *out)
{
	bool bracketed = len > 0 && s[0] == '[';
	size_t host = 0;
	unsigned long port = 0;

	if (bracketed) {
		const char *end = memchr(s, ']', len);

		if (end == NULL)
			return false;
		host = (size_t)(end - s) + 1;
	} else {
		while (host < len && s[host] != ':')
			host++;
	}
	if (host == 0 || host >= sizeof(out->host) || (bracketed && host < 4))
		return false;
	for (size_t i = 0; i < host; i++) {
		out->host[i] = lower(s[i]);
		if (bracketed && (i == 0 || i == host - 1))
			continue;
		if (!host_byte((unsigned char)out->host[i], bracketed))
			return false;
	}
	out->host[host] = '\0';
	out->port = out->https ? 443 : 80;
	if (host == len)
		return true;
	if (s[host] != ':' || len - host > 6)
		return false;
	if (host + 1 == len) /* "host:" is the default port */
		return true;
	for (size_t i = host + 1; i < len; i++) {
		if (s[i] < '0' || s[i] > '9')
			return false;
		port = port * 10 + (unsigned long)(s[i] - '0');
	}
	if (port == 0 || port > 65535)
		return false;
	out->port = (uint16_t)port;
	return true;
}

static int bad_url(const char *text, struct why *why, const char *what)
{
	char shown[200];

	return why_set(why, EINVAL, "the URL '%s' %s", url_show(shown, sizeof(shown), text), what);
}

int url_parse(const char *text, struct url *out, struct why *why)
{
	struct url u = {0};
	const char *rest, *path, *query, *end;
	size_t authority;

	if (!scheme_of(text, &u.https, &rest))
		return bad_url(text, why, "does not begin with https:// or http://");
	for (const char *p = text; *p; p++)
		if (bad_byte((unsigned char)*p))
			return bad_url(text, why, "has a blank or a byte that must be encoded");
	authority = strcspn(rest, "/?#");
	if (memchr(rest, '@', authority) != NULL)
		return bad_url(text, why, "has a user name in it, which is not supported");
	if (!parse_authority(rest, authority, &u))
		return bad_url(text, why, "has no valid host and port");
	path = rest + authority;
	end = path + strcspn(path, "#");
	query = memchr(path, '?', (size_t)(end - path));
	if (query != NULL)
		u.query = strndup(query + 1, (size_t)(end - query - 1));
	else
		query = end;
	u.path = query == path ? strdup("/") : strndup(path, (size_t)(query - path));
	if (u.path == NULL || (query != end && u.query == NULL)) {
		url_release(&u);
		return why_set(why, ENOMEM, "out of memory");
	}
	*out = u;
	return 0;
}

void url_format_host(const struct url *u, struct buf *out)
{
	buf_addstr(out, u->host);
	if (u->port != (u->https ? 443 : 80))
		buf_addf(out, ":%u", u->port);
}

void url_format_origin(const struct url *u, struct buf *out)
{
	buf_addstr(out, u->https ? "https://" : "http://");
	url_format_host(u, out);
}

void url_format(const struct url *u, struct buf *out)
{
	url_format_origin(u, out);
	buf_addstr(out, u->path);
	if (u->query != NULL) {
		buf_addstr(out, "?");
		buf_addstr(out, u->query);
	}
}

bool url_same_origin(const struct url *a, const struct url *b)
{
	return a->https == b->https && a->port == b->port && strcmp(a->host, b->host) == 0;
}

bool url_text_same_origin(const char *a, const char *b)
{
	struct url x = {0}, y = {0};
	bool same = false;

	if (a != NULL && b != NULL && url_parse(a, &x, NULL) == 0 && url_parse(b, &y, NULL) == 0)
		same = url_same_origin(&x, &y);
	url_release(&x);
	url_release(&y);
	return same;
}

bool url_is_local(const struct url *u)
{
	const char *h = u->host;
	size_t len = strlen(h);
	unsigned a, b, c, d;
	char tail;

	if (strcmp(h, "localhost") == 0 || (len > 10 && strcmp(h + len - 10, ".localhost") == 0))
		return true;
	if (sscanf(h, "%3u.%3u.%3u.%3u%c", &a, &b, &c, &d, &tail) == 4)
		return a == 127 || (a == 169 && b == 254);
	if (strcmp(h, "[::1]") == 0 || strncmp(h, "[fd00:ec2::", 11) == 0)
		return true;
	/* fe80::/10 is fe80 to febf. */
	return strncmp(h, "[fe", 3) == 0 && len > 6 && strchr("89ab", h[3]) != NULL && h[5] == ':';
}

/* Appends path without its dot segments (RFC 3986 §5.2.4); path begins with '/'. */
static void remove_dots(struct buf *out, const char *path)
{
	size_t base = out->len;

	while (*path != '\0') {
		size_t segment = 1 + strcspn(path + 1, "/");
		bool last = path[segment] == '\0';

		if (segment == 2 && path[1] == '.') {
			if (last)
				buf_addstr(out, "/");
		} else if (segment == 3 && path[1] == '.' && path[2] == '.') {
			while (!out->failed && out->len > base && out->data[--out->len] != '/')
				;
			if (last)
				buf_addstr(out, "/");
		} else {
			buf_add(out, path, segment);
		}
		path += segment;
	}
}

/* A reference without scheme and host, against base. */
static void resolve_relative(const struct url *base, const char *ref, struct buf *out)
{
	size_t path = strcspn(ref, "?#"), whole = strcspn(ref, "#");
	struct buf merged = {0};

	url_format_origin(base, out);
	if (path == 0) {
		buf_addstr(out, base->path);
		if (whole == 0 && base->query != NULL)
			buf_addf(out, "?%s", base->query);
	} else {
		if (ref[0] != '/') {
			const char *slash = strrchr(base->path, '/');

			buf_add(&merged, base->path, (size_t)(slash - base->path) + 1);
		}
		buf_add(&merged, ref, path);
		remove_dots(out, buf_str(&merged));
		out->failed |= merged.failed;
	}
	buf_add(out, ref + path, whole - path);
	buf_release(&merged);
}

/* True for "name:" of a scheme before any '/', '?' or '#'. */
static bool has_scheme(const char *ref)
{
	size_t n = strcspn(ref, ":/?#");

	return n > 0 && ref[n] == ':';
}

int url_resolve(const char *base, const char *location, char **out, struct why *why)
{
	struct url from = {0}, to = {0};
	struct buf text = {0};
	char shown[200];
	size_t len;
	int rc = url_parse(base, &from, why);

	if (rc < 0)
		return rc;
	while (*location == ' ' || *location == '\t')
		location++;
	len = strlen(location);
	while (len > 0 && (location[len - 1] == ' ' || location[len - 1] == '\t'))
		len--;
	if (strncmp(location, "//", 2) == 0)
		buf_addstr(&text, from.https ? "https:" : "http:");
	if (has_scheme(location) || strncmp(location, "//", 2) == 0) {
		buf_add(&text, location, len);
	} else {
		struct buf ref = {0};

		buf_add(&ref, location, len);
		resolve_relative(&from, buf_str(&ref), &text);
		text.failed |= ref.failed;
		buf_release(&ref);
	}
	url_show(shown, sizeof(shown), base);
	if (text.failed)
		rc = why_set(why, ENOMEM, "out of memory");
	else if (url_parse(buf_str(&text), &to, why) < 0)
		rc = why_set(why, EPROTO, "%s redirects to something that is not a plain URL",
			     shown);
	else if (from.https && !to.https)
		rc = why_set(why, EPROTO, "%s redirects from https to http, which is refused",
			     shown);
	if (rc == 0) {
		text.len = 0;
		url_format(&to, &text);
		buf_add(&text, "", 1);
		if (text.failed)
			rc = why_set(why, ENOMEM, "out of memory");
		else
			*out = buf_detach(&text, &len);
	}
	buf_release(&text);
	url_release(&from);
	url_release(&to);
	return rc;
}

static bool unreserved(unsigned char c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
	       c == '-' || c == '.' || c == '_' || c == '~';
}

void url_encode(struct buf *out, const char *s, size_t len, bool keep_slash)
{
	static const char hex[] = "0123456789ABCDEF";
	size_t from = 0;

	for (size_t i = 0; i < len; i++) {
		unsigned char c = (unsigned char)s[i];
		char escape[3];

		if (unreserved(c) || (c == '/' && keep_slash))
			continue;
		escape[0] = '%';
		escape[1] = hex[c >> 4];
		escape[2] = hex[c & 15];
		buf_add(out, s + from, i - from);
		buf_add(out, escape, 3);
		from = i + 1;
	}
	buf_add(out, s + from, len - from);
}

void url_query_add(struct buf *query, const char *name, const char *value)
{
	if (query->len > 0)
		buf_addstr(query, "&");
	url_encode(query, name, strlen(name), false);
	buf_addstr(query, "=");
	if (value != NULL)
		url_encode(query, value, strlen(value), false);
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c = lower(c);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int url_decode(struct buf *out, const char *s, size_t len, bool plus)
{
	for (size_t i = 0; i < len; i++) {
		char c = s[i];

		if (c == '+' && plus)
			c = ' ';
		if (c == '%') {
			int high = i + 2 < len ? hex_digit(s[i + 1]) : -1;
			int low = high < 0 ? -1 : hex_digit(s[i + 2]);

			if (low < 0 || high * 16 + low == 0)
				return -EINVAL;
			c = (char)(high * 16 + low);
			i += 2;
		}
		buf_add(out, &c, 1);
	}
	return out->failed ? -ENOMEM : 0;
}

const char *url_show(char *dst, size_t cap, const char *text)
{
	const char *s = strstr(text, "://"), *at;
	size_t authority;

	s = s != NULL ? s + 3 : text;
	authority = strcspn(s, "/?#");
	for (at = s + authority; at > s; at--) {
		if (at[-1] == '@') {
			s = at;
			break;
		}
	}
	return printable(dst, cap, s, strcspn(s, "?#"));
}
