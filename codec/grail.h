/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What codec/grail_head.c finds in the header of a delta of grail, and codec/read_grail.c reads by:
 * struct delta's `extra`.  read_grail.c has the format.
 */
#ifndef CODEC_GRAIL_H
#define CODEC_GRAIL_H

#include "codec/readers.h"

/* Where a tensor's numbers lie, from the object's start. */
struct place {
	uint64_t rows, cols, values; /* version 2: rows are the flat index, there are no columns */
	uint64_t row_count, col_count;
	uint8_t row_width, col_width; /* bytes; 4 is signed */
};

struct grail {
	unsigned version;
	struct place places[]; /* in the order of delta->parts, which is that of names */
};

enum { VERSION_FLAT = 2, VERSION_COO = 3, VERSION_NARROW = 31 };

/* struct format's open_raw(). */
int grail_open(const struct source *src, const struct side *side, struct delta *delta,
	       struct why *why) MUST_CHECK;

#endif
