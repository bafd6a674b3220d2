/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the block cache share: block.c (opening, reading), block_fill.c (fetching and
 * storing), block_object.c (objects and their files), block_room.c (space, eviction), block_pull.c.
 * Everybody else includes cache/block.h.
 *
 * One lock, blockcache.lock (rank SHARD), guards every field below that is not said to be
 * otherwise. It is never held over I/O, a fetch, hashing, or an allocation of an object's size.
 * Functions named *_locked want it held.
 */
#ifndef CACHE_BLOCK_INTERNAL_H
#define CACHE_BLOCK_INTERNAL_H

#include "cache/block.h"
#include "cache/disk.h"
#include "cache/evict.h"
#include "cache/lock.h"
#include "cache/pool.h"
#include "cache/prefetch.h"

/*
 *	state	  where the bytes are			becomes			by
 *	ABSENT	  only in the store			FILLING			whoever wants it
 *first FILLING	  in a fill: on the way, or come and	READY, or ABSENT on	the fill's job; its
 *		  being stored, or kept in the ring	an error or when the	done(); the ring
 *						ring lets it go
 *	STORED	  a record says on disk			READY, or ABSENT when	a reader that has
 *hashed it it does not match READY	  on disk, hash seen to match since	LEAVING, or ABSENT
 *when	the evictor; a reader the file was opened			it cannot be read LEAVING
 *being punched out (STORED, READY)	ABSENT			the evictor A guest's pieces stay
 *STORED: it hashes at every read.  Only LEAVING punches, and never where a reader is; ABSENT after
 *READY keeps the bytes in place for readers that are still at it.
 */
enum piece_state { PIECE_ABSENT, PIECE_FILLING, PIECE_STORED, PIECE_READY, PIECE_LEAVING };

enum { SPARES = 4 };

enum fill_kind {
	FILL_DEMAND, /* somebody waits */
	FILL_AHEAD,  /* a window ahead of a stream */
	FILL_PULL,   /* of a whole object */
};

struct fill { /* one fetch: pieces [first, first + count) of an object */
	struct pool_job job;
	struct fetch fetch;
	struct blockcache *cache; /* constant */
	struct block_object *object;
	struct block_handle *handle; /* a reference, until the job is over */
	enum fill_kind kind;
	uint32_t first, count;
	int refs;      /* atomic: the job's, the ring's, those of readers */
	size_t come;   /* atomic: so many bytes of fetch.dst are there for good */
	size_t wanted; /* atomic: readers wait for so many, the fewest; 0: none does */
	bool early;    /* they do: else for all of it */
	bool done;
	int err;		  /* once done; 0: fetch.dst holds the bytes, for good */
	struct condition cond;	  /* done, or as many as are wanted have come */
	struct fill *prev, *next; /* object's list, while pieces are FILLING because of it */
	bool ringed;
	struct fill *older, *newer; /* the ring */
	struct fill *batch;	    /* to be started */
};

struct reader { /* on the stack of a read: eviction keeps off these pieces */
	uint32_t first, last;
	int64_t until;		       /* its deadline */
	int err;		       /* a demand fill under it failed, */
	uint32_t bad_first, bad_count; /* there */
	struct reader *next;
};

struct pull {
	struct block_handle *handle; /* a reference; NULL: none under way */
	uint32_t next;
	unsigned flying, failures, passes;
	int err;
};

struct block_object {
	struct blockcache *cache;
	struct identity id; /* constant, like size, key, pieces */
	uint64_t size;
	char *key, hex[33];
	uint32_t pieces;
	uint8_t *state;		/* enum piece_state of each */
	uint32_t *slot;		/* of each block: in cache->evict, or EVICT_NONE */
	uint32_t kept;		/* blocks in cache->evict */
	uint64_t present;	/* bytes STORED or READY */
	struct disk_file *file; /* NULL: closed, or nothing on disk */
	unsigned refs;		/* handles */
	unsigned busy;		/* others that hold the pointer across an unlock */
	unsigned pins;
	bool moving; /* its files are being opened or removed by one thread, which alone may touch
		      * it; cache->changed tells the end */
	bool guest;  /* opened while another process owned the directory */
	int64_t look_again_ns; /* a guest without files looks for them not before that */
	bool cold;	       /* only loaded to be evicted */
	bool lost;	       /* the store does not have it any more */
	bool troubled;	       /* READY pieces became ABSENT: punch only as LEAVING */
	struct reader *readers;
	struct fill *fills;
	struct prefetch prefetch;
	struct pull pull;
	struct block_object *prev, *next; /* cache->all */
};

struct block_handle {
	struct block_object *object; /* constant */
	struct handle *handle;	     /* constant; the store's */
	unsigned refs;		     /* one for block_open(), one for each fill and pull */
	unsigned pins;		     /* of object->pins */
	bool closed;
};

struct blockcache {
	uint64_t limit, floor, memory, budget;	     /* constant, up to pool */
	uint32_t request;			     /* pieces */
	struct prefetch_limits window, small_window; /* with a disk, without */
	int64_t timeout_ns;
	struct disk *disk; /* NULL: memory only */
	struct pool *pool;

	struct lock lock;
	struct condition
		changed;       /* an object stopped moving, pieces LEAVING, the last fill ended */
	struct table *objects; /* by hex */
	struct block_object *all;
	struct evict evict;
	struct disk_entry *cold; /* on disk and not loaded; newest first */
	size_t cold_count;
	uint64_t used;	    /* bytes on disk, cold ones too */
	uint64_t space;	    /* free on the file system, as last heard, less what we wrote since */
	uint64_t space_age; /* bytes written since */
	struct fill *ring_oldest, *ring_newest;
	uint64_t ring_bytes;
	void *spare[SPARES]; /* buffers of a whole request, while something is under way */
	unsigned spares;
	uint64_t ahead; /* bytes of FILL_AHEAD under way */
	uint64_t flying_bytes;
	unsigned flying, demands; /* fills whose job is not over; those of FILL_DEMAND */
	bool write_off;		  /* writing failed for good */
	bool adopting;
	bool warned_full, warned_read, warned_open;
	int64_t own_again_ns; /* not before that, try to own the directory */
	struct blockcache_stats stats;
};

/* block_fill.c */
/* Makes fills for what is ABSENT of [first, first + count), puts them into *batch, and returns how
 * many pieces from the near end are taken care of (fewer: budget, memory).  To be started with
 * fill_start() once the lock is released. */
uint32_t fill_plan_locked(struct block_handle *h, uint32_t first, uint32_t count,
			  enum fill_kind kind, int64_t deadline_ns, struct fill **batch);
uint32_t fill_plan_down_locked(struct block_handle *h, uint32_t first, uint32_t count,
			       enum fill_kind kind, int64_t deadline_ns, struct fill **batch);
void fill_start(struct fill *batch);
struct fill *fill_find_locked(struct block_object *o, uint32_t piece);
void fill_ref(struct fill *f);
/* Waits until the first `upto` bytes are there for good (*out_come), or it has failed; an error: of
 * waiting. */
int fill_wait_locked(struct fill *f, size_t upto, int64_t until_mono_ns, bool *out_come) MUST_CHECK;
void fill_unref(struct fill *f);
/* Marks a fill of the ring as just used. */
void ring_touch_locked(struct fill *f);
/* Takes what the ring has of an object out of it; returns them linked by batch, to be released with
 * fill_release_list(). */
struct fill *ring_flush_locked(struct block_object *o);
void fill_release_list(struct fill *list);

/* block.c */
/* Plans what a read of the range lacks and what prefetch thinks will be next. */
void block_plan_locked(struct block_handle *h, uint64_t off, size_t len, int64_t until,
		       struct fill **batch);
void block_handle_put(struct block_handle *h);

/* block_object.c */
/* Opens the object's files and finds out what is there; the object is moving, and no more after. */
void object_attach(struct block_object *o);
struct block_object *object_new(struct blockcache *c, const struct identity *id, uint64_t size,
				const char *key);
void object_free(struct block_object *o);
void object_insert_locked(struct block_object *o);
/* Gives up a `busy`, and the object when nothing is left of it. */
void object_settle(struct block_object *o);
/* The pieces are on disk now. */
void object_stored_locked(struct block_object *o, uint32_t first, uint32_t count);
/* STORED or READY pieces are not any more. */
void object_lost_locked(struct block_object *o, uint32_t first, uint32_t count);
void object_touch_locked(struct block_object *o, uint32_t first, uint32_t last);
void object_forget_cold_locked(struct block_object *o); /* it counts by its pieces from now on */
/* For an object that is moving: its files opened, and a malloc'ed state by their records. */
int object_open_file(struct block_object *o, struct disk_file **out, uint8_t **out_state);
/* Takes them over as what is so; `old`: its blocks are the first to go.  file may be NULL. */
void object_install_locked(struct block_object *o, struct disk_file *file, const uint8_t *state,
			   bool old);

/* As a guest: looks whether the owner has put pieces there meanwhile that are ABSENT here. */
void object_look(struct block_object *o, uint32_t first, uint32_t last);

/* block_room.c */
/* Reserves space for need bytes on disk, evicting as needed; -ENOSPC. */
int room_make(struct blockcache *c, uint64_t need) MUST_CHECK;
/* Evicts about that much, whatever the limits say: the disk is full.  True when something went. */
bool room_evict(struct blockcache *c, uint64_t bytes);
int room_list(struct blockcache *c); /* fills `cold`; -errno */
/* A guest looks, now and then, whether the directory can be had. */
void room_adopt(struct blockcache *c);

/* block_pull.c */
/* Goes on with a pull.  *out_drop: a handle to be put after unlocking, or NULL. */
void pull_step_locked(struct block_object *o, struct fill **batch, struct block_handle **out_drop);
/* One of its fills is over. */
void pull_done_locked(struct block_object *o, const struct fill *f, bool stored);

#endif
