/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The FUSE front: the handlers of the low-level API and what they share.
 *
 * A handler answers its request exactly once, holds no lock while it does, and does not send
 * notifications (but for poll).  Only reads, opens below bucket/ and writes to control may block.
 * Handles are listed so that those the kernel never released (a lazy unmount) are freed at the end.
 */
#ifndef FS_OPS_H
#define FS_OPS_H

#include <fuse_lowlevel.h>

#include "cache/lock.h"
#include "fs/inode.h"
#include "fs/passthrough.h"
#include "fs/recall.h"
#include "fs/roster.h"
#include "fs/stack.h"

#define TIMEOUT_FOREVER (365.0 * 86400)

struct handle_entry { /* of a directory, as it was when it was opened */
	char *name;
	uint64_t ino;
	mode_t type;
};

struct front_handle {
	struct front_handle *prev, *next; /* guarded by front->lock */
	uint64_t ino;
	struct inodes *of; /* a reference: the run it belongs to */
	/* a file or directory of a generation, or an object of the bucket */
	struct node *node;
	struct whole *whole; /* the kernel reads this one by itself */
	struct blob *blob;
	uint64_t load; /* of the load guard: whose open this is, or 0 */
	/* a directory */
	struct handle_entry *entries;
	size_t entry_count, entry_cap;
	/* a special file; guarded by front->lock from here on */
	bool special, returned; /* returned: this content has been read */
	struct buf text; /* what reads of this handle return: content, or the reply of control */
	off_t text_base; /* control: file position of the reply, -1 until it is read */
	struct fuse_pollhandle *ph; /* whom to wake, or NULL; ours */
};

struct front {
	struct passthrough passthrough; /* first */
	struct stack *stack;		/* borrowed */
	struct inodes *inodes;
	struct roster *roster; /* borrowed; set before the session's loop, or NULL */
	struct lock lock;      /* LOCK_QUEUE: handles */
	struct front_handle *handles;
	struct lock recall_lock; /* LOCK_QUEUE: recall */
	struct recall recall;
};

struct front *front_new(struct stack *stack); /* NULL: out of memory */
/* After the session has ended: gives up what handles are left.  NULL is fine, in both. */
void front_close(struct front *f);
void front_free(struct front *f);
/* All handlers; userdata of the session is the struct front. */
extern const struct fuse_lowlevel_ops front_ops;
/* history_subscribe: wakes those who poll version and newest.  ctx is the front. */
void front_changed(void *ctx);

static inline struct front *front_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

/* A new handle in the list; NULL: out of memory. */
struct front_handle *handle_new(struct front *f, const struct inode *inode);
/* Pins a node (takes a reference) until the handle is closed. */
void handle_pin(struct front_handle *h, struct node *node);
/* The same for a file, by the number it is opened as. */
void handle_pin_file(struct front_handle *h, struct node *node);
void handle_close(struct front *f, struct front_handle *h);

static inline struct front_handle *handle_of(const struct fuse_file_info *fi)
{
	return (struct front_handle *)(uintptr_t)fi->fh;
}

/* ops_meta.c */
void op_init(void *userdata, struct fuse_conn_info *conn);
void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
		struct fuse_file_info *fi);
void op_readlink(fuse_req_t req, fuse_ino_t ino);
void op_statfs(fuse_req_t req, fuse_ino_t ino);
void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size);
void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size);

/* ops_dir.c */
void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);

/* ops_data.c */
void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);

/* ops_load.c */
/* The process for whom names are looked up, where that makes a difference, else 0. */
int load_viewer(fuse_req_t req, const struct inode *dir);
/* Before a name is looked up: for load_looked_up(). */
uint64_t load_epoch(const struct inode *dir);
/* A name was looked up; child NULL: not found. */
void load_looked_up(fuse_req_t req, const struct inode *dir, const char *name,
		    const struct inode *child, uint64_t epoch);
/* A file of a generation is being opened.  -ESTALE: answer that, the kernel looks the name up
 * again. -ENOMEM. */
int load_opened(fuse_req_t req, struct front_handle *h, const struct node *node) MUST_CHECK;

/* ops_special.c */
void special_open(fuse_req_t req, const struct inode *inode, struct fuse_file_info *fi);
void special_read(fuse_req_t req, struct front_handle *h, size_t size, off_t off);
void op_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size, off_t off,
	      struct fuse_file_info *fi);
void op_poll(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct fuse_pollhandle *ph);

#endif
