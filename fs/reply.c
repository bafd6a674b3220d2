/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replies: errno map and buffers.
 *
 * Below the front an error says what happened to bytes (-EBADMSG damaged, -ESTALE rewritten under
 * us, -EPROTO ...).  A program that reads a file knows two or three of those; most mean to it that
 * the data could not be had, which is EIO.  The log has the details.
 *
 * The buffer that was given back last is taken first.  The kernel wakes workers in turn, so buffers
 * of their own would be touched in turn, all of them, and each would be cold by the time it comes
 * up again; with this, few readers use few buffers, which stay in the processor's cache between
 * being filled and being copied into the kernel.  Fresh memory for every reply would cost more than
 * reading the bytes.  A buffer grows to the largest request it has met (1 MiB on current kernels).
 */
#include "fs/reply.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "cache/lock.h"

enum { BUFFER_ALIGN = 4096, HUGE_PAGE = 2 << 20, HUGE_FROM = 256 << 10 };

enum { BUFFERS_KEPT = 32 }; /* a crowd of readers comes once and may need hundreds */

static struct lock buffers_lock;     /* LOCK_QUEUE */
static unsigned buffer_count;	     /* of free ones; guarded by it */
static struct reply_buffer *buffers; /* free ones, the last one given back first; guarded by it */

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

void reply_init(void)
{
	lock_init(&buffers_lock, LOCK_QUEUE);
}

struct reply_buffer *reply_buffer_take(size_t len)
{
	struct reply_buffer *b;
	size_t align;
	void *data;

	lock_take(&buffers_lock);
	b = buffers;
	if (b) {
		buffers = b->next;
		buffer_count--;
	}
	lock_release(&buffers_lock);
	if (!b)
		b = calloc(1, sizeof(*b));
	if (!b || b->cap >= len)
		return b;
	align = len >= HUGE_FROM ? HUGE_PAGE : BUFFER_ALIGN;
	if (posix_memalign(&data, align, ALIGN_UP(len, align))) {
		reply_buffer_give(b);
		return NULL;
	}
	/* One page of the processor's for all of it: the kernel looks each page up to copy from. */
	if (align == HUGE_PAGE)
		(void)madvise(data, ALIGN_UP(len, align), MADV_HUGEPAGE);
	free(b->data);
	b->data = data;
	b->cap = ALIGN_UP(len, align);
	return b;
}

void reply_buffer_give(struct reply_buffer *b)
{
	bool keep;

	if (!b)
		return;
	lock_take(&buffers_lock);
	keep = buffer_count < BUFFERS_KEPT;
	if (keep) {
		b->next = buffers;
		buffers = b;
		buffer_count++;
	}
	lock_release(&buffers_lock);
	if (keep)
		return;
	free(b->data);
	free(b);
}
