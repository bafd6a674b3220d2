/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block cache's files: `<cache dir>/blocks/`, and for each object, by the hex of its identity,
 *
 *	<32 hex>.data	the object's bytes at their own offsets, sparse
 *	<32 hex>.index	a header page (magic, version, identity, size, the object's key for people),
 *			then for each piece 8 bytes: its xxh3-64, 0: the piece is not there
 *	lock		flock()ed, as is the directory, by the one process that writes here; says
 *			who that is
 *
 * A piece is 128 KiB (the last one shorter); a block is 8 pieces, 1 MiB, the unit of eviction.  The
 * hash is seeded with identity and piece number, so bytes of another place or object do not pass.
 *
 * Crash safety is the hash: data is written before its record, nothing is synced, and a record is
 * believed only once the bytes in the file have hashed to it.  Whatever a kill or a power cut
 *leaves (records without data, data without records, torn ones) reads as absent or does not match,
 *and is fetched again.
 *
 * Several processes: whoever holds the flocks is the *owner* and alone writes, evicts and deletes.
 * Others are *guests*: they read what is there, and since the owner may punch a hole at any moment,
 * they hash every piece at every read, in their own memory.  When the owner has gone a guest can
 * become it: disk_own().
 *
 * Functions here block on the file system; thread-safe unless said otherwise.  Nothing logs.
 */
#ifndef CACHE_DISK_H
#define CACHE_DISK_H

#include "cache/store.h"

enum {
	PIECE_SIZE = 128 << 10,
	BLOCK_SIZE = 1 << 20,
	BLOCK_PIECES = BLOCK_SIZE / PIECE_SIZE,
	DISK_KEY_MAX = 2048, /* longer keys are cut */
};
#define DISK_OBJECT_MAX ((uint64_t)PIECE_SIZE * (UINT32_MAX - 1)) /* larger ones are not cached */

struct disk;	  /* the directory */
struct disk_file; /* an open object */

/* Opens (makes) <parent>/blocks.  `holder` is what others are told of us: a mount point; NULL: we
 * only look, make nothing and never own it.  As guest, `why` is the sentence that says who owns it,
 * or that it cannot be written.  -errno with a sentence when it can be of no use: absent and not to
 * be made, no hole punching. */
int disk_open(const char *parent, const char *holder, struct disk **out,
	      struct why *why) MUST_CHECK;
void disk_close(struct disk *d); /* lets go of the lock; all files must be closed; NULL is fine */
bool disk_owned(const struct disk *d);
/* Tries to become the owner; true when we are.  One thread at a time. */
bool disk_own(struct disk *d);
const char *disk_path(const struct disk *d);
/* Bytes that we may still write by the file system's account; UINT64_MAX when it does not say. */
uint64_t disk_space(const struct disk *d);
uint64_t disk_capacity(const struct disk *d); /* of the whole file system; 0: not known */

struct disk_entry {
	struct identity id;
	uint64_t bytes;	 /* allocated */
	int64_t used_ns; /* last touched or written, real time */
};
/* What is there, most recently used first; malloc'ed.  Names that are not ours are left alone. */
int disk_list(struct disk *d, struct disk_entry **out, size_t *out_count) MUST_CHECK;
/* What the header of an object says; key is malloc'ed.  -EBADMSG: damaged or foreign. */
int disk_inspect(struct disk *d, const struct identity *id, uint64_t *out_size,
		 char **out_key) MUST_CHECK;
void disk_remove(struct disk *d, const struct identity *id);

/* Opens an object's files; the owner makes them when absent, and anew (*out_foreign) when the
 * header is damaged or of something else.  A guest gets -ENOENT or -EBADMSG then.  One reference.
 */
int disk_file_open(struct disk *d, const struct identity *id, uint64_t size, const char *key,
		   struct disk_file **out, bool *out_foreign) MUST_CHECK;
struct disk_file *disk_file_ref(struct disk_file *f);
void disk_file_unref(struct disk_file *f); /* NULL is fine */
bool disk_file_writable(const struct disk_file *f);
/* Bytes that the object's data takes on disk. */
uint64_t disk_file_allocated(const struct disk_file *f);
uint64_t disk_file_length(const struct disk_file *f); /* of the data, holes too */
/* Notes that it was used now. */
void disk_file_touch(struct disk_file *f);
/* Records of pieces [first, first + count), 0 where there is none. */
int disk_file_records(struct disk_file *f, uint32_t first, uint32_t count,
		      uint64_t *out) MUST_CHECK;
/* Bytes without a check: for pieces that were checked since the file was opened, by its owner. */
int disk_file_lend(struct disk_file *f, uint64_t off, size_t len, struct loan *out) MUST_CHECK;
int disk_file_read(struct disk_file *f, uint64_t off, void *dst, size_t len) MUST_CHECK;
/* One piece, whole, checked against its record.  -ENOENT: no record; -EBADMSG: does not match (a
 * file that ends too early, too); -EIO ... */
int disk_file_check(struct disk_file *f, uint32_t piece, void *dst) MUST_CHECK;
/* Writes whole pieces (the object's last one may be short), then their records.  On failure there
 * are no records, but space may be taken: drop them. */
int disk_file_store(struct disk_file *f, uint32_t first, const void *bytes, size_t len) MUST_CHECK;
/* Takes the records away and gives the space back. */
int disk_file_drop(struct disk_file *f, uint32_t first, uint32_t count) MUST_CHECK;

/* Length of a piece of an object. */
static inline size_t piece_len(uint64_t size, uint32_t piece)
{
	uint64_t off = (uint64_t)piece * PIECE_SIZE;

	return (size_t)MIN(size - off, (uint64_t)PIECE_SIZE);
}

/* Pieces of an object. */
static inline uint32_t piece_count(uint64_t size)
{
	return (uint32_t)((size + PIECE_SIZE - 1) / PIECE_SIZE);
}

#endif
