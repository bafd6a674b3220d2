/* SPDX-License-Identifier: Apache-2.0 */
/* A file mapped read-only; reference-counted, thread-safe. */
#ifndef CACHE_MAPPING_H
#define CACHE_MAPPING_H

#include "codec/base.h"

struct mapping {
	const uint8_t *bytes;
	uint64_t size;
	int refs;	  /* atomic */
	uint64_t touched; /* atomic: see mapping_touch() */
	bool broken;	  /* atomic: see mapping_broken() */
	void *slot;	  /* private */
};

/* Maps size bytes of fd, which stays the caller's.  -EFBIG, -ENOMEM, mmap()'s. */
int mapping_new(int fd, uint64_t size, struct mapping **out) MUST_CHECK;
struct mapping *mapping_ref(struct mapping *m);
void mapping_unref(struct mapping *m);
/* Notes that about n bytes of the mapping were read; after every 8 MiB its pages are given back to
 * the kernel's page cache (madvise DONTNEED: they stay cached, but no longer count as ours), so
 * that memory stays bounded. */
void mapping_touch(struct mapping *m, uint64_t n);

/* True once a page of it could not be had, because somebody has cut the file short or the disk
 * fails: from then on all of it reads as zeros.  Asked after what was read is used: what came
 * before a false was the file's. */
bool mapping_broken(const struct mapping *m);
/* Says that what was read of it, and will be, is worth nothing. */
void mapping_break(struct mapping *m);
/* Looks at its last page: what was cut short is broken then, though nobody has read it yet. */
void mapping_probe(const struct mapping *m);

#endif
