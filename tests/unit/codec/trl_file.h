/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the tests of readers: files composed by hand (struct file), so that they can also be
 * wrong, and what a delta does, looked at by laying its encoded patch over known bytes.
 */
#ifndef TESTS_UNIT_CODEC_TRL_FILE_H
#define TESTS_UNIT_CODEC_TRL_FILE_H

#include "codec/format.h"
#include "codec/readers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#define UNUSED __attribute__((unused))

/* ---- a safetensors file, composed ---- */

struct file {
	struct buf meta, json, data;
};

UNUSED static void meta(struct file *f, const char *key, const char *value)
{
	buf_addstr(&f->meta, f->meta.len > 0 ? "," : "");
	buf_addjson(&f->meta, key, strlen(key));
	buf_addstr(&f->meta, ":");
	buf_addjson(&f->meta, value, strlen(value));
}

UNUSED static void tensor(struct file *f, const char *name, const char *dtype, const char *shape,
			  const void *bytes, size_t len)
{
	buf_addstr(&f->json, ",");
	buf_addjson(&f->json, name, strlen(name));
	buf_addf(&f->json, ":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}", dtype,
		 shape, f->data.len, f->data.len + len);
	buf_add(&f->data, bytes, len);
}

/* One-dimensional, n elements of width bytes, little-endian. */
UNUSED static void list(struct file *f, const char *name, const char *dtype, unsigned width,
			const uint64_t *v, size_t n)
{
	uint8_t *bytes = malloc(n * width + 1);
	char shape[32];

	assert_non_null(bytes);
	for (size_t i = 0; i < n; i++)
		for (unsigned k = 0; k < width; k++)
			bytes[i * width + k] = (uint8_t)(v[i] >> (8 * k));
	snprintf(shape, sizeof(shape), "[%zu]", n);
	tensor(f, name, dtype, shape, bytes, n * width);
	free(bytes);
}

#define V(...)	       ((const uint64_t[]){__VA_ARGS__})
#define N(...)	       (sizeof(V(__VA_ARGS__)) / 8)
#define I32(f, k, ...) list(f, k, "I32", 4, V(__VA_ARGS__), N(__VA_ARGS__))
#define U32(f, k, ...) list(f, k, "U32", 4, V(__VA_ARGS__), N(__VA_ARGS__))
#define U16(f, k, ...) list(f, k, "U16", 2, V(__VA_ARGS__), N(__VA_ARGS__))
#define BF(f, k, ...)  list(f, k, "BF16", 2, V(__VA_ARGS__), N(__VA_ARGS__))

/* The file's bytes; releases f. */
UNUSED static uint8_t *compose(struct file *f, size_t *out_len)
{
	struct buf out = {0};
	uint8_t length[8];

	buf_fill(&out, 0, 8);
	buf_addf(&out, "{\"__metadata__\":{%s}%s}", buf_str(&f->meta), buf_str(&f->json));
	buf_fill(&out, ' ', ALIGN_UP(out.len, 8) - out.len);
	store_le64(length, out.len - 8);
	memcpy(out.data, length, 8);
	buf_add(&out, f->data.data, f->data.len);
	assert_false(out.failed || f->meta.failed || f->json.failed || f->data.failed);
	buf_release(&f->meta);
	buf_release(&f->json);
	buf_release(&f->data);
	return (uint8_t *)buf_detach(&out, out_len);
}

/* ---- a delta that is open, and a sink ---- */

struct opened {
	uint8_t *bytes;
	struct source src;
	struct delta *delta;
	struct why why;
	int err;
};

/* As `format`, with the text of its index and its name there; NULL: neither. */
UNUSED static void open_as(struct opened *o, struct file *f, const char *format, const char *text,
			   const char *name)
{
	struct side side = {.text = text, .file = name};
	size_t len;

	memset(o, 0, sizeof(*o));
	o->bytes = compose(f, &len);
	o->src = source_memory(o->bytes, len);
	side.len = text != NULL ? strlen(text) : 0;
	o->err = delta_open_as(&o->src, format, text != NULL ? &side : NULL, &o->delta, &o->why);
}

UNUSED static void open_file(struct opened *o, struct file *f)
{
	open_as(o, f, NULL, NULL, NULL);
}

UNUSED static void open_good(struct opened *o, struct file *f)
{
	open_file(o, f);
	if (o->err != 0)
		fail_msg("refused: %s", o->why.text);
}

UNUSED static void close_file(struct opened *o)
{
	delta_free(o->delta);
	free(o->bytes);
}

UNUSED static int sink_write(void *ctx, uint64_t off, const void *src, size_t len)
{
	struct buf *b = ctx;

	if (off + len > b->len)
		buf_fill(b, 0xee, off + len - b->len);
	memcpy(b->data + off, src, len);
	return 0;
}

UNUSED static int encode(struct opened *o, const char *name, enum st_dtype dtype, uint64_t numel,
			 struct buf *blob, uint64_t *out_len)
{
	const struct part *part = delta_find(o->delta, name);
	const struct sink sink = {sink_write, blob};

	assert_non_null(part);
	*out_len = 999;
	return delta_encode(o->delta, part, &o->src, dtype, numel, &sink, 0, out_len, &o->why);
}

/* Encodes, checks the patch and applies it to elements [first, first + n) of 16 bits. */
UNUSED static void apply16(struct opened *o, const char *name, uint64_t numel, uint64_t first,
			   uint16_t *dst, size_t n)
{
	struct buf blob = {0};
	struct patch patch;
	uint64_t len;

	if (encode(o, name, ST_BF16, numel, &blob, &len) != 0)
		fail_msg("refused: %s", o->why.text);
	assert_int_equal(patch_open(blob.data, len, &patch, &o->why), 0);
	assert_int_equal(patch_check(&patch, &o->why), 0);
	assert_int_equal(patch.op, PATCH_SET);
	assert_int_equal(patch.width, 2);
	assert_int_equal(patch.numel, numel);
	assert_int_equal(patch.changed, delta_find(o->delta, name)->changed);
	assert_int_equal(patch_apply(&patch, first * 2, dst, n * 2), 0);
	buf_release(&blob);
}

/* A tensor of 8 elements, all 9, after the part. */
UNUSED static void expect8(struct opened *o, const char *name, const uint16_t want[8])
{
	uint16_t have[8] = {9, 9, 9, 9, 9, 9, 9, 9};

	apply16(o, name, 8, 0, have, 8);
	assert_memory_equal(have, want, sizeof(have));
}

#define EXPECT8(o, name, ...) expect8(o, name, (const uint16_t[8]){__VA_ARGS__})

UNUSED static void trl(struct file *f, const char *sparse)
{
	meta(f, "format", "sparse_weight_patch");
	meta(f, "version", "1");
	meta(f, "sparse", sparse);
}

#endif
