/* SPDX-License-Identifier: Apache-2.0 */
/* What disk.c and disk_file.c share.  Everybody else includes cache/disk.h. */
#ifndef CACHE_DISK_INTERNAL_H
#define CACHE_DISK_INTERNAL_H

#include "cache/disk.h"

enum { DISK_NAME_SIZE = 48 };

struct disk {
	char *path, *holder;
	int dir_fd;
	int lock_fd; /* -1: it cannot be written */
	bool owned;  /* atomic */
};

void disk_name(const struct identity *id, const char *suffix, char out[DISK_NAME_SIZE]);

#endif
