/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names and attributes: INIT, LOOKUP, GETATTR, READLINK, STATFS, extended attributes, and all the
 * ways to change something, which answer EROFS.
 *
 * Time limits are the whole cache protocol with the kernel.  A name that may mean another inode
 * later gets none, so that the kernel asks each time; what never changes gets a year; no
 * notifications are sent, which is what makes a dead lock with the kernel impossible.  An absent
 * name is a plain ENOENT, which the kernel does not remember.
 *
 * FORGET has no handler: numbers are not reused, so the kernel's count of what it knows decides
 * nothing.
 *
 * Everything here is answered from memory.  Threads: any worker.
 */
#include "fs/ops.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>

#include "fs/reply.h"
#include "fs/settings.h"
#include "fs/status.h"

static void want(struct fuse_conn_info *conn, uint64_t flag, bool on)
{
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
	if (on)
		fuse_set_feature_flag(conn, flag);
	else
		fuse_unset_feature_flag(conn, flag);
#else
	if (on)
		conn->want |= conn->capable & (unsigned)flag;
	else
		conn->want &= ~(unsigned)flag;
#endif
}

void op_init(void *userdata, struct fuse_conn_info *conn)
{
	want(conn, FUSE_CAP_ASYNC_READ, true);
	want(conn, FUSE_CAP_PARALLEL_DIROPS, true);
	/* Content never changes under a number, so there is nothing to invalidate. */
	want(conn, FUSE_CAP_AUTO_INVAL_DATA, false);
	/* Replies come from a reused buffer; splicing megabytes falls back to fresh memory. */
	want(conn, FUSE_CAP_SPLICE_READ, false);
	want(conn, FUSE_CAP_SPLICE_WRITE, false);
	want(conn, FUSE_CAP_SPLICE_MOVE, false);
	want(conn, FUSE_CAP_READDIRPLUS, false);
	want(conn, FUSE_CAP_CACHE_SYMLINKS, false);
	passthrough_init(&((struct front *)userdata)->passthrough, conn);
	conn->max_background = SETTINGS_MAX_BACKGROUND;
	conn->congestion_threshold = SETTINGS_MAX_BACKGROUND * 3 / 4;
}

static double attr_timeout(const struct inode *inode)
{
	return inode_immutable(inode) ? TIMEOUT_FOREVER : 0;
}

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct front *f = front_of(req);
	struct fuse_entry_param e = {0};
	struct inode dir, child;
	uint64_t epoch;
	int ret;

	COUNT(lookups, 1);
	if (strlen(name) > NAME_MAX) {
		reply_err(req, -ENAMETOOLONG);
		return;
	}
	if (inode_get(f->inodes, parent, &dir) < 0) {
		reply_stale(req);
		return;
	}
	epoch = load_epoch(&dir);
	dir.viewer = load_viewer(req, &dir);
	ret = inode_child(&dir, name, &child);
	load_looked_up(req, &dir, name, ret == 0 ? &child : NULL, epoch);
	if (ret == 0) {
		ret = inode_attr(&child, &e.attr);
		e.ino = child.ino;
		e.attr_timeout = attr_timeout(&child);
		e.entry_timeout = inode_name_fixed(&dir, &child) ? TIMEOUT_FOREVER : 0;
		inode_put(&child);
	}
	inode_put(&dir);
	if (ret < 0)
		reply_err(req, ret);
	else
		fuse_reply_entry(req, &e);
}

void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct front *f = front_of(req);
	struct inode inode;
	struct stat st;
	double timeout;
	int ret;

	if (inode_get(f->inodes, ino, &inode) < 0) {
		reply_stale(req);
		return;
	}
	ret = inode_attr(&inode, &st);
	timeout = attr_timeout(&inode);
	inode_put(&inode);
	if (ret < 0)
		reply_err(req, ret);
	else
		fuse_reply_attr(req, &st, timeout);
}

/* Our own heralds touch names so that watchers get an event; nothing is changed by it. */
static bool is_herald(fuse_req_t req, uint64_t ino)
{
	struct inode inode;
	int herald;

	if (inode_get(front_of(req)->inodes, ino, &inode) < 0)
		return false;
	herald = __atomic_load_n(&inodes_stack(inode.of)->serving.herald, __ATOMIC_RELAXED);
	inode_put(&inode);
	return herald && fuse_req_ctx(req)->pid == herald;
}

void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
		struct fuse_file_info *fi)
{
	/* A shell's "> control" truncates first where the kernel does not do that in the open. */
	int harmless = FUSE_SET_ATTR_SIZE | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW |
		       FUSE_SET_ATTR_CTIME;

	if (is_herald(req, ino) || (node_within(ino) == INO_CONTROL && !(to_set & ~harmless)))
		op_getattr(req, ino, fi);
	else
		reply_err(req, -EROFS);
}

void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	bool link = node_within(ino) == INO_CURRENT;
	struct buf target = {0};
	struct inode inode;

	if (inode_get(front_of(req)->inodes, ino, &inode) < 0) {
		reply_stale(req);
		return;
	}
	if (link)
		inode_target(&inode, &target);
	inode_put(&inode);
	if (target.failed)
		reply_err(req, -ENOMEM);
	else if (!target.len)
		reply_err(req, link ? -ENOENT : -EINVAL);
	else
		fuse_reply_readlink(req, buf_str(&target));
	buf_release(&target);
}

static void add_sizes(const struct node *n, uint64_t *bytes, uint64_t *files)
{
	*bytes += n->size;
	*files += 1;
	for (size_t i = 0; i < n->entry_count; i++)
		add_sizes(n->entries[i].node, bytes, files);
}

static void add_run(const struct inodes *run, uint64_t *bytes, uint64_t *files)
{
	struct generation *g = history_current(inodes_stack(run)->history);

	if (g)
		add_sizes(g->root, bytes, files);
	generation_unref(g);
}

/* At the top of several runs. */
static void add_runs(struct roster *r, uint64_t *bytes, uint64_t *files)
{
	struct roster_view v;

	if (roster_view(r, &v) < 0)
		return;
	for (size_t i = 0; i < v.count; i++)
		if (v.v[i].shown)
			add_run(v.v[i].inodes, bytes, files);
	roster_view_release(&v);
}

void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct statvfs st = {.f_bsize = 4096, .f_frsize = 4096, .f_namemax = NAME_MAX};
	uint64_t bytes = 0, files = 1;
	struct inode inode;

	if (inode_get(front_of(req)->inodes, ino, &inode) == 0) {
		if (inodes_are_several(inode.of))
			add_runs(front_of(req)->roster, &bytes, &files);
		else
			add_run(inode.of, &bytes, &files);
		inode_put(&inode);
	}
	/* Full, as any read-only filesystem is; but not of size 0, which tools take for a pseudo
	 * one. */
	st.f_blocks = bytes / st.f_bsize + 1;
	st.f_files = files;
	fuse_reply_statfs(req, &st);
}

static const char *const xattrs[] = {
	"user.weightfs.version",
	"user.weightfs.anchor",
	"user.weightfs.deltas",
	"user.weightfs.lineage",
};

/* The state that an inode belongs to, with a reference, or NULL: weight files, version trees and
 * the view. */
static struct state *state_of(const struct inode *inode)
{
	struct state *state = NULL;
	struct generation *g;
	struct node *node;

	if (inode->kind == INODE_NODE && inode->node->state)
		return state_ref(inode->node->state);
	if (inode->kind == INODE_VIEW_DIR && inode_view(inode, &g, &node) == 0) {
		if (g->state)
			state = state_ref(g->state);
		generation_unref(g);
	}
	return state;
}

/* -ENODATA when there is no such attribute. */
static int xattr_value(const struct inode *inode, const struct state *s, const char *name,
		       char *out, size_t cap)
{
	char lineage[9];

	if (strcmp(name, xattrs[0]) == 0)
		return snprintf(out, cap, "%llu", (unsigned long long)s->version);
	if (strcmp(name, xattrs[1]) == 0)
		return snprintf(out, cap, "%llu", (unsigned long long)s->anchor);
	if (strcmp(name, xattrs[2]) == 0)
		return snprintf(out, cap, "%u", s->deltas);
	if (strcmp(name, xattrs[3]) == 0 &&
	    history_lineage(inodes_stack(inode->of)->history, s, lineage))
		return snprintf(out, cap, "%s", lineage);
	return -ENODATA;
}

/* The reply to a probe (size 0) or to a call with a buffer. */
static void reply_xattr(fuse_req_t req, const char *value, size_t len, size_t size)
{
	if (!size)
		fuse_reply_xattr(req, len);
	else if (size < len)
		reply_err(req, -ERANGE);
	else
		fuse_reply_buf(req, value, len);
}

void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	struct front *f = front_of(req);
	struct inode inode;
	struct state *state;
	char value[32];
	int ret = -ENODATA;

	if (inode_get(f->inodes, ino, &inode) < 0) {
		reply_stale(req);
		return;
	}
	state = state_of(&inode);
	if (state)
		ret = xattr_value(&inode, state, name, value, sizeof(value));
	state_unref(state);
	inode_put(&inode);
	if (ret < 0)
		reply_err(req, ret);
	else
		reply_xattr(req, value, (size_t)ret, size);
}

void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	struct front *f = front_of(req);
	struct buf names = {0};
	struct inode inode;
	struct state *state;

	if (inode_get(f->inodes, ino, &inode) < 0) {
		reply_stale(req);
		return;
	}
	state = state_of(&inode);
	inode_put(&inode);
	for (size_t i = 0; state && i < ARRAY_LEN(xattrs); i++)
		buf_add(&names, xattrs[i], strlen(xattrs[i]) + 1);
	state_unref(state);
	if (names.failed)
		reply_err(req, -ENOMEM);
	else
		reply_xattr(req, names.data, names.len, size);
	buf_release(&names);
}

/* ---- whatever changes something ---- */

static void ro_name(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	reply_err(req, -EROFS);
}

static void ro_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	reply_err(req, -EROFS);
}

static void ro_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	reply_err(req, -EROFS);
}

static void ro_symlink(fuse_req_t req, const char *link, fuse_ino_t parent, const char *name)
{
	reply_err(req, -EROFS);
}

static void ro_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent,
		      const char *newname, unsigned int flags)
{
	reply_err(req, -EROFS);
}

static void ro_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent, const char *newname)
{
	reply_err(req, -EROFS);
}

static void ro_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
		      struct fuse_file_info *fi)
{
	reply_err(req, -EROFS);
}

static void ro_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value,
			size_t size, int flags)
{
	reply_err(req, -EROFS);
}

static void ro_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
			 struct fuse_file_info *fi)
{
	reply_err(req, -EROFS);
}

const struct fuse_lowlevel_ops front_ops = {
	.init = op_init,
	.lookup = op_lookup,
	.getattr = op_getattr,
	.setattr = op_setattr,
	.readlink = op_readlink,
	.statfs = op_statfs,
	.getxattr = op_getxattr,
	.listxattr = op_listxattr,
	.open = op_open,
	.read = op_read,
	.write = op_write,
	.poll = op_poll,
	.release = op_release,
	.opendir = op_opendir,
	.readdir = op_readdir,
	.releasedir = op_release,
	.mknod = ro_mknod,
	.mkdir = ro_mkdir,
	.unlink = ro_name,
	.rmdir = ro_name,
	.symlink = ro_symlink,
	.rename = ro_rename,
	.link = ro_link,
	.create = ro_create,
	.setxattr = ro_setxattr,
	.removexattr = ro_name,
	.fallocate = ro_fallocate,
};
