/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a patch to wfp1x.
 *
 * A span at a time: its changes are taken from the patch, the keys of the elements that change say
 * which classes are worth having, the members of each class are counted past the changes so that
 * each gets its number, and then each list is coded as a block of the Rice form.
 *
 * A class costs some seven bytes a span, and elements whose density is twice as large cost a tenth
 * of a bit a change where they are together.  So every exponent has a class of its own, except at
 * both ends, where those with few changes are together.
 *
 * The head is written last.  Everything belongs to one thread.
 */
#include "codec/patchx.h"

#include "codec/class_kernel.h"
#include "codec/patch_block.h"

#include <stdlib.h>
#include <xxhash.h>

enum {
	KEYS = 1 << PATCHX_KEY_BITS,
	PASS_ALL = 1 << 30, /* members: more than there are */
	FEW = 48,	    /* changes that are not worth a class at either end */
	RICE_OVER_RAW = 16, /* bytes that a coded list may be longer than positions and values */
};

struct changes {	   /* of a span; arrays with room for `cap` and RICE_SLACK more */
	uint32_t *at;	   /* owned: elements within the span, ascending */
	uint8_t *values;   /* owned */
	uint32_t *members; /* owned: by class, the member's number */
	uint8_t *sorted;   /* owned: values by class */
	uint32_t count, cap;
};

struct encoder {
	const struct patch *patch;
	const struct source *reference;
	struct rice_encoder *rice;   /* owned */
	struct patch_reader *reader; /* owned */
	uint8_t *span;		     /* owned: the reference's bytes */
	uint8_t *classes;	     /* owned: of a block's elements */
	uint8_t *positions;	     /* owned: of a list */
	uint8_t *code;		     /* owned: of a list */
	size_t code_cap;
	uint32_t *keys; /* owned: KEYS counts */
	struct changes changes;
	struct class_key key;
	uint32_t members[CLASSES];
	uint32_t begin[CLASSES + 1]; /* of each class among the sorted changes */
	struct buf head, payload;
	uint64_t listed, changed;
};

/* Where a dtype's exponent is. */
static void key_of_dtype(enum st_dtype dtype, unsigned *shift, unsigned *bits)
{
	*shift = *bits = 0;
	switch (dtype) {
	case ST_F64: *shift = 52, *bits = 11; break;
	case ST_F32:
	case ST_C64: *shift = 23, *bits = 8; break; /* of C64: of the real part */
	case ST_BF16: *shift = 7, *bits = 8; break;
	case ST_F16: *shift = 10, *bits = 5; break;
	case ST_F8_E5M2:
	case ST_F8_E5M2FNUZ: *shift = 2, *bits = 5; break;
	case ST_F8_E4M3:
	case ST_F8_E4M3FNUZ: *shift = 3, *bits = 4; break;
	case ST_F8_E8M0: *bits = 8; break;
	default: break;
	}
}

/* ---- the changes of a span ---- */

static int grow(struct changes *c, uint32_t more, unsigned width)
{
	const uint64_t want = (uint64_t)c->count + more;
	uint64_t cap = MAX((uint64_t)c->cap * 2, (uint64_t)PATCH_BLOCK);
	void *p;

	if (want <= c->cap)
		return 0;
	while (cap < want)
		cap *= 2;
#define GROW(array, size)                                                                          \
	p = reallocarray(array, (size_t)cap + RICE_SLACK, size);                                   \
	if (p == NULL)                                                                             \
		return -ENOMEM;                                                                    \
	(array) = p
	GROW(c->at, sizeof(*c->at));
	GROW(c->members, sizeof(*c->members));
	GROW(c->values, width);
	GROW(c->sorted, width);
#undef GROW
	c->cap = (uint32_t)cap;
	return 0;
}

/* Appends the elements of a block, or of a piece of one, without values of zero (a DENSE block has
 * them). */
static int take_piece(struct encoder *e, uint32_t first, const struct patch_block *blk)
{
	const unsigned width = e->patch->width;
	struct changes *c = &e->changes;
	int ret = grow(c, blk->count, width);

	for (uint32_t i = 0; ret == 0 && i < blk->count; i++) {
		uint32_t at =
			blk->form == PATCH_DENSE ? i : load_le16(blk->positions + 2 * (size_t)i);
		const uint8_t *value = blk->values + (size_t)i * width;

		if (at >= blk->elements || (c->count > 0 && c->at[c->count - 1] >= first + at))
			return -EBADMSG;
		if (patch_load(value, width) == 0)
			continue;
		c->at[c->count] = first + at;
		patch_store(c->values + (size_t)c->count * width, patch_load(value, width), width);
		c->count++;
	}
	return ret;
}

static int take_block(struct encoder *e, uint64_t block, uint32_t first)
{
	struct patch_block blk, piece;
	int ret = patch_block_at(e->patch, block, &blk);

	if (ret < 0 || blk.count == 0)
		return ret;
	if (blk.form == PATCH_RAW || blk.form == PATCH_DENSE)
		return take_piece(e, first, &blk);
	ret = patch_pieces(e->patch, &blk, e->reader);
	while (ret == 0 && (ret = patch_piece(e->reader, &piece)) > 0)
		ret = take_piece(e, first, &piece);
	return ret;
}

/* The hashes of blocks that change are passed on: a block that the patch lists and whose values are
 * all zero does not count there, and then none can be. */
static int take_changes(struct encoder *e, uint64_t span, struct why *why)
{
	const uint64_t begin = span * PATCHX_SPAN_BLOCKS;
	const uint64_t end = MIN(begin + PATCHX_SPAN_BLOCKS, e->patch->blocks);

	e->changes.count = 0;
	for (uint64_t b = begin; b < end; b++) {
		const uint32_t before = e->changes.count;
		int ret = take_block(e, b, (uint32_t)(b - begin) << PATCH_BLOCK_SHIFT);

		if (ret == -ENOMEM)
			return why_set(why, ENOMEM, "out of memory for the changes of a tensor");
		if (ret < 0)
			return why_set(why, EBADMSG, "block %llu of the patch is damaged",
				       (unsigned long long)b);
		if (e->changes.count > before)
			e->listed++;
		else if (e->patch->hashes != NULL && patch_groups_index(e->patch, b) >= 0)
			return why_set(why, EBADMSG,
				       "block %llu of the patch is listed and does not change",
				       (unsigned long long)b);
	}
	return 0;
}

/* ---- classes ---- */

static void choose_classes(struct encoder *e)
{
	const unsigned width = e->patch->width;
	const struct changes *c = &e->changes;
	unsigned top = (1U << e->key.bits) - 1, low = 0;
	uint32_t n = 0;

	e->key.top = 0;
	e->key.classes = 1;
	if (e->key.bits == 0)
		return;
	memset(e->keys, 0, KEYS * sizeof(*e->keys));
	for (uint32_t i = 0; i < c->count; i++)
		e->keys[rice_get(e->span + (size_t)c->at[i] * width, width) >> e->key.shift &
			rice_mask(e->key.bits)]++;
	while (top > 0 && (n += e->keys[top]) < FEW)
		top--;
	n = 0;
	while (low < top && (n += e->keys[low]) < FEW)
		low++;
	e->key.classes = MIN(top - low + 1, (unsigned)CLASSES);
	e->key.top = e->key.classes > 1 ? top : 0;
}

/* The block whose classes are at hand begins with element `first`; *next is its first change,
 * fill[] where the next one of each class goes. */
static void number_block(struct encoder *e, uint32_t first, uint32_t elements, uint32_t *next,
			 uint32_t fill[CLASSES])
{
	const struct class_kernel *kernel = e->patch->kernel->classes;
	const unsigned width = e->patch->width, classes = e->key.classes;
	uint32_t counts[CLASSES], left[CLASSES];
	const struct changes *c = &e->changes;

	for (uint32_t i = 0; i < elements; i += CLASS_GROUP) {
		const uint8_t *group;
		uint32_t stop = elements;

		/* up to the group of the next change */
		if (*next < c->count && c->at[*next] - first < elements)
			stop = (c->at[*next] - first) / CLASS_GROUP * CLASS_GROUP;
		for (unsigned k = 0; k < CLASSES; k++)
			left[k] = PASS_ALL;
		i = kernel->pass(e->classes, i, stop, classes, left, counts);
		for (unsigned k = 0; k < classes; k++)
			e->members[k] += PASS_ALL - left[k];
		if (i >= elements)
			break;
		group = e->classes + i;
		kernel->count(group, classes, counts);
		for (; *next < c->count && c->at[*next] - first - i < CLASS_GROUP; (*next)++) {
			unsigned at = c->at[*next] - first - i, k = group[at];
			uint64_t below = kernel->mask(group, k) & rice_mask(at);
			uint32_t to = fill[k]++;

			c->members[to] = e->members[k] + rice_count(below);
			memcpy(c->sorted + (size_t)to * width, c->values + (size_t)*next * width,
			       width);
		}
		for (unsigned k = 0; k < classes; k++)
			e->members[k] += counts[k];
	}
}

/* Numbers the members of all classes; those that change get theirs, sorted by class. */
static void number_members(struct encoder *e, uint32_t elements)
{
	const unsigned width = e->patch->width;
	const struct class_kernel *kernel = e->patch->kernel->classes;
	const struct changes *c = &e->changes;
	uint32_t fill[CLASSES];
	uint32_t next = 0;

	memset(e->begin, 0, sizeof(e->begin));
	memset(e->members, 0, sizeof(e->members));
	for (uint32_t i = 0; i < c->count; i++)
		e->begin[1 +
			 class_of(&e->key, rice_get(e->span + (size_t)c->at[i] * width, width))]++;
	for (unsigned i = 0; i < CLASSES; i++) {
		e->begin[i + 1] += e->begin[i];
		fill[i] = e->begin[i];
	}
	for (uint32_t first = 0, n; first < elements; first += n) {
		n = MIN(elements - first, (uint32_t)PATCH_BLOCK);
		kernel->classes[patch_width_log(width)](&e->key, e->span + (size_t)first * width, n,
							e->classes);
		number_block(e, first, n, &next, fill);
	}
}

/* ---- output ---- */

static void put_number(struct buf *b, uint32_t v)
{
	uint8_t bytes[5];
	unsigned n = 0;

	for (; v >= 0x80; v >>= 7)
		bytes[n++] = (uint8_t)(v | 0x80);
	bytes[n++] = (uint8_t)v;
	buf_add(b, bytes, n);
}

/* A list: members [first, first + members) of its class, of which the sorted changes [at, ...) are;
 * returns the index behind them. */
static int put_list(struct encoder *e, uint32_t first, uint32_t members, uint32_t *at, uint32_t end)
{
	const unsigned width = e->patch->width;
	const struct changes *c = &e->changes;
	const uint32_t begin = *at;
	size_t size, want;

	for (; *at < end && c->members[*at] - first < members; (*at)++)
		store_le16(e->positions + 2 * (size_t)(*at - begin),
			   (uint16_t)(c->members[*at] - first));
	put_number(&e->head, *at - begin);
	if (*at == begin)
		return 0;
	size = rice_plan(e->rice, PATCH_ADD, width, e->positions, c->sorted + (size_t)begin * width,
			 *at - begin, members);
	want = size + RICE_OVER_RAW;
	if (want > e->code_cap) {
		free(e->code);
		e->code_cap = want * 2;
		e->code = malloc(e->code_cap);
		if (e->code == NULL)
			return -ENOMEM;
	}
	rice_write(e->rice, e->code);
	put_number(&e->head, (uint32_t)size);
	buf_add(&e->payload, e->code, size);
	return 0;
}

/* The span behind its size and hash, into head and payload. */
static int put_span(struct encoder *e)
{
	const struct class_key *k = &e->key;
	uint8_t classes = (uint8_t)k->classes;

	buf_add(&e->head, &classes, 1);
	if (classes > 1)
		put_number(&e->head, k->top);
	for (unsigned i = 0; i + 1 < k->classes; i++)
		put_number(&e->head, e->members[i]);
	for (unsigned i = 0; i < k->classes; i++) {
		uint32_t at = e->begin[i];

		for (uint32_t first = 0; first < e->members[i]; first += PATCH_BLOCK) {
			uint32_t n = MIN(e->members[i] - first, (uint32_t)PATCH_BLOCK);
			int ret = put_list(e, first, n, &at, e->begin[i + 1]);

			if (ret < 0)
				return ret;
		}
	}
	return e->head.failed || e->payload.failed ? -ENOMEM : 0;
}

static int sink_put(const struct sink *sink, uint64_t *at, const void *bytes, size_t len,
		    struct why *why)
{
	int ret = len == 0 ? 0 : sink->write(sink->ctx, *at, bytes, len);

	*at += len;
	return ret < 0 ? why_set(why, -ret, "the patch cannot be written") : 0;
}

static int encode_span(struct encoder *e, uint64_t span, const struct sink *sink, uint64_t *at,
		       struct why *why)
{
	const uint64_t first = span * PATCHX_SPAN;
	const unsigned width = e->patch->width;
	uint32_t elements = (uint32_t)MIN(e->patch->numel - first, (uint64_t)PATCHX_SPAN);
	struct buf size = {0};
	uint8_t hash[8];
	int ret = take_changes(e, span, why);

	if (ret < 0)
		return ret;
	if (e->changes.count == 0)
		return sink_put(sink, at, "", 1, why);
	ret = source_read(e->reference, first * width, e->span, (size_t)elements * width);
	if (ret < 0)
		return why_set(why, -ret, "the patch's reference cannot be read");
	choose_classes(e);
	number_members(e, elements);
	e->changed += e->changes.count;
	e->head.len = e->payload.len = 0;
	store_le64(hash, XXH3_64bits(e->span, (size_t)elements * width));
	buf_add(&e->head, hash, 8);
	ret = put_span(e);
	put_number(&size, (uint32_t)(e->head.len + e->payload.len));
	if (ret < 0 || size.failed)
		ret = why_set(why, ENOMEM, "out of memory for a patch");
	if (ret == 0)
		ret = sink_put(sink, at, size.data, size.len, why);
	if (ret == 0)
		ret = sink_put(sink, at, e->head.data, e->head.len, why);
	if (ret == 0)
		ret = sink_put(sink, at, e->payload.data, e->payload.len, why);
	buf_release(&size);
	return ret;
}

static int put_head(const struct encoder *e, const struct sink *sink, uint64_t at, struct why *why)
{
	const struct patch *p = e->patch;
	uint8_t head[PATCHX_HEAD] = "WFX";

	head[5] = PATCH_ADD;
	head[6] = p->width;
	head[7] = p->hashes != NULL;
	store_le64(head + 8, p->numel);
	store_le64(head + 16, e->changed);
	head[24] = (uint8_t)e->key.shift;
	head[25] = (uint8_t)e->key.bits;
	store_le32(head + 28, (uint32_t)e->listed);
	return sink_put(sink, &at, head, sizeof(head), why);
}

static int encoder_init(struct encoder *e)
{
	const unsigned width = e->patch->width;
	const uint64_t most = MIN(e->patch->numel, (uint64_t)PATCHX_SPAN);

	e->rice = rice_encoder_new(e->patch->kernel);
	e->reader = malloc(sizeof(*e->reader));
	e->span = malloc(MAX((size_t)most * width, (size_t)1));
	e->classes = malloc(PATCH_BLOCK);
	e->positions = malloc(2 * (size_t)(PATCH_BLOCK + RICE_SLACK));
	e->keys = calloc(KEYS, sizeof(*e->keys));
	return e->rice == NULL || e->reader == NULL || e->span == NULL || e->classes == NULL ||
			       e->positions == NULL || e->keys == NULL
		       ? -ENOMEM
		       : 0;
}

static void encoder_release(struct encoder *e)
{
	rice_encoder_free(e->rice);
	free(e->reader);
	free(e->span);
	free(e->classes);
	free(e->positions);
	free(e->code);
	free(e->keys);
	free(e->changes.at);
	free(e->changes.values);
	free(e->changes.members);
	free(e->changes.sorted);
	buf_release(&e->head);
	buf_release(&e->payload);
}

int patchx_encode(const struct patch *patch, enum st_dtype dtype, const struct source *reference,
		  const struct sink *sink, uint64_t at, uint64_t *out_len, struct why *why)
{
	static const uint8_t zeros[8];
	const uint64_t spans = patch->numel / PATCHX_SPAN + (patch->numel % PATCHX_SPAN != 0);
	struct encoder e = {.patch = patch, .reference = reference};
	uint64_t end = at + PATCHX_HEAD;
	int ret;

	*out_len = 0;
	if (patch->op != PATCH_ADD)
		return why_set(why, EINVAL, "only patches that add can become wfp1x");
	if (st_dtype_width(dtype) != patch->width ||
	    reference->size / patch->width != patch->numel || reference->size % patch->width != 0)
		return why_set(why, EBADMSG,
			       "a patch of %llu elements of %u bytes does not fit its "
			       "tensor or its reference",
			       (unsigned long long)patch->numel, patch->width);
	key_of_dtype(dtype, &e.key.shift, &e.key.bits);
	ret = encoder_init(&e);
	if (ret < 0)
		ret = why_set(why, ENOMEM, "out of memory for encoding a patch");
	for (uint64_t i = 0; ret == 0 && i < spans; i++)
		ret = encode_span(&e, i, sink, &end, why);
	if (ret == 0)
		ret = sink_put(sink, &end, zeros, ALIGN_UP(end - at, 8) - (end - at), why);
	/* the blocks that change are those that the patch lists: take_changes() */
	if (ret == 0 && patch->hashes != NULL)
		ret = sink_put(sink, &end, patch->hashes, 8 * (size_t)patch->listed, why);
	if (ret == 0 && e.changed > 0)
		ret = put_head(&e, sink, at, why);
	if (ret == 0 && e.changed > 0)
		*out_len = end - at;
	encoder_release(&e);
	return ret;
}
