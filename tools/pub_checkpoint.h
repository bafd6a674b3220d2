/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint on disk: the weight files of a directory (one file, or shards with their index) or
 * a single safetensors file, with the tensors of all of them in one list, and the companion files
 * beside them.
 *
 * Files are opened and mapped; nothing is read but headers.  A checkpoint is immutable after it
 * was opened; threads may share it.  Functions block.
 */
#ifndef TOOLS_PUB_CHECKPOINT_H
#define TOOLS_PUB_CHECKPOINT_H

#include "tools/pub_apart.h"
#include "tools/pub_encode.h"

#include <sys/stat.h>

#define PUB_SINGLE_NAME "model.safetensors"

/* Beside the pub_tensor of the same index: where its bytes lie. */
struct pub_place {
	size_t file; /* index into files */
	uint64_t off;
};

struct pub_checkpoint {
	char *path;
	bool is_dir;
	struct pub_file *files; /* by name */
	size_t file_count;
	struct pub_tensor *tensors; /* by name; `data` points into the map */
	struct pub_place *places;
	size_t count;
	uint64_t bytes, elements; /* of all tensors; elements: of patches */
	bool moved;		  /* the files are our own copy: pub_checkpoint_move() */
	/* private */
	struct st_header **headers; /* one for each file */
	const uint8_t **maps;
	struct stat *stats;
};

/* A directory or a .safetensors file.  copy: a directory that pub_slot_open() has filled, where
 * every weight file counts.  -ENOENT, -EBADMSG and others with a sentence that names the file. */
int pub_checkpoint_open(const char *path, bool copy, struct pub_checkpoint **out,
			struct why *why) MUST_CHECK;
void pub_checkpoint_free(struct pub_checkpoint *c); /* NULL is fine */

/* -ESTALE when a weight file is no longer what was opened. */
int pub_checkpoint_unchanged(const struct pub_checkpoint *c, struct why *why) MUST_CHECK;
/* Do both have the same tensors: names, dtypes, shapes?  The sentence names the first that
 * differs. */
bool pub_checkpoint_alike(const struct pub_checkpoint *a, const struct pub_checkpoint *b,
			  struct why *why);
/* The state hash of fs/manifest.h, of tensors whose hashes are known. */
int pub_state_hash(const struct pub_tensor *tensors, size_t count, char out[33]) MUST_CHECK;

/* Goes over to copies of the files, byte for byte the same, which lie in `dir`. */
int pub_checkpoint_move(struct pub_checkpoint *c, const char *dir, struct why *why) MUST_CHECK;

/* Copies a stream to its end into a new file of that path.  progress: NULL for none. */
int pub_checkpoint_spool(int fd, const char *path, struct progress *progress,
			 const volatile bool *stop, struct why *why) MUST_CHECK;

/* The companion files of a checkpoint.  Zero-initialise. */
struct pub_companions {
	struct pub_file *files; /* open; names are relative paths */
	char (*hashes)[33];	/* XXH3-128 of each */
	int64_t *times;		/* when each was last written */
	size_t count;
};

/* Opens and hashes them.  Of a single file there are none. */
int pub_companions_open(const struct pub_checkpoint *c, const struct pub_places *places,
			struct pub_companions *out, struct why *why) MUST_CHECK;
void pub_companions_release(struct pub_companions *c);

#endif
