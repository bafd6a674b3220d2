/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zstd frames, unpacked in windows.
 *
 * Input comes in windows of 128 KiB; output goes wherever the caller wants it.  Not a byte more
 * than `most` is made: what a frame states beyond it is refused at once, what it makes beyond it
 * when it gets there, so a bomb costs no more than honest data of that size.
 *
 * States: begun (frame_open() has read the first window, and the frame's head with it), running,
 * ended (the frame's last byte is out).  After an error only frame_free() is allowed.
 *
 * No state of its own; a frame belongs to one thread.
 */
#include "codec/frame.h"

#include <stdlib.h>
#include <zstd.h>

enum { IN_WINDOW = 128 * 1024, OUT_PIECE = 256 * 1024, WINDOW_LOG_MAX = 27 };

struct frame {
	const struct source *src;
	uint64_t at, end; /* of the object, what is to be read yet */
	uint64_t made, most;
	ZSTD_DCtx *zstd;
	uint8_t *window;
	ZSTD_inBuffer in;
	bool whole; /* it is all of an object, and not of a tensor */
	bool ended;
};

void frame_free(struct frame *f)
{
	if (f == NULL)
		return;
	ZSTD_freeDCtx(f->zstd);
	free(f->window);
	free(f);
}

static int frame_fail(struct why *why, const char *what)
{
	return why_set(why, EBADMSG, "its zstd frame %s", what);
}

static int too_much(const struct frame *f, struct why *why, const char *what)
{
	if (f->whole)
		return why_set(why, EFBIG,
			       "its zstd frame %s to more than %llu bytes, which no delta of its "
			       "size should",
			       what, (unsigned long long)f->most);
	return why_set(why, EBADMSG, "its zstd frame %s to more than the tensor has", what);
}

static int fill(struct frame *f, struct why *why)
{
	const size_t n = (size_t)MIN((uint64_t)IN_WINDOW, f->end - f->at);
	int err;

	if (n == 0)
		return frame_fail(why, "ends in the middle");
	err = source_read(f->src, f->at, f->window, n);
	if (err < 0)
		return why_set(why, -err, "cannot be read");
	f->at += n;
	f->in = (ZSTD_inBuffer){f->window, n, 0};
	return 0;
}

static int begin(struct frame *f, struct why *why)
{
	unsigned long long says;
	int err;

	f->window = malloc((size_t)MIN((uint64_t)IN_WINDOW, f->end - f->at) + 1);
	f->zstd = ZSTD_createDCtx();
	if (f->window == NULL || f->zstd == NULL)
		return why_set(why, ENOMEM, "out of memory");
	ZSTD_DCtx_setParameter(f->zstd, ZSTD_d_windowLogMax, WINDOW_LOG_MAX);
	err = fill(f, why);
	if (err < 0)
		return err;
	says = ZSTD_getFrameContentSize(f->window, f->in.size);
	if (says == ZSTD_CONTENTSIZE_ERROR)
		return frame_fail(why, "is none");
	if (says != ZSTD_CONTENTSIZE_UNKNOWN && says > f->most)
		return too_much(f, why, "says that it unpacks");
	return 0;
}

static int open_as(const struct source *src, uint64_t at, uint64_t len, uint64_t most, bool whole,
		   struct frame **out, struct why *why)
{
	struct frame *f = calloc(1, sizeof(*f));
	int err;

	if (f == NULL)
		return why_set(why, ENOMEM, "out of memory");
	f->src = src;
	f->at = at;
	f->most = most;
	f->whole = whole;
	err = add_overflows(at, len, &f->end) ? frame_fail(why, "is not inside the object")
					      : begin(f, why);
	if (err < 0)
		frame_free(f);
	else
		*out = f;
	return err;
}

int frame_open(const struct source *src, uint64_t at, uint64_t len, uint64_t most,
	       struct frame **out, struct why *why)
{
	return open_as(src, at, len, most, false, out, why);
}

/* Up to len bytes; fewer only at the frame's end. */
static int read_some(struct frame *f, void *dst, size_t len, size_t *out_got, struct why *why)
{
	ZSTD_outBuffer out = {dst, len, 0};

	while (out.pos < len && !f->ended) {
		size_t left, before = out.pos;
		int err;

		/* What is left inside zstd may come without more input. */
		left = ZSTD_decompressStream(f->zstd, &out, &f->in);
		if (ZSTD_isError(left))
			return why_set(why, EBADMSG, "its zstd frame is damaged: %s",
				       ZSTD_getErrorName(left));
		f->ended = left == 0;
		if (f->ended || out.pos > before || f->in.pos < f->in.size)
			continue;
		err = fill(f, why);
		if (err < 0)
			return err;
	}
	f->made += out.pos;
	*out_got = out.pos;
	return 0;
}

int frame_exactly(struct frame *f, void *dst, size_t len, struct why *why)
{
	size_t got;
	int err = read_some(f, dst, len, &got, why);

	if (err == 0 && got < len)
		return frame_fail(why, "unpacks to less than it should");
	return err;
}

int frame_end(struct frame *f, struct why *why)
{
	uint8_t more;
	size_t got = 0;
	int err = read_some(f, &more, 1, &got, why);

	if (err < 0)
		return err;
	if (got > 0)
		return too_much(f, why, "unpacks");
	if (f->in.pos < f->in.size || f->at < f->end)
		return frame_fail(why, "has something behind it");
	return 0;
}

/* ---- whole objects ---- */

int frame_probe(const struct source *src, bool *out)
{
	uint8_t magic[4];
	int err = src->size < sizeof(magic) ? 0 : source_read(src, 0, magic, sizeof(magic));

	if (err == 0)
		*out = src->size >= sizeof(magic) && load_le32(magic) == ZSTD_MAGICNUMBER;
	return err;
}

static int pump(struct frame *f, const struct sink *sink, uint8_t *piece, struct why *why)
{
	for (uint64_t at = 0;;) {
		size_t got = 0;
		int err = read_some(f, piece, OUT_PIECE, &got, why);

		if (err < 0)
			return err;
		if (got == 0)
			return frame_end(f, why);
		if (f->made > f->most)
			return too_much(f, why, "unpacks");
		err = sink->write(sink->ctx, at, piece, got);
		if (err < 0)
			return why_set(why, -err,
				       "it cannot be unpacked into the cache directory%s",
				       err == -ENOSPC ? " (no space left)" : "");
		at += got;
	}
}

uint64_t frame_most(uint64_t size)
{
	const uint64_t ratio = 64, spare = 256 << 20;
	uint64_t most;

	return mul_overflows(size, ratio, &most) || add_overflows(most, spare, &most) ? UINT64_MAX
										      : most;
}

int frame_unpack(const struct source *src, uint64_t most, const struct sink *sink,
		 uint64_t *out_size, struct why *why)
{
	uint8_t *piece = malloc(OUT_PIECE);
	struct frame *f = NULL;
	int err = piece == NULL ? why_set(why, ENOMEM, "out of memory")
				: open_as(src, 0, src->size, most, true, &f, why);

	if (err == 0)
		err = pump(f, sink, piece, why);
	if (err == 0)
		*out_size = f->made;
	frame_free(f);
	free(piece);
	return err;
}
