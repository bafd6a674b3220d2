/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the patch form: what its reader, writer and merger share.  Not for other modules.
 *
 * A struct patch_block is one directory entry whose extents have been checked: its positions and
 * values lie inside the payload.  The positions themselves have not been looked at: whoever uses
 * them checks them, except that in a block of PATCH_BLOCK elements no u16 can be out of the block.
 *
 * A RICE block is read a piece at a time through a struct rice_reader, each of which is a block of
 * the form RAW: patch_piece().
 */
#ifndef CODEC_PATCH_BLOCK_H
#define CODEC_PATCH_BLOCK_H

#include "codec/patch.h"
#include "codec/rice.h"

#define PATCH_INLINE static inline __attribute__((always_inline))
#define PATCH_MAGIC  "WFP\0"

enum {
	PATCH_OFFSET_BITS = 40,
	PATCH_COUNT_BITS = 17,
	/* elements that fit behind a writer's positions[], for loops that overshoot */
	PATCH_SLACK = RICE_SLACK,
	PATCH_LINE = 64,		 /* bytes a prefetch brings */
	PATCH_PREFETCH_MAX = 16 * 1024,	 /* bytes of one list that are worth a prefetch */
	PATCH_WRITE_BUFFER = 256 * 1024, /* bytes of payload gathered before the sink sees them */
};

enum {
	PATCH_GROUP = 64, /* blocks of a directory entry of version 1 */
	PATCH_GROUP_ENTRY = 16,
	PATCH_LONG = 1, /* flags of version 1 */
	PATCH_HASHES = 2,
	PATCH_FORM_BITS = 2, /* of the number that a block's payload begins with */
	PATCH_PREFIX_MAX = 3,
};

#define PATCH_LISTED_MAX ((UINT32_C(1) << 24) - 1)
#define PATCH_OFFSET_MAX ((UINT64_C(1) << PATCH_OFFSET_BITS) - 1)

struct patch_block {
	const uint8_t *positions; /* count u16, RAW only */
	const uint8_t *values;
	const uint8_t *payload; /* after the prefix of version 1 */
	uint64_t payload_len;
	uint32_t count;
	uint32_t elements; /* PATCH_BLOCK, less in the last block */
	unsigned form;	   /* enum patch_form */
};

/* What a directory entry of version 0 says, or what is the same of version 1; nothing checked. */
struct patch_entry {
	uint64_t offset, end;
	uint32_t count, elements;
	unsigned form;
};

PATCH_INLINE uint64_t patch_entry_pack(uint64_t offset, uint32_t count, unsigned form)
{
	return offset | (uint64_t)count << PATCH_OFFSET_BITS |
	       (uint64_t)form << (PATCH_OFFSET_BITS + PATCH_COUNT_BITS);
}

PATCH_INLINE uint64_t patch_blocks(uint64_t numel)
{
	return numel / PATCH_BLOCK + (numel % PATCH_BLOCK != 0);
}

PATCH_INLINE uint32_t patch_block_elements(uint64_t numel, uint64_t block)
{
	return (uint32_t)MIN(numel - (block << PATCH_BLOCK_SHIFT), (uint64_t)PATCH_BLOCK);
}

PATCH_INLINE uint64_t patch_block_size(const struct patch_entry *e, unsigned width)
{
	return e->form == PATCH_RAW ? (uint64_t)e->count * (2 + width)
				    : (uint64_t)e->elements * width;
}

/* The block that e says, whose payload begins at e->offset.  -EBADMSG when it is not inside. */
PATCH_INLINE int patch_block_of(const struct patch *p, const struct patch_entry *e,
				struct patch_block *out)
{
	if (e->end > p->payload_len || e->offset > e->end || e->count > e->elements ||
	    e->form > PATCH_RICE - (p->version == 0) ||
	    (e->form == PATCH_DENSE && e->count != e->elements) ||
	    (e->form != PATCH_RICE && patch_block_size(e, p->width) > e->end - e->offset))
		return -EBADMSG;
	out->payload = p->payload + e->offset;
	out->payload_len = e->end - e->offset;
	out->positions = out->payload;
	out->values = out->payload + (e->form == PATCH_RAW ? 2 * (size_t)e->count : 0);
	out->count = e->count;
	out->elements = e->elements;
	out->form = e->form;
	return 0;
}

/* ---- version 1: patch_groups.c ---- */

/* After the head's first 24 bytes; fills the rest of p. */
int patch_groups_open(const uint8_t *blob, uint64_t len, struct patch *p,
		      struct why *why) MUST_CHECK;

/* What a block's entry, length and prefix say; e->offset is behind the prefix.  A block that is not
 * listed is RAW with count 0.  -EBADMSG when they do not fit into the payload. */
int patch_groups_entry(const struct patch *p, uint64_t block, struct patch_entry *out) MUST_CHECK;

/* The directory as patch_check() wants it, without the blocks' payload. */
int patch_groups_check(const struct patch *p, struct why *why) MUST_CHECK;

/* The index of a listed block in hashes and lengths, or -1. */
int64_t patch_groups_index(const struct patch *p, uint64_t block);

PATCH_INLINE uint32_t patch_length(const struct patch *p, uint64_t i)
{
	return p->length_size == 2 ? load_le16(p->lengths + 2 * i) : load_le32(p->lengths + 4 * i);
}

PATCH_INLINE struct patch_entry patch_entry_at(const struct patch *p, uint64_t block)
{
	uint64_t e = load_le64(p->dir + 8 * block), next = load_le64(p->dir + 8 * block + 8);

	return (struct patch_entry){
		.offset = e & PATCH_OFFSET_MAX,
		.end = next & PATCH_OFFSET_MAX,
		.count = (uint32_t)(e >> PATCH_OFFSET_BITS) & ((1U << PATCH_COUNT_BITS) - 1),
		.elements = patch_block_elements(p->numel, block),
		.form = (unsigned)(e >> (PATCH_OFFSET_BITS + PATCH_COUNT_BITS)),
	};
}

/* block < p->blocks.  -EBADMSG when what the entry promises is not inside the payload. */
PATCH_INLINE int patch_block_at(const struct patch *p, uint64_t block, struct patch_block *out)
{
	struct patch_entry e;

	if (p->version == 0)
		e = patch_entry_at(p, block);
	else if (patch_groups_entry(p, block, &e) < 0)
		return -EBADMSG;
	return patch_block_of(p, &e, out);
}

/* Begins to read a RICE block. */
PATCH_INLINE int patch_pieces(const struct patch *p, const struct patch_block *blk,
			      struct rice_reader *r)
{
	return rice_open(r, p->kernel, blk->payload, (size_t)blk->payload_len, p->op, p->width,
			 blk->count, blk->elements);
}

/* The next elements of it as a RAW block; 1, 0 when there are no more, -EBADMSG. */
PATCH_INLINE int patch_piece(struct rice_reader *r, struct patch_block *out)
{
	int n = rice_next(r);

	if (n <= 0)
		return n;
	*out = (struct patch_block){
		.positions = r->positions,
		.values = r->values,
		.count = (uint32_t)n,
		.elements = r->elements,
		.form = PATCH_RAW,
	};
	return 1;
}

PATCH_INLINE void patch_prefetch_bytes(const uint8_t *p, size_t len)
{
	len = MIN(len, (size_t)PATCH_PREFETCH_MAX);
	for (size_t i = 0; i < len + PATCH_LINE - 1; i += PATCH_LINE)
		__builtin_prefetch(p + i, 0, 2);
}

/* One element as a number; width is a constant where this is inlined into a loop. */
PATCH_INLINE uint64_t patch_load(const uint8_t *p, unsigned width)
{
	switch (width) {
	case 1: return *p;
	case 2: return load_le16(p);
	case 4: return load_le32(p);
	default: return load_le64(p);
	}
}

PATCH_INLINE void patch_store(uint8_t *p, uint64_t v, unsigned width)
{
	switch (width) {
	case 1: *p = (uint8_t)v; break;
	case 2: store_le16(p, (uint16_t)v); break;
	case 4: store_le32(p, (uint32_t)v); break;
	default: store_le64(p, v);
	}
}

/* Changes the element at dst by the value, as op says. */
PATCH_INLINE void patch_change(uint8_t *dst, const uint8_t *value, enum patch_op op, unsigned width)
{
	uint64_t v = patch_load(value, width);

	if (op == PATCH_ADD)
		v += patch_load(dst, width);
	else if (op == PATCH_XOR)
		v ^= patch_load(dst, width);
	patch_store(dst, v, width);
}

/* Changes n elements in a row. */
PATCH_INLINE void patch_change_row(uint8_t *restrict dst, const uint8_t *restrict values, size_t n,
				   enum patch_op op, unsigned width)
{
	if (op == PATCH_SET) {
		memcpy(dst, values, n * width);
	} else if (op == PATCH_XOR) {
		for (size_t i = 0; i < n * width; i++)
			dst[i] ^= values[i];
	} else {
		for (size_t i = 0; i < n; i++)
			patch_change(dst + i * width, values + i * width, op, width);
	}
}

/* 0 ... 3 for widths 1, 2, 4, 8: the column of the tables of loops. */
PATCH_INLINE unsigned patch_width_log(unsigned width)
{
	return (unsigned)__builtin_ctz(width);
}

/*
 * The writer.  The merger fills positions[] and values[] of a block itself and calls
 * patch_writer_block(); patch_writer_add() does the same with what it is given.
 */
struct patch_writer {
	const struct sink *sink;
	uint64_t at; /* the blob in the sink */
	uint64_t numel, blocks;
	uint64_t changed; /* in the blocks that are done */
	uint64_t payload; /* bytes of payload so far, buffered ones included */
	uint64_t next;	  /* directory entries below are filled in */
	uint64_t block;	  /* whose elements are in positions[] */
	uint32_t count;	  /* of positions[] */
	uint64_t floor;	  /* the least position that may come */
	size_t buffered;
	enum patch_op op;
	unsigned width;
	size_t front_len;
	uint8_t *front;		     /* owned: head and, in version 0, directory */
	uint8_t *positions;	     /* owned: PATCH_BLOCK + PATCH_SLACK u16 */
	uint8_t *values;	     /* owned: PATCH_BLOCK + PATCH_SLACK elements */
	uint8_t *buffer;	     /* owned: PATCH_WRITE_BUFFER bytes */
	struct patch_groups *groups; /* owned: what version 1 needs besides; NULL: version 0 */
};

/* Version 1: `next` counts directory entries, which are for groups. */
struct patch_groups {
	struct rice_encoder *encoder; /* owned */
	uint8_t *code;		      /* owned: a block's RICE payload, with room for the largest */
	uint8_t *entries;	      /* owned: the directory */
	uint64_t count;		      /* of entries */
	uint32_t *lengths;	      /* owned: `listed` of them in room for `cap` */
	uint64_t *hashes;	      /* owned, likewise */
	uint32_t listed, cap;
	uint32_t longest;
	bool want_hashes, has_hash;
	uint64_t hash_block, hash; /* when has_hash */
};

/* The writer's parts of version 1 (patch_write_groups.c): free; write a block, of which
 * `dense_size` is the size as DENSE or UINT64_MAX; end. */
void patch_groups_free(struct patch_groups *g);
int patch_groups_block(struct patch_writer *w, uint64_t block, uint32_t count,
		       struct why *why) MUST_CHECK;
int patch_groups_end(struct patch_writer *w, struct why *why) MUST_CHECK;

/* Bytes behind the ones written so far; DENSE form of positions[] and values[]; zeros up to a
 * multiple of 8. */
int patch_writer_put(struct patch_writer *w, const void *bytes, size_t len,
		     struct why *why) MUST_CHECK;
int patch_writer_dense(struct patch_writer *w, uint32_t count, uint32_t elements,
		       struct why *why) MUST_CHECK;
int patch_writer_pad(struct patch_writer *w, struct why *why) MUST_CHECK;

/* Writes the `count` elements in positions[] and values[] as block `block`, which must be above all
 * blocks written before, and empties them. */
int patch_writer_block(struct patch_writer *w, uint64_t block, uint32_t count,
		       struct why *why) MUST_CHECK;

#endif
