/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a bucket is: endpoint, region, path or virtual-host style, and the URLs that follow.  Pure,
 * but for the environment and what aws_config holds.
 */
#ifndef CACHE_REMOTE_S3_PLACE_H
#define CACHE_REMOTE_S3_PLACE_H

#include "cache/remote/aws_config.h"
#include "codec/buf.h"

struct s3_options { /* zero: by environment and profile */
	const char *endpoint_url, *region, *profile;
	bool no_sign_request;
	bool request_payer; /* the requester pays */
};

struct s3_place {
	char *bucket;
	char *prefix;	/* "" or ends with '/' */
	char *endpoint; /* "https://host[:port][/path]" without a '/' at its end; NULL: AWS */
	char *region;	/* never NULL */
	bool path_style;
};

/* "s3://bucket[/prefix]".  -EINVAL with a sentence. */
int s3_place_parse(const char *url, const struct s3_options *options,
		   const struct aws_config *config, struct s3_place *out,
		   struct why *why) MUST_CHECK;
void s3_place_release(struct s3_place *p);

/* Appends the URL of an object (key: complete, not encoded) or of the bucket (key NULL).  region:
 * where the bucket turned out to be; counts for AWS. */
void s3_place_url(const struct s3_place *p, const char *region, const char *key, const char *query,
		  struct buf *out);
/* Both are S3 of AWS, over https: a redirect from one to the other stays in the family. */
bool s3_place_both_aws(const char *url, const char *target);
/* May this be the name of a region?  It becomes part of a host's name. */
bool s3_region_valid(const char *name);

#endif
