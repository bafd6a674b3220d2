/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Endpoint, region and style of a bucket.
 *
 * Endpoint: the option, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's services section, its
 * endpoint_url; otherwise AWS by region.  Region: the option, AWS_REGION, AWS_DEFAULT_REGION, the
 * profile's, us-east-1.  Style: the profile's s3.addressing_style; otherwise virtual-host for AWS
 * (path for names with dots, which no certificate covers, or that are no host's label), path for
 * any other endpoint.  An endpoint may have a path, which then stands before the bucket.
 *
 * No state; any thread.
 */
#include "cache/remote/s3_place.h"

#include <stdio.h>
#include <stdlib.h>

#include "cache/fileio.h"
#include "cache/remote/url.h"

void s3_place_release(struct s3_place *p)
{
	free(p->bucket);
	free(p->prefix);
	free(p->endpoint);
	free(p->region);
	memset(p, 0, sizeof(*p));
}

bool s3_region_valid(const char *name)
{
	size_t n = strlen(name);

	return n > 0 && n < 60 &&
	       strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") ==
		       n;
}

static bool is_label(const char *bucket)
{
	size_t n = strlen(bucket);

	return n >= 3 && n <= 63 && strspn(bucket, "abcdefghijklmnopqrstuvwxyz0123456789-") == n &&
	       bucket[0] != '-' && bucket[n - 1] != '-';
}

static int parse_name(const char *url, struct s3_place *out, struct why *why)
{
	const char *bucket = url + strlen("s3://"), *rest;
	size_t len = strcspn(bucket, "/");
	/* Some write keys where URLs have user names; a bucket's name has no '@'. */
	const char *at = memrchr(bucket, '@', len), *name = at != NULL ? at + 1 : bucket;
	char shown[200] = "s3://";

	printable(shown + 5, sizeof(shown) - 5, name, strlen(name));
	if (len == 0 || len > 255 ||
	    strspn(bucket, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") <
		    len)
		return why_set(why, EINVAL, "%s: write s3://BUCKET or s3://BUCKET/PREFIX", shown);
	if (bucket[0] == '.')
		return why_set(why, EINVAL, "%s: a bucket's name does not begin with '.'", shown);
	out->bucket = strndup(bucket, len);
	for (rest = bucket + len; *rest == '/'; rest++)
		;
	len = strlen(rest);
	while (len > 0 && rest[len - 1] == '/')
		len--;
	if (out->bucket == NULL || asprintf(&out->prefix, "%.*s%s", (int)MIN(len, (size_t)8192),
					    rest, len > 0 ? "/" : "") < 0) {
		out->prefix = NULL;
		return why_set(why, ENOMEM, "out of memory");
	}
	if (len > 0) {
		bool safe;

		out->prefix[strlen(out->prefix) - 1] = '\0';
		safe = path_is_safe(out->prefix);
		out->prefix[strlen(out->prefix)] = '/';
		if (!safe || len > 1000)
			return why_set(why, EINVAL,
				       "%s: the prefix has an empty, '.' or '..' part, or is too "
				       "long",
				       shown);
	}
	return 0;
}

static int set_endpoint(const char *text, struct s3_place *out, struct why *why)
{
	struct buf b = {0};
	struct url u = {0};
	size_t len;
	int rc = url_parse(text, &u, why);

	if (rc < 0) {
		why_prefix(why, "the S3 endpoint");
		return rc;
	}
	if (u.query != NULL)
		rc = why_set(why, EINVAL, "the S3 endpoint %s has a query", u.host);
	url_format_origin(&u, &b);
	for (len = strlen(u.path); len > 0 && u.path[len - 1] == '/'; len--)
		;
	buf_add(&b, u.path, len);
	buf_add(&b, "", 1);
	url_release(&u);
	if (rc == 0 && b.failed)
		rc = why_set(why, ENOMEM, "out of memory");
	if (rc == 0)
		out->endpoint = buf_detach(&b, NULL);
	buf_release(&b);
	return rc;
}

static bool choose_path_style(const struct s3_place *p, const struct aws_config *config)
{
	const char *style = aws_config_get(config, "s3.addressing_style");

	if (!is_label(p->bucket))
		return true;
	if (style != NULL && strcmp(style, "path") == 0)
		return true;
	if (style != NULL && strcmp(style, "virtual") == 0)
		return false;
	return p->endpoint != NULL;
}

static int parse_all(const char *url, const struct s3_options *o, const struct aws_config *config,
		     struct s3_place *out, struct why *why)
{
	const char *endpoint = o->endpoint_url, *region = o->region;
	char shown[80];
	int rc = parse_name(url, out, why);

	if (endpoint == NULL)
		endpoint = aws_config_endpoint(config, "s3");
	if (region == NULL)
		region = aws_config_region(config);
	if (region == NULL)
		region = "us-east-1";
	if (rc == 0 && endpoint != NULL)
		rc = set_endpoint(endpoint, out, why);
	if (rc == 0 && !s3_region_valid(region))
		rc = why_set(why, EINVAL, "'%s' is not the name of a region",
			     printable(shown, sizeof(shown), region, strlen(region)));
	if (rc == 0 && (out->region = strdup(region)) == NULL)
		rc = why_set(why, ENOMEM, "out of memory");
	if (rc == 0)
		out->path_style = choose_path_style(out, config);
	return rc;
}

int s3_place_parse(const char *url, const struct s3_options *options,
		   const struct aws_config *config, struct s3_place *out, struct why *why)
{
	struct s3_place p = {0};
	int rc = parse_all(url, options, config, &p, why);

	if (rc == 0)
		*out = p;
	else
		s3_place_release(&p);
	return rc;
}

void s3_place_url(const struct s3_place *p, const char *region, const char *key, const char *query,
		  struct buf *out)
{
	const char *bucket_host = p->path_style ? "" : p->bucket, *dot = p->path_style ? "" : ".";

	if (p->endpoint == NULL) {
		buf_addf(out, "https://%s%ss3.%s.amazonaws.com%s", bucket_host, dot, region,
			 strncmp(region, "cn-", 3) == 0 ? ".cn" : "");
	} else {
		const char *host = strstr(p->endpoint, "://") + 3;

		buf_add(out, p->endpoint, (size_t)(host - p->endpoint));
		buf_addf(out, "%s%s%s", bucket_host, dot, host);
	}
	buf_addstr(out, "/");
	if (p->path_style)
		url_encode(out, p->bucket, strlen(p->bucket), false);
	if (p->path_style && key != NULL)
		buf_addstr(out, "/");
	if (key != NULL)
		url_encode(out, key, strlen(key), true);
	if (query != NULL && *query != '\0') {
		buf_addstr(out, "?");
		buf_addstr(out, query);
	}
}

static bool is_aws(const char *text)
{
	static const char *const ends[] = {".amazonaws.com", ".amazonaws.com.cn"};
	struct url u = {0};
	bool is = false;
	size_t n;

	if (url_parse(text, &u, NULL) < 0)
		return false;
	n = strlen(u.host);
	for (size_t i = 0; i < ARRAY_LEN(ends); i++)
		is |= n > strlen(ends[i]) && strcmp(u.host + n - strlen(ends[i]), ends[i]) == 0;
	/* "s3", "s3-region" or "s3.region", perhaps after a bucket's name. */
	is = is && u.https && u.port == 443 &&
	     (strncmp(u.host, "s3.", 3) == 0 || strncmp(u.host, "s3-", 3) == 0 ||
	      strstr(u.host, ".s3.") != NULL || strstr(u.host, ".s3-") != NULL);
	url_release(&u);
	return is;
}

bool s3_place_both_aws(const char *url, const char *target)
{
	return is_aws(url) && is_aws(target);
}
