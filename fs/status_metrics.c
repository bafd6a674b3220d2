/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status for Prometheus: what belongs to one run, and what belongs to the process.
 *
 * Made from the same snapshots as the text (fs/status.c).  Names and values only; a version that
 * is not there yet is NaN.
 *
 * Threads: any.
 */
#include "fs/status.h"

#include "fs/status_private.h"

#include "cache/block.h"
#include "cache/clock.h"

typedef unsigned long long ull;

static uint64_t counter(const uint64_t *c)
{
	return __atomic_load_n(c, __ATOMIC_RELAXED);
}

void status_metric_head(struct buf *out, const char *name, const char *type, const char *help)
{
	buf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void status_metric(struct buf *out, const char *name, const char *type, const char *help,
		   uint64_t value)
{
	status_metric_head(out, name, type, help);
	buf_addf(out, "%s %llu\n", name, (ull)value);
}

/* A version, or NaN while there is none. */
static void metric_version(struct buf *out, const char *name, const char *help,
			   const struct generation *g)
{
	status_metric_head(out, name, "gauge", help);
	if (g != NULL && g->state != NULL)
		buf_addf(out, "%s %llu\n", name, (ull)g->version);
	else
		buf_addf(out, "%s NaN\n", name);
}

/* name="value" as the text format wants it escaped; the value in UTF-8. */
void status_label(struct buf *out, const char *name, const char *value)
{
	char shown[1024];

	buf_addf(out, "%s=\"", name);
	for (const char *p = printable(shown, sizeof(shown), value, strlen(value)); *p != '\0'; p++)
		buf_addf(out, *p == '\\' ? "\\%c" : "%c", *p);
	buf_addstr(out, "\"");
}

static void metrics_info(const struct status_view *v, struct buf *out)
{
	bool g = v->weights;

	status_metric_head(out, "weightfs_info", "gauge", "What is mounted; always 1.");
	buf_addstr(out, "weightfs_info{");
	status_label(out, "version", WEIGHTFS_VERSION);
	buf_addstr(out, ",");
	status_label(out, "source", v->stack->store->name);
	buf_addstr(out, ",");
	status_label(out, "lineage", g ? v->current->lineage : "");
	buf_addstr(out, ",");
	status_label(out, "format", g ? v->current->format : "");
	buf_addstr(out, "} 1\n");
}

static void metrics_view(const struct status_view *v, struct buf *out)
{
	const struct run_report *r = v->report;
	uint64_t opens = 0;

	for (size_t i = 0; i < v->kept_count; i++)
		opens += v->kept[i].opens > 0 ? (uint64_t)v->kept[i].opens : 0;
	metrics_info(v, out);
	metric_version(out, "weightfs_version", "Version that the plain paths show.", v->current);
	metric_version(out, "weightfs_newest_version", "Newest whole version.", v->newest);
	status_metric_head(
		out, "weightfs_verified", "gauge",
		"Of what is recorded of the current version's tensors: 1 all was compared, "
		"0.5 a part, 0 nothing.");
	buf_addf(out, "weightfs_verified %g\n",
		 v->weights ? 0.5 * __atomic_load_n(&v->current->verified, __ATOMIC_RELAXED) : 0.0);
	status_metric(out, "weightfs_versions_kept", "gauge", "Versions that can be opened.",
		      v->kept_count);
	status_metric(out, "weightfs_open_handles", "gauge",
		      "Open files and directories of versions.", opens);
	status_metric(out, "weightfs_problems", "gauge", "Objects that cannot be used.",
		      r != NULL ? r->problem_count : 0);
	status_metric(out, "weightfs_source_reachable", "gauge",
		      "1 when the last listing succeeded.", r != NULL && r->store_error == NULL);
	status_metric_head(out, "weightfs_last_scan_timestamp_seconds", "gauge",
			   "When the source was last looked at.");
	buf_addf(out, "weightfs_last_scan_timestamp_seconds %.3f\n",
		 r != NULL ? (double)run_report_time(r) / NSEC_PER_SEC : 0.0);
}

static void metrics_blocks(const struct stack *s, struct buf *out)
{
	struct blockcache_stats st;

	if (s->blocks == NULL)
		return;
	blockcache_stats(s->blocks, &st);
	status_metric(out, "weightfs_block_disk_bytes", "gauge", "Remote bytes kept on disk.",
		      st.used);
	status_metric(out, "weightfs_block_memory_bytes", "gauge",
		      "Remote bytes in memory that could not be kept on disk.", st.memory);
	status_metric(out, "weightfs_block_hit_bytes_total", "counter",
		      "Remote bytes read from disk.", st.hit_bytes);
	status_metric(out, "weightfs_fetches_total", "counter", "Ranges asked of stores.",
		      st.requests);
	status_metric(out, "weightfs_fetch_errors_total", "counter", "Ranges that did not come.",
		      st.failed);
	status_metric(out, "weightfs_fetched_bytes_total", "counter",
		      "Bytes that came from stores.", st.fetched_bytes);
	status_metric(out, "weightfs_block_evicted_bytes_total", "counter",
		      "Remote bytes dropped to make room.", st.evicted_bytes);
	status_metric(out, "weightfs_block_damaged_total", "counter",
		      "Pieces and files on disk found damaged, and dropped.", st.damaged);
}

void status_metrics(struct stack *s, struct buf *out)
{
	struct status_view v;

	status_view_take(&v, s);
	metrics_view(&v, out);
	status_loads_metrics(&v.loads, out);
	status_view_release(&v);
	status_process_metrics(s, out);
	status_serving_metrics(s, out);
}

void status_process_metrics(const struct stack *s, struct buf *out)
{
	status_metric(out, "weightfs_versions_published_total", "counter", "Versions made visible.",
		      counter(&counters.versions_published));
	status_metric(out, "weightfs_reads_total", "counter", "Read requests.",
		      counter(&counters.reads));
	status_metric(out, "weightfs_read_bytes_total", "counter", "Bytes read.",
		      counter(&counters.read_bytes));
	status_metric(out, "weightfs_read_errors_total", "counter", "Read requests that failed.",
		      counter(&counters.read_errors));
	status_metric(out, "weightfs_opens_total", "counter", "Files opened.",
		      counter(&counters.opens));
	status_metric(out, "weightfs_lookups_total", "counter", "Names looked up.",
		      counter(&counters.lookups));
	metrics_blocks(s, out);
}
