/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of status that are about bytes of remote objects and about loads, for status.c. */
#ifndef FS_STATUS_PRIVATE_H
#define FS_STATUS_PRIVATE_H

#include "fs/history.h"
#include "fs/stack.h"

#include <jansson.h>

/* A snapshot of the loads by plain path. */
struct status_loads {
	struct history_load *v;
	size_t count, holders;
	const struct history_load *holder; /* one of those that hold, or NULL */
	uint64_t expired;
	int64_t now;
};

/* The snapshots that an answer is made of. */
struct status_view {
	struct stack *stack;
	struct generation *current, *newest; /* references, or NULL */
	struct run_report *report;	     /* a reference, or NULL */
	struct history_entry *kept;
	size_t kept_count;
	struct status_loads loads;
	int64_t now_real, held_ns; /* held_ns: how much longer, or 0 */
	bool weights;		   /* the current generation has some */
};

void status_view_take(struct status_view *v, struct stack *s);
void status_view_release(struct status_view *v);

/* Lines of the status text; nothing when no source is remote. */
void status_blocks_text(const struct stack *s, struct buf *out);
/* A new object; null when no source is remote. */
json_t *status_blocks_json(const struct stack *s);
/* What the kernel gives to the mount, and how the newest version's preparation goes: lines,
 * members put into the object, metrics. */
void status_serving_text(struct stack *s, struct buf *out);
json_t *status_serving_json(struct stack *s);
void status_serving_metrics(struct stack *s, struct buf *out);

/* Pieces of status.c.  Lines, metrics and values that are the process's and no single run's. */
void status_cache_text(const struct stack *s, struct buf *out);
void status_store_text(struct store *store, const char *what, struct buf *out);
void status_process_metrics(const struct stack *s, struct buf *out);
json_t *status_options_json(const struct opts *opts);
json_t *status_store_json(struct store *store);
/* Adds what is the process's, appends the document as text and gives it up. */
void status_end_json(json_t *root, struct buf *out);
json_t *status_text_json(const char *text); /* in UTF-8; null of NULL */
/* What is current and newest, the line, and how many problems there are. */
json_t *status_summary_json(struct stack *s);
void status_metric_head(struct buf *out, const char *name, const char *type, const char *help);
void status_label(struct buf *out, const char *name, const char *value);

/* "# HELP", "# TYPE" and a value. */
void status_metric(struct buf *out, const char *name, const char *type, const char *help,
		   uint64_t value);

/* What weightfs.json says of the run; null or nothing without one.  `r` may be NULL. */
void status_pointer_text(const struct run_report *r, struct buf *out);
json_t *status_pointer_json(const struct run_report *r);
json_t *status_spans_json(const struct run_report *r);

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
