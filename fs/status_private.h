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

/* What weightfs.json says of the run; null or nothing without one.  `r` may be NULL. */
void status_pointer_text(const struct run_report *r, struct buf *out);
json_t *status_pointer_json(const struct run_report *r);
json_t *status_spans_json(const struct run_report *r);

#endif
