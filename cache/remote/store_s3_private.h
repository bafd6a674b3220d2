/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the S3 store share.  store_s3.c has the doors, store_s3_call.c signs, sends and
 * repairs one request, store_s3_why.c makes sentences of refusals, store_s3_list.c lists,
 * store_s3_fetch.c reads, store_s3_put.c writes.
 */
#ifndef CACHE_REMOTE_STORE_S3_PRIVATE_H
#define CACHE_REMOTE_STORE_S3_PRIVATE_H

#include "cache/lock.h"
#include "cache/remote/credentials.h"
#include "cache/remote/live.h"
#include "cache/remote/store_s3.h"
#include "cache/table.h"

enum { S3_REGION_CAP = 64 };

struct s3_store {
	struct store base; /* first */
	struct credentials *credentials;
	struct s3_place place;
	bool request_payer;
	int64_t skew_s; /* atomic: what to add to this machine's clock */
	bool links;	/* atomic: GETs are answered by links to a content network */
	struct live_set live;

	struct lock lock;	    /* LOCK_SHARD; guards what follows, and the handles' fields */
	char region[S3_REGION_CAP]; /* where the bucket has turned out to be */
	size_t hidden;		    /* names left out of the last listing of everything */
	struct table *etags;	    /* first 8 bytes of an identity -> struct s3_etag */
	struct listing known;	    /* the last one of everything, for probes; or empty */
	int64_t known_ns;	    /* monotonic; 0: not to be relied upon */
};

/* ETags as listed, without quotes, so that opening an object needs no request. */
struct s3_etag {
	struct identity id;
	char text[];
};

/* ---- one request ---- */

enum s3_purpose { S3_LIST, S3_READ, S3_WRITE, S3_DELETE };

/* Zeroed before use.  Filled in by its owner, who keeps it and all it points to until finish() has
 * been called, exactly once, from any thread, perhaps before s3_call_submit() returns. */
struct s3_call {
	struct live live; /* first; of its call, delivery, buffer and the like are the owner's to
			     fill, build and judge are not.  Results: err, why, answer */
	struct s3_store *s3;
	enum s3_purpose purpose;
	enum method method;
	const char *key;		      /* complete; NULL: the bucket itself */
	const char *query;		      /* encoded; NULL: none */
	const char *if_match, *if_none_match; /* an ETag without quotes, or "*"; NULL: none */
	bool probe;			      /* asks for the first byte only */
	const char *link; /* not S3 at all but this URL, without credentials; NULL */
	const void *body;
	size_t body_len;
	void (*finish)(struct s3_call *c);
	void *ctx;
	/* private */
	struct credential_ask ask;
	struct credential_set *set;
	char *origin, *moved_to;
	char region[S3_REGION_CAP]; /* that it was last signed for */
	char body_hash[65];
	unsigned regions, moves, repeats;
	bool renewed, skewed;
};

void s3_call_submit(struct s3_call *c);
/* Submits and waits; finish must be NULL.  0 for 2xx; otherwise -errno with a sentence. Not on the
 * network thread. */
int s3_call_run(struct s3_call *c, struct why *why) MUST_CHECK;
void s3_call_release(struct s3_call *c);
/* The answer is a redirect to somebody else; no error so far. */
bool s3_call_redirected(const struct s3_call *c);

/* ---- sentences (store_s3_why.c) ---- */

/* The parts of an error's body that matter; all may be NULL. */
struct s3_error {
	char *code, *region, *endpoint;
};
void s3_error_parse(const void *bytes, size_t len, struct s3_error *out);
void s3_error_release(struct s3_error *e);
bool s3_error_is(const struct s3_error *e, const char *code);
/* Final words on a refusal; -errno. */
int s3_why(const struct s3_call *c, int status, const struct s3_error *e, struct why *why);
/* "s3://bucket/key" in printable form; key NULL: the store's name. */
const char *s3_show(const struct s3_store *s, const char *key, char *dst, size_t cap);

/* ---- identities (store_s3.c) ---- */

/* Without quotes, and without W/ (*weak then); NULL or "" gives NULL.  malloc'ed. */
char *s3_etag_bare(const char *etag, bool *weak);
/* etag: bare, NULL: the server gives none.  mtime counts only then, in seconds.  -ENOMEM. */
int s3_identity(const struct s3_store *s, const char *key, const char *etag, uint64_t size,
		int64_t mtime_ns, struct identity *out) MUST_CHECK;
/* The complete key of one that is relative to the prefix; malloc'ed, NULL: out of memory. */
char *s3_full_key(const struct s3_store *s, const char *key);

/* ---- probing instead of listing (store_s3_probe.c) ---- */

/* Takes note of a listing of everything that took so many requests. */
void s3_probe_remember(struct s3_store *s, const struct listing *listing, unsigned pages);
/* The next listing is one of everything. */
void s3_probe_forget(struct s3_store *s);
/* True when by a few small requests nothing is new; *out is the last listing then.  Blocks. */
bool s3_probe_unchanged(struct s3_store *s, struct listing *out);

/* ---- operations ---- */

int s3_list(struct store *s, const char *prefix, struct listing *out, struct why *why);
/* The first page of what begins with prefix, after a key (NULL: from the beginning); *out_more:
 * there are others. */
int s3_list_some(struct s3_store *s, const char *prefix, const char *after, struct listing *out,
		 bool *out_more, struct why *why) MUST_CHECK;
int s3_open(struct store *s, const struct object *object, struct handle **out, struct why *why);
void s3_fetch(struct fetch *f);
void s3_close(struct handle *h);
int s3_put(struct store *s, const char *key, const struct source *src, struct why *why);
int s3_put_if(struct store *s, const char *key, const struct source *src,
	      const struct put_condition *condition, struct why *why);
int s3_remove(struct store *s, const char *key, const struct identity *id, struct why *why);
/* What a HEAD says of an object (key complete). -ENOENT and others with a sentence. *out_etag is
 * malloc'ed, NULL: none. */
int s3_head(struct s3_store *s, const char *key, char **out_etag, uint64_t *out_size,
	    struct identity *out_id, struct why *why) MUST_CHECK;
/* The same from an answer to a HEAD or a probe. -EPROTO: it has no size. */
int s3_read_head(const struct s3_store *s, const char *key, const struct http_answer *a,
		 char **out_etag, uint64_t *out_size, struct identity *out_id) MUST_CHECK;

#endif
