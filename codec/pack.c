/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed weights: blocks of byte planes, and the header that stands around them.
 *
 * Splitting and joining planes are plain loops over one width each, which compilers turn into
 * shuffles.  A plane that zstd does not make shorter is stored, so random bytes cost a copy.
 *
 * No state besides the packer; decoding may be done by any number of threads.
 */
#include "codec/pack.h"

#include "codec/cursor.h"

#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>
#include <zstd.h>

enum { LEVEL = 1, WIDTH_MAX = 8 };

struct packer {
	ZSTD_CCtx *zstd; /* owned */
	uint8_t planes[(size_t)PACK_BLOCK * WIDTH_MAX];
};

bool pack_is(const struct st_header *header)
{
	const char *format = st_meta(header, "format");

	return format != NULL && strcmp(format, PACK_FORMAT) == 0;
}

uint64_t pack_blocks(uint64_t bytes, unsigned width)
{
	const uint64_t size = (uint64_t)PACK_BLOCK * width;

	return bytes / size + (bytes % size != 0);
}

uint32_t pack_block_bytes(uint64_t bytes, unsigned width, uint64_t block)
{
	const uint64_t size = (uint64_t)PACK_BLOCK * width;

	return (uint32_t)MIN(bytes - block * size, size);
}

uint32_t pack_bound(uint32_t bytes, unsigned width)
{
	return bytes + PACK_LENGTH * width;
}

/* ---- the header ---- */

/* Tensors of the original that have bytes, in order: those of the packed file. */
static int match_tensors(const struct st_header *packed, const struct st_header *original,
			 struct why *why)
{
	size_t at = 0;

	for (size_t i = 0; i < original->count; i++) {
		const struct st_tensor *o = &original->tensors[i], *p = &packed->tensors[at];
		const uint64_t bytes = o->end - o->begin;
		const uint64_t blocks = pack_blocks(bytes, st_dtype_width(o->dtype));

		if (bytes == 0)
			continue;
		if (at == packed->count || strcmp(p->name, o->name) != 0 || p->dtype != ST_U8 ||
		    p->rank != 1)
			return why_set(why, EBADMSG,
				       "a packed file that does not have \"%s\" where its original "
				       "has it",
				       SHOWN(o->name));
		if (p->end - p->begin < PACK_ENTRY * (blocks + 1))
			return why_set(why, EBADMSG,
				       "\"%s\" of a packed file has %llu bytes, too few for the "
				       "directory of %llu blocks",
				       SHOWN(o->name), (unsigned long long)(p->end - p->begin),
				       (unsigned long long)blocks);
		at++;
	}
	if (at != packed->count)
		return why_set(why, EBADMSG, "a packed file has \"%s\" and its original has not",
			       SHOWN(packed->tensors[at].name));
	return 0;
}

/* A decimal number, without sign or blanks. */
static bool parse_size(const char *text, uint64_t *out)
{
	uint64_t v = 0;

	if (*text == '\0')
		return false;
	for (; *text >= '0' && *text <= '9'; text++)
		if (mul_overflows(v, 10, &v) || add_overflows(v, (uint64_t)(*text - '0'), &v))
			return false;
	*out = v;
	return *text == '\0';
}

int pack_header(const struct st_header *packed, struct st_header **out_header, char **out_json,
		struct why *why)
{
	const char *version = st_meta(packed, "packed_version"), *json = st_meta(packed, "header");
	const char *size_text = st_meta(packed, "original_size");
	struct st_header *original = NULL;
	char *copy = NULL;
	uint64_t size;
	int ret;

	if (version == NULL || json == NULL || size_text == NULL)
		return why_set(why, EBADMSG,
			       "a packed file without its version, or the header or size of its "
			       "original");
	if (strcmp(version, "1") != 0)
		return why_set(why, ENOTSUP,
			       "a packed file in version \"%s\": a newer weightfs reads it",
			       SHOWN(version));
	if (!parse_size(size_text, &size))
		return why_set(why, EBADMSG, "a packed file whose original's size is no number");
	ret = st_parse(json, strlen(json), size, &original, why);
	if (ret < 0)
		return why_prefix(why, "the header of a packed file's original");
	ret = match_tensors(packed, original, why);
	if (ret == 0 && out_json != NULL) {
		copy = strdup(json);
		if (copy == NULL)
			ret = why_set(why, ENOMEM, "out of memory for a header");
	}
	if (ret < 0) {
		st_free(original);
		return ret;
	}
	*out_header = original;
	if (out_json != NULL)
		*out_json = copy;
	return 0;
}

int pack_compose(const struct st_header *header, const char *json, const uint64_t *sizes,
		 size_t min_size, struct buf *out, struct why *why)
{
	const uint64_t longest = UINT64_C(999999999999999);
	struct st_tensor *tensors = calloc(header->count + 1, sizeof(*tensors));
	uint64_t *shapes = calloc(header->count + 1, sizeof(*shapes)), at = 0;
	char *text = malloc((size_t)header->length + 1), size[24];
	size_t n = 0;
	int ret;

	snprintf(size, sizeof(size), "%llu", (unsigned long long)header->file_size);

	if (tensors == NULL || shapes == NULL || text == NULL) {
		ret = why_set(why, ENOMEM, "out of memory for a header");
		goto out;
	}
	memcpy(text, json, (size_t)header->length);
	text[header->length] = '\0';
	for (size_t i = 0; i < header->count; i++) {
		const struct st_tensor *t = &header->tensors[i];

		if (t->begin == t->end)
			continue;
		shapes[n] = sizes != NULL ? sizes[i] : longest;
		tensors[n] = (struct st_tensor){
			.name = t->name,
			.shape = &shapes[n],
			.begin = sizes != NULL ? at : longest,
			.end = sizes != NULL ? at + sizes[i] : longest,
			.name_len = t->name_len,
			.dtype = ST_U8,
			.rank = 1,
		};
		at = tensors[n++].end;
	}
	ret = st_compose(tensors, n,
			 (const struct st_meta[]){{"format", PACK_FORMAT},
						  {"packed_version", "1"},
						  {"original_size", size},
						  {"header", text}},
			 4, 8, min_size, out, why);
out:
	free(tensors);
	free(shapes);
	free(text);
	return ret;
}

/* ---- blocks ---- */

#define INLINE static inline __attribute__((always_inline))

INLINE void split(const uint8_t *restrict src, uint8_t *restrict planes, uint32_t n, unsigned width)
{
	for (uint32_t i = 0; i < n; i++)
		for (unsigned p = 0; p < width; p++)
			planes[(size_t)p * n + i] = src[(size_t)i * width + p];
}

INLINE void join(const uint8_t *restrict planes, uint8_t *restrict dst, uint32_t n, unsigned width)
{
	for (uint32_t i = 0; i < n; i++)
		for (unsigned p = 0; p < width; p++)
			dst[(size_t)i * width + p] = planes[(size_t)p * n + i];
}

int pack_entry(const uint8_t *entries, uint32_t bytes, unsigned width, uint64_t *out_offset,
	       uint32_t *out_len, uint64_t *out_hash)
{
	const uint64_t from = load_le64(entries + 8), to = load_le64(entries + PACK_ENTRY + 8);

	if (to < from || to - from > pack_bound(bytes, width) || to > INT64_MAX)
		return -EBADMSG;
	*out_hash = load_le64(entries);
	*out_offset = from;
	*out_len = (uint32_t)(to - from);
	return 0;
}

static int unpack_plane(const uint8_t *packed, uint32_t len, uint8_t *dst, uint32_t n)
{
	if (len == n) {
		memcpy(dst, packed, n);
		return 0;
	}
	if (ZSTD_getFrameContentSize(packed, len) != n || ZSTD_decompress(dst, n, packed, len) != n)
		return -EBADMSG;
	return 0;
}

int pack_decode(const uint8_t *packed, size_t len, unsigned width, uint64_t hash, uint8_t *dst,
		uint32_t bytes, uint8_t *scratch)
{
	const uint32_t n = bytes / width;
	uint8_t *planes = width == 1 ? dst : scratch;
	struct cursor c;
	uint32_t lengths[WIDTH_MAX];

	cursor_init(&c, packed, len);
	for (unsigned p = 0; p < width; p++)
		lengths[p] = cursor_u32(&c);
	for (unsigned p = 0; p < width; p++) {
		const uint8_t *plane = cursor_take(&c, lengths[p]);

		if (plane == NULL || lengths[p] > n ||
		    unpack_plane(plane, lengths[p], planes + (size_t)p * n, n) < 0)
			return -EBADMSG;
	}
	if (c.bad || cursor_left(&c) != 0)
		return -EBADMSG;
	switch (width) {
	case 1: break;
	case 2: join(planes, dst, n, 2); break;
	case 4: join(planes, dst, n, 4); break;
	default: join(planes, dst, n, 8);
	}
	return XXH3_64bits(dst, bytes) == hash ? 0 : -EBADMSG;
}

struct packer *packer_new(void)
{
	struct packer *p = malloc(sizeof(*p));

	if (p == NULL)
		return NULL;
	p->zstd = ZSTD_createCCtx();
	if (p->zstd == NULL) {
		free(p);
		return NULL;
	}
	return p;
}

void packer_free(struct packer *p)
{
	if (p == NULL)
		return;
	ZSTD_freeCCtx(p->zstd);
	free(p);
}

size_t packer_block(struct packer *p, const uint8_t *bytes, uint32_t len, unsigned width,
		    uint8_t *dst, uint64_t *out_hash)
{
	const uint32_t n = len / width;
	uint8_t *at = dst + PACK_LENGTH * (size_t)width;

	*out_hash = XXH3_64bits(bytes, len);
	switch (width) {
	case 1: memcpy(p->planes, bytes, n); break;
	case 2: split(bytes, p->planes, n, 2); break;
	case 4: split(bytes, p->planes, n, 4); break;
	default: split(bytes, p->planes, n, 8);
	}
	for (unsigned i = 0; i < width; i++) {
		const uint8_t *plane = p->planes + (size_t)i * n;
		/* what does not fit into less is an error, and stored */
		size_t size = ZSTD_compressCCtx(p->zstd, at, n - 1, plane, n, LEVEL);

		if (n == 1 || ZSTD_isError(size)) {
			memcpy(at, plane, n);
			size = n;
		}
		store_le32(dst + PACK_LENGTH * (size_t)i, (uint32_t)size);
		at += size;
	}
	return (size_t)(at - dst);
}
