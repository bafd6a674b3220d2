/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follow says: a line of JSON per update on standard output, a sentence on standard error for
 * each thing that went wrong, and a file of metrics in Prometheus's text format for a node
 * exporter's textfile collector, replaced as a whole.
 *
 * A replica that is paused, or that serves weights which failed, is always named, with its state.
 * No key is ever among what is said: sentences come without it (follow_http.h).
 *
 * One thread.
 */
#include "tools/follow.h"

#include "cache/clock.h"
#include "cache/fileio.h"
#include "tools/cli.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

const char *follow_result_name(enum follow_result result)
{
	switch (result) {
	case FOLLOW_OK: return "ok";
	case FOLLOW_PARTIAL: return "partial";
	default: return "failed";
	}
}

static json_t *seconds(int64_t ns)
{
	/* Milliseconds are enough, and read better. */
	return json_real((double)(ns / 1000000) / 1000.0);
}

static void put(json_t *object, const char *key, json_t *value)
{
	(void)json_object_set_new(object, key, value);
}

static json_t *text(const char *s)
{
	json_t *j = json_string(s);

	return j != NULL ? j : json_string(SHOWN(s));
}

static json_t *number(uint64_t n)
{
	return json_integer((json_int_t)n);
}

static json_t *stamp(int64_t real_ns)
{
	time_t s = (time_t)(real_ns / NSEC_PER_SEC);
	char out[40];
	struct tm tm;

	gmtime_r(&s, &tm);
	strftime(out, sizeof(out), "%Y-%m-%dT%H:%M:%SZ", &tm);
	return json_string(out);
}

static bool has_version(const struct follow_replica *r)
{
	return r->has_whole && !r->dirty && r->state != PLAN_MIXED_PAUSED &&
	       r->state != PLAN_MIXED_SERVING;
}

static json_t *replica_json(const struct follow_replica *r)
{
	static const char *const phases[FOLLOW_PHASES] = {"pause", "reload", "verify", "resume"};
	json_t *o = json_object(), *spent = json_object();

	put(o, "url", text(r->url));
	put(o, "state",
	    json_string(r->taking_part || r->touched ? plan_name(r->state) : "not-begun"));
	put(o, "version", has_version(r) ? number(r->whole) : json_null());
	put(o, "path_version", r->has_path ? number(r->path) : json_null());
	if (r->taking_part) {
		put(o, "verified", json_boolean(r->verified));
		put(o, "attempts", json_integer((json_int_t)r->tries[PLAN_RELOAD]));
		for (size_t i = 0; i < FOLLOW_PHASES; i++)
			put(spent, phases[i], seconds(r->spent[i]));
		put(spent, "paused", seconds(r->paused_ns));
	}
	put(o, "seconds", spent);
	put(o, "error", r->why.text[0] != '\0' ? text(r->why.text) : json_null());
	return o;
}

static void print_line(struct follow *f, const struct follow_update *u)
{
	json_t *o = json_object(), *spent = json_object(), *replicas = json_array();
	char *line;

	put(o, "time", stamp(u->began_real_ns));
	put(o, "version", number(u->version));
	put(o, "path", u->path != NULL ? text(u->path) : json_null());
	put(o, "result", json_string(follow_result_name(u->result)));
	put(o, "stopped", json_boolean(u->stopped));
	put(o, "superseded_by", u->superseded ? number(u->newest) : json_null());
	put(spent, "prepare", seconds(u->prepare_ns));
	put(spent, "engines", seconds(u->engines_ns));
	put(spent, "exec", seconds(u->hook_ns));
	put(spent, "total", seconds(u->total_ns));
	put(o, "seconds", spent);
	put(o, "warm_bytes", number(u->warm_bytes));
	for (size_t i = 0; i < f->count; i++)
		(void)json_array_append_new(replicas, replica_json(&f->replicas[i]));
	put(o, "replicas", replicas);
	put(o, "error", u->why.text[0] != '\0' ? text(u->why.text) : json_null());
	line = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9));
	if (line != NULL) {
		printf("%s\n", line);
		fflush(stdout);
	}
	free(line);
	json_decref(o);
}

/* ---- metrics ---- */

static void gauge(struct buf *b, const char *name, const char *type, const char *help)
{
	buf_addf(b, "# HELP weightfs_follow_%s %s\n# TYPE weightfs_follow_%s %s\n", name, help,
		 name, type);
}

/* A label's value; a URL has neither quotes nor backslashes once parsed, but be sure. */
static void add_label(struct buf *b, const char *name, const char *url)
{
	buf_addf(b, "weightfs_follow_%s{url=\"%s\"", name, SHOWN(url));
}

static void metrics_replicas(const struct follow *f, struct buf *b)
{
	gauge(b, "replica_version", "gauge", "The version whose weights a replica has.");
	for (size_t i = 0; i < f->count; i++) {
		if (!has_version(&f->replicas[i]))
			continue;
		add_label(b, "replica_version", f->replicas[i].url);
		buf_addf(b, "} %" PRIu64 "\n", f->replicas[i].whole);
	}
	gauge(b, "replica_state", "gauge", "1 for the state that a replica was left in.");
	for (size_t i = 0; i < f->count; i++) {
		add_label(b, "replica_state", f->replicas[i].url);
		buf_addf(b, ",state=\"%s\"} 1\n",
			 f->replicas[i].touched ? plan_name(f->replicas[i].state) : "not-begun");
	}
	gauge(b, "replica_failures_total", "counter", "Updates of a replica that failed.");
	for (size_t i = 0; i < f->count; i++) {
		add_label(b, "replica_failures_total", f->replicas[i].url);
		buf_addf(b, "} %" PRIu64 "\n", f->replicas[i].failures);
	}
	gauge(b, "replica_paused_seconds", "gauge",
	      "How long the last update held a replica's traffic.");
	for (size_t i = 0; i < f->count; i++) {
		add_label(b, "replica_paused_seconds", f->replicas[i].url);
		buf_addf(b, "} %.3f\n", (double)f->replicas[i].paused_ns / 1e9);
	}
}

int follow_metrics(struct follow *f)
{
	struct buf b = {0};
	int ret;

	if (f->set.metrics == NULL)
		return 0;
	gauge(&b, "updates_total", "counter", "Updates, by result.");
	for (int i = FOLLOW_OK; i <= FOLLOW_FAILED; i++)
		buf_addf(&b, "weightfs_follow_updates_total{result=\"%s\"} %" PRIu64 "\n",
			 follow_result_name((enum follow_result)i), f->updates[i]);
	gauge(&b, "exec_failures_total", "counter", "Failures of the command of --exec.");
	buf_addf(&b, "weightfs_follow_exec_failures_total %" PRIu64 "\n", f->hook_failures);
	if (f->any_good) {
		gauge(&b, "version", "gauge", "The last version that was brought everywhere.");
		buf_addf(&b, "weightfs_follow_version %" PRIu64 "\n", f->last_good);
		gauge(&b, "last_success_timestamp_seconds", "gauge", "When that was.");
		buf_addf(&b, "weightfs_follow_last_success_timestamp_seconds %.3f\n",
			 (double)f->last_good_real_ns / 1e9);
	}
	if (f->count > 0)
		metrics_replicas(f, &b);
	ret = b.failed ? -ENOMEM : file_replace(f->set.metrics, b.data, b.len);
	buf_release(&b);
	return ret;
}

void follow_report(struct follow *f, const struct follow_update *u)
{
	int ret;

	print_line(f, u);
	if (u->why.text[0] != '\0')
		cli_error("version %" PRIu64 ": %s", u->version, u->why.text);
	for (size_t i = 0; i < f->count; i++) {
		const struct follow_replica *r = &f->replicas[i];

		if (r->taking_part && r->state != PLAN_NEW)
			cli_error("version %" PRIu64 ": %s is left %s: %s", u->version, r->url,
				  plan_name(r->state),
				  r->why.text[0] != '\0' ? r->why.text : "no reason is known");
	}
	ret = follow_metrics(f);
	if (ret < 0)
		cli_error("--metrics: %s cannot be written: %s", SHOWN(f->set.metrics),
			  errno_text(ret));
}
