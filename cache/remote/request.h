/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One HTTP request as a value: method, absolute URL, headers, range, body.  Pure; nothing here
 * sends.
 *
 * Filled by a caller's build callback for each attempt and each hop, then sent once and released.
 * Functions that may fail note it in `failed` (-ENOMEM, -EINVAL), so that a builder need not look
 * at each.
 */
#ifndef CACHE_REMOTE_REQUEST_H
#define CACHE_REMOTE_REQUEST_H

#include "cache/remote/url.h"
#include "codec/base.h"
#include "codec/io.h"

enum method { METHOD_GET, METHOD_HEAD, METHOD_PUT, METHOD_POST, METHOD_DELETE };

struct request_header {
	char *name, *value; /* owned */
};

struct request {
	enum method method;
	char *url; /* owned; absolute, encoded */
	struct request_header *headers;
	size_t header_count;
	bool ranged; /* sends "Range: bytes=off-(off+len-1)"; len > 0.  Not among the headers: never
			signed */
	uint64_t off, len;
	bool has_body;
	struct source body; /* read from offset 0 to size; borrowed until the call is done.  read()
			       runs on the network thread */
	int failed;	    /* first error of the functions below */
};

void request_release(struct request *r);
void request_set_url(struct request *r, const char *url);
/* Sets or replaces a header (names compare without case).  A value with CR, LF or NUL, or a bad
 * name: -EINVAL noted. */
void request_set_header(struct request *r, const char *name, const char *value);
void request_set_headerf(struct request *r, const char *name, const char *fmt, ...) PRINTF(3, 4);
void request_remove_header(struct request *r, const char *name);
const char *request_header(const struct request *r, const char *name); /* NULL: not set */
void request_set_range(struct request *r, uint64_t off, uint64_t len);
/* Bytes are borrowed until the call is done. */
void request_set_body(struct request *r, const void *bytes, size_t len);
void request_set_body_source(struct request *r, const struct source *body);
const char *method_name(enum method m);

#endif
