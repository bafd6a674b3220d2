/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The S3 store: making and taking down, and what an object's identity is.
 *
 * The store never asks the network on its own; its parts (see store_s3_private.h) share the place,
 * the credentials, the region that the bucket turned out to be in, and the ETags last listed.
 *
 * An identity is a hash of ETag and size.  MD5s of content, and of parts' MD5s ("...-N"), are the
 * same wherever the content is; any other ETag is the server's own affair and counts together with
 * endpoint, bucket and key.  Without an ETag, the time of the last change stands in for it.
 *
 * One lock; see the header for what it guards.
 */
#include "cache/remote/store_s3.h"

#include <stdlib.h>
#include <xxhash.h>

#include "cache/clock.h"
#include "cache/remote/store_s3_private.h"

char *s3_etag_bare(const char *etag, bool *weak)
{
	size_t n;

	*weak = false;
	if (etag == NULL)
		return NULL;
	if (strncmp(etag, "W/", 2) == 0) {
		*weak = true;
		etag += 2;
	}
	n = strlen(etag);
	if (n >= 2 && etag[0] == '"' && etag[n - 1] == '"') {
		etag++;
		n -= 2;
	}
	/* It goes back to the server in a header. */
	for (size_t i = 0; i < n; i++)
		if (etag[i] <= ' ' || etag[i] > '~' || etag[i] == '"')
			return NULL;
	return n > 0 ? strndup(etag, n) : NULL;
}

/* An MD5, perhaps of so many parts' MD5s. */
static bool is_content_hash(const char *etag)
{
	size_t n = strspn(etag, "0123456789abcdefABCDEF");

	if (n != 32)
		return false;
	return etag[n] == '\0' || (etag[n] == '-' && etag[n + 1] != '\0' &&
				   strspn(etag + n + 1, "0123456789") == strlen(etag + n + 1));
}

int s3_identity(const struct s3_store *s, const char *key, const char *etag, uint64_t size,
		int64_t mtime_ns, struct identity *out)
{
	const struct s3_place *p = &s->place;
	const char *parts[] = {p->endpoint != NULL ? p->endpoint : "", p->bucket, key};
	XXH128_canonical_t hash;
	struct buf b = {0};
	uint8_t raw[16];

	store_le64(raw, size);
	store_le64(raw + 8, etag == NULL ? (uint64_t)(mtime_ns / NSEC_PER_SEC) : 0);
	buf_add(&b, "s3 etag", 8);
	buf_add(&b, raw, sizeof(raw));
	if (etag != NULL)
		buf_add(&b, etag, strlen(etag) + 1);
	for (size_t i = 0; (etag == NULL || !is_content_hash(etag)) && i < ARRAY_LEN(parts); i++)
		buf_add(&b, parts[i], strlen(parts[i]) + 1);
	if (b.failed) {
		buf_release(&b);
		return -ENOMEM;
	}
	XXH128_canonicalFromHash(&hash, XXH3_128bits(b.data, b.len));
	memcpy(out->bytes, hash.digest, sizeof(out->bytes));
	buf_release(&b);
	return 0;
}

char *s3_full_key(const struct s3_store *s, const char *key)
{
	size_t a = strlen(s->place.prefix), b = strlen(key);
	char *full = malloc(a + b + 1);

	if (full != NULL) {
		memcpy(full, s->place.prefix, a);
		memcpy(full + a, key, b + 1);
	}
	return full;
}

int s3_read_head(const struct s3_store *s, const char *key, const struct http_answer *a,
		 char **out_etag, uint64_t *out_size, struct identity *out_id)
{
	const char *modified = http_header(a, "Last-Modified");
	int64_t mtime_s = 0;
	uint64_t size;
	char *etag;
	bool weak;

	if (a->ranged && a->range.total != UINT64_MAX)
		size = a->range.total;
	else if (a->status == 200 && a->length >= 0)
		size = (uint64_t)a->length;
	else
		return -EPROTO;
	if (modified != NULL && field_http_date(modified, &mtime_s) < 0)
		mtime_s = 0;
	etag = s3_etag_bare(http_header(a, "ETag"), &weak);
	if (s3_identity(s, key, etag, size, mtime_s * NSEC_PER_SEC, out_id) < 0) {
		free(etag);
		return -ENOMEM;
	}
	*out_etag = etag;
	*out_size = size;
	return 0;
}

int s3_head(struct s3_store *s, const char *key, char **out_etag, uint64_t *out_size,
	    struct identity *out_id, struct why *why)
{
	struct s3_call c = {.s3 = s, .purpose = S3_READ, .method = METHOD_HEAD, .key = key};
	char shown[300];
	int rc = s3_call_run(&c, why);

	if (rc == 0 && s3_read_head(s, key, &c.live.call.answer, out_etag, out_size, out_id) < 0)
		rc = why_set(why, EPROTO, "%s: the server does not say how long it is",
			     s3_show(s, key, shown, sizeof(shown)));
	s3_call_release(&c);
	return rc;
}

static void free_etag(void *value, void *ctx)
{
	free(value);
}

static void s3_stop(struct store *store)
{
	struct s3_store *s = (struct s3_store *)store;

	live_stop(&s->live);
	credentials_stop(s->credentials);
}

static bool s3_describe(struct store *store, struct buf *out)
{
	struct s3_store *s = (struct s3_store *)store;
	char region[S3_REGION_CAP], where[200];
	size_t hidden;

	lock_take(&s->lock);
	memcpy(region, s->region, sizeof(region));
	hidden = s->hidden;
	lock_release(&s->lock);
	if (s->place.endpoint != NULL)
		url_show(where, sizeof(where), s->place.endpoint);
	buf_addf(out, "s3: %s, %s, credentials from %s", s->place.endpoint != NULL ? where : "AWS",
		 region, credentials_from(s->credentials));
	if (__atomic_load_n(&s->links, __ATOMIC_RELAXED))
		buf_addstr(out, "; read through a content network");
	if (hidden > 0)
		buf_addf(out, "; %zu names left out", hidden);
	return false;
}

static void s3_refresh(struct store *store)
{
	s3_probe_forget((struct s3_store *)store);
}

static void s3_free(struct store *store)
{
	struct s3_store *s = (struct s3_store *)store;

	s3_stop(store);
	credentials_free(s->credentials);
	if (s->etags != NULL)
		table_each(s->etags, free_etag, NULL);
	table_free(s->etags);
	listing_release(&s->known);
	s3_place_release(&s->place);
	free(s->base.name);
	live_destroy(&s->live);
	lock_destroy(&s->lock);
	free(s);
}

static const struct store_ops s3_ops = {
	.name = "s3",
	.list = s3_list,
	.open = s3_open,
	.fetch = s3_fetch,
	.close = s3_close,
	.put = s3_put,
	.put_if = s3_put_if,
	.remove = s3_remove,
	.free = s3_free,
	.stop = s3_stop,
	.describe = s3_describe,
	.refresh = s3_refresh,
};

static int find_place(struct s3_store *s, const char *url, const struct s3_options *options,
		      struct why *why)
{
	struct aws_config *config = NULL;
	int rc = aws_config_load(options->profile, &config, why);

	if (rc == 0)
		rc = s3_place_parse(url, options, config, &s->place, why);
	aws_config_free(config);
	return rc;
}

int store_s3_new(const char *url, const struct s3_options *options, struct http *http,
		 struct store **out, struct why *why)
{
	struct s3_store *s = calloc(1, sizeof(*s));
	struct credentials_options who = {
		.anonymous = options->no_sign_request,
		.profile = options->profile,
		.region = options->region,
	};
	int rc;

	if (s == NULL)
		return why_set(why, ENOMEM, "out of memory");
	lock_init(&s->lock, LOCK_SHARD);
	s->base.ops = &s3_ops;
	s->base.remote = true;
	live_init(&s->live, http);
	s->request_payer = options->request_payer;
	s->base.name = strdup(url);
	s->etags = table_new();
	rc = s->base.name != NULL && s->etags != NULL ? 0 : why_set(why, ENOMEM, "out of memory");
	if (rc == 0)
		rc = find_place(s, url, options, why);
	if (rc == 0) {
		memcpy(s->region, s->place.region, strlen(s->place.region));
		rc = credentials_new(&who, http, &s->credentials, why);
		if (rc < 0)
			why_prefix(why, "s3://%s", s->place.bucket);
	}
	if (rc == 0)
		*out = &s->base;
	else
		s3_free(&s->base);
	return rc;
}
