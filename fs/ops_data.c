/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data: opening and reading files of generations and objects of the bucket.
 *
 * Pages stay in the kernel from one open to the next (keep_cache), which is right because a number
 * never changes its content.  A read is answered with exactly the bytes that were asked for, up to
 * the end of the file, or with an error: a short reply would be taken for the end of the file and
 * kept as such.
 *
 * A file that the kernel reads by itself (passthrough) is opened here and closed here, and that is
 * all we hear of it.
 *
 * A handle pins its node, so a file reads as the version that was opened for as long as it is open
 * or mapped, whatever became current since.
 *
 * Threads: any worker; reads block on the store with its deadline, with no lock held.
 */
#include "fs/ops.h"

#include "cache/clock.h"
#include "cache/log.h"
#include "fs/reply.h"
#include "fs/status.h"

static bool wants_to_write(const struct fuse_file_info *fi)
{
	return (fi->flags & O_ACCMODE) != O_RDONLY || (fi->flags & O_TRUNC);
}

/* One line a second at most, with the number of those left out. */
static void log_read_error(const struct front_handle *h, uint64_t off, size_t len, int err)
{
	static int64_t next_ns;	 /* atomic */
	static unsigned dropped; /* atomic */
	int64_t now = clock_mono_ns(), next = __atomic_load_n(&next_ns, __ATOMIC_RELAXED);
	const char *name = "a file";
	unsigned long long version = 0;
	unsigned more;

	if (now < next || !__atomic_compare_exchange_n(&next_ns, &next, now + NSEC_PER_SEC, false,
						       __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
		__atomic_fetch_add(&dropped, 1, __ATOMIC_RELAXED);
		return;
	}
	more = __atomic_exchange_n(&dropped, 0, __ATOMIC_RELAXED);
	if (h->node && h->node->kind == NODE_WEIGHTS) {
		name = h->node->state->layout->files[h->node->file].name;
		version = h->node->state->version;
	} else if (h->blob || h->node->kind == NODE_BLOB) {
		name = h->blob ? h->blob->key : h->node->blob->key;
	}
	log_error("reading %s%s%.0llu at %llu, %zu bytes: %s%s", name,
		  version ? " of version " : "", version, (unsigned long long)off, len,
		  strerrordesc_np(-err), more ? " (and more like it)" : "");
}

static void reply_opened(fuse_req_t req, struct front_handle *h, struct fuse_file_info *fi)
{
	fi->fh = (uintptr_t)h;
	fi->keep_cache = 1;
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 11)
	fi->noflush = 1;
#endif
	COUNT(opens, 1);
	if (h->whole)
		passthrough_reply(&front_of(req)->passthrough, h->whole, fi);
	if (fuse_reply_open(req, fi) == -ENOENT)
		handle_close(front_of(req), h);
}

/* The one open that does I/O.  What the listing says of the object now counts (its rights may have
 * changed); -ESTALE: it is not the object of that number any more. */
static int open_object(const struct place *place, struct front_handle *h)
{
	struct listing_ref *l = inodes_listing(h->of);
	const struct object *o = l ? listing_find(&l->listing, place->path) : NULL;
	struct why why = {0};
	int ret = -ESTALE;

	if (o && identity_equal(&o->id, &place->object.id)) {
		ret = -o->err;
		if (!ret)
			ret = blob_open(inodes_store(h->of), o, false, &h->blob, &why);
		if (ret < 0 && why.text[0])
			log_info("bucket/%s: %s", place->path, why.text);
	}
	listing_unref(l);
	return ret;
}

static int open_node(fuse_req_t req, struct front_handle *h, struct node *node)
{
	int ret = load_opened(req, h, node);

	if (ret == 0)
		handle_pin_file(h, node);
	return ret;
}

void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct front *f = front_of(req);
	struct front_handle *h;
	struct inode inode;
	int ret = 0;

	if (wants_to_write(fi) && node_within(ino) != INO_CONTROL) {
		reply_err(req, -EROFS);
		return;
	}
	if (inode_get(f->inodes, ino, &inode) < 0) {
		reply_stale(req);
		return;
	}
	if (inode.kind == INODE_FIXED) {
		special_open(req, &inode, fi);
		inode_put(&inode);
		return;
	}
	h = handle_new(f, &inode);
	if (!h)
		ret = -ENOMEM;
	else if (inode.kind == INODE_BUCKET_FILE)
		ret = open_object(inode.place, h);
	else if (inode.kind == INODE_NODE && inode.node->kind != NODE_DIR)
		ret = open_node(req, h, inode.node);
	else
		ret = -EISDIR;
	inode_put(&inode);
	if (ret == 0) {
		reply_opened(req, h, fi);
		return;
	}
	if (h)
		handle_close(f, h);
	if (ret == -ESTALE)
		reply_stale(req);
	else
		reply_err(req, ret);
}

/* Answers with what lies in memory as it is asked for.  Should pages not be there any more when the
 * kernel takes them, it answers the reader with EIO itself.  False: it is to be read. */
static bool reply_lent(fuse_req_t req, struct front_handle *h, uint64_t at, size_t len)
{
	struct blob_loan l;
	int ret;

	if (len < LOAN_MIN)
		return false;
	ret = h->node ? node_lend(h->node, at, len, &l) : blob_lend(h->blob, at, len, &l);
	if (ret < 0)
		return false;
	/* Before the answer: who has it finds it counted. */
	COUNT(reads, 1);
	COUNT(read_bytes, len);
	ret = fuse_reply_buf(req, l.loan.bytes, len);
	/* Now the handle may be closed and gone. */
	if (ret == -EFAULT) {
		COUNT(read_bytes, -(uint64_t)len);
		COUNT(read_errors, 1);
		log_error("reading %s: it was cut short meanwhile", l.blob->key);
	}
	blob_loan_end(&l);
	return true;
}

void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct front_handle *h = handle_of(fi);
	uint64_t end, at = (uint64_t)off;
	struct reply_buffer *b;
	size_t len;
	int ret;

	if (h->special) {
		special_read(req, h, size, off);
		return;
	}
	end = h->node ? h->node->size : h->blob->size;
	if (off < 0 || at >= end) {
		fuse_reply_buf(req, NULL, 0);
		return;
	}
	len = (size_t)MIN((uint64_t)size, end - at);
	if (reply_lent(req, h, at, len))
		return;
	b = reply_buffer_take(len);
	if (!b)
		ret = -ENOMEM;
	else if (h->node)
		ret = node_read(h->node, at, b->data, len);
	else
		ret = blob_read(h->blob, at, b->data, len);
	COUNT(reads, 1);
	if (ret < 0) {
		COUNT(read_errors, 1);
		log_read_error(h, at, len, ret);
		reply_read_err(req, ret);
	} else {
		COUNT(read_bytes, len);
		fuse_reply_buf(req, b->data, len);
	}
	reply_buffer_give(b);
}
