/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One face for the checksums that writers record.
 *
 * Adler-32 is done here, SHA-256 in sha256.c, XXH3 and BLAKE3 in their libraries; BLAKE3's may not
 * have been there at the build (HAVE_BLAKE3), and is then a kind that has a name and digits and
 * cannot be computed, so that whoever meets one can say so.
 *
 * No state of its own; an object belongs to one thread.
 */
#include "codec/checksum.h"
#include "codec/sha256.h"

#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>
#ifdef HAVE_BLAKE3
#include <blake3.h>
#endif

enum { ADLER_BASE = 65521, ADLER_RUN = 5552 };

struct checksum {
	enum checksum_kind kind;
	XXH3_state_t *xxh3;
	struct sha256 sha256;
	uint32_t a, b; /* Adler-32 */
#ifdef HAVE_BLAKE3
	blake3_hasher blake3;
#endif
};

static const struct {
	const char *name;
	size_t digits;
} kinds[] = {
	[CHECKSUM_NONE] = {"", 0},	     [CHECKSUM_XXH3_128] = {"xxh3-128", 32},
	[CHECKSUM_ADLER32] = {"adler32", 8}, [CHECKSUM_SHA256] = {"sha256", 64},
	[CHECKSUM_BLAKE3] = {"blake3", 64},  [CHECKSUM_TORCH] = {"sha256-torch", 64},
};

const char *checksum_name(enum checksum_kind kind)
{
	return kinds[kind].name;
}

enum checksum_kind checksum_find(const char *name)
{
	for (size_t i = 1; i < ARRAY_LEN(kinds); i++)
		if (strcmp(kinds[i].name, name) == 0)
			return (enum checksum_kind)i;
	return CHECKSUM_NONE;
}

size_t checksum_digits(enum checksum_kind kind)
{
	return kinds[kind].digits;
}

bool checksum_known(enum checksum_kind kind)
{
#ifdef HAVE_BLAKE3
	return kind != CHECKSUM_NONE;
#else
	return kind != CHECKSUM_NONE && kind != CHECKSUM_BLAKE3;
#endif
}

int checksum_new(enum checksum_kind kind, struct checksum **out)
{
	struct checksum *c;

	if (!checksum_known(kind))
		return -ENOTSUP;
	c = calloc(1, sizeof(*c));
	if (c == NULL)
		return -ENOMEM;
	c->kind = kind;
	c->a = 1;
	if (kind == CHECKSUM_XXH3_128) {
		c->xxh3 = XXH3_createState();
		if (c->xxh3 == NULL) {
			free(c);
			return -ENOMEM;
		}
		XXH3_128bits_reset(c->xxh3);
	}
	sha256_init(&c->sha256);
#ifdef HAVE_BLAKE3
	blake3_hasher_init(&c->blake3);
#endif
	*out = c;
	return 0;
}

/* 5,552 bytes are what fits into 32 bits before the remainder has to be taken. */
static void adler_feed(struct checksum *c, const uint8_t *bytes, size_t len)
{
	while (len > 0) {
		const size_t n = MIN(len, (size_t)ADLER_RUN);

		for (size_t i = 0; i < n; i++) {
			c->a += bytes[i];
			c->b += c->a;
		}
		c->a %= ADLER_BASE;
		c->b %= ADLER_BASE;
		bytes += n;
		len -= n;
	}
}

void checksum_feed(struct checksum *c, const void *bytes, size_t len)
{
	switch (c->kind) {
	case CHECKSUM_XXH3_128: XXH3_128bits_update(c->xxh3, bytes, len); break;
	case CHECKSUM_ADLER32: adler_feed(c, bytes, len); break;
	case CHECKSUM_SHA256:
	case CHECKSUM_TORCH: sha256_update(&c->sha256, bytes, len); break;
#ifdef HAVE_BLAKE3
	case CHECKSUM_BLAKE3: blake3_hasher_update(&c->blake3, bytes, len); break;
#endif
	default: break;
	}
}

/* What torch.dtype's str() is, without "torch."; of types it does not have our own. */
static const char *torch_dtype(enum st_dtype dtype)
{
	switch (dtype) {
	case ST_BOOL: return "bool";
	case ST_U8: return "uint8";
	case ST_I8: return "int8";
	case ST_F8_E5M2: return "float8_e5m2";
	case ST_F8_E4M3: return "float8_e4m3fn";
	case ST_F8_E8M0: return "float8_e8m0fnu";
	case ST_F8_E4M3FNUZ: return "float8_e4m3fnuz";
	case ST_F8_E5M2FNUZ: return "float8_e5m2fnuz";
	case ST_I16: return "int16";
	case ST_U16: return "uint16";
	case ST_F16: return "float16";
	case ST_BF16: return "bfloat16";
	case ST_I32: return "int32";
	case ST_U32: return "uint32";
	case ST_F32: return "float32";
	case ST_C64: return "complex64";
	case ST_F64: return "float64";
	case ST_I64: return "int64";
	case ST_U64: return "uint64";
	default: return st_dtype_name(dtype);
	}
}

void checksum_tensor(struct checksum *c, const char *name, enum st_dtype dtype, unsigned rank,
		     const uint64_t *shape)
{
	struct buf text = {0};

	if (c->kind != CHECKSUM_TORCH)
		return;
	buf_addf(&text, "%storch.%s(", name, torch_dtype(dtype));
	for (unsigned i = 0; i < rank; i++)
		buf_addf(&text, "%s%llu", i > 0 ? ", " : "", (unsigned long long)shape[i]);
	buf_addstr(&text, rank == 1 ? ",)" : ")");
	checksum_feed(c, text.data, text.len);
	buf_release(&text);
}

static void hex(const uint8_t *bytes, size_t n, char *out)
{
	for (size_t i = 0; i < n; i++)
		snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

void checksum_hex(struct checksum *c, char out[CHECKSUM_HEX])
{
	XXH128_canonical_t digest;

	out[0] = '\0';
	switch (c->kind) {
	case CHECKSUM_XXH3_128:
		XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(c->xxh3));
		hex(digest.digest, 16, out);
		break;
	case CHECKSUM_ADLER32: snprintf(out, CHECKSUM_HEX, "%08x", c->b << 16 | c->a); break;
	case CHECKSUM_SHA256:
	case CHECKSUM_TORCH: sha256_hex(&c->sha256, out); break;
#ifdef HAVE_BLAKE3
	case CHECKSUM_BLAKE3: {
		uint8_t bytes[32];

		blake3_hasher_finalize(&c->blake3, bytes, sizeof(bytes));
		hex(bytes, sizeof(bytes), out);
		break;
	}
#endif
	default: break;
	}
}

void checksum_free(struct checksum *c)
{
	if (c == NULL)
		return;
	XXH3_freeState(c->xxh3);
	free(c);
}

static char lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

bool checksum_equal(const char *a, const char *b)
{
	while (*a != '\0' && lower(*a) == lower(*b)) {
		a++;
		b++;
	}
	return *a == *b;
}
