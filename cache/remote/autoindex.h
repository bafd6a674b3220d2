/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading what a web server says is there: our index.json, nginx's autoindex as JSON, and the HTML
 * pages of nginx, Apache, lighttpd and Python.  Pure.
 */
#ifndef CACHE_REMOTE_AUTOINDEX_H
#define CACHE_REMOTE_AUTOINDEX_H

#include "codec/base.h"

enum { AUTOINDEX_MAX = 2 * 1000 * 1000 };

struct autoindex_entry {
	char *name; /* decoded; index.json: a key; a listing: one segment */
	bool directory;
	int64_t size;	  /* -1: not said */
	int64_t mtime_ns; /* INT64_MIN: not said */
	char *etag;	  /* NULL: not said */
	uint64_t row;	  /* of the whole line: another value means that it changed; 0: it does
			   * not show */
};

/* Zeroed before use. */
struct autoindex {
	struct autoindex_entry *v;
	size_t count, cap;
	bool failed; /* out of memory */
};

/* {"objects": [...]}.  -EPROTO: that is something else; -EBADMSG with a sentence: an entry is not
 * understood; -EFBIG. */
int autoindex_objects(const char *text, size_t len, struct autoindex *out,
		      struct why *why) MUST_CHECK;
/* A directory's listing as JSON: [{"name", "type", "mtime", "size"}, ...].  -EPROTO, -EFBIG. */
int autoindex_json(const char *text, size_t len, struct autoindex *out) MUST_CHECK;
/* The same as HTML; url: where it came from.  Only links to what lies directly in that directory
 * count.  -EPROTO: that is no listing; -EFBIG. */
int autoindex_html(const char *text, size_t len, const char *url, struct autoindex *out) MUST_CHECK;
void autoindex_release(struct autoindex *x);

#endif
