/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checksums that writers record of tensors, and of a whole state: fed in pieces, given in hex.
 *
 * XXH3-128 in canonical form (32 digits), Adler-32 (8 digits), SHA-256 (64 digits; FIPS 180-4), and
 * BLAKE3 (64 digits) where its C library was there when this was built.
 *
 * Thread-safe on distinct objects.
 */
#ifndef CODEC_CHECKSUM_H
#define CODEC_CHECKSUM_H

#include "codec/base.h"
#include "codec/safetensors.h"

enum checksum_kind {
	CHECKSUM_NONE,
	CHECKSUM_XXH3_128,
	CHECKSUM_ADLER32,
	CHECKSUM_SHA256,
	CHECKSUM_BLAKE3,
	CHECKSUM_TORCH, /* of a whole state only: SHA-256, see checksum_tensor() */
};

enum { CHECKSUM_HEX = 65 }; /* bytes of the longest one in hex, and a NUL */

/* "xxh3-128", "adler32", "sha256", "blake3", "sha256-torch"; "" for NONE.  And back; NONE: it is
 * another. */
const char *checksum_name(enum checksum_kind kind);
enum checksum_kind checksum_find(const char *name);
/* How many hex digits it has. */
size_t checksum_digits(enum checksum_kind kind);
/* Can it be computed here? */
bool checksum_known(enum checksum_kind kind);

struct checksum; /* opaque */

/* -ENOMEM; -ENOTSUP when it is not known. */
int checksum_new(enum checksum_kind kind, struct checksum **out) MUST_CHECK;
void checksum_feed(struct checksum *c, const void *bytes, size_t len);
/* Of a whole state: before a tensor's bytes.  TORCH hashes the name, the dtype and the shape there,
 * as PyTorch spells them ("torch.bfloat16", "(5,)"); the others nothing. */
void checksum_tensor(struct checksum *c, const char *name, enum st_dtype dtype, unsigned rank,
		     const uint64_t *shape);
/* May be called once, after the last byte. */
void checksum_hex(struct checksum *c, char out[CHECKSUM_HEX]);
void checksum_free(struct checksum *c); /* NULL is fine */

/* Are the two the same, whatever the case of their digits? */
bool checksum_equal(const char *a, const char *b);

#endif
