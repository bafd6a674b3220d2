/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passthrough: opens that the kernel serves from a plain file, without us.
 *
 * Formats: FUSE's protocol (uapi/linux/fuse.h): INIT's flags2 bit 5 and max_stack_depth, OPEN's
 * FOPEN_PASSTHROUGH and backing_id, the ioctls BACKING_OPEN and BACKING_CLOSE of the fuse device;
 * kernel 6.9.  From libfuse 3.17 on the replies are its own business; from 3.13 on we complete them
 * on their way out; older ones have no passthrough.
 */
#ifndef FS_PASSTHROUGH_H
#define FS_PASSTHROUGH_H

#include <fuse_lowlevel.h>

#include "fs/node.h"
#include "fs/settings.h"

/* The first member of the session's userdata: that is what libfuse gives to our functions. */
struct passthrough {	       /* zeroed: not used */
	struct device *device; /* borrowed */
	bool wanted;	       /* set before the session's loop */
	bool offered;	       /* the kernel has it; atomic, written by INIT */
};

/* After the session was mounted: has INIT ask for it.  -ENOTSUP with a sentence: this libfuse
 * cannot, or we may not. */
int passthrough_want(struct passthrough *p, struct fuse_session *se, struct why *why) MUST_CHECK;
/* In the INIT handler. */
void passthrough_init(struct passthrough *p, struct fuse_conn_info *conn);
/* Tries it on a file of a directory where whole files would lie: 0, or why not. */
int passthrough_try(struct passthrough *p, const char *dir, struct why *why) MUST_CHECK;
/* Directly before fuse_reply_open(), in its thread. */
void passthrough_reply(struct passthrough *p, const struct whole *w, struct fuse_file_info *fi);
extern const struct whole_ops
	passthrough_ops; /* ctx: the struct device, which outlives all nodes */

#endif
