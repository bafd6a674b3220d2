/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout: which weight files a generation shows, their exact headers, and where in them each tensor
 * lies.
 *
 * Taken from a reference (the files of --base, or a complete anchor) with names, tensor order,
 * offsets and header length kept, so that view offset = object offset; or invented (--shard-size,
 * several source files merged): tensors by dtype size descending, then name, greedily cut into
 * HF-style shards, data start at a multiple of 4096.  Only a "__metadata__" with a delta format's
 * keys is rewritten, to
 * {"format":"pt"} in the same length.  Immutable, reference-counted, shared by generations and
 * threads.
 */
#ifndef FS_LAYOUT_H
#define FS_LAYOUT_H

#include "cache/store.h"
#include "codec/safetensors.h"

#define LAYOUT_NONE	  UINT32_MAX
#define LAYOUT_INDEX_NAME "model.safetensors.index.json"

struct layout_tensor {
	const char *name;
	const uint64_t *shape;
	uint64_t numel;
	uint64_t begin, end; /* bytes within the file, header included */
	uint32_t file;
	uint32_t alias; /* index of the tensor whose bytes are shown here: itself, or the embedding
			   of a tied head */
	uint8_t dtype, rank;
};

struct layout_file {
	char *name;	   /* "model.safetensors" */
	char *head;	   /* the 8 + N header bytes as shown */
	uint64_t head_len; /* 8 + N */
	uint64_t size;
	uint32_t first, count; /* its tensors, by offset */
};

struct layout {
	int refs; /* atomic */
	struct layout_file *files;
	struct layout_tensor *tensors; /* of all files, in file order */
	uint32_t *by_name;	       /* tensor indices in strcmp order of names */
	uint32_t file_count, tensor_count;
	char *index; /* model.safetensors.index.json that we make ourselves, or NULL */
	size_t index_len;
	struct identity id; /* the run's own (note.c): of the files, zero until it asks */
};

/* One source file of the reference: header and its JSON text (header->length bytes). Borrowed for
 * the call. */
struct layout_input {
	const char *name; /* file name to show */
	const struct st_header *header;
	const char *json;
};

/* The reference's own layout.  -EBADMSG when a tensor name occurs in two files. */
int layout_keep(const struct layout_input *in, size_t count, struct layout **out,
		struct why *why) MUST_CHECK;
/* Our own layout with shards of at most shard_size bytes of data (a larger tensor gets a shard of
 * its own). */
int layout_shard(const struct layout_input *in, size_t count, uint64_t shard_size,
		 struct layout **out, struct why *why) MUST_CHECK;
struct layout *layout_ref(struct layout *l);
void layout_unref(struct layout *l); /* NULL is fine */

uint32_t layout_find(const struct layout *l, const char *name); /* LAYOUT_NONE: no such tensor */
/* The same for names that come in ascending order; *at is 0 before the first. */
uint32_t layout_next(const struct layout *l, const char *name, uint32_t *at);
/* Makes tensor `t` show the bytes of tensor `of` (same dtype and shape; only while the layout is
 * being made). */
int layout_alias(struct layout *l, uint32_t t, uint32_t of) MUST_CHECK;
/* Has it the tensors of these files, with the same dtypes and shapes (whatever the order)? */
bool layout_same_tensors(const struct layout *l, const struct layout_input *in, size_t count);
/* Makes the index of several files, while the layout is being made. */
int layout_make_index(struct layout *l) MUST_CHECK;

/* Elements of a tensor as a patch counts them: its own, or its bytes for sub-byte types. */
uint64_t layout_patch_numel(const struct layout_tensor *t);

#endif
