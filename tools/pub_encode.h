/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a new state becomes objects: the contract between `publish` and its encodings.
 *
 * publish has compared the new state with the last published one and knows every tensor's bytes,
 * hash and patch.  An encoding turns that into local files and says under which keys they are to be
 * uploaded; it neither uploads nor decides.  An encoding is an entry of a table
 * (tools/pub_encode.c) and lives in a file of its own: tools/pub_wfp1.c is the native one and the
 * example.
 *
 * Bytes of tensors are memory maps of files that may be larger than memory: read them in order, a
 * tensor at a time, and keep no more than a few MiB per thread.  `jobs` threads may be used.
 *
 * Functions block.  One thread calls them; errors are -errno with a sentence.  Files are made with
 * pub_work_file(); those of an attempt that failed are removed by the next one.
 */
#ifndef TOOLS_PUB_ENCODE_H
#define TOOLS_PUB_ENCODE_H

#include "codec/patch.h"
#include "codec/safetensors.h"
#include "tools/progress.h"

struct pub_hash { /* XXH3-128 in canonical form */
	uint8_t bytes[16];
};

/* A tensor of the new state. */
struct pub_tensor {
	const char *name;
	const uint64_t *shape; /* rank entries */
	const uint8_t *data;   /* `bytes` of them; not aligned to anything */
	/* As many: the same tensor in the state before; NULL: no delta, or the encoding is not one
	 * that reads_old. */
	const uint8_t *old;
	/* op ADD, form version 1 with hashes; elements of st_dtype_width(dtype) bytes each.  NULL:
	 * no element changes (or no delta). */
	const struct patch *patch;
	const uint8_t *blob; /* the patch as it lies in memory, blob_len bytes */
	uint64_t blob_len;
	uint64_t bytes;
	uint64_t changed; /* elements of the patch */
	struct pub_hash hash;
	uint8_t dtype; /* enum st_dtype */
	uint8_t rank;
};

/* A weight file of the checkpoint. */
struct pub_file {
	const char *name; /* "model-00001-of-00030.safetensors" */
	const char *path; /* where it lies now */
	int fd;		  /* open for reading */
	uint64_t size;
};

struct pub_input {
	const struct pub_tensor *tensors; /* by name, strcmp order; count of them */
	size_t count;
	const struct pub_file *files; /* by name; file_count of them */
	size_t file_count;
	/* The files beside them that belong to a checkpoint (config.json, tokenizer), for encodings
	 * whose anchors are whole directories; companion_count of them. */
	const struct pub_file *companions;
	size_t companion_count;
	uint64_t version, base_version; /* base_version: of a delta */
	char lineage[9];		/* 8 hexadecimal digits */
	char state[33], base_state[33]; /* state hashes, 32 digits; base_state: of a delta */
	char attempt[9];		/* 8 random digits, fresh for every attempt: for keys */
	const char *work_dir;		/* for pub_work_file() */
	unsigned jobs;
	struct progress *progress; /* to be told of bytes of tensors that are done, by the thread
				    * that called; NULL: nobody looks */
	const volatile bool *stop; /* set: give up soon, with -EINTR; NULL: it is never */
};

/* What is to be uploaded. */
struct pub_object {
	char *key;  /* within the run's prefix */
	char *file; /* an anchor's: name of the checkpoint file it holds; NULL */
	char *path; /* of the local file */
	int fd;	    /* the same, open for reading and writing or reading; -1: none */
	uint64_t size;
};

/* Zero-initialise. */
struct pub_objects {
	struct pub_object *v; /* owned, in the order of uploading */
	size_t count;
	char encoding[32]; /* for the pointer: "wfp1", "safetensors", "packed", ... */
};

struct pub_encoding {
	const char *name; /* --encoding NAME */
	const char *help; /* what it is, in one line */
	/* A state all of whose tensors have the names, dtypes and shapes of the one before.  Not
	 * called when nothing changes, unless `empty` is set.  NULL: this encoding has no deltas of
	 * its own, those of wfp1 are written. */
	int (*delta)(const struct pub_input *in, struct pub_objects *out, struct why *why);
	/* The whole state.  NULL: the checkpoint's files as they are (pub_anchor_plain()). */
	int (*anchor)(const struct pub_input *in, struct pub_objects *out, struct why *why);
	bool empty;	  /* a step without changes has an object, too */
	bool consecutive; /* a delta's version must be its base's plus one; else it is an anchor */
	bool reads_old;	  /* its deltas need the bytes of pub_tensor.old */
	bool overwrites;  /* its keys are the same at every attempt */
	bool alone;	  /* a version has a delta or an anchor, never both */
};

/* The entry of a name; NULL with a sentence that lists the names. */
const struct pub_encoding *pub_encoding_find(const char *name, struct why *why);

/* Entries of the table. */
extern const struct pub_encoding pub_wfp1;
extern const struct pub_encoding pub_wfp1x;		 /* tools/pub_wfp1x.c */
extern const struct pub_encoding pub_packed;		 /* tools/pub_packed.c: of anchors only */
extern const struct pub_encoding pub_trl_v1, pub_trl_v3; /* tools/pub_trl.c */
extern const struct pub_encoding pub_hfdir;		 /* tools/pub_hfdir.c */

/* Writes the patches into a patch file under "deltas/", with the metadata that readers of wfp1
 * look for. */
int pub_wfp1_delta(const struct pub_input *in, struct pub_objects *out, struct why *why) MUST_CHECK;
/* The same in an encoding whose file differs in its blobs only.  The function puts one for each
 * tensor that has a patch, in order, through pub_patch_put() with the count of those before it. */
struct patch_file_writer;
typedef int pub_patch_blobs(const struct pub_input *in, struct patch_file_writer *w,
			    struct why *why);
int pub_patch_delta(const struct pub_input *in, const char *encoding, pub_patch_blobs *blobs,
		    struct pub_objects *out, struct why *why) MUST_CHECK;
int pub_patch_put(const struct pub_input *in, struct patch_file_writer *w, size_t index,
		  const void *blob, uint64_t len, struct why *why) MUST_CHECK;
/* The checkpoint's files, byte for byte, under "anchors/". */
int pub_anchor_plain(const struct pub_input *in, struct pub_objects *out,
		     struct why *why) MUST_CHECK;

/* A new empty file in the work directory, open for reading and writing; *out_path is malloc'ed. */
int pub_work_file(const struct pub_input *in, const char *name, char **out_path, int *out_fd,
		  struct why *why) MUST_CHECK;
/* -EINTR with a sentence once the attempt is to stop. */
int pub_stopped(const struct pub_input *in, struct why *why) MUST_CHECK;
/* len bytes of a tensor have been read and are not needed again soon: what the map has of them need
 * not count as this process's memory. */
void pub_read_past(const void *bytes, uint64_t len);
/* Takes path (malloc'ed) and fd over, also on failure; copies key and file (NULL is fine).  The
 * size is what fstat says. */
int pub_objects_add(struct pub_objects *o, const char *key, const char *file, char *path, int fd,
		    struct why *why) MUST_CHECK;
void pub_objects_release(struct pub_objects *o); /* closes; the files stay */

#endif
