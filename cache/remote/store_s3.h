/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bucket of S3, or of what speaks like it, as a store: "s3://bucket/prefix".
 *
 * An object's identity is made of ETag and size, so that the same content under two names, or in
 * two buckets, is one for the cache (an ETag that is no hash of content counts together with where
 * it was seen).  A handle pins the ETag: every range is asked for with If-Match, and the answer's
 * own ETag is compared besides, because not every server honours the condition.  Where a GET is
 * answered by a redirect to a content network (Hugging Face's gateway), the link is taken once, the
 * object is checked to be still the one listed, and all ranges go to the link, without credentials.
 *
 * Thread-safe; fetches are asynchronous; nothing is asked of the network before it must be.
 */
#ifndef CACHE_REMOTE_STORE_S3_H
#define CACHE_REMOTE_STORE_S3_H

#include "cache/remote/http.h"
#include "cache/remote/s3_place.h"
#include "cache/store.h"

/* http is borrowed and must outlive the store.  -EINVAL, -EACCES with a sentence: the place, the
 * options or the credentials' configuration.  Starts a thread. */
int store_s3_new(const char *url, const struct s3_options *options, struct http *http,
		 struct store **out, struct why *why) MUST_CHECK;

#endif
