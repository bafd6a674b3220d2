/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the patch form: what its reader, writer and merger share.  Not for other modules.
 *
 * A struct patch_block is one directory entry whose extents have been checked: its positions and
 * values lie inside the payload.  The positions themselves have not been looked at: whoever uses
 * them checks them, except that in a block of PATCH_BLOCK elements no u16 can be out of the block.
 *
 * RICE and BITS blocks can be read a piece at a time through a struct patch_reader, each of which
 * is a block of the form RAW: patch_piece().
 */
#ifndef CODEC_PATCH_BLOCK_H
#define CODEC_PATCH_BLOCK_H

#include "codec/patch.h"
#include "codec/patch_change.h"
#include "codec/rice.h"

#define PATCH_MAGIC "WFP\0"

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
	PATCH_BITS_WORD = 64,	/* elements of a word of a BITS block */
	PATCH_BITS_RANKS = 128, /* bytes of ranks */
	PATCH_BITS_STEP = 1024, /* elements from one rank to the next */
	PATCH_BITS_MAX = PATCH_BITS_RANKS + PATCH_BLOCK / 8,
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
	const uint8_t *positions; /* count u16, RAW only; BITS: the bitmap, behind the ranks */
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

PATCH_INLINE uint32_t patch_bits_words(uint32_t elements)
{
	return (elements + PATCH_BITS_WORD - 1) / PATCH_BITS_WORD;
}

/* Bytes before the values of a block that is not RICE. */
PATCH_INLINE uint64_t patch_values_at(const struct patch_entry *e)
{
	switch (e->form) {
	case PATCH_RAW: return 2 * (uint64_t)e->count;
	case PATCH_BITS: return PATCH_BITS_RANKS + 8 * (uint64_t)patch_bits_words(e->elements);
	default: return 0;
	}
}

PATCH_INLINE uint64_t patch_block_size(const struct patch_entry *e, unsigned width)
{
	return patch_values_at(e) + (uint64_t)e->count * width;
}

PATCH_INLINE bool patch_form_known(const struct patch *p, unsigned form)
{
	return form <= PATCH_DENSE || (p->version == 1 && form == PATCH_RICE) ||
	       (p->version == 2 && form == PATCH_BITS);
}

/* The block that e says, whose payload begins at e->offset.  -EBADMSG when it is not inside. */
PATCH_INLINE int patch_block_of(const struct patch *p, const struct patch_entry *e,
				struct patch_block *out)
{
	if (e->end > p->payload_len || e->offset > e->end || e->count > e->elements ||
	    !patch_form_known(p, e->form) || (e->form == PATCH_DENSE && e->count != e->elements) ||
	    (e->form != PATCH_RICE && patch_block_size(e, p->width) > e->end - e->offset))
		return -EBADMSG;
	out->payload = p->payload + e->offset;
	out->payload_len = e->end - e->offset;
	out->positions = out->payload + (e->form == PATCH_BITS ? PATCH_BITS_RANKS : 0);
	out->values = out->payload + patch_values_at(e);
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

	if (p->version != 1)
		e = patch_entry_at(p, block);
	else if (patch_groups_entry(p, block, &e) < 0)
		return -EBADMSG;
	return patch_block_of(p, &e, out);
}

/* ---- a block as pieces of the form RAW ---- */

struct patch_reader {
	struct rice_reader rice;  /* BITS: of which only the list of positions is used */
	struct patch_block block; /* BITS */
	uint32_t word, done;	  /* BITS: of the bitmap and of the values, what has been read */
	unsigned width;
};

/* ---- BITS: patch_bits.c ---- */

/* How many elements of the block before e change: at most count, whatever the block contains. */
uint32_t patch_bits_rank(const struct patch_block *blk, uint32_t e);

/* Changes elements [e0, e1), not empty, of which dst is the first.  -EBADMSG. */
int patch_bits_apply(const struct patch *p, const struct patch_block *blk, uint32_t e0, uint32_t e1,
		     uint8_t *dst) MUST_CHECK;

/* patch_piece() of a BITS block. */
int patch_bits_piece(struct patch_reader *r, struct patch_block *out) MUST_CHECK;

/* Are bitmap and ranks what they have to be?  The index of the first rank that is not, or
 * PATCH_BITS_RANKS / 2 for bits that are not as many as the count or beyond the block; else -1. */
int patch_bits_check(const struct patch_block *blk);

/* Ranks and bitmap of ascending positions; returns their length. */
size_t patch_bits_make(const uint8_t *positions, uint32_t count, uint32_t elements,
		       uint8_t dst[PATCH_BITS_MAX]);

/* Begins to read a RICE or BITS block. */
PATCH_INLINE int patch_pieces(const struct patch *p, const struct patch_block *blk,
			      struct patch_reader *r)
{
	r->block = *blk;
	r->word = r->done = 0;
	r->width = p->width;
	if (blk->form == PATCH_BITS)
		return 0;
	return rice_open(&r->rice, p->kernel, blk->payload, (size_t)blk->payload_len, p->op,
			 p->width, blk->count, blk->elements);
}

/* The next elements of it as a RAW block; 1, 0 when there are no more, -EBADMSG. */
PATCH_INLINE int patch_piece(struct patch_reader *r, struct patch_block *out)
{
	int n;

	if (r->block.form == PATCH_BITS)
		return patch_bits_piece(r, out);
	n = rice_next(&r->rice);
	if (n <= 0)
		return n;
	*out = (struct patch_block){
		.positions = r->rice.positions,
		.values = r->rice.values,
		.count = (uint32_t)n,
		.elements = r->rice.elements,
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

/*
 * The writer.  The merger fills positions[] and values[] of a block itself and calls
 * patch_writer_block(); patch_writer_add() does the same with what it is given.
 */
struct patch_writer {
	const struct sink *sink;
	uint64_t at; /* the blob in the sink */
	uint64_t numel, blocks;
	uint64_t changed;		  /* in the blocks that are done */
	uint64_t payload;		  /* bytes of payload so far, buffered ones included */
	uint64_t next;			  /* directory entries below are filled in */
	uint64_t block;			  /* whose elements are in positions[] */
	uint32_t count;			  /* of positions[] */
	bool has_bits;			  /* a block is BITS, so this is version 2 */
	const struct rice_kernel *kernel; /* which decides when a block is */
	uint64_t floor;			  /* the least position that may come */
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
