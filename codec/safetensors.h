/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors headers: parse, validate, compose, rewrite.
 *
 * File: u64 little-endian N (<= 100,000,000), N bytes of JSON that start with '{' and may end in
 * spaces (0x20), then the data.  JSON: optional "__metadata__" {string: string}, and per tensor
 * {"dtype", "shape", "data_offsets": [begin, end]} with offsets relative to the data's start.
 * Format: https://github.com/huggingface/safetensors (README, safetensors/src/tensor.rs).
 *
 * The parser is the strictest of all readers known: it refuses duplicate keys anywhere, unknown
 * keys and dtypes, holes, overlaps, tensors that do not tile [0, data end) exactly, sizes that
 * disagree with shape and dtype, overflow, trailing bytes, leading white space, invalid UTF-8, NUL
 * in names, names that are empty or longer than ST_NAME_MAX, more than ST_RANK_MAX dimensions, and
 * misaligned tensors are reported by st_misaligned(). Each refusal has a sentence of its own.
 *
 * All functions are pure and thread-safe; a header is immutable once made.
 */
#ifndef CODEC_SAFETENSORS_H
#define CODEC_SAFETENSORS_H

#include "codec/base.h"
#include "codec/buf.h"
#include "codec/io.h"

enum {
	ST_HEADER_MAX = 100000000, /* bytes of JSON, as safetensors itself has it */
	ST_NAME_MAX = 2048,	   /* bytes of a tensor name */
	ST_RANK_MAX = 32,
};

enum st_dtype {
	ST_BOOL,
	ST_F4,
	ST_F6_E2M3,
	ST_F6_E3M2,
	ST_U8,
	ST_I8,
	ST_F8_E5M2,
	ST_F8_E4M3,
	ST_F8_E8M0,
	ST_F8_E4M3FNUZ,
	ST_F8_E5M2FNUZ,
	ST_I16,
	ST_U16,
	ST_F16,
	ST_BF16,
	ST_I32,
	ST_U32,
	ST_F32,
	ST_C64,
	ST_F64,
	ST_I64,
	ST_U64,
	ST_DTYPES
};

const char *st_dtype_name(enum st_dtype dtype);
/* The dtype of a name of len bytes, or -1. */
int st_dtype_parse(const char *name, size_t len);
/* Bits of one element (4, 6, 8 ... 64). */
unsigned st_dtype_bits(enum st_dtype dtype);
/* Bytes of one patch element (see patch.h): 1, 2, 4 or 8; 1 for sub-byte types, whose patch
 * elements are bytes. */
unsigned st_dtype_width(enum st_dtype dtype);
/* True for F4 ... F64 and C64: what a trainer can have as a parameter. */
bool st_dtype_is_float(enum st_dtype dtype);

struct st_tensor {
	const char *name;      /* NUL-terminated UTF-8, unescaped; owned by the header */
	const uint64_t *shape; /* rank entries; owned by the header */
	uint64_t begin, end;   /* bytes, relative to the start of the data */
	uint64_t numel;	       /* product of the shape; 1 for rank 0 */
	uint32_t name_len;
	uint8_t dtype; /* enum st_dtype */
	uint8_t rank;
};

struct st_meta {
	const char *key, *value; /* NUL-terminated; a value with \u0000 is refused */
};

struct st_header {
	uint64_t length;	   /* N */
	uint64_t data;		   /* 8 + N: file offset of the data */
	uint64_t file_size;	   /* bytes of the whole file */
	struct st_tensor *tensors; /* count of them, by begin ascending (zero-sized ones: file order
				      of JSON, before the next) */
	size_t count;
	struct st_meta *meta; /* meta_count of them, in file order */
	size_t meta_count;
	/* Byte span of the "__metadata__" member's value within the JSON text; both 0 when it has
	 * none. */
	uint64_t meta_begin, meta_end;
	const uint32_t *by_name; /* indices into tensors, by name (strcmp order) */
};

/* Parses and validates `length` bytes of JSON of a file of file_size bytes.  The text is borrowed
 * for the call only.  Errors: -EBADMSG with a sentence, -ENOMEM.  O(n log n). */
int st_parse(const char *json, uint64_t length, uint64_t file_size, struct st_header **out_header,
	     struct why *why) MUST_CHECK;

/* Reads the 8 + N bytes from src and parses them.  *out_json (may be NULL) receives the malloc'ed
 * JSON text of out_header->length bytes. Also refuses files shorter than 8 bytes, N too large, and
 * N beyond the end of the file. */
int st_read(const struct source *src, struct st_header **out_header, char **out_json,
	    struct why *why) MUST_CHECK;

void st_free(struct st_header *header); /* NULL is fine */

/* The tensor of that name or NULL; O(log n). */
const struct st_tensor *st_find(const struct st_header *header, const char *name);
/* The metadata value of that key or NULL. */
const char *st_meta(const struct st_header *header, const char *key);
/* The first tensor that does not start at a multiple of its element size in the file, or NULL. */
const struct st_tensor *st_misaligned(const struct st_header *header);

/* Appends 8 + N header bytes for `count` tensors (name, dtype, rank, shape, begin, end are used;
 * written in the order given) and `meta_count` metadata pairs (none: no "__metadata__"), padded
 * with spaces so that 8 + N is a multiple of `align` (>= 8, a power of two) and at least `min_size`
 * bytes.  -EMSGSIZE when N would pass ST_HEADER_MAX, -ENOMEM. */
int st_compose(const struct st_tensor *tensors, size_t count, const struct st_meta *meta,
	       size_t meta_count, size_t align, size_t min_size, struct buf *out,
	       struct why *why) MUST_CHECK;

/* Replaces the value of "__metadata__" by {"format":"pt"}, keeping the length with spaces at the
 * end, so that no offset moves.  json[length] is changed in place.  -ENOSPC when the new value is
 * longer than the old one and the padding does not suffice; -ENOENT without "__metadata__". */
int st_rewrite_meta(char *json, uint64_t length, const struct st_header *header) MUST_CHECK;

#endif
