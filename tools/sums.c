/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums of HF-directory deltas: is each tensor, as this version has it, what the trainer had?
 *
 * A shard's metadata give, by the tensor's name, the checksum of all its new bytes: 32 hex digits
 * are XXH3-128, 8 are Adler-32 (ModelExpress puts "mx.adler32:" before the name), 64 are BLAKE3,
 * for which no C library is packaged where this is built: those are counted and not compared.
 *
 * What is hashed are the bytes as they are stored, before --base widens them.  One thread.
 */
#include "tools/sums.h"

#include "cache/blob.h"
#include "codec/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

enum { PIECE = 1 << 20, ADLER_BASE = 65521, ADLER_RUN = 5552 };

struct sum {
	XXH3_state_t *xxh3; /* NULL: Adler-32 */
	uint32_t a, b;
};

/* 5,552 bytes are what fits into 32 bits before the remainder has to be taken. */
static void adler_feed(struct sum *s, const uint8_t *bytes, size_t len)
{
	while (len > 0) {
		const size_t n = MIN(len, (size_t)ADLER_RUN);

		for (size_t i = 0; i < n; i++) {
			s->a += bytes[i];
			s->b += s->a;
		}
		s->a %= ADLER_BASE;
		s->b %= ADLER_BASE;
		bytes += n;
		len -= n;
	}
}

static void sum_hex(const struct sum *s, char out[33])
{
	XXH128_canonical_t digest;

	if (s->xxh3 == NULL) {
		snprintf(out, 33, "%08x", s->b << 16 | s->a);
		return;
	}
	XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(s->xxh3));
	for (unsigned i = 0; i < 16; i++)
		snprintf(out + 2 * i, 3, "%02x", digest.digest[i]);
}

/* The checksum of a tensor, in hex. */
static int sum_tensor(const struct state *s, uint32_t t, bool adler, char out[33], struct why *why)
{
	const struct layout_tensor *tensor = &s->layout->tensors[t];
	const uint64_t bytes = (tensor->numel * st_dtype_bits(s->sources->v[t].dtype) + 7) / 8;
	struct sum sum = {.xxh3 = adler ? NULL : XXH3_createState(), .a = 1};
	uint8_t *piece = malloc(PIECE);
	int ret = piece == NULL || (!adler && sum.xxh3 == NULL) ? -ENOMEM : 0;

	if (ret == 0 && !adler)
		XXH3_128bits_reset(sum.xxh3);
	for (uint64_t at = 0; at < bytes && ret == 0; at += PIECE) {
		const size_t n = (size_t)MIN(bytes - at, (uint64_t)PIECE);

		ret = state_read_stored(s, t, at, piece, n);
		if (ret == 0 && adler)
			adler_feed(&sum, piece, n);
		else if (ret == 0)
			XXH3_128bits_update(sum.xxh3, piece, n);
	}
	if (ret == 0)
		sum_hex(&sum, out);
	else
		why_set(why, -ret, "tensor \"%s\" cannot be read", SHOWN(tensor->name));
	XXH3_freeState(sum.xxh3);
	free(piece);
	return ret;
}

static const char *wanted(const struct st_header *header, const char *name)
{
	const char *text = st_meta(header, name);
	char *key;

	if (text != NULL || asprintf(&key, "mx.adler32:%s", name) < 0)
		return text;
	text = st_meta(header, key);
	free(key);
	return text;
}

static int check_shard(const struct st_header *header, const struct state *s, size_t *checked,
		       size_t *skipped, struct why *why)
{
	for (size_t i = 0; i < header->count; i++) {
		const char *name = header->tensors[i].name, *want = wanted(header, name);
		const uint32_t t = layout_find(s->layout, name);
		const size_t digits = want != NULL ? strlen(want) : 0;
		char have[33];
		int ret;

		if (want == NULL || t == LAYOUT_NONE || s->layout->tensors[t].alias != t)
			continue;
		if (digits != 32 && digits != 8) {
			++*skipped;
			continue;
		}
		ret = sum_tensor(s, t, digits == 8, have, why);
		if (ret < 0)
			return ret;
		if (strcasecmp(have, want) != 0)
			return why_set(why, EBADMSG,
				       "tensor \"%s\" has the checksum %s, and its delta says %s: "
				       "one of the objects that the version is made of is damaged, "
				       "or --base is not the checkpoint that the run started from",
				       SHOWN(name), have, SHOWN(want));
		++*checked;
	}
	return 0;
}

/* Lies the object directly in the directory of `beside`? */
static bool is_neighbour(const char *key, const char *beside)
{
	const char *slash = strrchr(beside, '/');
	const size_t n = slash != NULL ? (size_t)(slash - beside) + 1 : 0, len = strlen(key);

	return n > 0 && len > n + 12 && strncmp(key, beside, n) == 0 &&
	       strchr(key + n, '/') == NULL && strcmp(key + len - 12, ".safetensors") == 0;
}

int sums_check(struct run *run, const struct version_info *info, const struct state *state,
	       size_t *out_checked, size_t *out_skipped, struct why *why)
{
	struct listing_ref *l;
	int ret = 0;

	*out_checked = *out_skipped = 0;
	if (info->kind != VERSION_DELTA ||
	    (strncmp(info->encoding, "hfdir-", 6) != 0 && strcmp(info->encoding, "xor-zstd") != 0))
		return 0;
	l = run_listing(run);
	for (size_t i = 0; l != NULL && i < l->listing.count && ret == 0; i++) {
		const struct object *o = &l->listing.v[i];
		struct st_header *header = NULL;
		struct blob *blob = NULL;

		if (!is_neighbour(o->key, info->key))
			continue;
		ret = blob_open(run_store(run), o, false, &blob, why);
		if (ret == 0) {
			const struct source src = blob_source(blob);

			ret = st_read(&src, &header, NULL, why);
		}
		if (ret == 0)
			ret = check_shard(header, state, out_checked, out_skipped, why);
		st_free(header);
		blob_unref(blob);
	}
	listing_unref(l);
	return ret;
}
