/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract of a store: where objects live (a local directory now; buckets over the network by
 * the same contract).
 *
 * An object is a key (path relative to the store's root, '/' separated) with size, time and
 * *identity*: 16 bytes that change whenever the content may have changed.  A handle pins one object
 * at one identity; what it returns is that object's bytes or an error, never another's. A store
 * never caches, decodes or logs.  Thread-safe.
 *
 * Errors: -ENOENT absent · -ESTALE the object is no longer the one listed · -EACCES · -ELOOP a
 * symbolic link that leaves the store · -ETIMEDOUT · -EIO · -ENOTSUP this store cannot do that ·
 * -ECANCELED shutting down.
 */
#ifndef CACHE_STORE_H
#define CACHE_STORE_H

#include "cache/loan.h"
#include "codec/base.h"
#include "codec/buf.h"
#include "codec/io.h"

struct identity {
	uint8_t bytes[16];
};

bool identity_equal(const struct identity *a, const struct identity *b);
/* 32 hex digits and a NUL. */
void identity_hex(const struct identity *id, char out[33]);

struct object {
	char *key; /* owned by the listing */
	uint64_t size;
	int64_t mtime_ns;
	struct identity id;
	int err; /* 0, or why it cannot be used as listed: ELOOP, EACCES, EISDIR/ENXIO (not a
		  * regular file), ENAMETOOLONG, EILSEQ (name not UTF-8), ENOENT (a symbolic link to
		  * nothing).  An entry with err may also be a directory that cannot be read. */
};

struct listing {
	struct object *v; /* sorted by key, strcmp order */
	size_t count;
	size_t hidden; /* keys left out because they are no paths: empty, "." or ".." parts, or both
			* a file and a directory */
};

struct handle { /* an object pinned at one identity; embedded first in the store's own struct */
	struct store *store;
	uint64_t size;
};

/* One asynchronous read.  The caller owns the struct and keeps it and dst alive until done() has
 * been called, exactly once, from any thread, possibly before store_fetch() returns, with no lock
 * held.  done() must not block or call the store. err: 0 or -errno; on 0 all len bytes are there
 * and belong to the pinned identity. */
struct fetch {
	struct handle *handle;
	uint64_t off;
	size_t len;
	void *dst;
	int64_t deadline_mono_ns; /* < 0: the store's own */
	void (*done)(struct fetch *fetch, int err);
	void *ctx;
	bool background; /* nobody waits for it yet: after those that somebody waits for */
	/* Optional: on the store's thread, before done() and each time that more has come.  dst[0,
	 * got) are the object's bytes then, whatever becomes of the rest, and are not written any
	 * more. */
	void (*more)(struct fetch *fetch, size_t got);
	size_t got; /* the store's: what it has told */
};

/* For stores: tells more(), if there is one. */
void fetch_more(struct fetch *fetch, size_t got);

/* What must hold for an object to be written. */
struct put_condition {
	bool absent;			/* there is none of that name */
	const struct identity *replace; /* it still is this one; NULL: whatever it is */
};

struct store_ops {
	const char *name;
	int (*list)(struct store *s, const char *prefix, struct listing *out, struct why *why);
	int (*open)(struct store *s, const struct object *object, struct handle **out,
		    struct why *why);
	int (*settled)(struct handle *h);
	void (*fetch)(struct fetch *f);
	void (*close)(struct handle *h);
	int (*lend)(struct handle *h, uint64_t off, size_t len, struct loan *out); /* optional */
	int (*put)(struct store *s, const char *key, const struct source *src, struct why *why);
	int (*put_if)(struct store *s, const char *key, const struct source *src,
		      const struct put_condition *condition, struct why *why); /* optional */
	/* optional */
	int (*remove)(struct store *s, const char *key, const struct identity *id, struct why *why);
	int (*watch_fd)(struct store *s);
	void (*watch_drain)(struct store *s);
	void (*free)(struct store *s);
	void (*stop)(struct store *s); /* optional, as are the next two: see store_stop(), ... */
	void (*refresh)(struct store *s);
	bool (*describe)(struct store *s, struct buf *out);
};

struct blockcache; /* cache/block.h */

struct store {
	const struct store_ops *ops;
	char *name; /* for people, without secrets: what the user gave */
	/* A remote store's bytes go through the disk cache.  Its open() does not ask the network
	 * for anything: it pins what the listing said, and fetches find out (so a warm cache works
	 * offline). */
	bool remote;
	bool far; /* a directory whose bytes come over a network, or from some other program */
	struct blockcache *blocks; /* borrowed; set by whoever composes the layers, before the first
				      blob; NULL: none */
};
/* For a store in front of another one, whose handles are that one's: what is true of its bytes. */
void store_front(struct store *s, const struct store *inner);

/* All objects whose key begins with prefix ("" for all), recursively, dotfiles and dot directories
 * left out, at most 32 levels deep. Blocks. */
int store_list(struct store *s, const char *prefix, struct listing *out,
	       struct why *why) MUST_CHECK;
void listing_release(struct listing *l);
/* Have two objects the same key, identity, size, time and error? */
bool object_same(const struct object *a, const struct object *b);
/* The same objects? */
bool listing_same(const struct listing *a, const struct listing *b);
const struct object *listing_find(const struct listing *l, const char *key); /* NULL: absent */

/* What an entry with that err is, for a sentence: "is not a regular file". */
const char *store_unusable(int err);
/* Pins the object as listed; -ESTALE when it has changed since. */
int store_open(struct store *s, const struct object *object, struct handle **out,
	       struct why *why) MUST_CHECK;
void store_close(struct handle *h); /* NULL is fine */
/* 0 when nobody is writing the object, -EAGAIN when somebody is (or may be: written within the last
 * second where it cannot be known), -ESTALE. */
int store_settled(struct handle *h) MUST_CHECK;

void store_fetch(struct fetch *f);
/* Blocking form: exactly len bytes or an error. -EBADMSG when the range is not inside the object.
 */
int store_read(struct handle *h, uint64_t off, void *dst, size_t len) MUST_CHECK;
/* The bytes as they lie in memory, if they do and nobody can write them (cache/loan.h); otherwise
 * an error, and they are to be read.  Does not block. */
int store_lend(struct handle *h, uint64_t off, size_t len, struct loan *out) MUST_CHECK;

/* Writes an object so that readers see nothing or all of it (temp + fsync + rename).  Creates
 * parent directories. */
int store_put(struct store *s, const char *key, const struct source *src,
	      struct why *why) MUST_CHECK;

/* The same under a condition, which the store checks in one step with the writing: -EEXIST,
 * -ESTALE; -ENOTSUP: this store cannot. */
int store_put_if(struct store *s, const char *key, const struct source *src,
		 const struct put_condition *condition, struct why *why) MUST_CHECK;

/* Removes the object if it is still this one (id NULL: whatever it is, and what writers of it that
 * were killed have left); where the store cannot
 * check that in one step it is looked at right before.  -ENOENT: there is none; -ESTALE: it is
 * another; -ENOTSUP: this store cannot. */
int store_remove(struct store *s, const char *key, const struct identity *id,
		 struct why *why) MUST_CHECK;

/* A file descriptor that polls readable when something in the store may have changed, or -1; then
 * drain it, and list after that. It belongs to the store.  A hint only (very many directories are
 * not all watched, a network file system tells nothing): list now and then anyway. */
int store_watch_fd(struct store *s);
void store_watch_drain(struct store *s);
/* Somebody wants to know now: the next listing asks the place itself, where a store would otherwise
 * believe that nothing has changed. */
void store_refresh(struct store *s);
/* Appends how it is doing, in one line for people without a newline ("hub: 412 of 1000 api calls
 * left for 210 s; feed live"); nothing where there is nothing to say.  True: something is wrong. */
bool store_describe(struct store *s, struct buf *out);
/* Going down: fetches under way end soon, with -ECANCELED, and later ones at once.  Before
 * blockcache_free(), which waits for them. */
void store_stop(struct store *s);
void store_free(struct store *s); /* all handles must be closed; NULL is fine */

/* ---- a local directory ---- */

/* follow: symbolic links may lead out of the directory (a --base in a hub cache does), otherwise
 * such an object gets err ELOOP. -ENOENT/-ENOTDIR/-EACCES with a sentence. The identity is made of
 * device, inode, size and mtime. Reads check afterwards that size and mtime are still those of the
 * pinned identity: -ESTALE when the file was rewritten in place. Deleting or replacing (rename) the
 * file does not disturb a handle.  Inotify watches directories that exist and such as appear later.
 */
int store_dir_new(const char *path, bool follow, struct store **out, struct why *why) MUST_CHECK;

#endif
