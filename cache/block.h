/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block cache: the bytes of remote objects, on disk where possible, each fetched once however
 * many ask (process-wide single flight; waiters share the result or the error).
 *
 * One per mount, used by all its stores.  An object is known by its identity: the same content
 * under two names, in two runs or stores, is one object here.  Bytes are not held in RAM beyond
 * what is in flight and, where there is no disk to write to, a ring of the last 64 MiB fetched.
 *
 * Never an error because of the disk: a full, failing, read-only or vanished one means less
 * caching, said once in the log.  Another process's cache directory is read but not written
 * (cache/disk.h); it becomes ours, without a restart, when that process has gone.
 *
 * What is fetched: exactly the missing 128 KiB pieces under a read that looks random; whole MiB,
 * and a window ahead of it, for one that is part of a stream (cache/prefetch.h).
 *
 * Thread-safe.  Threads of its own: a small pool for hashing and writing.
 */
#ifndef CACHE_BLOCK_H
#define CACHE_BLOCK_H

#include "cache/store.h"

struct blockcache;   /* opaque */
struct block_handle; /* an open object; opaque */

struct blockcache_config {  /* zero: the default in brackets; sizes in bytes */
	const char *dir;    /* the cache directory; NULL: memory only */
	const char *holder; /* what other processes are told of us: the mount point */
	uint64_t limit;	    /* on disk at most [only the floor] */
	uint64_t floor;	    /* left free on the file system [the smaller of 1 GiB and 5 % of it] */
	uint64_t memory;    /* the ring, when blocks cannot be stored [64 MiB] */
	uint64_t window;    /* ahead of one stream at most [64 MiB] */
	uint64_t budget;    /* ahead of all streams, in flight, at most [128 MiB] */
	uint64_t request;   /* one fetch at most [8 MiB] */
	int64_t timeout_ns; /* a read waits that long at most [60 s] */
	unsigned threads;   /* hashing and writing [2] */
};

/* Always gives a cache but for -ENOMEM (-EAGAIN: no thread).  When it is not the writer of a disk
 * cache, why->err and the sentence say why, for the log and the status.  Starts threads. */
int blockcache_new(const struct blockcache_config *config, struct blockcache **out,
		   struct why *why) MUST_CHECK;
/* All handles must be closed.  Waits for fetches under way: store_stop() first.  NULL is fine. */
void blockcache_free(struct blockcache *c);

struct blockcache_stats {
	const char *path;	/* NULL: memory only; valid as long as the cache */
	bool writing;		/* we own the directory and it can be written */
	uint64_t limit, used;	/* bytes on disk, allowed (0: no limit) and there */
	uint64_t memory;	/* bytes in the ring */
	uint64_t hit_bytes;	/* read from disk or ring */
	uint64_t requests;	/* fetches started */
	uint64_t fetched_bytes; /* that came */
	uint64_t failed;	/* fetches that did not come */
	uint64_t stored_bytes;	/* of what came, written to disk */
	uint64_t evicted_bytes;
	uint64_t damaged;      /* pieces and files on disk that were not what they should be */
	uint64_t flying_bytes; /* asked for, and not yet stored */
};
void blockcache_stats(struct blockcache *c, struct blockcache_stats *out);

/* Opens an object of `size` bytes.  The store's handle is taken over, also on failure, and closed
 * when the last fetch through it has ended.  -EBADMSG: the identity is known with another size. */
int block_open(struct blockcache *c, const struct identity *id, uint64_t size, const char *key,
	       struct handle *handle, struct block_handle **out) MUST_CHECK;
void block_close(struct block_handle *h); /* never blocks on the network; NULL is fine */
/* Exactly len bytes or -errno: the store's, or -ETIMEDOUT.  Blocks. The range must lie inside. */
int block_read(struct block_handle *h, uint64_t off, void *dst, size_t len) MUST_CHECK;

/* Bytes that are on disk and have been checked, and in memory: kept from being evicted until
 * loan_end().  Any error: read them.  Does not block. */
int block_lend(struct block_handle *h, uint64_t off, size_t len, struct loan *out) MUST_CHECK;

struct block_range {
	uint64_t off, len;
};
/* Starts fetching what is missing of the ranges, which must lie inside, for one who will go on with
 * each part of it as it comes.  Does not wait, and says nothing of errors: the read that follows
 * does. */
void block_want(struct block_handle *h, const struct block_range *ranges, size_t count);

/* Pulls the whole object in the background, at low priority, until it is there, the cache is full,
 * or five fetches have failed.  Harmless when it is under way; call it again to go on after an
 * error.  Ends with block_close(). */
void block_pull(struct block_handle *h);
struct block_progress {
	uint64_t size, present; /* bytes */
	bool pulling;
	int err; /* why the last pull ended early: -ENOSPC, -ENOTSUP (nowhere to put it), or the
		  * store's; 0 */
};
void block_progress(struct block_handle *h, struct block_progress *out);

/* While pinned (counted), its blocks are not evicted: it could not be fetched again.  An object
 * that a fetch has found gone or changed (-ENOENT, -ESTALE) is as good as pinned while it is open.
 */
void block_pin(struct block_handle *h);
void block_unpin(struct block_handle *h);

#endif
