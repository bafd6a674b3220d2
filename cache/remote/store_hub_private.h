/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the Hub's store share: store_hub.c has the operations, hub_call.c makes
 * requests and sentences, hub_list.c lists, hub_fetch.c reads, hub_watch.c follows changes.
 */
#ifndef CACHE_REMOTE_STORE_HUB_PRIVATE_H
#define CACHE_REMOTE_STORE_HUB_PRIVATE_H

#include <jansson.h>
#include <pthread.h>

#include "cache/lock.h"
#include "cache/remote/hub_token.h"
#include "cache/remote/hub_url.h"
#include "cache/remote/live.h"
#include "cache/remote/store_hub.h"

enum hub_quota { HUB_QUOTA_API, HUB_QUOTA_RESOLVE, HUB_QUOTAS };

/* A listing that is shared. */
struct hub_snapshot {
	int refs; /* atomic */
	struct listing listing;
};

enum hub_feed_state {
	HUB_FEED_NONE,	     /* not asked for, or a repository */
	HUB_FEED_CONNECTING, /* or waiting to */
	HUB_FEED_LIVE,
	HUB_FEED_REFUSED, /* this server has none */
};

struct hub_feed {
	pthread_t thread;
	bool started; /* the owner's: there is a thread to join */
	int fd;	      /* eventfd; -1: not watched */
	/* under hub->lock: */
	enum hub_feed_state state;
	bool stop;
	char *cursor;
	/* the feed's own thread, and the network's while a stream is open: */
	bool ready, reset;
};

struct hub {
	struct store base;
	struct hub_place place;
	struct hub_token *token;
	struct live_set live;
	bool offline; /* HF_HUB_OFFLINE */

	struct lock lock;	       /* LOCK_QUEUE; guards what follows */
	struct condition changed;      /* a listing succeeded, or stop */
	struct hub_snapshot *snapshot; /* of the last complete listing, or NULL */
	char *state;	   /* what the probe said before it: updatedAt, or the commit; NULL */
	int64_t probed_ns; /* monotonic */
	uint64_t listings; /* that succeeded */
	bool dirty;	   /* it is known to be out of date */
	json_t *paths;	   /* or only in these paths: {path: is it there now}; NULL: none */
	size_t hidden;	   /* names left out of it */
	struct {
		struct rate_limit limit;
		int64_t seen_ns; /* monotonic; 0: never */
	} quota[HUB_QUOTAS];
	struct hub_feed feed;
};

/* ---- hub_call.c ---- */

/* A request to the endpoint with the token; redirects within it keep the token. */
struct hub_call {
	struct live live; /* first */
	struct hub *hub;
	char *url;	    /* owned */
	const char *accept; /* NULL: JSON */
	enum hub_quota quota;
	bool one_byte;	  /* asks for the first byte only */
	const char *post; /* JSON to be sent, by POST; borrowed; NULL: a GET */
	uint64_t token;	  /* which one was sent */
};

/* Sets what all calls have; url is taken over. */
void hub_call_init(struct hub_call *c, struct hub *hub, char *url);
void hub_call_release(struct hub_call *c);
/* For call.build of all calls to the endpoint. */
int hub_build(struct http_call *call, const struct http_hop *hop, struct request *out,
	      struct why *why);
/* For call.judge of the same: a refused token is read again; sentences. */
int hub_judge(struct http_call *call, const struct http_answer *a, struct why *why);
/* Takes note of the quota that an answer tells. */
void hub_note(struct hub *hub, enum hub_quota quota, const struct http_answer *a);
/* Runs and takes note.  c->live.call.err. */
int hub_run(struct hub_call *c, struct why *why) MUST_CHECK;
/* GET and parse.  next: the URL of the next page or NULL, malloc'ed; may be NULL. */
int hub_get_json(struct hub *hub, char *url, json_t **out, char **out_next,
		 struct why *why) MUST_CHECK;
/* The same for a POST of JSON that asks only. */
int hub_post_json(struct hub *hub, char *url, const char *body, json_t **out,
		  struct why *why) MUST_CHECK;
/* malloc'ed text of a buffer, which is released; NULL: out of memory. */
char *hub_text(struct buf *b);
/* What to say where the Hub knows no such thing: looks whether it is one of another kind. */
int hub_explain_missing(struct hub *hub, struct why *why);

/* ---- hub_list.c ---- */
int hub_list(struct hub *hub, const char *prefix, struct listing *out, struct why *why) MUST_CHECK;
void hub_snapshot_unref(struct hub_snapshot *s);
/* The feed says that these have changed: [{path, op}].  1: some of ours; 0: none; -EPROTO: not
 * understood. */
int hub_changed(struct hub *hub, const json_t *changes);

/* ---- hub_fetch.c ---- */
int hub_open(struct store *s, const struct object *object, struct handle **out,
	     struct why *why) MUST_CHECK;
void hub_fetch(struct fetch *f);
void hub_close(struct handle *h);
void hub_identity_xet(const char *hash, struct identity *out);
void hub_identity_oid(const char *oid, struct identity *out);

/* ---- hub_watch.c ---- */
int hub_watch_fd(struct store *s);
void hub_watch_drain(struct store *s);
void hub_watch_stop(struct hub *hub); /* asks the thread to end */
void hub_watch_join(struct hub *hub);

#endif
