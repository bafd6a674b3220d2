/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the network client share: a call's life inside the client.
 *
 *   QUEUED -> RUNNING -> (WAITING -> QUEUED -> RUNNING ...) -> ended
 *
 * http.c has the doors, http_loop.c queues and starts, http_call.c decides what follows an answer,
 * http_transfer.c talks to curl, http_answer.c keeps and judges headers, http_why.c makes
 * sentences.  Everything runs on the network thread, but for what is marked.
 */
#ifndef CACHE_REMOTE_HTTP_PRIVATE_H
#define CACHE_REMOTE_HTTP_PRIVATE_H

#include <curl/curl.h>

#include "cache/lock.h"
#include "cache/thread.h"
#include "cache/remote/http.h"

enum {
	HTTP_HOPS_MAX = 5,
	HTTP_SKIP_MAX = 1 << 20, /* bytes before a range that are read and dropped at most */
	HTTP_ERROR_BODY_MAX = 16 << 10,
	HTTP_DROP_MAX = 256 << 10, /* of a body nobody wants, to keep the connection */
	HTTP_HEADERS_MAX = 256 << 10,
	HTTP_ATTEMPTS_MAX = 1000, /* of one call, however much progress there is */
	HTTP_EASY_POOL = 64,
	HTTP_PROGRESS = 64 << 10, /* bytes that make an attempt count as progress */
};

/* Where the body of the answer at hand goes. */
enum body_sink { SINK_NOWHERE, SINK_CALLER, SINK_ERROR };

struct http_list {
	struct http_transfer *first, **last;
	uint32_t count;
};

struct http_transfer {
	struct http *http;
	struct http_call *call;
	struct event *waiter;	/* of http_run(); NULL: call->done */
	struct http_list *list; /* the one it is in; NULL: none */
	struct http_transfer *next, **link;
	struct http_transfer *live_next, **live_link; /* all calls; under http->lock */
	bool cancelled;				      /* atomic; any thread sets it */
	bool background;			      /* atomic; any thread clears it */
	int64_t deadline_ns;			      /* < 0: none */
	bool slot;	/* RUNNING, and one of those that the limit counts */
	int64_t due_ns; /* WAITING: when to go on */
	uint64_t epoch; /* of the parallelism, when it was started */

	unsigned attempts;	 /* all */
	unsigned since_progress; /* those since there was progress */
	unsigned unanswered;	 /* of those, by nobody: a patient call's */
	unsigned hop;
	enum method method;	/* hop > 0 */
	struct http_answer via; /* hop > 0 */

	/* HTTP_EXACT: what is in place, and of which version of the object. */
	size_t got;
	char *etag;
	uint64_t total; /* UINT64_MAX: unknown */

	/* The hop at hand. */
	CURL *easy;
	struct curl_slist *lines;
	struct request request;
	struct http_answer answer;
	enum body_sink sink;
	bool headers_done; /* of the final answer of this hop */
	bool early;	   /* more() may be told */
	bool complete;	   /* all that is wanted came; the rest of the body was cut off */
	bool restart;	   /* another version answered a resumed range */
	bool delivered;	   /* HTTP_STREAM: a byte went to the caller */
	int err;	   /* negative; found by a callback */
	struct why why;
	size_t got_before, buffer_before;
	uint64_t skip;	 /* bytes to drop before the range */
	uint64_t expect; /* body bytes of a 206 still to come; UINT64_MAX: not a 206 */
	uint64_t dropped;
	uint64_t sent;	   /* of the body */
	int64_t active_ns; /* last progress */
	char curl_text[CURL_ERROR_SIZE];
};

struct http {
	struct lock lock; /* LOCK_QUEUE; guards the four below */
	struct http_list inbox;
	struct http_transfer *live;
	bool changed; /* something was cancelled or promoted */
	bool stopping;

	pthread_t thread;
	bool joined; /* the thread is gone; the owner's */
	struct http_options options;
	char *ca_file;
	CURLM *multi;
	CURLSH *share;
	struct http_counters counters; /* atomics */

	/* The thread's. */
	struct http_list reads, background, waiting, running;
	uint32_t slots; /* running calls that the limit counts */
	struct parallelism parallelism;
	uint64_t random;
	CURL *pool[HTTP_EASY_POOL];
	unsigned pooled;
};

/* http_loop.c */
void http_list_append(struct http_list *l, struct http_transfer *t);
/* Back into the queue, at once or when due_ns has come. */
void http_wait(struct http_transfer *t, int64_t due_ns);
/* Takes the call out of the client and tells its owner. */
void http_end(struct http_transfer *t, int err);
/* Fills the results of a call that is nowhere any more, and tells.  Any thread. */
void http_tell(struct http_transfer *t, int err);
/* done(), or the waiter of http_run(). */
void http_notify(struct http_call *c, struct event *w);
CURL *http_easy_take(struct http *h); /* NULL: out of memory */
void http_easy_give(struct http *h, CURL *easy);
uint32_t http_random(struct http *h);
void http_publish_counters(struct http *h);
bool http_on_thread(const struct http *h); /* any thread */
void *http_loop(void *http);		   /* the thread */

static inline void http_count(uint64_t *counter, uint64_t by)
{
	__atomic_fetch_add(counter, by, __ATOMIC_RELAXED);
}

/* http_call.c */
void http_call_start(struct http_transfer *t); /* an attempt's first hop */
void http_call_hop_done(struct http_transfer *t, CURLcode code);
void http_call_timed_out(struct http_transfer *t); /* RUNNING, no byte for too long */

/* http_transfer.c */
/* Hands t->request to curl.  0 or -errno with t->why. */
int http_transfer_begin(struct http_transfer *t, const struct url *u);
/* Takes the hop away from curl and forgets it; t->answer stays. */
void http_transfer_stop(struct http_transfer *t);
/* errno (positive) of what curl says; *unsent: the server cannot have seen the request. */
int http_transfer_errno(struct http_transfer *t, CURLcode code, bool *unsent);

/* http_answer.c */
void http_answer_release(struct http_answer *a);
/* One header line, without its end.  -EPROTO: too many. */
int http_answer_add(struct http_answer *a, const char *line, size_t len);
/* The headers are complete: where does the body go?  Sets sink, skip, expect, or err. */
void http_answer_judge(struct http_transfer *t);
bool http_answer_redirects(const struct http_transfer *t);

/* http_why.c */
/* Fill t->why for a status, or an errno of the transport; return -errno. */
int http_why_status(struct http_transfer *t);
int http_why_error(struct http_transfer *t, int err, CURLcode code);

#endif
