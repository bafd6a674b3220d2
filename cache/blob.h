/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An object's bytes, near: reference-counted, pinned at one identity.  Readers of generations use
 * blobs and nothing below. Today a blob reads straight from its store; a block cache goes in here.
 */
#ifndef CACHE_BLOB_H
#define CACHE_BLOB_H

#include "cache/block.h"
#include "cache/store.h"
#include "codec/io.h"

struct blob {
	char *key;
	uint64_t size;
	int64_t mtime_ns;
	struct identity id;
	/* private */
	struct handle *handle; /* NULL: one of the other two */
	struct block_handle *block;
	char *copy; /* small objects are held in memory: size bytes */
	int refs;   /* atomic */
};

/* Opens an object as listed.  With `keep` its bytes are read now and held in memory, so that it
 * outlives the object (companion files; one beyond 1 MiB is opened like any other). */
int blob_open(struct store *s, const struct object *object, bool keep, struct blob **out,
	      struct why *why) MUST_CHECK;
struct blob *blob_ref(struct blob *b);
void blob_unref(struct blob *b); /* NULL is fine */
/* Exactly len bytes or -errno (-EBADMSG: the range is not inside). Blocks, with the store's
 * deadline. */
int blob_read(struct blob *b, uint64_t off, void *dst, size_t len) MUST_CHECK;
/* The bytes as they lie in memory, for the kernel only, until blob_loan_end(); any error: read
 * them.  Of the block cache: only what has been checked.  The loan keeps the blob: whoever got the
 * bytes may close the file before the loan has ended.  Does not block. */
struct blob_loan {
	struct loan loan;
	struct blob *blob;
};
int blob_lend(struct blob *b, uint64_t off, size_t len, struct blob_loan *out) MUST_CHECK;
void blob_loan_end(struct blob_loan *l);
/* Starts fetching what is missing of ranges that lie inside; does not wait. For a local store
 * nothing. */
void blob_want(struct blob *b, const struct block_range *ranges, size_t count);
/* The same of its beginning, for one who will read it from there to its end: several requests at
 * once, of which the first is small, so that a header is there early. */
void blob_want_beginning(struct blob *b);
/* Pulls the whole object into the cache in the background: block_pull(). */
void blob_pull(struct blob *b);
/* How much of it is near; a local one is wholly. */
void blob_progress(struct blob *b, struct block_progress *out);
/* While pinned (counted) it is not evicted: it could not be fetched again. */
void blob_pin(struct blob *b);
void blob_unpin(struct blob *b);
/* As a codec source; the blob is borrowed. */
struct source blob_source(struct blob *b);

#endif
