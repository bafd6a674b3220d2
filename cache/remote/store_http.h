/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any static HTTP(S) server with ranges as a store: "https://host/path/of/the/run".
 *
 * What is there is said by an *index*, the first of these that the server has:
 *
 *	index.json	{"objects": [{"key": "anchors/step_000001.safetensors", "size": 123,
 *				      "mtime": "2026-08-14T09:10:11Z"}, ...]}
 *			mtime also as seconds since 1970; "etag" where the server's is known (as in
 *			its header, with the quotes); other members are ignored.
 *	a listing	of each directory, nginx's autoindex as JSON (autoindex_format json) or
 *HTML, followed into directories.
 *
 * Identity is made of address, size and the server's ETag (a strong one; else Last-Modified): each
 *object is asked for them by one HEAD, when its line in the index is new or changed, unless the
 *index has the ETag.
 */
#ifndef CACHE_REMOTE_STORE_HTTP_H
#define CACHE_REMOTE_STORE_HTTP_H

#include "cache/remote/http.h"
#include "cache/store.h"

/* Asks the network for nothing.  http is borrowed; shut it down before store_free().  -EINVAL with
 * a sentence. */
int store_http_new(const char *place, struct http *http, struct store **out,
		   struct why *why) MUST_CHECK;

#endif
