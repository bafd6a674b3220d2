/* SPDX-License-Identifier: Apache-2.0 */
/* The part of status that is about bytes of remote objects, for status.c. */
#ifndef FS_STATUS_PRIVATE_H
#define FS_STATUS_PRIVATE_H

#include "fs/stack.h"

#include <jansson.h>

/* Lines of the status text; nothing when no source is remote. */
void status_blocks_text(const struct stack *s, struct buf *out);
/* A new object; null when no source is remote. */
json_t *status_blocks_json(const struct stack *s);

#endif
