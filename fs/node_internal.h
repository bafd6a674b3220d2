/* SPDX-License-Identifier: Apache-2.0 */
/* The registry's inside, for node.c and node_whole.c. */
#ifndef FS_NODE_INTERNAL_H
#define FS_NODE_INTERNAL_H

#include "cache/lock.h"
#include "cache/table.h"
#include "fs/node.h"

struct nodes {
	struct lock lock;
	struct table *table; /* number -> node; guarded by lock */
	uint64_t next;	     /* atomic */
	bool whole;	     /* atomic: nodes may get whole files */
};

#endif
