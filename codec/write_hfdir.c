/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The writer of HF-directory deltas: shards of compressed differences, and the index.
 *
 * A shard's frames are written one behind the other as they are made; their lengths, and with them
 * the header, are known at the end.  So the header is composed twice: first with numbers as long as
 * any could be, for the room; then with the true ones, padded to that room.
 *
 * Level 1 is what the trainers use; more costs several times as long for a tenth of the size.
 *
 * Not here: I/O, which tensors go into which shard, and the other encoding of the format
 * (`overwrite`), which is larger.
 */
#include "codec/write_hfdir.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <zstd.h>

enum { WINDOW = 256 * 1024, LEVEL = 1 };

struct hfdir_shard {
	const struct hfdir_entry *entries; /* borrowed */
	size_t count, done;
	const struct sink *sink;   /* borrowed */
	uint64_t room, at;	   /* bytes of the header; where the next bytes go */
	uint64_t taken, begin;	   /* of the entry it is at: bytes; where its frame begins */
	struct st_tensor *tensors; /* owned */
	struct st_meta *meta;	   /* owned */
	uint64_t *shapes;	   /* owned: one dimension each */
	char (*hex)[33];	   /* owned */
	ZSTD_CCtx *zstd;	   /* owned */
	uint8_t *window, *out;	   /* owned: WINDOW; ZSTD_CStreamOutSize() */
};

void hfdir_shard_free(struct hfdir_shard *s)
{
	if (s == NULL)
		return;
	ZSTD_freeCCtx(s->zstd);
	free(s->window);
	free(s->out);
	free(s->tensors);
	free(s->meta);
	free(s->shapes);
	free(s->hex);
	free(s);
}

static int no_memory(const struct hfdir_shard *s, struct why *why)
{
	return why_set(why, ENOMEM, "no memory for a shard of %zu tensors", s->count);
}

static int compose(const struct hfdir_shard *s, struct buf *out, struct why *why)
{
	return st_compose(s->tensors, s->count, s->meta, s->count, 8, (size_t)s->room, out, why);
}

/* The header as long as it can get. */
static int measure(struct hfdir_shard *s, struct why *why)
{
	struct buf b = {0};
	int err;

	for (size_t i = 0; i < s->count; i++) {
		const struct hfdir_entry *e = &s->entries[i];

		for (unsigned k = 0; k < 16; k++)
			snprintf(s->hex[i] + 2 * k, 3, "%02x", e->checksum[k]);
		s->shapes[i] = UINT64_MAX;
		s->meta[i] = (struct st_meta){e->name, s->hex[i]};
		s->tensors[i] = (struct st_tensor){
			.name = e->name,
			.name_len = (uint32_t)strlen(e->name),
			.shape = &s->shapes[i],
			.begin = UINT64_MAX,
			.end = UINT64_MAX,
			.dtype = ST_U8,
			.rank = 1,
		};
	}
	err = compose(s, &b, why);
	s->room = s->at = b.len;
	buf_release(&b);
	return err;
}

int hfdir_shard_new(const struct hfdir_entry *entries, size_t count, const struct sink *sink,
		    struct hfdir_shard **out, struct why *why)
{
	struct hfdir_shard *s = calloc(1, sizeof(*s));
	int err;

	if (s == NULL)
		return why_set(why, ENOMEM, "no memory for a shard of %zu tensors", count);
	*s = (struct hfdir_shard){.entries = entries, .count = count, .sink = sink};
	s->tensors = calloc(count + 1, sizeof(*s->tensors));
	s->meta = calloc(count + 1, sizeof(*s->meta));
	s->shapes = calloc(count + 1, sizeof(*s->shapes));
	s->hex = calloc(count + 1, sizeof(*s->hex));
	s->window = malloc(WINDOW);
	s->out = malloc(ZSTD_CStreamOutSize());
	s->zstd = ZSTD_createCCtx();
	if (s->tensors == NULL || s->meta == NULL || s->shapes == NULL || s->hex == NULL ||
	    s->window == NULL || s->out == NULL || s->zstd == NULL)
		err = no_memory(s, why);
	else
		err = measure(s, why);
	if (err == 0)
		*out = s;
	else
		hfdir_shard_free(s);
	return err;
}

static int failed(const struct hfdir_shard *s, size_t code, struct why *why)
{
	return why_set(why, EIO, "tensor \"%s\" cannot be compressed: %s",
		       SHOWN(s->entries[s->done].name), ZSTD_getErrorName(code));
}

/* Compresses what is in the window; `last` ends the frame. */
static int compress(struct hfdir_shard *s, size_t len, bool last, struct why *why)
{
	ZSTD_inBuffer in = {s->window, len, 0};
	size_t left;

	do {
		ZSTD_outBuffer out = {s->out, ZSTD_CStreamOutSize(), 0};
		int err = 0;

		left = ZSTD_compressStream2(s->zstd, &out, &in,
					    last ? ZSTD_e_end : ZSTD_e_continue);
		if (ZSTD_isError(left))
			return failed(s, left, why);
		if (out.pos > 0)
			err = s->sink->write(s->sink->ctx, s->at, s->out, out.pos);
		if (err < 0)
			return why_set(why, -err, "a delta cannot be written (error %d)", -err);
		s->at += out.pos;
	} while (last ? left > 0 : in.pos < in.size);
	return 0;
}

static void xor_into(uint8_t *restrict dst, const uint8_t *restrict a, const uint8_t *restrict b,
		     size_t len)
{
	for (size_t i = 0; i < len; i++)
		dst[i] = a[i] ^ b[i];
}

static int begin_frame(struct hfdir_shard *s, struct why *why)
{
	size_t code;

	s->begin = s->at;
	ZSTD_CCtx_reset(s->zstd, ZSTD_reset_session_only);
	code = ZSTD_CCtx_setParameter(s->zstd, ZSTD_c_compressionLevel, LEVEL);
	if (!ZSTD_isError(code))
		code = ZSTD_CCtx_setPledgedSrcSize(s->zstd, s->entries[s->done].bytes);
	return ZSTD_isError(code) ? failed(s, code, why) : 0;
}

int hfdir_shard_add(struct hfdir_shard *s, const void *old, const void *new, uint64_t len,
		    struct why *why)
{
	uint64_t bytes, off = 0;
	struct st_tensor *t;
	int err = 0;

	if (s->done == s->count || len > s->entries[s->done].bytes - s->taken)
		return why_set(why, EINVAL, "a shard gets more than its %zu tensors", s->count);
	bytes = s->entries[s->done].bytes;
	if (s->taken == 0)
		err = begin_frame(s, why);
	while (err == 0) {
		const size_t part = (size_t)MIN(len - off, (uint64_t)WINDOW);

		xor_into(s->window, (const uint8_t *)old + off, (const uint8_t *)new + off, part);
		off += part;
		s->taken += part;
		err = compress(s, part, s->taken == bytes, why);
		if (off == len)
			break;
	}
	if (err < 0 || s->taken < bytes)
		return err;
	t = &s->tensors[s->done];
	t->begin = s->begin - s->room;
	t->end = s->at - s->room;
	s->shapes[s->done++] = s->at - s->begin;
	s->taken = 0;
	return 0;
}

int hfdir_shard_end(struct hfdir_shard *s, uint64_t *out_size, struct why *why)
{
	struct buf b = {0};
	int err;

	if (s->done != s->count)
		return why_set(why, EINVAL, "a shard of %zu tensors has got %zu", s->count,
			       s->done);
	err = compose(s, &b, why);
	if (err == 0)
		err = s->sink->write(s->sink->ctx, 0, b.data, b.len);
	if (err == 0)
		*out_size = s->at;
	else if (why != NULL && why->err == 0)
		why_set(why, -err, "a delta cannot be written (error %d)", -err);
	buf_release(&b);
	return err;
}

/* ---- the index ---- */

void hfdir_index_begin(struct buf *out, bool delta, uint64_t version, uint64_t base_version,
		       uint64_t total_size)
{
	buf_addf(out, "{\"metadata\": {\"version\": \"%06" PRIu64 "\"", version);
	if (delta)
		buf_addf(out,
			 ", \"base_version\": \"%06" PRIu64 "\", \"delta_encoding\": \"xor\", "
			 "\"compression_format\": \"zstd\", \"checksum_format\": \"xxh3-128\"",
			 base_version);
	else
		buf_addf(out, ", \"total_size\": %" PRIu64, total_size);
	buf_addstr(out, "},\n \"weight_map\": {");
}

void hfdir_index_add(struct buf *out, const char *tensor, const char *file)
{
	const bool first = out->len > 0 && out->data[out->len - 1] == '{';

	buf_addstr(out, first ? "\n  " : ",\n  ");
	buf_addjson(out, tensor, strlen(tensor));
	buf_addstr(out, ": ");
	buf_addjson(out, file, strlen(file));
}

void hfdir_index_end(struct buf *out)
{
	buf_addstr(out, "}}\n");
}
