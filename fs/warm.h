/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warming: puts a version's bytes into the page cache under the numbers that its files will be
 * opened by, so that loading it asks us for nothing.
 *
 * Done by handing the bytes to the kernel and not by reading the files, which would keep the mount
 * busy (an open file is a reason not to unmount) and look to the guard like somebody who loads.
 * One thread, which is no FUSE worker and holds no lock.
 */
#ifndef FS_WARM_H
#define FS_WARM_H

#include "fs/history.h"

struct warm_config {
	const char *mountpoint;
	uint64_t budget; /* bytes for one version; 0: half of what memory has left */
	/* Puts bytes of an inode into the page cache: -ENOENT: the kernel does not know it (any
	 * more), -ENOTCONN: the mount has ended. */
	int (*push)(void *ctx, uint64_t ino, uint64_t off, const void *data, size_t len);
	void *push_ctx;
	bool (*stopped)(void *ctx);
	void *ctx;
};

struct warm_result {
	uint64_t done, total; /* bytes */
	const char *why;      /* why it ended before the total, or NULL */
	bool ends;	      /* because the mount ends */
};

/* Files that are whole ones are left out: they were read when they were written. */
void warm_version(const struct warm_config *config, const struct generation *g,
		  struct warm_result *out);

#endif
