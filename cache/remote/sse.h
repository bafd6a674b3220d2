/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Server-sent events: a stream of text cut into events.  Pure.
 */
#ifndef CACHE_REMOTE_SSE_H
#define CACHE_REMOTE_SSE_H

#include "codec/base.h"
#include "codec/buf.h"

enum { SSE_EVENT_MAX = 8 << 20 };

/* Zeroed before use, but for event and ctx. */
struct sse {
	/* name: "message" where the server gives none.  cut: the event was larger than
	 * SSE_EVENT_MAX (or memory), and data is only its beginning.  Events without data are not
	 * told. */
	void (*event)(void *ctx, const char *name, const char *data, bool cut);
	void *ctx;
	/* private */
	struct buf line, name, data;
	bool begun, after_cr, cut;
};

void sse_feed(struct sse *s, const void *bytes, size_t len);
void sse_release(struct sse *s);

#endif
