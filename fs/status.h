/* SPDX-License-Identifier: Apache-2.0 */
/* Status: what is served and why, as one line, as text, as JSON and for Prometheus.  Any thread;
 * takes snapshots, no lock held while formatting. */
#ifndef FS_STATUS_H
#define FS_STATUS_H

#include "fs/counters.h"
#include "fs/stack.h"

/* The one line, without newline. */
void status_line(struct stack *s, struct buf *out);
void status_text(struct stack *s, struct buf *out);
void status_json(struct stack *s, struct buf *out);
void status_metrics(struct stack *s, struct buf *out);

#endif
