/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hash of a whole state, as fs/manifest.h defines it, from the bytes of its files as they pass.
 */
#ifndef FS_STATE_HASH_H
#define FS_STATE_HASH_H

#include "fs/layout.h"

struct state_hash; /* opaque; one thread */

/* The layout is borrowed until the end. */
int state_hash_new(const struct layout *l, struct state_hash **out) MUST_CHECK; /* -ENOMEM */
/* Bytes of a file, ascending and without gaps from its beginning; files one after the other, in any
 * order, each once. */
void state_hash_feed(struct state_hash *h, uint32_t file, const void *bytes, size_t len);
/* The 16 canonical bytes of the whole; -EINVAL when a tensor has not been fed to its end. */
int state_hash_end(struct state_hash *h, uint8_t out[16]) MUST_CHECK;
/* After that: those of one tensor. */
const uint8_t *state_hash_tensor(const struct state_hash *h, uint32_t tensor);
void state_hash_free(struct state_hash *h); /* NULL is fine */

#endif
