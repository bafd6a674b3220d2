/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replies: errno map and per-thread buffers.
 *
 * Below the front an error says what happened to bytes (-EBADMSG damaged, -ESTALE rewritten under
 * us, -EPROTO ...).  A program that reads a file knows two or three of those; most mean to it that
 * the data could not be had, which is EIO.  The log has the details.
 *
 * A buffer belongs to a worker thread, grows to the largest request it has seen (1 MiB on current
 * kernels) and is freed when the thread ends.  Reusing it matters: fresh memory for every reply
 * costs more than reading the bytes.
 */
#include "fs/reply.h"

#include <pthread.h>
#include <stdlib.h>

enum { BUFFER_ALIGN = 4096 };

struct buffer {
	void *data;
	size_t cap;
};

static pthread_key_t buffer_key;

int reply_errno(int err)
{
	switch (-err) {
	case ENOENT:
	case ENOTDIR:
	case EISDIR:
	case EACCES:
	case EPERM:
	case EINVAL:
	case ENOMEM:
	case EINTR:
	case EROFS:
	case ENODATA:
	case ERANGE:
	case ENAMETOOLONG:
	case ELOOP:
	case EMFILE:
	case ENFILE:
	case ENOTSUP:
	case ECANCELED: return -err;
	default: return EIO;
	}
}

void reply_err(fuse_req_t req, int err)
{
	fuse_reply_err(req, reply_errno(err));
}

void reply_read_err(fuse_req_t req, int err)
{
	fuse_reply_err(req, err == -ENOMEM || err == -EINTR || err == -EISDIR ? -err : EIO);
}

void reply_stale(fuse_req_t req)
{
	fuse_reply_err(req, ESTALE);
}

static void buffer_free(void *ctx)
{
	struct buffer *b = ctx;

	free(b->data);
	free(b);
}

int reply_init(void)
{
	return -pthread_key_create(&buffer_key, buffer_free);
}

void *reply_buffer(size_t len)
{
	struct buffer *b = pthread_getspecific(buffer_key);
	void *data;

	if (!b) {
		b = calloc(1, sizeof(*b));
		if (!b)
			return NULL;
		if (pthread_setspecific(buffer_key, b)) {
			free(b);
			return NULL;
		}
	}
	if (b->cap < len) {
		if (posix_memalign(&data, BUFFER_ALIGN, ALIGN_UP(len, BUFFER_ALIGN)))
			return NULL;
		free(b->data);
		b->data = data;
		b->cap = ALIGN_UP(len, BUFFER_ALIGN);
	}
	return b->data;
}
