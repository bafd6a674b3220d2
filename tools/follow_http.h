/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls to engines: any number at a time, each once (who repeats decides elsewhere), with an end
 * that can be polled for.
 *
 * A key goes as "Authorization: Bearer" to the replica's own origin; redirects are not followed.
 * The key appears in no sentence and in no body that is handed out.
 */
#ifndef TOOLS_FOLLOW_HTTP_H
#define TOOLS_FOLLOW_HTTP_H

#include "codec/base.h"
#include "codec/buf.h"
#include "tools/engine.h"

struct follow_http;
struct follow_call;

/* key NULL: none.  ca_file NULL: the system's.  Starts a thread. */
int follow_http_new(const char *ca_file, const char *key, unsigned parallel,
		    struct follow_http **out, struct why *why) MUST_CHECK;
/* Ends all calls; those not taken by follow_http_next() are freed. */
void follow_http_free(struct follow_http *h);
/* Checks a replica's URL and appends it in the one form used: scheme, host, port, path without a
 * slash at the end.  -EINVAL with a sentence: no http or https, a user name, a query. */
int follow_http_url(const char *text, struct buf *out, struct why *why) MUST_CHECK;

/* Takes request's body.  -ENOMEM. */
int follow_http_start(struct follow_http *h, const char *url, struct engine_request *request,
		      int64_t timeout_ns, void *ctx, struct follow_call **out) MUST_CHECK;
/* Without effect on one that has ended. */
void follow_http_cancel(struct follow_http *h, struct follow_call *c);
/* Polls readable when follow_http_next() has something; the descriptor stays the client's. */
int follow_http_fd(const struct follow_http *h);
/* A call that has ended, or NULL.  The caller frees it. */
struct follow_call *follow_http_next(struct follow_http *h);

void *follow_call_ctx(const struct follow_call *c);
/* Valid as long as the call.  *why: the transport's sentence when answer.err is not 0. */
void follow_call_answer(struct follow_call *c, struct engine_answer *out, struct why *why);
void follow_call_free(struct follow_call *c);

#endif
