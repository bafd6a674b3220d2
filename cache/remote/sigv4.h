/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AWS Signature Version 4 in the Authorization header, by S3's rules: the path is encoded once and
 * not normalised, the query sorted. Pure but for libcrypto; the caller says what time it is (with
 * its clock offset added).
 *
 * Signs host, x-amz-date, x-amz-content-sha256 (service "s3"), x-amz-security-token and every
 * header already set, but for those that proxies and clients change (User-Agent, Accept-Encoding,
 * Expect, Connection).  The range is not a header yet: unsigned.
 */
#ifndef CACHE_REMOTE_SIGV4_H
#define CACHE_REMOTE_SIGV4_H

#include "cache/remote/request.h"

#define SIGV4_UNSIGNED "UNSIGNED-PAYLOAD"

struct sigv4_keys {
	const char *access_key, *secret_key;
	const char *session_token; /* NULL: none */
};

struct sigv4_scope {
	const char *region, *service;
	int64_t time_s;		  /* seconds since 1970, UTC */
	const char *payload_hash; /* 64 hex digits; NULL: SIGV4_UNSIGNED with a body, that of
				     nothing without */
};

/* Sets the headers on r, whose URL must be there.  Headers of an earlier signature are replaced.
 * -EINVAL, -ENOMEM, -EIO (libcrypto). */
int sigv4_sign(struct request *r, const struct sigv4_keys *keys,
	       const struct sigv4_scope *scope) MUST_CHECK;

void sigv4_sha256_hex(const void *bytes, size_t len, char out[65]);
/* The hash of a whole source, for uploads; blocks. */
int sigv4_sha256_source(const struct source *src, char out[65]) MUST_CHECK;

#endif
