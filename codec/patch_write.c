/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing the patch form.
 *
 * The elements of one block gather in positions[] and values[]; when an element of a later block
 * (or the end) comes, the block takes its smaller form and its payload goes through a buffer to the
 * sink, right behind the room that the head and the directory will take.  Those are written last,
 * in one piece, so a writer that is abandoned leaves a blob without a magic.
 *
 * Invariants: directory entries below `next` are final; all elements gathered belong to `block` >=
 * next; `floor` is one above the last position taken; payload offsets fit their 40 bits or the
 * writer fails.
 *
 * All of this is form version 0, or 2 once a block is BITS; where version 1 differs,
 * patch_write_groups.c goes on.
 *
 * A writer belongs to one thread.
 */
#include "codec/patch.h"
#include "codec/bits_kernel.h"
#include "codec/patch_block.h"
#include "codec/rice_kernel.h"

#include <stdlib.h>

struct patch_writer *patch_writer_new(enum patch_op op, unsigned width, uint64_t numel,
				      const struct sink *sink, uint64_t at)
{
	struct patch_writer *w = calloc(1, sizeof(*w));

	if (w == NULL)
		return NULL;
	w->kernel = patch_kernel(NULL);
	w->sink = sink;
	w->at = at;
	w->op = op;
	w->width = width;
	w->numel = numel;
	w->blocks = patch_blocks(numel);
	w->front_len = PATCH_HEAD + 8 * (size_t)(w->blocks + 1);
	w->front = calloc(1, w->front_len);
	w->positions = malloc(2 * (size_t)(PATCH_BLOCK + PATCH_SLACK));
	w->values = malloc((size_t)(PATCH_BLOCK + PATCH_SLACK) * width);
	w->buffer = malloc(PATCH_WRITE_BUFFER);
	if (w->front == NULL || w->positions == NULL || w->values == NULL || w->buffer == NULL) {
		patch_writer_free(w);
		return NULL;
	}
	return w;
}

unsigned patch_writer_width(const struct patch_writer *w)
{
	return w->width;
}

void patch_writer_free(struct patch_writer *w)
{
	if (w == NULL)
		return;
	free(w->front);
	free(w->positions);
	free(w->values);
	free(w->buffer);
	patch_groups_free(w->groups);
	free(w);
}

static int sink_put(struct patch_writer *w, uint64_t off, const void *bytes, size_t len,
		    struct why *why)
{
	int ret = len == 0 ? 0 : w->sink->write(w->sink->ctx, w->at + off, bytes, len);

	if (ret < 0)
		return why_set(why, -ret, "the patch cannot be written");
	return 0;
}

static int flush_buffer(struct patch_writer *w, struct why *why)
{
	size_t len = w->buffered;

	w->buffered = 0;
	return sink_put(w, w->front_len + w->payload - len, w->buffer, len, why);
}

int patch_writer_put(struct patch_writer *w, const void *bytes, size_t len, struct why *why)
{
	int ret = 0;

	if (len > PATCH_OFFSET_MAX - w->payload)
		return why_set(why, EFBIG, "the patch of one tensor would be larger than 1 TiB");
	if (len > PATCH_WRITE_BUFFER - w->buffered)
		ret = flush_buffer(w, why);
	if (ret == 0 && len > PATCH_WRITE_BUFFER) {
		ret = sink_put(w, w->front_len + w->payload, bytes, len, why);
	} else if (ret == 0) {
		memcpy(w->buffer + w->buffered, bytes, len);
		w->buffered += len;
	}
	w->payload += len;
	return ret;
}

int patch_writer_pad(struct patch_writer *w, struct why *why)
{
	static const uint8_t zeros[8];

	return patch_writer_put(w, zeros, ALIGN_UP(w->payload, 8) - w->payload, why);
}

PATCH_INLINE void spread(uint8_t *restrict dst, const uint8_t *restrict positions,
			 const uint8_t *restrict values, uint32_t count, unsigned width)
{
	for (uint32_t i = 0; i < count; i++)
		memcpy(dst + (size_t)load_le16(positions + 2 * i) * width, values + i * width,
		       width);
}

/* Makes values[] dense: zeros where no position is.  Cold enough for a scratch of its own. */
int patch_writer_dense(struct patch_writer *w, uint32_t count, uint32_t elements, struct why *why)
{
	uint8_t *dense;

	if (count == elements)
		return 0; /* strictly ascending: they are in place */
	dense = calloc(PATCH_BLOCK + PATCH_SLACK, w->width);
	if (dense == NULL)
		return why_set(why, ENOMEM, "out of memory for a block of a patch");
	switch (w->width) {
	case 1: spread(dense, w->positions, w->values, count, 1); break;
	case 2: spread(dense, w->positions, w->values, count, 2); break;
	case 4: spread(dense, w->positions, w->values, count, 4); break;
	default: spread(dense, w->positions, w->values, count, 8);
	}
	free(w->values);
	w->values = dense;
	return 0;
}

/* Directory entries up to block-1 are for unchanged blocks. */
static void fill_directory(struct patch_writer *w, uint64_t block)
{
	for (; w->next < block; w->next++)
		store_le64(w->front + PATCH_HEAD + 8 * w->next,
			   patch_entry_pack(w->payload, 0, PATCH_RAW));
}

static int put_bits(struct patch_writer *w, uint32_t count, uint32_t elements, struct why *why)
{
	uint8_t bytes[PATCH_BITS_MAX];

	w->has_bits = true;
	return patch_writer_put(w, bytes, patch_bits_make(w->positions, count, elements, bytes),
				why);
}

/* The size of a block as BITS; UINT64_MAX where positions are quicker. */
static uint64_t bits_size(const struct patch_writer *w, uint32_t count, uint32_t elements)
{
	const struct patch_entry e = {.form = PATCH_BITS, .count = count, .elements = elements};
	const uint64_t least = (uint64_t)w->kernel->bits->least * elements / PATCH_BLOCK;

	return count < least ? UINT64_MAX : patch_block_size(&e, w->width);
}

int patch_writer_block(struct patch_writer *w, uint64_t block, uint32_t count, struct why *why)
{
	uint32_t elements = patch_block_elements(w->numel, block);
	uint64_t raw = (uint64_t)count * (2 + w->width), dense = (uint64_t)elements * w->width;
	uint64_t bits = bits_size(w, count, elements);
	unsigned form = bits < raw ? PATCH_BITS : PATCH_RAW;
	int ret = 0;

	if (count == 0)
		return 0;
	if (w->groups != NULL)
		return patch_groups_block(w, block, count, why);
	if (dense < MIN(raw, bits) && (w->op != PATCH_SET || count == elements))
		form = PATCH_DENSE;
	fill_directory(w, block);
	w->next = block + 1;
	if (form == PATCH_DENSE) {
		ret = patch_writer_dense(w, count, elements, why);
		count = elements;
	}
	store_le64(w->front + PATCH_HEAD + 8 * block, patch_entry_pack(w->payload, count, form));
	if (ret == 0 && form == PATCH_RAW)
		ret = patch_writer_put(w, w->positions, 2 * (size_t)count, why);
	if (form == PATCH_BITS)
		ret = put_bits(w, count, elements, why);
	if (ret == 0)
		ret = patch_writer_put(w, w->values, (size_t)count * w->width, why);
	w->changed += count;
	w->count = 0;
	return ret;
}

/* Takes positions as long as they ascend and stay below `end`, at most n; returns how many. */
static size_t take(struct patch_writer *w, const uint64_t *positions, size_t n, uint64_t end)
{
	uint8_t *dst = w->positions + 2 * (size_t)w->count;
	uint64_t floor = w->floor;
	size_t i = 0;

	/* One comparison for both: a position below floor wraps to a huge number. */
	for (; i < n && positions[i] - floor < end - floor; i++) {
		store_le16(dst + 2 * i, (uint16_t)positions[i]);
		floor = positions[i] + 1;
	}
	w->floor = floor;
	return i;
}

int patch_writer_add(struct patch_writer *w, const uint64_t *positions, const void *values,
		     size_t n, struct why *why)
{
	const uint8_t *v = values;

	while (n > 0) {
		uint64_t block = positions[0] >> PATCH_BLOCK_SHIFT;
		uint64_t end;
		size_t taken;

		if (positions[0] >= w->numel)
			return why_set(
				why, EBADMSG, "position %llu is beyond the tensor's %llu elements",
				(unsigned long long)positions[0], (unsigned long long)w->numel);
		if (positions[0] < w->floor)
			return why_set(why, EBADMSG,
				       "position %llu follows position %llu: they have to ascend",
				       (unsigned long long)positions[0],
				       (unsigned long long)w->floor - 1);
		if (block != w->block) {
			int ret = patch_writer_block(w, w->block, w->count, why);

			if (ret < 0)
				return ret;
			w->block = block;
		}
		end = (block << PATCH_BLOCK_SHIFT) + patch_block_elements(w->numel, block);
		taken = take(w, positions, n, end);
		memcpy(w->values + (size_t)w->count * w->width, v, taken * w->width);
		w->count += (uint32_t)taken;
		positions += taken;
		v += taken * w->width;
		n -= taken;
	}
	return 0;
}

int patch_writer_end(struct patch_writer *w, uint64_t *out_len, uint64_t *out_changed,
		     struct why *why)
{
	int ret;

	ret = patch_writer_block(w, w->block, w->count, why);
	if (ret < 0)
		return ret;
	if (w->groups != NULL) {
		ret = patch_groups_end(w, why);
	} else {
		fill_directory(w, w->blocks + 1);
		ret = patch_writer_pad(w, why);
	}
	if (ret == 0)
		ret = flush_buffer(w, why);
	if (ret < 0)
		return ret;
	memcpy(w->front, PATCH_MAGIC, 4);
	if (w->has_bits)
		w->front[4] = 2;
	w->front[5] = (uint8_t)w->op;
	w->front[6] = (uint8_t)w->width;
	w->front[7] = PATCH_BLOCK_SHIFT;
	store_le64(w->front + 8, w->numel);
	store_le64(w->front + 16, w->changed);
	ret = sink_put(w, 0, w->front, w->front_len, why);
	if (ret < 0)
		return ret;
	*out_len = w->front_len + w->payload;
	if (out_changed != NULL)
		*out_changed = w->changed;
	return 0;
}

uint64_t patch_bound(unsigned width, uint64_t numel, uint64_t changed)
{
	uint64_t front = PATCH_HEAD + 8 * (patch_blocks(numel) + 1), payload, sum;

	/* A block is dense only where that is smaller, so all of them raw is the bound. */
	if (mul_overflows(MIN(changed, numel), 2 + width, &payload) ||
	    add_overflows(payload, front + 7, &sum))
		return UINT64_MAX;
	return sum / 8 * 8;
}
