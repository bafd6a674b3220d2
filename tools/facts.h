/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What there is to say about one file: any safetensors file, anchor or delta, also one in a zstd
 * frame, or a patch file of ours.  Reads and checks all of it but the values of whole tensors.
 */
#ifndef TOOLS_FACTS_H
#define TOOLS_FACTS_H

#include "codec/format.h"
#include "codec/patch_file.h"

struct tensor_facts {
	const char *name;      /* borrowed from the file's header or delta */
	uint8_t dtype;	       /* of the tensor; of a patch: U8, see width */
	const uint64_t *shape; /* NULL: the file does not say it */
	uint8_t rank;
	bool sparse;	      /* a sparse part or a patch */
	uint64_t numel;	      /* 0 when the file does not say */
	uint64_t bytes;	      /* in the file */
	uint64_t changed;     /* elements; numel of a whole tensor */
	const char *index;    /* "U16 gaps", "I32 positions", "u8 rows, u16 columns"; "set", "add",
				 "xor" of a patch; NULL for a whole tensor */
	bool any;	      /* the next four mean something */
	uint64_t first, last; /* positions */
	uint64_t min_gap, max_gap; /* unchanged elements in front of a changed one; the first counts
				      from -1 */
};

struct facts {
	uint64_t size;
	const char *kind;		/* "full", "sparse", "mixed", "empty", "patch",
					   "changes": of a shard without its index */
	char generation[64];		/* "TRL v2/v3 (gap_delta)" */
	const struct st_header *header; /* NULL: it is no safetensors file */
	uint64_t header_bytes;		/* what lies before the data */
	uint64_t unpacked;		/* bytes that its zstd frame holds; 0: it is none */
	struct tensor_facts *tensors;	/* by name */
	size_t count, whole, sparse;
	uint64_t changed, elements; /* sums; elements 0 when not known of all */
	uint64_t data_bytes;
	/* private */
	struct delta *delta;
	struct patch_file *patch;
	void *map;
	int scratch;
};

/* Looks into an open file.  Everything that a mount would refuse is refused here with the same
 * sentence. */
int facts_gather(int fd, struct facts **out, struct why *why) MUST_CHECK;
void facts_free(struct facts *f); /* NULL is fine */

#endif
