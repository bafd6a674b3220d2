/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AWS Signature Version 4.
 *
 * Own code rather than libcurl's, whose canonical form differs between the versions that
 * distributions carry.  The canonical path and query are made from what is decoded of the URL, so
 * that a needlessly encoded byte ("%7E") is signed as the server will compute it; the URL itself is
 * sent as it is.
 *
 * The key chain and what is derived from the secret are wiped.  HMAC is libcrypto's.
 *
 * No state; any thread.
 */
#include "cache/remote/sigv4.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>

#define EMPTY_HASH "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

enum { HASH_SIZE = 32, SOURCE_STEP = 256 * 1024 };

/* A name with its value: a canonical header, or a parameter of the query. */
struct pair {
	char *name, *value;
};

struct pairs {
	struct pair *v;
	size_t count;
};

static void hex(const unsigned char *bytes, size_t len, char *out)
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < len; i++) {
		out[2 * i] = digits[bytes[i] >> 4];
		out[2 * i + 1] = digits[bytes[i] & 15];
	}
	out[2 * len] = '\0';
}

void sigv4_sha256_hex(const void *bytes, size_t len, char out[65])
{
	unsigned char hash[EVP_MAX_MD_SIZE] = {0};

	EVP_Digest(bytes, len, hash, NULL, EVP_sha256(), NULL);
	hex(hash, HASH_SIZE, out);
}

int sigv4_sha256_source(const struct source *src, char out[65])
{
	unsigned char hash[EVP_MAX_MD_SIZE];
	EVP_MD_CTX *ctx = EVP_MD_CTX_new();
	char *step = malloc(SOURCE_STEP);
	int rc = ctx != NULL && step != NULL ? 0 : -ENOMEM;

	if (rc == 0 && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) != 1)
		rc = -EIO;
	for (uint64_t off = 0; rc == 0 && off < src->size;) {
		size_t n = (size_t)MIN(src->size - off, SOURCE_STEP);

		rc = source_read(src, off, step, n);
		if (rc == 0 && EVP_DigestUpdate(ctx, step, n) != 1)
			rc = -EIO;
		off += n;
	}
	if (rc == 0 && EVP_DigestFinal_ex(ctx, hash, NULL) != 1)
		rc = -EIO;
	if (rc == 0)
		hex(hash, HASH_SIZE, out);
	free(step);
	EVP_MD_CTX_free(ctx);
	return rc;
}

static void pairs_release(struct pairs *p)
{
	for (size_t i = 0; i < p->count; i++) {
		free(p->v[i].name);
		if (p->v[i].value != NULL)
			explicit_bzero(p->v[i].value, strlen(p->v[i].value));
		free(p->v[i].value);
	}
	free(p->v);
}

/* Takes both strings. */
static int pairs_add(struct pairs *p, char *name, char *value)
{
	struct pair *v = reallocarray(p->v, p->count + 1, sizeof(*v));

	if (v != NULL)
		p->v = v;
	if (v == NULL || name == NULL || value == NULL) {
		free(name);
		free(value);
		return -ENOMEM;
	}
	v[p->count++] = (struct pair){.name = name, .value = value};
	return 0;
}

static int pair_compare(const void *a, const void *b)
{
	const struct pair *x = a, *y = b;
	int order = strcmp(x->name, y->name);

	return order != 0 ? order : strcmp(x->value, y->value);
}

static void pairs_sort(struct pairs *p)
{
	if (p->count > 1)
		qsort(p->v, p->count, sizeof(*p->v), pair_compare);
}

/* The canonical encoding of an encoded text; NULL: out of memory.  A bad escape stays as it is. */
static char *recode(const char *s, size_t len, bool keep_slash)
{
	struct buf plain = {0}, coded = {0};

	if (url_decode(&plain, s, len, false) == -EINVAL) {
		plain.len = 0;
		buf_add(&plain, s, len);
	}
	url_encode(&coded, plain.data, plain.len, keep_slash);
	buf_add(&coded, "", 1);
	coded.failed |= plain.failed;
	buf_release(&plain);
	if (coded.failed) {
		buf_release(&coded);
		return NULL;
	}
	return buf_detach(&coded, &(size_t){0});
}

static int add_query(struct buf *out, const char *query)
{
	struct pairs params = {0};
	int rc = 0;

	while (rc == 0 && query != NULL && *query != '\0') {
		size_t len = strcspn(query, "&"), name = MIN(strcspn(query, "="), len);
		size_t value = MIN(name + 1, len);

		if (len > 0)
			rc = pairs_add(&params, recode(query, name, false),
				       recode(query + value, len - value, false));
		query += len + (query[len] == '&');
	}
	pairs_sort(&params);
	for (size_t i = 0; i < params.count; i++)
		buf_addf(out, "%s%s=%s", i ? "&" : "", params.v[i].name, params.v[i].value);
	pairs_release(&params);
	return rc;
}

static bool is_signed(const char *name)
{
	static const char *const left_out[] = {
		"authorization", "user-agent", "accept-encoding", "expect",
		"connection",	 "range",      "x-amzn-trace-id", "content-length",
	};

	for (size_t i = 0; i < ARRAY_LEN(left_out); i++)
		if (strcasecmp(name, left_out[i]) == 0)
			return false;
	return true;
}

static char *lower_case(const char *s)
{
	char *copy = strdup(s);

	for (char *p = copy; p != NULL && *p != '\0'; p++)
		if (*p >= 'A' && *p <= 'Z')
			*p = (char)(*p - 'A' + 'a');
	return copy;
}

/* Without blanks around it, and with one for several inside. */
static char *trimmed(const char *s)
{
	char *copy = strdup(s), *to = copy;

	for (; copy != NULL && *s != '\0'; s++) {
		bool blank = *s == ' ' || *s == '\t';

		if (!blank)
			*to++ = *s;
		else if (to > copy && to[-1] != ' ')
			*to++ = ' ';
	}
	if (copy != NULL) {
		if (to > copy && to[-1] == ' ')
			to--;
		*to = '\0';
	}
	return copy;
}

static int collect_headers(const struct request *r, const struct url *u, struct pairs *out)
{
	struct buf host = {0};
	int rc = 0;

	url_format_host(u, &host);
	if (request_header(r, "Host") == NULL)
		rc = pairs_add(out, strdup("host"), strdup(buf_str(&host)));
	if (host.failed)
		rc = -ENOMEM;
	buf_release(&host);
	for (size_t i = 0; rc == 0 && i < r->header_count; i++)
		if (is_signed(r->headers[i].name))
			rc = pairs_add(out, lower_case(r->headers[i].name),
				       trimmed(r->headers[i].value));
	pairs_sort(out);
	return rc;
}

/* Appends the canonical request; *names gets the list of what is signed. */
static int canonical_request(const struct request *r, const struct url *u, const char *payload_hash,
			     struct buf *out, struct buf *names)
{
	struct pairs headers = {0};
	char *path = recode(u->path, strlen(u->path), true);
	int rc = path != NULL ? collect_headers(r, u, &headers) : -ENOMEM;

	if (rc == 0) {
		buf_addf(out, "%s\n%s\n", method_name(r->method), path);
		rc = add_query(out, u->query);
	}
	buf_addstr(out, "\n");
	for (size_t i = 0; i < headers.count; i++) {
		buf_addstr(out, headers.v[i].name);
		buf_addstr(out, ":");
		buf_addstr(out, headers.v[i].value);
		buf_addstr(out, "\n");
		buf_addf(names, "%s%s", i ? ";" : "", headers.v[i].name);
	}
	buf_addf(out, "\n%s\n%s", buf_str(names), payload_hash);
	if (rc == 0 && (out->failed || names->failed))
		rc = -ENOMEM;
	pairs_release(&headers);
	free(path);
	return rc;
}

static int hmac(const void *key, size_t key_len, const char *text, unsigned char out[HASH_SIZE])
{
	unsigned len = HASH_SIZE;

	if (HMAC(EVP_sha256(), key, (int)key_len, (const unsigned char *)text, strlen(text), out,
		 &len) == NULL)
		return -EIO;
	return 0;
}

/* The key chain, and the signature of `text` with its end. */
static int sign(const char *secret, const char *date, const struct sigv4_scope *scope,
		const char *text, char out[65])
{
	unsigned char key[HASH_SIZE] = {0};
	const char *steps[] = {scope->region, scope->service, "aws4_request", text};
	struct buf first = {0};
	int rc;

	buf_addstr(&first, "AWS4");
	buf_addstr(&first, secret);
	rc = first.failed ? -ENOMEM : hmac(first.data, first.len, date, key);
	for (size_t i = 0; rc == 0 && i < ARRAY_LEN(steps); i++)
		rc = hmac(key, sizeof(key), steps[i], key);
	if (rc == 0)
		hex(key, sizeof(key), out);
	if (first.data != NULL)
		OPENSSL_cleanse(first.data, first.len);
	buf_release(&first);
	OPENSSL_cleanse(key, sizeof(key));
	return rc;
}

static int format_time(int64_t time_s, char stamp[17], char date[9])
{
	time_t t = (time_t)time_s;
	struct tm tm;

	if (gmtime_r(&t, &tm) == NULL || tm.tm_year < 70 || tm.tm_year > 8099)
		return -EINVAL;
	if (strftime(stamp, 17, "%Y%m%dT%H%M%SZ", &tm) != 16)
		return -EINVAL;
	memcpy(date, stamp, 8);
	date[8] = '\0';
	return 0;
}

static const char *hash_of_payload(const struct request *r, const struct sigv4_scope *scope)
{
	if (scope->payload_hash != NULL)
		return scope->payload_hash;
	return r->has_body ? SIGV4_UNSIGNED : EMPTY_HASH;
}

int sigv4_sign(struct request *r, const struct sigv4_keys *keys, const struct sigv4_scope *scope)
{
	const char *payload = hash_of_payload(r, scope);
	char stamp[17], date[9], hash[65], signature[65];
	struct buf canonical = {0}, names = {0}, text = {0};
	struct url u = {0};
	int rc = r->url != NULL ? format_time(scope->time_s, stamp, date) : -EINVAL;

	if (rc == 0)
		rc = url_parse(r->url, &u, NULL);
	if (rc < 0)
		return rc;
	request_set_header(r, "x-amz-date", stamp);
	if (strcmp(scope->service, "s3") == 0)
		request_set_header(r, "x-amz-content-sha256", payload);
	if (keys->session_token != NULL)
		request_set_header(r, "x-amz-security-token", keys->session_token);
	else
		request_remove_header(r, "x-amz-security-token");
	rc = r->failed;
	if (rc == 0)
		rc = canonical_request(r, &u, payload, &canonical, &names);
	if (rc == 0) {
		sigv4_sha256_hex(canonical.data, canonical.len, hash);
		buf_addf(&text, "AWS4-HMAC-SHA256\n%s\n%s/%s/%s/aws4_request\n%s", stamp, date,
			 scope->region, scope->service, hash);
		rc = text.failed ? -ENOMEM
				 : sign(keys->secret_key, date, scope, buf_str(&text), signature);
	}
	if (rc == 0) {
		request_set_headerf(r, "Authorization",
				    "AWS4-HMAC-SHA256 Credential=%s/%s/%s/%s/aws4_request, "
				    "SignedHeaders=%s, Signature=%s",
				    keys->access_key, date, scope->region, scope->service,
				    buf_str(&names), signature);
		rc = r->failed;
	}
	if (canonical.data != NULL) /* it holds the session token */
		OPENSSL_cleanse(canonical.data, canonical.len);
	buf_release(&canonical);
	buf_release(&names);
	buf_release(&text);
	url_release(&u);
	return rc;
}
