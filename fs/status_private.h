/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of status that are about bytes of remote objects and about loads, for status.c. */
#ifndef FS_STATUS_PRIVATE_H
#define FS_STATUS_PRIVATE_H

#include "fs/history.h"
#include "fs/stack.h"

#include <jansson.h>

/* Lines of the status text; nothing when no source is remote. */
void status_blocks_text(const struct stack *s, struct buf *out);
/* A new object; null when no source is remote. */
json_t *status_blocks_json(const struct stack *s);
/* What the kernel gives to the mount, and how the newest version's preparation goes: lines,
 * members put into the object, metrics. */
void status_serving_text(struct stack *s, struct buf *out);
json_t *status_serving_json(struct stack *s);
void status_serving_metrics(struct stack *s, struct buf *out);

/* "# HELP", "# TYPE" and a value, of status.c. */
void status_metric(struct buf *out, const char *name, const char *type, const char *help,
		   uint64_t value);

/* What weightfs.json says of the run; null or nothing without one.  `r` may be NULL. */
void status_pointer_text(const struct run_report *r, struct buf *out);
json_t *status_pointer_json(const struct run_report *r);
json_t *status_spans_json(const struct run_report *r);

/* A snapshot of the loads by plain path. */
struct status_loads {
	struct history_load *v;
	size_t count, holders;
	const struct history_load *holder; /* one of those that hold, or NULL */
	uint64_t expired;
	int64_t now;
};
void status_loads_take(struct stack *s, struct status_loads *out);
void status_loads_release(struct status_loads *l);
/* Who holds, as the end of a line: `back` a newer version, or just so. */
void status_loads_line(const struct status_loads *l, bool back, struct buf *out);
void status_loads_text(const struct status_loads *l, struct buf *out);
json_t *status_loads_json(const struct status_loads *l); /* a new array */
void status_loads_metrics(const struct status_loads *l, struct buf *out);

/* Reads, opens and what deltas have cost; status_counters.c. */
void status_counters_text(struct buf *out);
json_t *status_counters_json(void);

#endif
