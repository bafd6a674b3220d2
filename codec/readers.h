/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The readers behind the registry of codec/format.h, and what they share.  For codec/registry.c and
 * codec/read_*.c only; everyone else goes through delta_open().
 */
#ifndef CODEC_READERS_H
#define CODEC_READERS_H

#include "codec/format.h"

/* TRL's sparse patches and full files, every generation (codec/read_trl.c). */
extern const struct format format_trl;
/* Our own patch files, published (codec/read_wfp1.c). */
extern const struct format format_wfp1;
/* Compressed checkpoints of our own (codec/read_packed.c). */
extern const struct format format_packed;
/* Shards of HF-directory deltas (codec/read_hfdir.c). */
extern const struct format format_hfdir_xor, format_hfdir_overwrite;
/* Deltas of grail, unpacked (codec/read_grail.c). */
extern const struct format format_grail;
/* Payload files of SkyRL's deltas (codec/read_skyrl.c). */
extern const struct format format_skyrl;
/* prime-rl's sparse patches, new and old (codec/read_primerl.c). */
extern const struct format format_primerl, format_primerl_old;
/* Fireworks' delta files, and compressed changes of which nothing says what they are
 * (codec/read_arc.c): those are refused. */
extern const struct format format_arc, format_changes;
/* A plain checkpoint: every tensor is whole (codec/read_full.c).  Takes anything, so it is last. */
extern const struct format format_full;

/* struct delta's `encoding` of a TRL object: how the indices of the file are written.
 * RAW: absolute positions, unsigned 32-bit.  GAP: unchanged elements in front of each changed one,
 * U16 or U32 per tensor.  MIXED: the file does not say and has tensors of both kinds.  NONE:
 * nothing sparse in the file. */
enum trl_encoding { TRL_NONE, TRL_RAW, TRL_GAP, TRL_MIXED };

/* Describes a tensor of the file as a FULL part; name and shape stay the header's. */
void part_full(struct part *part, const struct st_header *header, const struct st_tensor *tensor);

/* Describes a tensor of the file as one zstd frame of how that tensor changed: a SPARSE part of
 * unknown `changed`.  -EBADMSG with a sentence, and `hint` at its end, when it is not U8 of one
 * dimension, or empty.  (codec/read_hfdir.c) */
int part_frame(struct part *part, const struct st_header *header, const struct st_tensor *tensor,
	       const char *hint, struct why *why) MUST_CHECK;

/* The checksums that ModelExpress puts into the metadata of any shard, "mx.adler32:" before the
 * tensor's name; parts are all there, in name order.  (codec/read_hfdir.c) */
void hfdir_adler(const struct st_header *header, struct delta *delta);

/* A decimal number as Python's str() has it, or -1: for people and lineage, not needed to read. */
int64_t meta_number(const struct st_header *header, const char *key);

/* Room for `count` parts in delta->parts (zeroed); -ENOMEM with a sentence. */
int delta_reserve(struct delta *delta, size_t count, struct why *why) MUST_CHECK;

/* struct format's encode() of parts that are one zstd frame of the whole tensor's bytes XOR its old
 * ones (codec/read_hfdir.c). */
int xor_encode(const struct delta *delta, const struct part *part, const struct source *src,
	       struct patch_writer *writer, uint64_t numel, struct why *why) MUST_CHECK;

#endif
