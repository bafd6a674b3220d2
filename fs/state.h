/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State: the weights of one version, readable at any offset.  Layout + for each tensor where its
 * full bytes lie + the stack of patches on top. Immutable once built, reference-counted;
 * state_read() may be called by any number of threads.
 */
#ifndef FS_STATE_H
#define FS_STATE_H

#include "cache/blob.h"
#include "cache/cachedir.h"
#include "codec/patch_file.h"
#include "fs/layout.h"

/* Where a tensor's full bytes lie, in the order of layout->tensors. */
struct tensor_source {
	uint64_t offset;  /* in the blob; packed: of the tensor's directory (codec/pack.h) */
	uint64_t version; /* patches of versions up to this one do not apply */
	uint32_t blob;	  /* index into sources->blobs */
	uint8_t dtype; /* as stored there; may be narrower than the layout's (then widened exactly)
			*/
	bool packed;
};

struct sources {
	int refs; /* atomic */
	struct blob **blobs;
	uint32_t blob_count;
	struct tensor_source *v; /* one per layout tensor */
	uint32_t count;
};

struct sources *sources_ref(struct sources *s);
void sources_unref(struct sources *s);

/* The patches of versions first..last, opened and matched to a layout. */
struct link {
	int refs; /* atomic */
	uint64_t first, last;
	struct mapping *mapping;
	struct patch_file *file;
	int32_t *slot; /* layout tensor -> index into file->patches, -1 none; NULL: no patches at
			  all */
	char *name;    /* in the cache directory; NULL when empty */
	uint64_t changed;
};

/* Matches a mapped patch file (taken over, also on failure; NULL: an empty link) to a layout whose
 * sources have the stored dtypes: unknown tensors, other widths or sizes are -EBADMSG.  `targets`:
 * the layout tensor of each of the file's, by header->by_name, LAYOUT_NONE for one that is left
 * out; NULL: their names say it. */
int link_new(uint64_t first, uint64_t last, struct mapping *mapping, bool check, const char *name,
	     const struct layout *layout, const uint32_t *targets, struct link **out,
	     struct why *why) MUST_CHECK;
struct link *link_ref(struct link *l);
/* Its patch file cannot be read any more: what is built on it is to be made again. */
bool link_broken(const struct link *l);
void link_unref(struct link *l);

struct state {
	int refs;  /* atomic */
	int opens; /* atomic: open handles on its files and directories */
	uint64_t version;
	uint64_t anchor; /* version of the base; deltas = what lies between */
	unsigned deltas;
	struct layout *layout;
	struct sources *sources;
	struct link **links; /* oldest first */
	uint32_t link_count;
	struct identity
		fingerprint; /* of base, links and layout: equal fingerprints are equal bytes */
};

/* Takes references of its own on layout, sources and links. */
int state_new(uint64_t version, uint64_t anchor, unsigned deltas, struct layout *layout,
	      struct sources *sources, struct link *const *links, uint32_t link_count,
	      const struct identity *fingerprint, struct state **out) MUST_CHECK;
struct state *state_ref(struct state *s);
void state_unref(struct state *s);

/* Exactly len bytes of file `file` at `off` (which must lie inside the file), or -errno; nothing in
 * between.  Blocks on the blobs. */
int state_read(const struct state *s, uint32_t file, uint64_t off, void *dst,
	       size_t len) MUST_CHECK;

/* The same bytes as they lie in memory, for the kernel only (blob_lend()), where nothing has to be
 * done to them: no header, no patches, one object.  Any error: read them.  Does not block. */
int state_lend(const struct state *s, uint32_t file, uint64_t off, size_t len,
	       struct blob_loan *out) MUST_CHECK;

/* Bytes [off, off + len) of a tensor as it is stored (sources->v[]), patched; off is at an element
 * and the range inside the tensor. */
int state_read_stored(const struct state *s, uint32_t tensor, uint64_t off, void *dst,
		      size_t len) MUST_CHECK;

/* Pulls all base bytes near in the background, where they are remote (blob_pull()). */
void state_pull(const struct state *s);
/* How many bytes of the objects it reads from are near, of how many. */
void state_progress(const struct state *s, uint64_t *out_present, uint64_t *out_size);

#endif
