/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Special files: the handlers for what fs/special makes and fs/control runs.
 *
 * A handle has a snapshot, made by the open and anew by each read at offset 0, so that a reader
 * sees one whole text however many reads it takes and a handle that is kept open can be read again.
 * They are direct_io: the kernel keeps nothing of them, and sizes may change.
 *
 * poll(2): a handle on `version` or `newest` is readable when the file would now say something else
 * than the handle last returned (also when it never returned anything).  A sleeper leaves one poll
 * handle; front_changed() takes them all off their handles under the lock, then wakes and destroys
 * them without it.  The poll handle is stored before the text is compared, so a change in between
 * is not missed.
 *
 * Locks: front->lock guards text and poll handle of a handle.  Texts are made without it (they take
 * locks of higher rank) and replies are sent without it.
 */
#include "fs/ops.h"

#include <poll.h>
#include <stdlib.h>

#include "fs/control.h"
#include "fs/reply.h"
#include "fs/special.h"
#include "fs/status.h"

static bool can_wait(uint64_t ino)
{
	return node_within(ino) == INO_VERSION || node_within(ino) == INO_NEWEST;
}

/* There is nothing to wait for: the run has gone, or was opened before it was known that there are
 * several. */
static bool is_over(const struct front_handle *h)
{
	return can_wait(h->ino) && (inodes_are_several(h->of) || inodes_are_gone(h->of));
}

void special_open(fuse_req_t req, const struct inode *inode, struct fuse_file_info *fi)
{
	struct front *f = front_of(req);
	struct front_handle *h = handle_new(f, inode);

	if (!h) {
		reply_err(req, -ENOMEM);
		return;
	}
	h->special = true;
	h->text_base = -1;
	inode_text(h->of, h->ino, &h->text);
	fi->fh = (uintptr_t)h;
	fi->direct_io = 1;
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 11)
	fi->noflush = 1;
#endif
	COUNT(opens, 1);
	if (fuse_reply_open(req, fi) == -ENOENT)
		handle_close(f, h);
}

/* Puts another text in the place of the handle's; takes it over. */
static void text_replace(struct front *f, struct front_handle *h, struct buf *text)
{
	struct buf old;

	lock_take(&f->lock);
	old = h->text;
	h->text = *text;
	h->text_base = -1;
	lock_release(&f->lock);
	buf_release(&old);
}

/* Copies from the handle's text; returns the number of bytes or -ENOMEM. */
static ssize_t text_copy(struct front *f, struct front_handle *h, char *out, size_t size, off_t off)
{
	ssize_t len = -ENOMEM;

	lock_take(&f->lock);
	if (node_within(h->ino) == INO_CONTROL) {
		/* The write has moved the file position, so the reply begins where it is first
		 * looked for. */
		if (h->text_base < 0 || off < h->text_base)
			h->text_base = off;
		off -= h->text_base;
	}
	if (!h->text.failed) {
		len = (size_t)off >= h->text.len ? 0
						 : (ssize_t)MIN(size, h->text.len - (size_t)off);
		if (len)
			memcpy(out, h->text.data + off, (size_t)len);
		h->returned = true;
	}
	lock_release(&f->lock);
	return len;
}

void special_read(fuse_req_t req, struct front_handle *h, size_t size, off_t off)
{
	struct front *f = front_of(req);
	struct reply_buffer *b = reply_buffer_take(size);
	ssize_t len = -ENOMEM;

	if (is_over(h)) {
		reply_buffer_give(b);
		reply_stale(req);
		return;
	}
	if (off == 0 && node_within(h->ino) != INO_CONTROL) {
		struct buf text = {0};

		inode_text(h->of, h->ino, &text);
		text_replace(f, h, &text);
	}
	if (b && off >= 0)
		len = text_copy(f, h, b->data, size, off);
	if (len < 0)
		reply_err(req, (int)len);
	else
		fuse_reply_buf(req, b->data, (size_t)len);
	reply_buffer_give(b);
}

void op_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size, off_t off,
	      struct fuse_file_info *fi)
{
	struct front *f = front_of(req);
	struct inodes *of = handle_of(fi)->of;
	struct buf reply = {0};
	int ret;

	if (node_within(ino) != INO_CONTROL) {
		reply_err(req, -EROFS);
		return;
	}
	ret = control_run(inodes_stack(of), inodes_are_several(of) ? f->roster : NULL, data, size,
			  &reply);
	text_replace(f, handle_of(fi), &reply);
	if (ret < 0)
		reply_err(req, ret);
	else
		fuse_reply_write(req, size);
}

static bool text_differs(struct front *f, struct front_handle *h, const struct buf *now)
{
	bool differs;

	lock_take(&f->lock);
	differs = !h->returned || now->len != h->text.len ||
		  (now->len && memcmp(now->data, h->text.data, now->len) != 0);
	lock_release(&f->lock);
	return differs;
}

void op_poll(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct fuse_pollhandle *ph)
{
	struct front *f = front_of(req);
	struct front_handle *h = handle_of(fi);
	struct fuse_pollhandle *old = ph;
	struct buf now = {0};
	unsigned events = POLLIN | POLLRDNORM;

	if (node_within(ino) == INO_CONTROL)
		events |= POLLOUT | POLLWRNORM;
	if (h->special && can_wait(ino)) {
		if (ph) {
			lock_take(&f->lock);
			old = h->ph;
			h->ph = ph;
			lock_release(&f->lock);
		}
		inode_text(h->of, ino, &now);
		if (!text_differs(f, h, &now) && !is_over(h))
			events = 0;
		buf_release(&now);
	}
	if (old)
		fuse_pollhandle_destroy(old);
	fuse_reply_poll(req, events);
}

void front_changed(void *ctx)
{
	struct front *f = ctx;

	for (;;) {
		struct fuse_pollhandle *ph[64];
		size_t count = 0;

		lock_take(&f->lock);
		for (struct front_handle *h = f->handles; h && count < ARRAY_LEN(ph); h = h->next) {
			if (!h->ph)
				continue;
			ph[count++] = h->ph;
			h->ph = NULL;
		}
		lock_release(&f->lock);
		if (!count)
			return;
		for (size_t i = 0; i < count; i++) {
			fuse_lowlevel_notify_poll(ph[i]);
			fuse_pollhandle_destroy(ph[i]);
		}
	}
}
