/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directories and handles.
 *
 * A directory is listed once, when it is opened: offsets are indices into that list (0 and 1 are
 * "." and
 * ".."), so they stay good while versions come and go and a seek back shows the same names.
 *
 * A handle pins what it was opened on: a node keeps its generation from being retired for as long
 * as it is open.  All handles are in one list, because the kernel sends no RELEASE for those that
 * outlive the connection.
 *
 * Locks: front->lock guards the list.  A handle itself belongs to the requests that carry it; the
 * kernel sends RELEASE after the last of them was answered.
 */
#include "fs/ops.h"

#include <stdlib.h>

#include "fs/reply.h"
#include "fs/status.h"

struct front *front_new(struct stack *stack)
{
	struct front *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	f->stack = stack;
	lock_init(&f->lock, LOCK_QUEUE);
	lock_init(&f->recall_lock, LOCK_QUEUE);
	f->inodes = inodes_new(stack, 0);
	if (!f->inodes) {
		front_free(f);
		return NULL;
	}
	return f;
}

void front_close(struct front *f)
{
	while (f && f->handles)
		handle_close(f, f->handles);
}

void front_free(struct front *f)
{
	if (!f)
		return;
	front_close(f);
	inodes_free(f->inodes);
	lock_destroy(&f->recall_lock);
	lock_destroy(&f->lock);
	free(f);
}

struct front_handle *handle_new(struct front *f, const struct inode *inode)
{
	struct front_handle *h = calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	h->ino = inode->ino;
	h->of = inodes_ref(inode->of);
	lock_take(&f->lock);
	h->next = f->handles;
	if (h->next)
		h->next->prev = h;
	f->handles = h;
	lock_release(&f->lock);
	return h;
}

void handle_pin(struct front_handle *h, struct node *node)
{
	h->node = node_ref(node);
	node_opened(node);
}

void handle_pin_file(struct front_handle *h, struct node *node)
{
	handle_pin(h, node);
	h->whole = node_open_whole(node, h->ino);
}

void handle_close(struct front *f, struct front_handle *h)
{
	struct fuse_pollhandle *ph;

	lock_take(&f->lock);
	if (h->prev)
		h->prev->next = h->next;
	else
		f->handles = h->next;
	if (h->next)
		h->next->prev = h->prev;
	ph = h->ph;
	lock_release(&f->lock);
	if (ph)
		fuse_pollhandle_destroy(ph);
	if (h->load)
		history_load_closed(inodes_stack(h->of)->history, h->load);
	if (h->node) {
		whole_closed(inodes_stack(h->of)->nodes, h->whole);
		node_closed(h->node);
	}
	node_unref(h->node);
	blob_unref(h->blob);
	buf_release(&h->text);
	for (size_t i = 0; i < h->entry_count; i++)
		free(h->entries[i].name);
	free(h->entries);
	inodes_unref(h->of);
	free(h);
}

static int add_entry(void *ctx, const char *name, uint64_t ino, mode_t type)
{
	struct front_handle *h = ctx;
	struct handle_entry *e;

	if (h->entry_count == h->entry_cap) {
		size_t cap = h->entry_cap ? h->entry_cap * 2 : 16;

		e = realloc(h->entries, cap * sizeof(*e));
		if (!e)
			return -ENOMEM;
		h->entries = e;
		h->entry_cap = cap;
	}
	e = &h->entries[h->entry_count];
	*e = (struct handle_entry){.name = strdup(name), .ino = ino, .type = type};
	if (!e->name)
		return -ENOMEM;
	h->entry_count++;
	return 0;
}

void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct front *f = front_of(req);
	struct front_handle *h = NULL;
	struct inode dir;
	int ret;

	if (inode_get(f->inodes, ino, &dir) < 0) {
		reply_stale(req);
		return;
	}
	dir.viewer = load_viewer(req, &dir);
	ret = -ENOMEM;
	h = handle_new(f, &dir);
	if (!h)
		goto out;
	if (dir.node)
		handle_pin(h, dir.node);
	ret = add_entry(h, ".", ino, S_IFDIR);
	if (ret == 0)
		ret = add_entry(h, "..", INO_ROOT, S_IFDIR);
	if (ret == 0)
		ret = inode_each(&dir, add_entry, h);
out:
	inode_put(&dir);
	if (ret < 0) {
		if (h)
			handle_close(f, h);
		reply_err(req, ret);
		return;
	}
	fi->fh = (uintptr_t)h;
	if (fuse_reply_open(req, fi) == -ENOENT)
		handle_close(f, h); /* the caller was interrupted: there will be no release */
}

void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct front_handle *h = handle_of(fi);
	struct reply_buffer *b = reply_buffer_take(size);
	char *out = b ? b->data : NULL;
	size_t used = 0;

	if (!b) {
		reply_err(req, -ENOMEM);
		return;
	}
	for (size_t i = off < 0 ? SIZE_MAX : (size_t)off; i < h->entry_count; i++) {
		const struct handle_entry *e = &h->entries[i];
		struct stat st = {.st_ino = e->ino, .st_mode = e->type};
		size_t need =
			fuse_add_direntry(req, out + used, size - used, e->name, &st, (off_t)i + 1);

		if (need > size - used)
			break;
		used += need;
	}
	fuse_reply_buf(req, out, used);
	reply_buffer_give(b);
}

void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	handle_close(front_of(req), handle_of(fi));
	fuse_reply_err(req, 0);
}
