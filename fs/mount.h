/* SPDX-License-Identifier: Apache-2.0 */
/* Mount: the life of one mount, from parsed options to the process's exit code.  Declares nothing
 * of FUSE. */
#ifndef FS_MOUNT_H
#define FS_MOUNT_H

#include "fs/opts.h"

/* Everything `weightfs mount` does after its options were parsed; paths in them are absolute.  Goes
 * to the background unless opts->foreground; returns the exit code, in both processes.  Errors have
 * been told. */
int mount_run(struct opts *opts);

#endif
