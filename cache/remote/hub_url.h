/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places on the Hugging Face Hub: hf:// names and pasted web URLs, and the URLs of its API.  Pure
 * but for HF_ENDPOINT, which the caller hands in.
 *
 *	hf://buckets/ns/name[/prefix]		https://huggingface.co/buckets/ns/name[/tree/prefix]
 *	hf://[models/]org/name[@rev][/prefix]	https://huggingface.co/org/name[/tree/rev[/prefix]]
 *	hf://datasets/org/name[@rev][/prefix]	https://huggingface.co/datasets/org/name[...]
 *	hf://spaces/org/name[@rev][/prefix]	https://huggingface.co/spaces/org/name[...]
 *
 * A revision is a branch, a tag, 40 hex digits or refs/pr/N; other '/' in it are written %2F.
 */
#ifndef CACHE_REMOTE_HUB_URL_H
#define CACHE_REMOTE_HUB_URL_H

#include "codec/base.h"
#include "codec/buf.h"

enum hub_kind { HUB_BUCKET, HUB_MODEL, HUB_DATASET, HUB_SPACE, HUB_KINDS };

struct hub_place {
	enum hub_kind kind;
	char *endpoint; /* "https://huggingface.co", without '/' at its end */
	char *id;	/* "ns/name"; some old models have a name only */
	char *revision; /* repositories; "main" when none was given.  NULL for buckets */
	char *prefix;	/* "" or a path without '/' at its end */
};

/* endpoint: HF_ENDPOINT, or NULL for the default. */
bool hub_place_is(const char *text, const char *endpoint);
/* -EINVAL with a sentence. */
int hub_place_parse(const char *text, const char *endpoint, struct hub_place *out,
		    struct why *why) MUST_CHECK;
void hub_place_release(struct hub_place *p);
bool hub_place_pinned(const struct hub_place *p); /* the revision is a commit */

/* "bucket", "model", ...: for people. */
const char *hub_kind_name(enum hub_kind kind);
/* "hf://buckets/ns/name", "hf://ns/name", ... */
void hub_place_uri(enum hub_kind kind, const char *id, struct buf *out);
/* "/buckets/ns/name" and so on, where people look at it in a browser. */
void hub_url_web(const struct hub_place *p, struct buf *out);
/* .../api/buckets/ns/name, .../api/models/id/revision/rev */
void hub_url_info(const struct hub_place *p, struct buf *out);
/* The same of another kind, to find out what is meant. */
void hub_url_other(const struct hub_place *p, enum hub_kind kind, struct buf *out);
/* First page, recursive.  commit: NULL for buckets. */
void hub_url_tree(const struct hub_place *p, const char *commit, struct buf *out);
void hub_url_resolve(const struct hub_place *p, const char *commit, const char *path,
		     struct buf *out);
/* key, value: "cursor" or "since", or NULL. */
void hub_url_events(const struct hub_place *p, const char *key, const char *value, struct buf *out);

#endif
