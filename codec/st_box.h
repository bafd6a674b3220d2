/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stands behind a struct st_header; private to the st_*.c files.
 *
 * st_parse.c fills the box from the text, st_index.c orders it, checks it as a whole and answers
 * look-ups.  The header must be the first member: st_free() and the look-ups get back from it.
 */
#ifndef CODEC_ST_BOX_H
#define CODEC_ST_BOX_H

#include "codec/arena.h"
#include "codec/safetensors.h"

enum { ST_SHOWN = 160 }; /* bytes of a name in a sentence, cut by printable() */

struct st_box {
	struct st_header h;
	struct arena arena;    /* names, shapes, metadata */
	uint32_t *by_name;     /* owned; h.by_name shows it */
	uint32_t *meta_by_key; /* owned; indices into h.meta, by key */
};

/* Sorts the tensors, builds both indices, and refuses duplicates and whatever does not tile the
 * data.  why must not be NULL. */
int st_box_index(struct st_box *box, struct why *why) MUST_CHECK;

#endif
