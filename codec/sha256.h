/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 (FIPS 180-4), for foreign formats that carry one.  Pure; not for secrets. */
#ifndef CODEC_SHA256_H
#define CODEC_SHA256_H

#include "codec/base.h"

struct sha256 {
	uint32_t h[8];
	uint64_t len; /* bytes so far */
	uint8_t block[64];
};

void sha256_init(struct sha256 *s);
void sha256_update(struct sha256 *s, const void *bytes, size_t len);
/* The digest as 64 hexadecimal digits and a NUL. */
void sha256_hex(struct sha256 *s, char out[65]);

#endif
