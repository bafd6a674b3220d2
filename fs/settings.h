/* SPDX-License-Identifier: Apache-2.0 */
/* What is set at, and handed to, the kernel besides answers to requests. */
#ifndef FS_SETTINGS_H
#define FS_SETTINGS_H

#include <fuse_lowlevel.h>
#include <sys/types.h>

#include "fs/serving.h"

enum { SETTINGS_READ_AHEAD_KB = 1024, SETTINGS_MAX_BACKGROUND = 64 };

/* After INIT (which would set it back): the read-ahead window of the mount with this device number,
 * where we may.  What took effect is read back, logged and noted. */
void settings_apply(dev_t dev, struct serving *serving);
/*
 * Use of the connection's descriptor by threads that are no workers.  It is closed while they may
 * still be about to use it, and its number may be another file's a moment later.
 */
struct device {
	struct fuse_session *session;
	bool closed; /* atomic */
	int users;   /* atomic */
};

bool device_enter(struct device *d); /* false: it is closed, or about to be; then no leave */
void device_leave(struct device *d);
/* No new users; waits a moment for those that are there.  One that is stuck in the kernel by then
 * comes back when the connection ends. */
void device_close(struct device *d);

/* Puts bytes of an inode into the page cache; ctx is the struct device.  -ENOENT: the kernel does
 * not know the inode; -ENOTCONN: the connection has ended.  Never in a request's handler. */
int settings_push(void *ctx, uint64_t ino, uint64_t off, const void *data, size_t len);

#endif
