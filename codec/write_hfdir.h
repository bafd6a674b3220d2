/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing the "HF directory" deltas of slime, miles and SGLang.
 *
 * A version is a directory weight_v%06u that looks like a checkpoint:
 *
 *	model-00000-of-00002.safetensors	U8 tensors, one per changed tensor, of its name: a
 *						zstd frame (with its content size) of new XOR old;
 *						"__metadata__": name -> XXH3-128 of the new bytes
 *	model.safetensors.index.json		"metadata": version, base_version, delta_encoding
 *						"xor", compression_format "zstd", checksum_format
 *						"xxh3-128"; "weight_map": the changed tensors
 *
 * The index comes last; a reader takes a directory for published when it is there.  A version that
 * changes nothing has an index with an empty weight_map.  A directory whose index does not say
 * delta_encoding is a whole checkpoint, from which a reader starts anew.
 *
 * Sources of the format: slime's slime/utils/disk_delta.py and SGLang's
 * python/sglang/srt/weight_sync/local_checkpoint.py.  Pure; one thread per shard.
 */
#ifndef CODEC_WRITE_HFDIR_H
#define CODEC_WRITE_HFDIR_H

#include "codec/safetensors.h"

struct hfdir_entry {
	const char *name;     /* of a tensor; borrowed */
	uint64_t bytes;	      /* of the tensor */
	uint8_t checksum[16]; /* XXH3-128 of its new bytes, canonical */
};

struct hfdir_shard; /* opaque; some 2 MiB */

/* Starts a shard of these tensors (borrowed until free); room for its header is left in front. */
int hfdir_shard_new(const struct hfdir_entry *entries, size_t count, const struct sink *sink,
		    struct hfdir_shard **out, struct why *why) MUST_CHECK;
/* Compresses the next len bytes of the entry it is at, old and new; with its last byte (a call with
 * len 0 for one that has none) it goes on to the next entry.  -EINVAL for more than it has. */
int hfdir_shard_add(struct hfdir_shard *s, const void *old, const void *new, uint64_t len,
		    struct why *why) MUST_CHECK;
/* After the last entry: writes the header.  *out_size is the file's. */
int hfdir_shard_end(struct hfdir_shard *s, uint64_t *out_size, struct why *why) MUST_CHECK;
void hfdir_shard_free(struct hfdir_shard *s); /* NULL is fine */

/* The text of an index, in three steps: begin, a line per tensor, end.  `delta`: with what tells a
 * delta from a whole checkpoint.  Out of memory shows in out->failed. */
void hfdir_index_begin(struct buf *out, bool delta, uint64_t version, uint64_t base_version,
		       uint64_t total_size);
void hfdir_index_add(struct buf *out, const char *tensor, const char *file);
void hfdir_index_end(struct buf *out);

#endif
