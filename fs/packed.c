/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacking, and the blocks that were unpacked last.
 *
 * There are SLOTS blocks for the whole process.  A slot is for one block of one object at a time;
 * who needs a block takes the slot that has it, or the one that was not used for longest, and holds
 * it while copying.  Unpacking happens without the lock, by the one who took the slot for it;
 * others who want the same block wait.  A slot's memory is as large as the largest block it ever
 * had, three times: packed, planes, unpacked.  A block that could not be unpacked is forgotten.
 *
 * The ranges of all blocks of a read are wanted at once before the first is unpacked, so that they
 * come from the network together.
 *
 * Locks: `lock` (LOCK_SHARD) guards all of a slot but the bytes, which belong to who unpacks (READY
 * is false) and are not changed while anybody holds the slot.
 */
#include "fs/packed.h"

#include "cache/lock.h"
#include "codec/pack.h"

#include <stdlib.h>

enum {
	SLOTS = 32,
	RANGE_BLOCKS = 16, /* whose directory entries are read together */
};

struct slot {
	struct identity id; /* of the object */
	uint64_t at;	    /* where the block lies in it */
	uint64_t used;
	uint8_t *bytes; /* owned; cap bytes of unpacked ones, then as many for planes and packed */
	uint32_t cap;
	unsigned holders;
	bool taken; /* it has a block, or will have */
	bool ready;
};

static struct {
	struct lock lock;
	struct condition changed;
	struct slot v[SLOTS];
	uint64_t tick;
} slots;

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void start(void)
{
	lock_init(&slots.lock, LOCK_SHARD);
	condition_init(&slots.changed);
}

/* The slot for a block, held; *out_ready: it has it already.  Waits. */
static struct slot *hold(const struct identity *id, uint64_t at, bool *out_ready)
{
	struct slot *s = NULL;

	lock_take(&slots.lock);
	for (;;) {
		struct slot *oldest = NULL;

		s = NULL;
		for (size_t i = 0; i < SLOTS && s == NULL; i++) {
			struct slot *v = &slots.v[i];

			if (v->taken && v->at == at && identity_equal(&v->id, id))
				s = v;
			else if (v->holders == 0 && (oldest == NULL || v->used < oldest->used))
				oldest = v;
		}
		if (s != NULL && s->ready)
			break;
		if (s == NULL && oldest != NULL) {
			s = oldest;
			s->id = *id;
			s->at = at;
			s->taken = true;
			s->ready = false;
			break;
		}
		/* another thread unpacks it, or all are held */
		condition_wait(&slots.changed, &slots.lock, -1);
	}
	s->holders++;
	s->used = ++slots.tick;
	*out_ready = s->ready;
	lock_release(&slots.lock);
	return s;
}

/* After unpacking; with an error it is forgotten. */
static void finish(struct slot *s, bool ok)
{
	lock_take(&slots.lock);
	s->ready = ok;
	s->taken = ok;
	condition_broadcast(&slots.changed);
	lock_release(&slots.lock);
}

static void let_go(struct slot *s)
{
	lock_take(&slots.lock);
	s->holders--;
	condition_broadcast(&slots.changed);
	lock_release(&slots.lock);
}

static int reserve(struct slot *s, uint32_t bytes, unsigned width)
{
	const uint32_t want = pack_bound(bytes, width);
	uint8_t *fresh;

	if (want <= s->cap)
		return 0;
	fresh = malloc(3 * (size_t)want);
	if (fresh == NULL)
		return -ENOMEM;
	free(s->bytes);
	s->bytes = fresh;
	s->cap = want;
	return 0;
}

struct block { /* of a tensor, as its directory says */
	uint64_t at, hash;
	uint32_t len, bytes;
	unsigned width;
};

static int unpack(struct slot *s, struct blob *blob, const struct block *b)
{
	uint8_t *planes, *packed;
	int err = reserve(s, b->bytes, b->width);

	if (err < 0)
		return err;
	planes = s->bytes + s->cap;
	packed = planes + s->cap;
	err = blob_read(blob, b->at, packed, b->len);
	if (err < 0)
		return err;
	return pack_decode(packed, b->len, b->width, b->hash, s->bytes, b->bytes, planes);
}

/* Bytes [from, from + len) of a block. */
static int copy_from_block(struct blob *blob, const struct block *b, uint32_t from, uint8_t *dst,
			   size_t len)
{
	bool ready;
	struct slot *s = hold(&blob->id, b->at, &ready);
	int err = 0;

	if (!ready) {
		err = unpack(s, blob, b);
		finish(s, err == 0);
	}
	if (err == 0)
		memcpy(dst, s->bytes + from, len);
	let_go(s);
	return err;
}

/* What the directory says of up to RANGE_BLOCKS blocks from `first` on. */
static int read_directory(struct blob *blob, uint64_t at, uint64_t bytes, unsigned width,
			  uint64_t first, size_t n, struct block *out)
{
	const uint64_t payload = at + PACK_ENTRY * (pack_blocks(bytes, width) + 1);
	uint8_t entries[PACK_ENTRY * (RANGE_BLOCKS + 1)];
	int err = blob_read(blob, at + PACK_ENTRY * first, entries, PACK_ENTRY * (n + 1));

	for (size_t i = 0; err == 0 && i < n; i++) {
		struct block *b = &out[i];

		b->width = width;
		b->bytes = pack_block_bytes(bytes, width, first + i);
		err = pack_entry(entries + PACK_ENTRY * i, b->bytes, width, &b->at, &b->len,
				 &b->hash);
		if (err == 0 &&
		    (b->at > blob->size - payload || b->len > blob->size - payload - b->at))
			err = -EBADMSG;
		b->at += payload;
	}
	return err;
}

int packed_read(struct blob *blob, uint64_t at, uint64_t bytes, unsigned width, uint64_t off,
		void *dst, size_t len)
{
	const uint64_t size = (uint64_t)PACK_BLOCK * width, end = off + len;
	struct block blocks[RANGE_BLOCKS];
	uint8_t *out = dst;

	pthread_once(&once, start);
	while (off < end) {
		const uint64_t first = off / size, last = (end - 1) / size;
		const size_t n = (size_t)MIN(last - first + 1, (uint64_t)RANGE_BLOCKS);
		struct block_range range;
		int err = read_directory(blob, at, bytes, width, first, n, blocks);

		if (err < 0)
			return err;
		range = (struct block_range){blocks[0].at,
					     blocks[n - 1].at + blocks[n - 1].len - blocks[0].at};
		if (n > 1)
			blob_want(blob, &range, 1);
		for (size_t i = 0; i < n; i++) {
			const uint32_t from = (uint32_t)(off % size);
			const size_t part =
				(size_t)MIN(end - off, (uint64_t)blocks[i].bytes - from);

			err = copy_from_block(blob, &blocks[i], from, out, part);
			if (err < 0)
				return err;
			out += part;
			off += part;
		}
	}
	return 0;
}
