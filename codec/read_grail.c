/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Format "grail": sparse deltas of one-covenant's grail (PULSE), sparse codec versions 2, 3 and 31.
 *
 * The object is one zstd frame as a whole; what comes here is what it unpacks to:
 *
 *	u32 little-endian	bytes of the header
 *	JSON			{"version": 2 | 3 | 31, "tensors": [TENSOR, ...]}
 *	data			index and new values of each tensor
 *
 *	TENSOR	name, shape, num_nonzero, value_dtype (bfloat16, float16, float32), indices_offset,
 *		indices_size, values_offset, values_size; from version 3 on rows_size, cols_size; in
 *		version 31 row_dtype, col_dtype (uint8, uint16, int32).  Offsets are relative to the
 *		data
 *
 *	2	index: int32, the difference of flat positions; the first is from 0
 *	3, 31	index: the rows, then the columns, of shape[0] rows and the rest as columns.  A row
 *		is the difference to the one before; so is a column in the same row, and in another
 *		row, and at first, it is itself.  int32, in version 31 as it says
 *
 * Positions ascend strictly, values are absolute.  The header is read by codec/grail_head.c; here
 * its tensors are, in windows of 256 KiB, whatever their size.
 *
 * Source: grail/infrastructure/sparse_codec.py of one-covenant/grail.  No state; any number of
 * threads.
 */
#include "codec/grail.h"

#include <inttypes.h>
#include <stdlib.h>

enum { WINDOW = 65536, BATCH = 8192 }; /* elements */

/* A walk over one part's elements. */
struct walk {
	const struct part *part;
	const struct place *place;
	uint64_t numel;
	uint64_t done;	  /* elements so far */
	int64_t row, col; /* of the last one; flat: only col */
	uint8_t *rows, *cols, *values;
	int64_t step[BATCH], side[BATCH];
	uint64_t position[BATCH];
};

static int refuse(const struct walk *w, size_t i, const char *what, int64_t value, uint64_t limit,
		  struct why *why)
{
	if (limit == 0)
		return why_set(why, EBADMSG, "tensor \"%s\": %s at place %" PRIu64,
			       SHOWN(w->part->name), what, w->done + i);
	return why_set(why, EBADMSG,
		       "tensor \"%s\": %s %" PRId64 " at place %" PRIu64
		       " is outside its shape, which has %" PRIu64,
		       SHOWN(w->part->name), what, value, w->done + i, limit);
}

static void widen(int64_t *dst, const uint8_t *src, unsigned width, size_t n)
{
	switch (width) {
	case 1:
		for (size_t i = 0; i < n; i++)
			dst[i] = src[i];
		break;
	case 2:
		for (size_t i = 0; i < n; i++)
			dst[i] = load_le16(src + 2 * i);
		break;
	default:
		for (size_t i = 0; i < n; i++)
			dst[i] = (int32_t)load_le32(src + 4 * i);
		break;
	}
}

/* Sums of at most 2^31 times 2^31 stay far below 2^63: no step is larger, and whatever leaves the
 * shape ends the walk. */
static int decode_flat(struct walk *w, size_t n, struct why *why)
{
	const int64_t numel = (int64_t)MIN(w->numel, (uint64_t)INT64_MAX);
	int64_t at = w->col;

	for (size_t i = 0; i < n; i++) {
		if (w->step[i] < (w->done + i > 0))
			return refuse(w, i, "a difference that is not above 0", 0, 0, why);
		at += w->step[i];
		if (at >= numel)
			return refuse(w, i, "position", at, w->numel, why);
		w->position[i] = (uint64_t)at;
	}
	w->col = at;
	return 0;
}

static int decode_coo(struct walk *w, size_t n, struct why *why)
{
	const uint64_t rows = w->place->row_count, cols = w->place->col_count;
	int64_t row = w->row, col = w->col;

	for (size_t i = 0; i < n; i++) {
		const bool same = w->step[i] == 0 && w->done + i > 0;

		if (w->step[i] < 0)
			return refuse(w, i, "a row below the one before", 0, 0, why);
		if (w->side[i] < same)
			return refuse(w, i, "a column not above the one before", 0, 0, why);
		row += w->step[i];
		col = same ? col + w->side[i] : w->side[i];
		if ((uint64_t)row >= rows)
			return refuse(w, i, "row", row, rows, why);
		if ((uint64_t)col >= cols)
			return refuse(w, i, "column", col, cols, why);
		w->position[i] = (uint64_t)row * cols + (uint64_t)col;
	}
	w->row = row;
	w->col = col;
	return 0;
}

/* The n elements that the windows hold. */
static int decode_window(struct walk *w, bool flat, size_t n, struct patch_writer *writer,
			 struct why *why)
{
	const struct place *p = w->place;
	const unsigned width = patch_writer_width(writer);
	int err = 0;

	for (size_t at = 0, k; at < n && err == 0; at += k) {
		k = MIN(n - at, (size_t)BATCH);
		widen(w->step, w->rows + at * p->row_width, p->row_width, k);
		if (!flat)
			widen(w->side, w->cols + at * p->col_width, p->col_width, k);
		err = flat ? decode_flat(w, k, why) : decode_coo(w, k, why);
		if (err == 0)
			err = patch_writer_add(writer, w->position, w->values + at * width, k, why);
		w->done += k;
	}
	return err;
}

static int read_window(const struct walk *w, const struct source *src, uint64_t at, void *dst,
		       unsigned width, size_t n, struct why *why)
{
	int err = source_read(src, at + w->done * width, dst, n * width);

	return err < 0 ? why_set(why, -err, "tensor \"%s\" cannot be read", SHOWN(w->part->name))
		       : 0;
}

static int grail_encode(const struct delta *delta, const struct part *part,
			const struct source *src, struct patch_writer *writer, uint64_t numel,
			struct why *why)
{
	const struct grail *g = delta->extra;
	const struct place *p = &g->places[part - delta->parts];
	const unsigned width = patch_writer_width(writer);
	const bool flat = g->version == VERSION_FLAT;
	struct walk *w;
	int err = 0;

	if (part->numel != numel)
		return why_set(why, EBADMSG,
			       "tensor \"%s\" has %" PRIu64 " elements in the delta and %" PRIu64
			       " in the model: it was made for another base",
			       SHOWN(part->name), part->numel, numel);
	w = calloc(1, sizeof(*w));
	if (w == NULL)
		return why_set(why, ENOMEM, "out of memory");
	w->part = part;
	w->place = p;
	w->numel = numel;
	w->rows = malloc((size_t)WINDOW * p->row_width);
	w->cols = malloc((size_t)WINDOW * p->col_width);
	w->values = malloc((size_t)WINDOW * width);
	if (w->rows == NULL || w->cols == NULL || w->values == NULL)
		err = why_set(why, ENOMEM, "out of memory");
	while (err == 0 && w->done < part->changed) {
		const size_t n = (size_t)MIN(part->changed - w->done, (uint64_t)WINDOW);

		err = read_window(w, src, p->rows, w->rows, p->row_width, n, why);
		if (err == 0 && !flat)
			err = read_window(w, src, p->cols, w->cols, p->col_width, n, why);
		if (err == 0)
			err = read_window(w, src, p->values, w->values, width, n, why);
		if (err == 0)
			err = decode_window(w, flat, n, writer, why);
	}
	free(w->rows);
	free(w->cols);
	free(w->values);
	free(w);
	return err;
}

/* A length that no safetensors header has in its upper half, and the first key. */
static bool grail_probe(const uint8_t *head, size_t len)
{
	static const char begin[] = "{\"version\":";

	return len >= 4 + strlen(begin) && memcmp(head + 4, begin, strlen(begin)) == 0;
}

const struct format format_grail = {
	.name = "grail",
	.probe_raw = grail_probe,
	.open_raw = grail_open,
	.encode = grail_encode,
	.op = PATCH_SET,
	.framed = FRAMED_ALWAYS,
};
