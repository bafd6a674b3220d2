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

#include "codec/frame.h"

#include <stdio.h>
#include <stdlib.h>

enum { OUT_WINDOW = 256 * 1024, BATCH = 8192, ZEROS = 4096 };

/* The checksum of the tensor's new bytes: what kind it is, its length says. */
static int take_checksum(const struct st_header *header, struct part *part, struct why *why)
{
	const char *text = st_meta(header, part->name);
	static const enum checksum_kind kinds[] = {CHECKSUM_XXH3_128, CHECKSUM_ADLER32,
						   CHECKSUM_BLAKE3};

	if (text == NULL)
		return 0;
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		if (strlen(text) == checksum_digits(kinds[i]) &&
		    strspn(text, "0123456789abcdefABCDEF") == strlen(text)) {
			part->checksum = text;
			part->checksum_kind = kinds[i];
			return 0;
		}
	return why_set(why, EBADMSG,
		       "tensor \"%s\" has the checksum \"%s\", which is none: it should be 8 hex "
		       "digits of an adler32, 32 of an xxh3-128 or 64 of a blake3",
		       SHOWN(part->name), SHOWN(text));
}

void hfdir_adler(const struct st_header *header, struct delta *delta)
{
	static const char prefix[] = "mx.adler32:";
	const size_t n = sizeof(prefix) - 1;

	for (size_t i = 0; i < header->meta_count; i++) {
		const struct st_meta *meta = &header->meta[i];
		struct part *part;

		if (strncmp(meta->key, prefix, n) != 0 ||
		    strlen(meta->value) != checksum_digits(CHECKSUM_ADLER32))
			continue;
		part = (struct part *)delta_find(delta, meta->key + n);
		if (part != NULL && part->checksum_kind == CHECKSUM_NONE) {
			part->checksum = meta->value;
			part->checksum_kind = CHECKSUM_ADLER32;
		}
	}
}

int part_frame(struct part *part, const struct st_header *header, const struct st_tensor *tensor,
	       const char *hint, struct why *why)
{
	if (tensor->dtype != ST_U8 || tensor->rank != 1 || tensor->begin == tensor->end)
		return why_set(why, EBADMSG,
			       "tensor \"%s\" is no compressed change: it should be U8 of "
			       "one dimension, and not empty%s",
			       SHOWN(tensor->name), hint);
	*part = (struct part){
		.name = tensor->name,
		.kind = PART_SPARSE,
		.dtype = ST_U8,
		.offset = header->data + tensor->begin,
		.bytes = tensor->end - tensor->begin,
		.changed = 1,
	};
	return 0;
}

static int hfdir_open(const struct st_header *header, struct delta *delta, const char *generation,
		      struct why *why)
{
	int err = delta_reserve(delta, header->count, why);

	if (err != 0)
		return err;
	for (size_t i = 0; i < header->count; i++) {
		const struct st_tensor *t = &header->tensors[header->by_name[i]];

		err = part_frame(&delta->parts[i], header, t,
				 "; is this a whole checkpoint under the index of a delta?", why);
		if (err < 0)
			return err;
		delta->count++;
		err = take_checksum(header, &delta->parts[i], why);
		if (err < 0)
			return err;
	}
	hfdir_adler(header, delta);
	snprintf(delta->generation, sizeof(delta->generation), "%s", generation);
	return 0;
}

static int xor_open(const struct st_header *header, const struct side *side, struct delta *delta,
		    struct why *why)
{
	return hfdir_open(header, delta, "hfdir-xor", why);
}

static int overwrite_open(const struct st_header *header, const struct side *side,
			  struct delta *delta, struct why *why)
{
	return hfdir_open(header, delta, "hfdir-overwrite", why);
}

/* ---- a part's frame ---- */

static int of_part(int err, const struct part *part, struct why *why)
{
	if (err < 0)
		why_prefix(why, "tensor \"%s\"", SHOWN(part->name));
	return err;
}

static int begin(const struct part *part, const struct source *src, uint64_t most,
		 struct frame **out, struct why *why)
{
	return of_part(frame_open(src, part->offset, part->bytes, most, out, why), part, why);
}

static int take(struct frame *f, const struct part *part, void *dst, size_t len, struct why *why)
{
	return of_part(frame_exactly(f, dst, len, why), part, why);
}

static int end(struct frame *f, const struct part *part, struct why *why)
{
	return of_part(frame_end(f, why), part, why);
}

/* ---- xor ---- */

struct batch {
	size_t n;
	uint64_t positions[BATCH];
	uint8_t values[BATCH * 8];
};

/* Not zeroed: a tensor may be much smaller. */
static struct batch *batch_new(void)
{
	struct batch *b = malloc(sizeof(*b));

	if (b != NULL)
		b->n = 0;
	return b;
}

static int batch_flush(struct batch *b, struct patch_writer *writer, struct why *why)
{
	int err = patch_writer_add(writer, b->positions, b->values, b->n, why);

	b->n = 0;
	return err;
}

/* From `at` on, where 64 bytes begin that are not all zero, or the rest, which is shorter. */
static size_t skip_zeros(const uint8_t *bytes, size_t at, size_t len)
{
	static const uint8_t zeros[ZEROS];

	while (len - at >= 64) {
		uint64_t any = 0;

		/* Mostly nothing has changed for long. */
		if (at % ZEROS == 0 && len - at >= ZEROS && memcmp(bytes + at, zeros, ZEROS) == 0) {
			at += ZEROS;
			continue;
		}
		for (size_t i = 0; i < 64; i += 8)
			any |= load_le64(bytes + at + i);
		if (any != 0)
			break;
		at += 64;
	}
	return at;
}

/* The elements of a window that are not zero; `first` is the number of its first element. */
static inline __attribute__((always_inline)) int sift(struct batch *b, struct patch_writer *writer,
						      const uint8_t *bytes, size_t len,
						      uint64_t first, unsigned width,
						      struct why *why)
{
	for (size_t at = 0; (at = skip_zeros(bytes, at, len)) < len;) {
		const size_t stop = MIN(at + 64, len);

		for (; at < stop; at += width) {
			uint64_t value = 0;

			if (stop - at >= 8 && load_le64(bytes + at) == 0) {
				at += 8 - width;
				continue;
			}

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

int xor_encode(const struct delta *delta, const struct part *part, const struct source *src,
	       struct patch_writer *writer, uint64_t numel, struct why *why)
{
	const unsigned width = patch_writer_width(writer);
	struct batch *batch = batch_new();
	uint8_t *window = NULL;
	struct frame *f = NULL;
	uint64_t bytes = 0, at = 0;
	int err = 0;

	if (mul_overflows(numel, width, &bytes))
		err = why_set(why, EBADMSG, "tensor \"%s\" is too large", SHOWN(part->name));
	else
		window = malloc((size_t)MIN((uint64_t)OUT_WINDOW, bytes) + 1);
	if (err == 0 && (window == NULL || batch == NULL))
		err = why_set(why, ENOMEM, "out of memory");
	if (err == 0)
		err = begin(part, src, bytes, &f, why);
	while (err == 0 && at < bytes) {
		const size_t n = (size_t)MIN((uint64_t)OUT_WINDOW, bytes - at);

		err = take(f, part, window, n, why);
		if (err == 0)
			err = sift_window(batch, writer, window, n, at / width, why);
		at += n;
	}
	if (err == 0)
		err = end(f, part, why);
	if (err == 0 && batch->n > 0)
		err = batch_flush(batch, writer, why);
	frame_free(f);
	free(batch);
	free(window);
	return err;
}

/* ---- overwrite ---- */

/* The positions and the values of a part, which lie one after the other in its frame: two readers
 * go through it side by side. */
struct overwrite {
	const struct part *part;
	struct frame *positions, *values;
	uint8_t *scratch; /* OUT_WINDOW bytes */
	struct batch *batch;
};

/* Unpacks and drops what lies in front of the values. */
static int skip(struct overwrite *o, uint64_t len, struct why *why)
{
	int err = 0;

	while (len > 0 && err == 0) {
		const size_t n = (size_t)MIN(len, (uint64_t)OUT_WINDOW);

		err = take(o->values, o->part, o->scratch, n, why);
		len -= n;
	}
	return err;
}

static int overwrite_elements(struct overwrite *o, uint64_t count, struct patch_writer *writer,
			      struct why *why)
{
	struct batch *b = o->batch;
	int err = skip(o, 4 + 4 * count, why);

	for (uint64_t at = 0; at < count && err == 0; at += b->n) {
		b->n = (size_t)MIN(count - at, (uint64_t)BATCH);
		err = take(o->positions, o->part, o->scratch, 4 * b->n, why);
		if (err == 0)
			err = take(o->values, o->part, b->values, b->n, why);
		if (err < 0)
			break;
		for (size_t i = 0; i < b->n; i++)
			b->positions[i] = load_le32(o->scratch + 4 * i);
		err = patch_writer_add(writer, b->positions, b->values, b->n, why);
		if (err == -EBADMSG)
			of_part(err, o->part, why);
	}
	return err == 0 ? end(o->values, o->part, why) : err;
}

static int overwrite_encode(const struct delta *delta, const struct part *part,
			    const struct source *src, struct patch_writer *writer, uint64_t numel,
			    struct why *why)
{
	struct overwrite o = {.part = part, .scratch = malloc(OUT_WINDOW), .batch = batch_new()};
	uint64_t most = 0, count;
	uint8_t head[4];
	int err;

	/* numel is in bytes here, and no byte can be listed twice. */
	if (o.scratch == NULL || o.batch == NULL)
		err = why_set(why, ENOMEM, "out of memory");
	else if (numel > UINT64_C(1) << 32)
		err = why_set(why, ENOTSUP,
			      "tensor \"%s\" has %llu bytes, and a list of changed bytes has 32 "
			      "bits for a position: what it changes cannot be told; the "
			      "delta_encoding xor can say it",
			      SHOWN(part->name), (unsigned long long)numel);
	else if (mul_overflows(numel, 5, &most) || add_overflows(most, 4, &most))
		err = why_set(why, EBADMSG, "tensor \"%s\" is too large", SHOWN(part->name));
	else
		err = begin(part, src, most, &o.positions, why);
	if (err == 0)
		err = begin(part, src, most, &o.values, why);
	if (err == 0)
		err = take(o.positions, part, head, sizeof(head), why);
	if (err == 0) {
		count = load_le32(head);
		err = count > numel
			      ? why_set(why, EBADMSG,
					"tensor \"%s\": its zstd frame lists more bytes than the "
					"tensor has",
					SHOWN(part->name))
			      : overwrite_elements(&o, count, writer, why);
	}
	frame_free(o.positions);
	frame_free(o.values);
	free(o.batch);
	free(o.scratch);
	return err;
}

const struct format format_hfdir_xor = {
	.name = "hfdir-xor",
	.open = xor_open,
	.encode = xor_encode,
	.op = PATCH_XOR,
	.blind = true,
	.checksums = true,
};

const struct format format_hfdir_overwrite = {
	.name = "hfdir-overwrite",
	.open = overwrite_open,
	.encode = overwrite_encode,
	.op = PATCH_SET,
	.blind = true,
	.checksums = true,
	.bytewise = true,
};
