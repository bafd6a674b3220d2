/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing TRL's delta weight sync: the objects that read_trl.c reads.
 *
 * A delta of v1 has per changed tensor X the pair X.indices (I32 positions) and X.values; one of v2
 * and v3 has X.idx and X.val, where idx is gaps (U16 where the widest fits, else U32) or, "raw",
 * I32 positions.  Values are absolute.  A full object has the tensors themselves.  The bytes lie as
 * the safetensors library lays them: dtypes from large to small, then names.
 *
 * An object is made in two walks over the elements, so that memory does not grow with it: the first
 * calls trl_count() for every tensor; then trl_layout() knows the header and where everything goes;
 * the second walk gets its index bytes from trl_index() and writes them and the values.
 *
 * Source of the format: TRL's trl/experimental/async_grpo/delta_engine.py, v1.3 and v3.  Pure; one
 * thread per object.
 */
#ifndef CODEC_WRITE_TRL_H
#define CODEC_WRITE_TRL_H

#include "codec/patch.h"
#include "codec/safetensors.h"

struct trl_form {
	const char *index, *values; /* suffixes */
	const char *encoding;	    /* the metadata's word; NULL: v1 has none */
	bool gaps;
};

extern const struct trl_form trl_form_v1, trl_form_gaps, trl_form_raw;

struct trl_tensor {
	const char *name;      /* borrowed, as is shape */
	const uint64_t *shape; /* rank entries; needed when it is whole */
	uint64_t numel;
	uint8_t dtype, rank;
	bool whole; /* in the object as it is, and not by its changed elements */
	/* By trl_count(). */
	uint64_t changed;
	uint64_t next;	 /* one past the last changed element */
	uint64_t widest; /* of the gaps in front of the changed ones */
	/* By trl_layout(): where in the object the index, and the values or the whole tensor,
	 * begin.  A tensor that is neither whole nor changed is not in it. */
	uint64_t index_at, values_at;
};

/* Takes note of n changed elements: positions ascending, also from call to call. */
void trl_count(struct trl_tensor *t, const uint64_t *positions, size_t n);

/* Whether the form can say what changes in t: -ENOTSUP with a sentence that names the remedy for
 * elements that are no whole bytes, and for positions that I32 cannot hold. */
int trl_check(const struct trl_form *form, const struct trl_tensor *t, struct why *why) MUST_CHECK;

enum st_dtype trl_index_dtype(const struct trl_form *form, const struct trl_tensor *t);
/* The index bytes of n positions into dst (n times the dtype's width), which goes on where an
 * earlier call left *next; 0 at the first. */
void trl_index(const struct trl_form *form, const struct trl_tensor *t, const uint64_t *positions,
	       size_t n, uint64_t *next, void *dst);

/* The header, appended to `out`, and the places.  *out_size is that of the whole object.
 * -EINVAL when two keys are the same, or tensors would be taken for a pair. */
int trl_layout(const struct trl_form *form, struct trl_tensor *tensors, size_t count,
	       const struct st_meta *meta, size_t meta_count, struct buf *out, uint64_t *out_size,
	       struct why *why) MUST_CHECK;

enum { TRL_META_MAX = 12, TRL_META_TEXT = 72 };

struct trl_meta {
	struct st_meta pairs[TRL_META_MAX];
	char text[TRL_META_MAX][TRL_META_TEXT]; /* values that are made, by their pair's place */
	struct buf names;			/* owned */
	size_t count;
};

/* "__metadata__" of an object of v1.2 or later.  Out of memory shows in names.failed. */
void trl_meta_make(struct trl_meta *m, const struct trl_form *form, uint64_t version, bool sparse,
		   const struct trl_tensor *tensors, size_t count);
void trl_meta_release(struct trl_meta *m);
/* As Python's str() writes a float from 0 to 1: the fewest digits that give it back. */
void trl_fraction(double value, char out[32]);

/* The positions of what changes in one of the patch's blocks, ascending (room for PATCH_BLOCK of
 * them).  -EBADMSG for a damaged block. */
int trl_positions(const struct patch *patch, uint64_t block, uint64_t *positions,
		  size_t *out_count) MUST_CHECK;

#endif
