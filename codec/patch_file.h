/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A patch file: all tensors' patches of one version step, as an ordinary safetensors file.
 *
 * Each patched tensor is a U8 tensor of the same name whose bytes are its blob (patch.h); blobs
 * start at multiples of 8.  Tensors without changes are absent.  (A file of wfp1x is the same with
 * blobs of patchx.h.)  "__metadata__": format
 * "weightfs-patch", "xxh3" the 32 hex digits of the XXH3-128 of all bytes after the header and then
 * the 8 + N header bytes with zeros for these digits, plus whatever the writer adds (source object,
 * versions).  One that has "encoding" is a published delta (read_wfp1.c), and its blobs are not of
 * form version 2.  The file is read through a memory map that stays mapped as long as the
 * patch_file lives.
 */
#ifndef CODEC_PATCH_FILE_H
#define CODEC_PATCH_FILE_H

#include "codec/patch.h"
#include "codec/patchx.h"
#include "codec/safetensors.h"

struct patch_file {
	struct st_header *header; /* owned; tensors in file order */
	struct patch *patches;	  /* one view per header->tensors[i]; owned */
	struct patchx *x;	  /* the same of a file of wfp1x, which has no patches; owned */
	size_t count;
	const uint8_t *bytes; /* borrowed */
	uint64_t size;
};

/* Parses `size` bytes, which stay borrowed until patch_file_free().  Checks the header, the format
 * key and each blob's head; with `full` also the hash and every payload.  -EBADMSG, -ENOTSUP,
 * -ENOMEM. */
int patch_file_open(const void *bytes, uint64_t size, bool full, struct patch_file **out_file,
		    struct why *why) MUST_CHECK;
/* The same for a file of wfp1x (patchx.h); the hash is checked, too. */
int patch_file_open_x(const void *bytes, uint64_t size, struct patch_file **out_file,
		      struct why *why) MUST_CHECK;
/* What `full` looks at, of a file that was opened without. */
int patch_file_check(const struct patch_file *file, struct why *why) MUST_CHECK;
/* Has its blobs read by this kernel; patch_file_open() sets the best. */
void patch_file_use(struct patch_file *file, const struct rice_kernel *kernel);
void patch_file_free(struct patch_file *file); /* NULL is fine; does not unmap */

/* ---- making one ---- */

struct patch_file_writer; /* opaque */

/* Starts a patch file on a sink.  `names` (count of them, borrowed until end) are all tensors that
 * may get a patch: room for their header entries is reserved at the front.  meta pairs are copied
 * into the header.  Order of names = order of blobs. */
int patch_file_writer_new(const char *const *names, size_t count, const struct st_meta *meta,
			  size_t meta_count, const struct sink *sink,
			  struct patch_file_writer **out_writer, struct why *why) MUST_CHECK;

/* Where the next blob has to go, for patch_writer_new() or patch_merge() on
 * patch_file_writer_sink(), which is the sink given; then patch_file_writer_took() with the index
 * into names and the blob's length (0: no blob; nothing recorded).  took: -EINVAL for an index out
 * of range or not above the last one with a blob or a length that is not a multiple of 8, -EFBIG
 * when the file passes 10^15 bytes. */
uint64_t patch_file_writer_at(const struct patch_file_writer *w);
const struct sink *patch_file_writer_sink(struct patch_file_writer *w);
int patch_file_writer_took(struct patch_file_writer *w, size_t index, uint64_t len) MUST_CHECK;

/* Writes a blob that is whole in memory, as if it had been written there and taken. -EINVAL and
 * -EFBIG as above, or the sink's error. */
int patch_file_writer_add(struct patch_file_writer *w, size_t index, const void *bytes,
			  size_t len) MUST_CHECK;

/* Completes the file.  The hash covers the bytes after the header.  From the first blob on that was
 * taken and not added they are read back through `readback` (the same file), since the directory of
 * such a blob is written after its payload. *out_size
 * is the file's length (the caller truncates to it). */
int patch_file_writer_end(struct patch_file_writer *w, const struct source *readback,
			  uint64_t *out_size, struct why *why) MUST_CHECK;
void patch_file_writer_free(struct patch_file_writer *w); /* NULL is fine */

#endif
