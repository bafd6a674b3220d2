/* SPDX-License-Identifier: Apache-2.0 */
/* Mount points: what is mounted where, whether a directory can be mounted on, and unmounting, as
 * root or through fusermount3. Blocks. */
#ifndef FS_MOUNTPOINT_H
#define FS_MOUNTPOINT_H

#include "codec/base.h"

#define MOUNT_TYPE "fuse.weightfs"

/* Absolute path without symbolic links and "..", also of a mount point whose process has died;
 * malloc'ed. -errno with a sentence. */
int mountpoint_resolve(const char *path, char **out, struct why *why) MUST_CHECK;
/* Type of the filesystem mounted at exactly that path (the topmost), e.g. "fuse.weightfs"; "" when
 * nothing is. */
int mountpoint_type(const char *path, char *out, size_t cap) MUST_CHECK;
/* Makes sure that a resolved path can be mounted on: a directory, empty (unless `nonempty`), no
 * live weightfs.  A dead one is cleaned away. */
int mountpoint_prepare(const char *path, bool nonempty, struct why *why) MUST_CHECK;
/* Takes the weightfs mount at that path down, whoever asks.  -EBUSY while it is in use (unless
 * lazy), -EINVAL when it is none; with a sentence. */
int mountpoint_umount(const char *path, bool lazy, struct why *why) MUST_CHECK;
/* Is `path` the directory `dir` or below it?  Both resolved. */
bool path_inside(const char *path, const char *dir);

#endif
