/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of header fields and the times of listings, parsed.  Pure; input comes from servers and
 * may be anything.
 */
#ifndef CACHE_REMOTE_FIELDS_H
#define CACHE_REMOTE_FIELDS_H

#include "codec/base.h"

/* "bytes 5-9/100"; with an asterisk for the total: UINT64_MAX; with an asterisk for the range
 * (416): first > last. */
struct content_range {
	uint64_t first, last, total;
};
int field_content_range(const char *value, struct content_range *out) MUST_CHECK; /* -EINVAL */

/* A decimal number and nothing else.  -EINVAL, -ERANGE. */
int field_u64(const char *value, uint64_t *out) MUST_CHECK;

/* "Sun, 06 Nov 1994 08:49:37 GMT" → seconds since 1970.  (The two obsolete forms are not known.)
 * -EINVAL. */
int field_http_date(const char *value, int64_t *out_s) MUST_CHECK;
/* "2026-08-14T09:10:11.123Z", any number of decimals or none, or "+02:00" instead of Z →
 * nanoseconds since 1970.  -EINVAL. */
int field_iso_time(const char *value, int64_t *out_ns) MUST_CHECK;

/* Retry-After: seconds or a date, to milliseconds from now_real_s; -1: absent (NULL) or not
 * understood. */
int64_t field_retry_after_ms(const char *value, int64_t now_real_s);

/* RateLimit: "class";r=N;t=S.  -1 in what is not there. */
struct rate_limit {
	char name[32];	   /* "api", "resolvers", ...: for people */
	int64_t remaining; /* calls left in the window */
	int64_t reset_s;   /* until the window ends */
	int64_t quota;	   /* q= of RateLimit-Policy, for field_rate_limit_policy() */
	int64_t window_s;  /* w= of the same */
};
/* false: absent (NULL) or not understood; out then holds -1 everywhere. */
bool field_rate_limit(const char *value, struct rate_limit *out);
/* Fills quota and window_s of *io from RateLimit-Policy; leaves the rest. */
bool field_rate_limit_policy(const char *value, struct rate_limit *io);

/* The target of rel in a Link header (several links may stand in it), malloc'ed as it stands there.
 * -ENOENT, -EINVAL. */
int field_link(const char *value, const char *rel, char **out) MUST_CHECK;

#endif
