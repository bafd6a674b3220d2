/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightfs.json in a store: reading it, and replacing exactly what was read.
 */
#ifndef TOOLS_POINTER_H
#define TOOLS_POINTER_H

#include "cache/store.h"
#include "fs/manifest.h"

/* Zero-initialise. */
struct pointer {
	struct manifest *manifest; /* owned; NULL: there is none */
	struct identity id;	   /* of the object; meaningful with a manifest */
	uint64_t size;
};

/* What is there now.  Absent is no error.  -EBADMSG when it is damaged, with a sentence. */
int pointer_read(struct store *store, struct pointer *out, struct why *why) MUST_CHECK;
void pointer_release(struct pointer *p);

/* Replaces what was read (or writes the first one) by `text`.  -ESTALE, -EEXIST: it is another one
 * by now.  Where the store knows no conditions it is read once more right before. */
int pointer_write(struct store *store, const struct pointer *was, const struct buf *text,
		  struct why *why) MUST_CHECK;

#endif
