/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the HTTP store share: store_http.c opens and reads, store_http_list.c lists.
 */
#ifndef CACHE_REMOTE_STORE_HTTP_PRIVATE_H
#define CACHE_REMOTE_STORE_HTTP_PRIVATE_H

#include "cache/lock.h"
#include "cache/remote/live.h"
#include "cache/remote/store_http.h"
#include "cache/table.h"

/* What the server said of an object. */
struct web_object {
	char *key;
	uint64_t row;	/* of the index, when it was asked for */
	char *etag;	/* a strong one, or NULL */
	char *modified; /* Last-Modified, or NULL */
	uint64_t size;
	int64_t mtime_ns;
	struct identity id;
};

enum web_index { WEB_UNKNOWN, WEB_OBJECTS, WEB_LISTINGS };

struct web {
	struct store base;
	char *root;   /* "https://host/path", without '/' at its end */
	char *origin; /* of it */
	struct live_set live;

	struct lock lock;	 /* LOCK_QUEUE; guards what follows */
	struct table *known;	 /* key -> struct web_object, of the last listing */
	struct web_object **all; /* the same, all_count of them */
	size_t all_count;
	struct listing listing; /* the last one */
	bool listed;
	enum web_index index;
	char *index_etag, *index_modified; /* of index.json */
	bool suspect;			   /* an object was not what the listing said */
	size_t directories, hidden;
};

/* A request below the root. */
struct web_call {
	struct live live; /* first */
	struct web *web;
	char *url; /* owned */
	enum method method;
	const char *if_match, *if_unmodified_since; /* borrowed, or NULL */
	const char *if_none_match, *if_modified_since;
};

/* url is taken over. */
void web_call_init(struct web_call *c, struct web *web, char *url);
void web_call_release(struct web_call *c);
/* malloc'ed URL of a key, "" for the root; directory: with '/' at the end.  NULL: no memory. */
char *web_url(const struct web *web, const char *key, bool directory);
/* From the validators of an answer about `key`; false: it has none. */
bool web_identity(const struct web *web, const char *key, const struct http_answer *a,
		  uint64_t size, struct identity *out);
/* The same from a strong ETag. */
bool web_identity_of_etag(const struct web *web, const char *key, const char *etag, uint64_t size,
			  struct identity *out);
/* A strong ETag of the answer, or NULL. */
const char *web_strong_etag(const struct http_answer *a);

int web_list(struct web *web, const char *prefix, struct listing *out, struct why *why) MUST_CHECK;
void web_forget(struct web *web); /* frees what the last listing left */

#endif
