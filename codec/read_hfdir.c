/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Formats "hfdir-xor" and "hfdir-overwrite": shards of HF-directory deltas (codec/write_hfdir.h has
 * the layout of a version).
 *
 * Every tensor of a shard is U8 of one dimension: one zstd frame.  Unpacked it is, for xor, the new
 * bytes XOR the old ones of the whole tensor; for overwrite a count in 32 bits, so many positions
 * of bytes in 32 bits, ascending, then so many bytes.  Which of the two it is stands in the index
 * of the directory, not in the shard, so these formats are opened by name only (delta_open_as()).
 *
 * Frames are unpacked in windows: memory is a few hundred KiB and zstd's own window (at most 128
 * MiB, what its readers accept by default), whatever the tensor's size.  The size that a frame
 * states may be missing.  Not a byte more than the tensor's is taken from a frame: what claims or
 * makes more is refused.  The positions and the bytes of an overwrite lie one after the other, so
 * two readers go through its frame side by side.
 *
 * Neither the tensor's dtype nor how much changes is known before that, and XOR with another base
 * than the writer's cannot be noticed here: the caller has to see that versions follow each other,
 * and may compare the checksums of the tensors, which are the shard's metadata.
 *
 * No state; any number of threads.
 */
#include "codec/readers.h"

#include <stdio.h>
#include <stdlib.h>
#include <zstd.h>

enum { IN_WINDOW = 128 * 1024, OUT_WINDOW = 256 * 1024, BATCH = 8192, WINDOW_LOG_MAX = 27 };

static bool by_name_only(const struct st_header *header)
{
	return false;
}

static int hfdir_open(const struct st_header *header, struct delta *delta, const char *generation,
		      struct why *why)
{
	int err = delta_reserve(delta, header->count, why);

	if (err != 0)
		return err;
	for (size_t i = 0; i < header->count; i++) {
		const struct st_tensor *t = &header->tensors[i];

		if (t->dtype != ST_U8 || t->rank != 1 || t->begin == t->end)
			return why_set(why, EBADMSG,
				       "tensor \"%s\" is no compressed change: it should be U8 of "
				       "one dimension, and not empty; is this a whole checkpoint "
				       "under the index of a delta?",
				       SHOWN(t->name));
		delta->parts[delta->count++] = (struct part){
			.name = t->name,
			.kind = PART_SPARSE,
			.dtype = ST_U8,
			.offset = header->data + t->begin,
			.bytes = t->end - t->begin,
			.changed = 1,
		};
	}
	snprintf(delta->generation, sizeof(delta->generation), "%s", generation);
	return 0;
}

static int xor_open(const struct st_header *header, struct delta *delta, struct why *why)
{
	return hfdir_open(header, delta, "hfdir-xor", why);
}

static int overwrite_open(const struct st_header *header, struct delta *delta, struct why *why)
{
	return hfdir_open(header, delta, "hfdir-overwrite", why);
}

/* ---- a frame, unpacked as it is asked for ---- */

struct frame {
	const struct part *part;
	const struct source *src;
	uint64_t at, end; /* of the object, what is to be read yet */
	uint64_t made;	  /* bytes unpacked so far */
	ZSTD_DCtx *zstd;
	uint8_t *window;
	ZSTD_inBuffer in;
	bool ended;
};

static void frame_release(struct frame *f)
{
	ZSTD_freeDCtx(f->zstd);
	free(f->window);
}

static int frame_fail(const struct frame *f, struct why *why, const char *what)
{
	return why_set(why, EBADMSG, "tensor \"%s\": its zstd frame %s", SHOWN(f->part->name),
		       what);
}

static int frame_fill(struct frame *f, struct why *why)
{
	const size_t n = (size_t)MIN((uint64_t)IN_WINDOW, f->end - f->at);
	int err;

	if (n == 0)
		return frame_fail(f, why, "ends in the middle");
	err = source_read(f->src, f->at, f->window, n);
	if (err < 0)
		return why_set(why, -err, "tensor \"%s\" cannot be read", SHOWN(f->part->name));
	f->at += n;
	f->in = (ZSTD_inBuffer){f->window, n, 0};
	return 0;
}

/* `most`: bytes that may come of it. */
static int frame_begin(struct frame *f, const struct part *part, const struct source *src,
		       uint64_t most, struct why *why)
{
	unsigned long long says;
	int err;

	*f = (struct frame){
		.part = part, .src = src, .at = part->offset, .end = part->offset + part->bytes};
	f->window = malloc(IN_WINDOW);
	f->zstd = ZSTD_createDCtx();
	if (f->window == NULL || f->zstd == NULL)
		return why_set(why, ENOMEM, "out of memory");
	ZSTD_DCtx_setParameter(f->zstd, ZSTD_d_windowLogMax, WINDOW_LOG_MAX);
	err = frame_fill(f, why);
	if (err < 0)
		return err;
	says = ZSTD_getFrameContentSize(f->window, f->in.size);
	if (says == ZSTD_CONTENTSIZE_ERROR)
		return frame_fail(f, why, "is none");
	if (says != ZSTD_CONTENTSIZE_UNKNOWN && says > most)
		return frame_fail(f, why, "says that it unpacks to more than the tensor has");
	return 0;
}

/* Up to len bytes; fewer only at the frame's end. */
static int frame_read(struct frame *f, void *dst, size_t len, size_t *out_got, struct why *why)
{
	ZSTD_outBuffer out = {dst, len, 0};

	while (out.pos < len && !f->ended) {
		size_t left, before = out.pos;
		int err;

		/* What is left inside zstd may come without more input. */
		left = ZSTD_decompressStream(f->zstd, &out, &f->in);
		if (ZSTD_isError(left))
			return why_set(why, EBADMSG, "tensor \"%s\": its zstd frame is damaged: %s",
				       SHOWN(f->part->name), ZSTD_getErrorName(left));
		f->ended = left == 0;
		if (f->ended || out.pos > before || f->in.pos < f->in.size)
			continue;
		err = frame_fill(f, why);
		if (err < 0)
			return err;
	}
	f->made += out.pos;
	*out_got = out.pos;
	return 0;
}

static int frame_exactly(struct frame *f, void *dst, size_t len, struct why *why)
{
	size_t got;
	int err = frame_read(f, dst, len, &got, why);

	if (err == 0 && got < len)
		return frame_fail(f, why, "unpacks to less than it should");
	return err;
}

/* Everything has been taken: nothing more may come, of the frame or behind it. */
static int frame_end(struct frame *f, struct why *why)
{
	uint8_t more;
	size_t got = 0;
	int err = frame_read(f, &more, 1, &got, why);

	if (err < 0)
		return err;
	if (got > 0)
		return frame_fail(f, why, "unpacks to more than the tensor has");
	if (f->in.pos < f->in.size || f->at < f->end)
		return frame_fail(f, why, "has something behind it");
	return 0;
}

/* ---- xor ---- */

struct batch {
	uint64_t positions[BATCH];
	uint8_t values[BATCH * 8];
	size_t n;
};

static int batch_flush(struct batch *b, struct patch_writer *writer, struct why *why)
{
	int err = patch_writer_add(writer, b->positions, b->values, b->n, why);

	b->n = 0;
	return err;
}

/* The elements of a window that are not zero; `first` is the number of its first element. */
static inline __attribute__((always_inline)) int sift(struct batch *b, struct patch_writer *writer,
						      const uint8_t *bytes, size_t len,
						      uint64_t first, unsigned width,
						      struct why *why)
{
	for (size_t at = 0; at < len;) {
		const size_t stop = MIN(at + 8, len);
		uint64_t word = 0;

		memcpy(&word, bytes + at, stop - at);
		if (word == 0) {
			at = stop;
			continue;
		}
		for (; at < stop; at += width) {
			uint64_t value = 0;

			memcpy(&value, bytes + at, width);
			if (value == 0)
				continue;
			b->positions[b->n] = first + at / width;
			memcpy(b->values + b->n * width, bytes + at, width);
			if (++b->n == BATCH) {
				int err = batch_flush(b, writer, why);

				if (err < 0)
					return err;
			}
		}
	}
	return 0;
}

static int sift_window(struct batch *b, struct patch_writer *writer, const uint8_t *bytes,
		       size_t len, uint64_t first, struct why *why)
{
	switch (patch_writer_width(writer)) {
	case 1: return sift(b, writer, bytes, len, first, 1, why);
	case 2: return sift(b, writer, bytes, len, first, 2, why);
	case 4: return sift(b, writer, bytes, len, first, 4, why);
	default: return sift(b, writer, bytes, len, first, 8, why);
	}
}

static int xor_encode(const struct delta *delta, const struct part *part, const struct source *src,
		      struct patch_writer *writer, uint64_t numel, struct why *why)
{
	const unsigned width = patch_writer_width(writer);
	uint8_t *window = malloc(OUT_WINDOW);
	struct batch *batch = calloc(1, sizeof(*batch));
	struct frame f = {0};
	uint64_t bytes = 0, at = 0;
	int err;

	if (window == NULL || batch == NULL)
		err = why_set(why, ENOMEM, "out of memory");
	else if (mul_overflows(numel, width, &bytes))
		err = why_set(why, EBADMSG, "tensor \"%s\" is too large", SHOWN(part->name));
	else
		err = frame_begin(&f, part, src, bytes, why);
	while (err == 0 && at < bytes) {
		const size_t n = (size_t)MIN((uint64_t)OUT_WINDOW, bytes - at);

		err = frame_exactly(&f, window, n, why);
		if (err == 0)
			err = sift_window(batch, writer, window, n, at / width, why);
		at += n;
	}
	if (err == 0)
		err = frame_end(&f, why);
	if (err == 0 && batch->n > 0)
		err = batch_flush(batch, writer, why);
	frame_release(&f);
	free(batch);
	free(window);
	return err;
}

/* ---- overwrite ---- */

/* Unpacks and drops what lies in front of the values. */
static int skip(struct frame *f, uint8_t *scratch, uint64_t len, struct why *why)
{
	int err = 0;

	while (len > 0 && err == 0) {
		const size_t n = (size_t)MIN(len, (uint64_t)OUT_WINDOW);

		err = frame_exactly(f, scratch, n, why);
		len -= n;
	}
	return err;
}

static int overwrite_elements(struct frame *positions, struct frame *values, uint64_t count,
			      struct batch *b, uint8_t *scratch, struct patch_writer *writer,
			      struct why *why)
{
	int err = skip(values, scratch, 4 + 4 * count, why);

	for (uint64_t at = 0; at < count && err == 0; at += b->n) {
		b->n = (size_t)MIN(count - at, (uint64_t)BATCH);
		err = frame_exactly(positions, scratch, 4 * b->n, why);
		if (err == 0)
			err = frame_exactly(values, b->values, b->n, why);
		for (size_t i = 0; i < b->n; i++)
			b->positions[i] = load_le32(scratch + 4 * i);
		if (err == 0)
			err = patch_writer_add(writer, b->positions, b->values, b->n, why);
		if (err == -EBADMSG)
			why_prefix(why, "tensor \"%s\"", SHOWN(positions->part->name));
	}
	return err == 0 ? frame_end(values, why) : err;
}

static int overwrite_encode(const struct delta *delta, const struct part *part,
			    const struct source *src, struct patch_writer *writer, uint64_t numel,
			    struct why *why)
{
	uint8_t *scratch = malloc(OUT_WINDOW), head[4];
	struct batch *batch = calloc(1, sizeof(*batch));
	struct frame positions = {0}, values = {0};
	uint64_t most = 0, count;
	int err;

	/* numel is in bytes here, and no byte can be listed twice. */
	if (scratch == NULL || batch == NULL)
		err = why_set(why, ENOMEM, "out of memory");
	else if (mul_overflows(numel, 5, &most) || add_overflows(most, 4, &most))
		err = why_set(why, EBADMSG, "tensor \"%s\" is too large", SHOWN(part->name));
	else
		err = frame_begin(&positions, part, src, most, why);
	if (err == 0)
		err = frame_begin(&values, part, src, most, why);
	if (err == 0)
		err = frame_exactly(&positions, head, sizeof(head), why);
	if (err == 0) {
		count = load_le32(head);
		err = count > numel
			      ? frame_fail(&positions, why, "lists more bytes than the tensor has")
			      : overwrite_elements(&positions, &values, count, batch, scratch,
						   writer, why);
	}
	frame_release(&positions);
	frame_release(&values);
	free(batch);
	free(scratch);
	return err;
}

const struct format format_hfdir_xor = {
	.name = "hfdir-xor",
	.probe = by_name_only,
	.open = xor_open,
	.encode = xor_encode,
	.op = PATCH_XOR,
	.blind = true,
};

const struct format format_hfdir_overwrite = {
	.name = "hfdir-overwrite",
	.probe = by_name_only,
	.open = overwrite_open,
	.encode = overwrite_encode,
	.op = PATCH_SET,
	.blind = true,
	.bytewise = true,
};
