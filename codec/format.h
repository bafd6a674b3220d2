/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading other people's anchors and deltas: one reader per format behind one registry.
 *
 * delta_open() reads an object's header, recognises the format, checks everything that can be
 * checked without the values and describes the object as a list of parts: a FULL part is a whole
 * tensor whose bytes lie in the object as they are; a SPARSE part is a set of changed elements that
 * delta_encode() validates completely and turns into a patch. Adding a format: one
 * codec/read_NAME.c with a `struct format`, and one line in formats[] (registry.c); where its
 * versions have a layout of their own, a scheme (scheme.h), too.
 *
 * Pure and thread-safe; a struct delta is immutable once open.
 */
#ifndef CODEC_FORMAT_H
#define CODEC_FORMAT_H

#include "codec/checksum.h"
#include "codec/io.h"
#include "codec/patch.h"
#include "codec/safetensors.h"

enum part_kind { PART_FULL, PART_SPARSE };

struct part {
	const char *name; /* the tensor's name (not the key in the file); owned by the delta */
	enum part_kind kind;
	uint8_t dtype;		/* enum st_dtype of the tensor / of the sparse values */
	uint8_t rank;		/* FULL; SPARSE where the format has it */
	const uint64_t *shape;	/* the same, otherwise NULL */
	uint64_t numel;		/* FULL; SPARSE only with a shape */
	uint64_t offset, bytes; /* FULL: where the tensor lies in the object (packed: its directory,
				   and its bytes when unpacked).  SPARSE: bytes of its
				   index and values together */
	uint64_t changed;	/* SPARSE: number of changed elements; FULL: numel */
	const struct st_tensor *index, *values; /* SPARSE: the two tensors in the file, or NULL */
	const char *coding;   /* SPARSE: how positions are written, for people; NULL: see `index` */
	const char *checksum; /* of the whole tensor once the part is applied, in hex; owned by the
				 delta; NULL: none is recorded */
	enum checksum_kind checksum_kind;
};

/* What stands beside an object and says more of it: the text of its index, and what the object is
 * called in the index's folder. */
struct side {
	const char *text;
	size_t len;
	const char *file;
};

/* struct delta's `encoding` of a native object: patches that can be used as they are, or that have
 * to be made with the bytes of the version they apply to (patchx.h). */
enum wfp1_encoding { WFP1_PLAIN, WFP1_GIVEN_BASE };

struct delta {
	const struct format *format;
	struct st_header *header;   /* owned; NULL: the object is no safetensors file */
	struct part *parts;	    /* count of them, sorted by name; owned */
	struct st_header *original; /* owned: of a packed file (pack.h), which its parts are of */
	char *names;		    /* owned; backs part names that are not keys of the file */
	void *extra;		    /* owned (one malloc'ed block): the format's own */
	size_t count;
	size_t full, sparse;   /* how many parts of each kind */
	uint64_t changed;      /* sum over parts */
	char generation[32];   /* for people: "TRL v1", "TRL v2/v3 (gap_delta)", "safetensors" */
	int encoding;	       /* format's own (codec/readers.h) */
	bool holes_legal;      /* the writer's numbering may skip numbers (zero-change syncs) */
	int64_t model_version; /* as the metadata has it, or -1 */
	int64_t base_version;  /* version this one applies to, or -1 when the format does not say */
	uint64_t data;	       /* where the data begin in the object */
};

enum { PROBE_HEAD = 64 };

struct format {
	const char *name; /* as shown in status: "trl" */
	/* Is this object ours?  Looks at keys and metadata only.  NULL: it is opened by its name
	 * only, since something beside it says what it is. */
	bool (*probe)(const struct st_header *header);
	/* The same by its metadata alone, since a whole checkpoint may have any keys.  NULL: as
	 * probe. */
	bool (*probe_whole)(const struct st_header *header);
	/* Fills *delta but for format, header and the totals over parts; parts may be left
	 * unsorted.  What it allocated is freed by delta_free(), also after a failure.  `side` is
	 * NULL where there is none; its text is gone after the call. */
	int (*open)(const struct st_header *header, const struct side *side, struct delta *delta,
		    struct why *why);
	/* The same of an object that is no safetensors file; instead of open(), and opened by name
	 * only.  delta->header stays NULL; parts have `offset`, `bytes` and whatever `extra` says
	 * of them. */
	int (*open_raw)(const struct source *src, const struct side *side, struct delta *delta,
			struct why *why);
	/* Does an object of which nobody says what it is look like one for open_raw()?  Of its
	 * first PROBE_HEAD bytes, or all.  NULL: it cannot be told. */
	bool (*probe_raw)(const uint8_t *head, size_t len);
	/* See delta_encode(). */
	int (*encode)(const struct delta *delta, const struct part *part, const struct source *src,
		      struct patch_writer *writer, uint64_t numel, struct why *why);
	enum patch_op op; /* of the patches it encodes */
	/* A sparse part is of any dtype and does not know how much it changes: `changed` is 1. */
	bool blind;
	/* Its patches are of bytes, whatever the tensor's dtype. */
	bool bytewise;
	/* The object is one zstd frame as a whole, always or where it begins as one: the caller
	 * unpacks it first (frame_unpack()), and what src gives is what came out.  Such an object
	 * has no FULL part. */
	enum { FRAMED_NEVER, FRAMED_ALWAYS, FRAMED_BY_MAGIC } framed;
	/* Its parts may have checksums. */
	bool checksums;
	/* The object is a patch file (patch_file.h) to be used as it is: delta_encode() has nothing
	 * to do (-EINVAL), and a part has neither dtype nor `changed`. */
	bool native;
};

/* Opens an anchor or delta object.  Errors: -EBADMSG damaged or against the format, -ENOTSUP an
 * encoding that we cannot read (says what to set on the trainer), an error of src->read, -ENOMEM.
 * The sentence does not repeat the object's name; the caller prefixes it. */
int delta_open(const struct source *src, struct delta **out_delta, struct why *why) MUST_CHECK;
/* The same of an object that something else says the format of, by its name (NULL: nothing does),
 * and may say more of (NULL: it does not). */
int delta_open_as(const struct source *src, const char *format, const struct side *side,
		  struct delta **out_delta, struct why *why) MUST_CHECK;
/* The same of an object that is said to be a whole checkpoint: keys that look like another format's
 * are only keys. */
int delta_open_whole(const struct source *src, struct delta **out_delta,
		     struct why *why) MUST_CHECK;
/* The same of an object that somebody found: also formats that are no safetensors file are
 * recognised. */
int delta_open_found(const struct source *src, struct delta **out_delta,
		     struct why *why) MUST_CHECK;
/* The format of that name if it is one that is opened by name only; NULL. */
const struct format *format_named(const char *name);
/* Has the file nothing but compressed changes, each with a checksum, as HF-directory deltas and
 * their like have them?  What they are of and how they are packed stands in an index beside it. */
bool delta_only_changes(const struct st_header *header);
void delta_free(struct delta *delta); /* NULL is fine */
/* The part of that tensor name or NULL; O(log n). */
const struct part *delta_find(const struct delta *delta, const char *name);

/* Reads a SPARSE part's index and values from src (in windows of at most 256 KiB each), validates
 * them against the target (dtype equal, positions strictly ascending and < numel, lengths equal)
 * and writes the patch blob at sink offset `at`. *out_len 0 when the part has no elements (nothing
 * is then written).  Same errors as delta_open(). */
int delta_encode(const struct delta *delta, const struct part *part, const struct source *src,
		 enum st_dtype dtype, uint64_t numel, const struct sink *sink, uint64_t at,
		 uint64_t *out_len, struct why *why) MUST_CHECK;

/* Can objects in this encoding, by its name in weightfs.json, be read here? */
bool delta_encoding_known(const char *encoding);

/* The formats, NULL-terminated, in the order they are probed. */
extern const struct format *const formats[];

#endif
