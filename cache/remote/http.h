/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network: one thread over a curl multi handle.  Calls come from any thread and end in done(),
 * exactly once.
 *
 * A call is a sequence of attempts; an attempt is a sequence of hops (redirects, by hand, at most
 * 5).  For every hop of every attempt the caller's build() makes the request from scratch: fresh
 * signature, fresh token, and credentials only for its own origin.  The client enforces that:
 * towards any other origin than `origin` a request may carry Accept, Accept-Language, Content-Type,
 * Range and User-Agent only; anything else ends the call with -EPERM before a byte is sent.  https
 * never becomes http; no user names in URLs.
 *
 * Back-off, Retry-After, RateLimit: cache/remote/retry.h.  Bytes of one call are never of two
 * versions: a resumed range whose ETag or total size differ begins anew.  All callbacks run on the
 * network thread without a lock held and must not block; they may submit and cancel calls.  Host
 * names and paths appear in sentences; queries, header values and bodies never.
 */
#ifndef CACHE_REMOTE_HTTP_H
#define CACHE_REMOTE_HTTP_H

#include "cache/remote/fields.h"
#include "cache/remote/request.h"
#include "cache/remote/retry.h"
#include "codec/base.h"
#include "codec/buf.h"

struct http;
struct http_call;

struct http_options {	       /* zero: the default in brackets */
	const char *ca_file;   /* PEM bundle [SSL_CERT_FILE, else the system's] */
	const char *ca_from;   /* who named it, for sentences [--ca-file] */
	unsigned parallel;     /* calls in flight at most [32] */
	int64_t connect_ms;    /* [10 000] */
	int64_t inactivity_ms; /* without a byte [30 000] */
	int64_t total_ms;      /* for a call without a deadline, retries included [120 000] */
	struct retry_policy retry;
};

struct http_answer {
	int status;	     /* 0: none came */
	uint64_t body_bytes; /* bytes of body received with it */
	int64_t length;	     /* Content-Length; -1: unknown */
	bool ranged;	     /* 206 with a good Content-Range: */
	struct content_range range;
	char *location;	       /* absolute target of a 3xx; NULL: none or a refused one */
	struct buf headers;    /* private: http_header() */
	struct buf error_body; /* body of an answer that is not 2xx, at most 16 KiB: buf_str() for
				  text */
};
/* Value of a header (name without case; several of one name are joined with ", "), valid as long as
 * the answer; NULL: absent. */
const char *http_header(const struct http_answer *a, const char *name);

struct http_hop {
	unsigned attempt; /* 1, 2, ... */
	unsigned number;  /* 0: the call's own request; > 0: following redirects */
	const char *url;  /* > 0: where to go now; NULL for 0 */
	bool trusted;	  /* > 0: url is of the call's origin: credentials may go there */
	const struct http_answer *via; /* > 0: the redirect's answer (X-Linked-Size and friends;
					  via->location == url) */
	enum method method; /* > 0: what to use (303 turns into GET); 0: the builder's choice */
};

enum http_delivery {
	HTTP_DISCARD, /* body of a 2xx is dropped */
	HTTP_EXACT, /* exactly [off, off + len) of the object into dst; Range is added, verified and
		       resumed */
	HTTP_BUFFER, /* appended to *buffer, at most buffer_max bytes (-EFBIG) */
	HTTP_STREAM, /* to data() as it comes; not retried once a byte was delivered */
};

enum http_class {
	HTTP_READ,	 /* somebody waits */
	HTTP_BACKGROUND, /* prefetch: after reads, and never in the last quarter of the slots */
	HTTP_STANDING,	 /* long-lived (change feeds): takes no slot */
};

/* What judge() may say of an answer that is not 2xx: -errno ends the call with it (and the
 * sentence, when it set one), or: */
enum { HTTP_JUDGE_POLICY = 0, HTTP_JUDGE_AGAIN = 1 /* at once, as one more attempt */ };

/* The caller owns the struct, zeroed before use, and keeps it and what it points to alive and
 * unchanged until done() has been called; only build() and judge() may set origin meanwhile.
 * done() may free or resubmit it (results are released first).  http_call_release() frees what the
 * results hold. */
struct http_call {
	/* Fills *out (zeroed).  0; or -EAGAIN to begin again as one more attempt (a new endpoint
	 * was learnt from hop->via); or another -errno (with a sentence) to end the call.  Looks at
	 * hop to know where it goes. */
	int (*build)(struct http_call *c, const struct http_hop *hop, struct request *out,
		     struct why *why);
	void (*done)(struct http_call *c);
	/* Optional.  A final answer that is neither 2xx nor a followed redirect nor 304: see above.
	 */
	int (*judge)(struct http_call *c, const struct http_answer *a, struct why *why);
	/* Optional, HTTP_EXACT.  An answer of 2xx whose body is about to come: are these the bytes
	 * that are wanted?  If not, the call ends with -ESTALE and none of them. */
	bool (*sound)(struct http_call *c, const struct http_answer *a);
	/* Optional, HTTP_EXACT.  Of an answer whose length is what it should be: so many have come
	 * of dst, from the beginning; those are not written again. */
	void (*more)(struct http_call *c, size_t got);
	/* HTTP_STREAM, 2xx only.  0, or -errno to end the call with it. */
	int (*data)(struct http_call *c, const void *bytes, size_t len);
	void *ctx;

	const char *origin; /* "https://host[:port]" (a path after it is ignored) that may get
			       credentials; NULL: none may */
	enum http_delivery delivery;
	void *dst; /* HTTP_EXACT: len > 0 bytes */
	uint64_t off;
	size_t len;
	size_t given; /* what an earlier call for the same dst has told more() */
	bool whole;   /* HTTP_EXACT: [0, len) is the whole object: no Range is sent at first */
	struct buf *buffer;
	size_t buffer_max;
	enum http_class class;
	bool no_follow;	 /* a redirect is the result: err 0, status 3xx, answer.location */
	bool repeatable; /* a POST that may be sent twice; other methods always may */
	bool once;	 /* no second attempt (the caller has its own rhythm) */
	bool patient;	 /* while nobody answers: tried until the deadline, however often */
	int64_t deadline_mono_ns; /* for everything; 0: total_ms from submission; < 0: none */
	int64_t inactivity_ms;	  /* 0: the client's */
	int64_t connect_ms;	  /* 0: the client's */

	/* Results, from done() on: */
	int err; /* 0 for 2xx, 304 and, with no_follow, other 3xx; otherwise -errno: see below */
	struct why why;
	struct http_answer answer; /* of the last attempt, of its last hop */
	unsigned attempts;

	struct http_transfer *private;
};

/*
 * err: -EACCES 401, 403 · -ENOENT 404, 410 · -ESTALE 412, or the object is shorter than the range ·
 * -ERANGE 416 · -ENOSPC 413, 507 · -EEXIST 409 · -ETIMEDOUT a deadline, 408, 504 · -EIO other
 * statuses, and 429, 500, 502, 503 when patience ended · -EOPNOTSUPP the server ignores ranges
 * (200) and the offset is beyond 1 MiB · -EPROTO wrong Content-Range, encoded body, more bytes than
 * asked, bad redirect, more than 5 hops · -EHOSTUNREACH name or route · -ECONNREFUSED · -ECONNRESET
 * cut, short body · -EKEYREJECTED TLS: certificate not accepted · -EFBIG · -EPERM a credential for
 * a foreign origin (the builder's mistake) · -ECANCELED cancelled or shutting down · -ENOMEM ·
 * whatever build(), judge(), data() and body.read() returned.
 */

/* The error that a store's fetch gives for it: one of those in cache/store.h. */
int http_store_errno(int err);

/* Starts the thread (after the last fork).  -ENOENT/-EACCES with a sentence: the CA file. */
int http_new(const struct http_options *options, struct http **out, struct why *why) MUST_CHECK;
/* Ends all calls with -ECANCELED, waits for their done(), ends the thread.  Later submissions end
 * so, too.  NULL is fine. */
void http_shutdown(struct http *h);
/* shutdown, then free. */
void http_free(struct http *h);

/* Never blocks, never fails: errors come through done(), perhaps before this returns (after
 * shutdown only). */
void http_submit(struct http *h, struct http_call *c);
/* Asks for an end with -ECANCELED; done() comes as always.  Without effect on a call that has
 * ended: the pointer is compared, never followed. */
void http_cancel(struct http *h, struct http_call *c);
/* A background call that somebody now waits for.  As harmless. */
void http_promote(struct http *h, struct http_call *c);
/* Submits and waits; done must be NULL.  Returns c->err.  -EDEADLK on the network thread. */
int http_run(struct http *h, struct http_call *c) MUST_CHECK;
void http_call_release(struct http_call *c);

struct http_counters {
	uint64_t calls, requests, retries, resumes, redirects;
	uint64_t bytes_in, bytes_out;
	uint64_t by_class[6]; /* answers by status class; [0]: no answer */
	uint64_t refused;     /* 429, 503, SlowDown */
	uint32_t in_flight, queued, limit;
};
void http_get_counters(struct http *h, struct http_counters *out);

#endif
