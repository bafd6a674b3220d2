/* SPDX-License-Identifier: Apache-2.0 */
/* Which files beside the weights belong to a checkpoint.  Pure. */
#ifndef FS_COMPANIONS_H
#define FS_COMPANIONS_H

#include <stdbool.h>

/* Does a file of this name hold weights, in any format?  Such are no companions. */
bool companions_weights(const char *key);

#endif
