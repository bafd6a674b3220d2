/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files on their way into a store.
 *
 * A store reads its source piece by piece, which is where a bar learns how far an upload has come
 * and where a user's interrupt ends it.  Some stores do not read at all: a directory has the kernel
 * copy the file, and an external uploader is given its name.  Their bytes count when they are done.
 *
 * A part that is sent again is read again; the bar then stays at what it has (progress_add() is
 * bounded).
 */
#include "tools/sending.h"

#include "cache/fileio.h"

static int read_piece(void *ctx, uint64_t off, void *dst, size_t len)
{
	struct sending *s = ctx;
	int ret;

	if (s->stop != NULL && *s->stop)
		return -EINTR;
	ret = file_pread(s->fd, dst, len, off);
	s->seen += len;
	if (ret == 0 && s->progress != NULL)
		progress_add(s->progress, len);
	return ret;
}

struct source sending_source(struct sending *s)
{
	return (struct source){.read = read_piece, .ctx = s, .size = s->size, .file = &s->fd};
}

void sending_done(const struct sending *s)
{
	if (s->progress != NULL && s->seen < s->size)
		progress_add(s->progress, s->size - s->seen);
}
