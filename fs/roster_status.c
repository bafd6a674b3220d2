/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What .weightfs at the top of several runs says: a line for each run, as that run says it itself,
 * and what belongs to the process as a whole.
 *
 * Made from a view of the roster; the runs' own snapshots follow one after the other, so that the
 * lines of two runs may be of two moments.
 *
 * Threads: any.
 */
#include "fs/roster.h"

#include "cache/clock.h"
#include "fs/human.h"
#include "fs/status.h"
#include "fs/status_private.h"

typedef unsigned long long ull;

static size_t count_shown(const struct roster_view *v)
{
	size_t n = 0;

	for (size_t i = 0; i < v->count; i++)
		n += v->v[i].shown;
	return n;
}

static void make_line(struct roster *r, const struct roster_view *v, struct buf *out)
{
	struct stack *top = roster_top(r);
	size_t shown = count_shown(v);

	if (v->count == 0)
		buf_addf(out, "waiting: no run in %s yet", top->store->name);
	else
		buf_addf(out, "%zu run%s in %s", v->count, v->count == 1 ? "" : "s",
			 top->store->name);
	if (shown < v->count)
		buf_addf(out, "; %zu of them not shown yet", v->count - shown);
	if (v->listing.err != 0)
		buf_addf(out, "; %s", v->listing.text);
}

void roster_line(struct roster *r, struct buf *out)
{
	struct roster_view v;

	if (roster_view(r, &v) < 0) {
		out->failed = true;
		return;
	}
	make_line(r, &v, out);
	roster_view_release(&v);
}

static void run_line(const struct roster_entry *e, struct buf *out)
{
	buf_addf(out, "  %s: ", SHOWN(e->path));
	if (e->inodes == NULL && e->trouble.err == 0)
		buf_addstr(out, "being set up");
	else if (e->inodes == NULL)
		buf_addf(out, "not shown: %s", e->trouble.text);
	else if (!e->shown)
		buf_addstr(out, "being looked at for the first time: ");
	if (e->inodes != NULL)
		status_line(inodes_stack(e->inodes), out);
	buf_addstr(out, "\n");
}

void roster_text(struct roster *r, struct buf *out)
{
	struct stack *top = roster_top(r);
	struct roster_view v;

	if (roster_view(r, &v) < 0) {
		out->failed = true;
		return;
	}
	make_line(r, &v, out);
	buf_addstr(out, "\n");
	for (size_t i = 0; i < v.count; i++)
		run_line(&v.v[i], out);
	buf_addf(out, "source: %s\n", top->store->name);
	status_store_text(top->store, "  access", out);
	if (top->base != NULL) {
		buf_addf(out, "base: %s\n", top->base->name);
		status_store_text(top->base, "  access", out);
	}
	buf_addf(out, "mounted on: %s\nmounted since: ", top->opts->mountpoint);
	human_date(out, top->started_real_ns);
	buf_addstr(out, "\n");
	if (v.top || v.shut[0] != '\0')
		buf_addstr(out, "notes:\n");
	if (v.shut[0] != '\0')
		buf_addf(out, "  %s\n", v.shut);
	if (v.top)
		buf_addstr(out, "  what lies at the top of the source would make it one run, "
				"and is shown as it is; to have it as a run: mount with --runs "
				"one\n");
	if (v.listed_real_ns != 0) {
		buf_addstr(out, "last listing: ");
		human_date(out, v.listed_real_ns);
		buf_addstr(out, "\n");
	}
	roster_view_release(&v);
	status_counters_text(out);
	status_cache_text(top, out);
	status_blocks_text(top, out);
	buf_addf(out, "weightfs %s\n", WEIGHTFS_VERSION);
}

/* Takes value. */
static void put(json_t *object, const char *key, json_t *value)
{
	if (json_object_set_new(object, key, value) < 0)
		return; /* for want of memory: the dump is then incomplete */
}

static json_t *run_json(const struct roster_entry *e)
{
	json_t *o =
		e->inodes != NULL ? status_summary_json(inodes_stack(e->inodes)) : json_object();

	put(o, "path", status_text_json(e->path));
	put(o, "shown", json_boolean(e->shown));
	put(o, "trouble", e->trouble.err != 0 ? status_text_json(e->trouble.text) : json_null());
	return o;
}

void roster_json(struct roster *r, struct buf *out)
{
	struct stack *top = roster_top(r);
	json_t *root = json_object(), *runs = json_array();
	struct buf line = {0};
	struct roster_view v;

	if (roster_view(r, &v) == 0) {
		make_line(r, &v, &line);
		for (size_t i = 0; i < v.count; i++)
			json_array_append_new(runs, run_json(&v.v[i]));
		put(root, "line", status_text_json(buf_str(&line)));
		put(root, "store_error",
		    v.listing.err != 0 ? status_text_json(v.listing.text) : json_null());
		put(root, "unreadable", v.shut[0] != '\0' ? status_text_json(v.shut) : json_null());
		roster_view_release(&v);
	}
	put(root, "weightfs", json_string(WEIGHTFS_VERSION));
	put(root, "state", json_string("several"));
	put(root, "runs", runs);
	put(root, "source", status_text_json(top->store->name));
	put(root, "base", status_text_json(top->base != NULL ? top->base->name : NULL));
	put(root, "mountpoint", status_text_json(top->opts->mountpoint));
	put(root, "options", status_options_json(top->opts));
	put(root, "mounted_since", json_real((double)top->started_real_ns / NSEC_PER_SEC));
	put(root, "access", status_store_json(top->store));
	put(root, "cache_in_memory", json_boolean(top->cache_in_memory));
	put(root, "blocks", status_blocks_json(top));
	status_end_json(root, out);
	buf_release(&line);
}

/* One sample per run: its current or newest version, NaN while there is none. */
static void metric_versions(const struct roster_view *v, const char *name, const char *help,
			    struct generation *(*get)(struct history *h), struct buf *out)
{
	status_metric_head(out, name, "gauge", help);
	for (size_t i = 0; i < v->count; i++) {
		const struct roster_entry *e = &v->v[i];
		struct generation *g =
			e->inodes != NULL ? get(inodes_stack(e->inodes)->history) : NULL;

		buf_addf(out, "%s{", name);
		status_label(out, "run", e->path);
		if (g != NULL && g->state != NULL)
			buf_addf(out, "} %llu\n", (ull)g->version);
		else
			buf_addstr(out, "} NaN\n");
		generation_unref(g);
	}
}

static void metric_problems(const struct roster_view *v, struct buf *out)
{
	status_metric_head(out, "weightfs_problems", "gauge", "Objects that cannot be used.");
	for (size_t i = 0; i < v->count; i++) {
		const struct roster_entry *e = &v->v[i];
		struct run_report *report =
			e->inodes != NULL ? run_report(inodes_stack(e->inodes)->run) : NULL;

		buf_addstr(out, "weightfs_problems{");
		status_label(out, "run", e->path);
		buf_addf(out, "} %zu\n", report != NULL ? report->problem_count : 0);
		run_report_unref(report);
	}
}

void roster_metrics(struct roster *r, struct buf *out)
{
	struct stack *top = roster_top(r);
	struct roster_view v;

	if (roster_view(r, &v) < 0) {
		out->failed = true;
		return;
	}
	status_metric_head(out, "weightfs_info", "gauge", "What is mounted; always 1.");
	buf_addstr(out, "weightfs_info{");
	status_label(out, "version", WEIGHTFS_VERSION);
	buf_addstr(out, ",");
	status_label(out, "source", top->store->name);
	buf_addstr(out, "} 1\n");
	status_metric(out, "weightfs_runs", "gauge", "Runs that are shown.", count_shown(&v));
	metric_versions(&v, "weightfs_version", "Version that the plain paths show.",
			history_current, out);
	metric_versions(&v, "weightfs_newest_version", "Newest whole version.", history_newest,
			out);
	metric_problems(&v, out);
	status_metric(out, "weightfs_source_reachable", "gauge",
		      "1 when the last listing succeeded.", v.listing.err == 0);
	roster_view_release(&v);
	status_process_metrics(top, out);
}
