/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is served and why: as one line, as text for people, as JSON for scripts and as metrics for
 * Prometheus.
 *
 * All four are made from one struct status_view, a set of snapshots taken first, each with its own
 * reference, so that no lock is held while formatting and the parts of an answer agree as far as
 * the snapshots do.  Nothing here decides anything; it repeats what history and run say.
 *
 * JSON strings have to be UTF-8: a path that is not is shown with its odd bytes as \xNN.
 *
 * Threads: any.
 */
#include "fs/status.h"

#include "fs/status_private.h"

#include "cache/cachedir.h"
#include "cache/clock.h"
#include "fs/gate.h"
#include "fs/human.h"
#include "fs/kernel.h"

#include <jansson.h>
#include <stdlib.h>

typedef unsigned long long ull;

void status_view_take(struct status_view *v, struct stack *s)
{
	int64_t until = history_held_until(s->history), now = clock_mono_ns();

	*v = (struct status_view){
		.stack = s,
		.current = history_current(s->history),
		.newest = history_newest(s->history),
		.report = run_report(s->run),
		.now_real = clock_real_ns(),
		.held_ns = until > now ? until - now : 0,
	};
	v->weights = v->current != NULL && v->current->state != NULL;
	status_loads_take(s, &v->loads);
	if (history_list(s->history, &v->kept, &v->kept_count) < 0) {
		v->kept = NULL;
		v->kept_count = 0;
	}
}

void status_view_release(struct status_view *v)
{
	generation_unref(v->current);
	generation_unref(v->newest);
	run_report_unref(v->report);
	status_loads_release(&v->loads);
	free(v->kept);
}

/* ---- the line ---- */

static void line_version(const struct status_view *v, struct buf *out)
{
	const struct generation *g = v->current;

	if (!v->weights) {
		buf_addf(out, "waiting: no complete anchor in %s yet", v->stack->store->name);
		return;
	}
	buf_addf(out, "version %llu = ", (ull)g->version);
	if (g->lineage[0] == '\0' || (g->state->anchor == 0 && v->stack->base != NULL))
		buf_addstr(out, "base");
	else
		buf_addf(out, "anchor %llu", (ull)g->state->anchor);
	if (g->state->deltas > 0)
		buf_addf(out, " + %u delta%s", g->state->deltas, g->state->deltas == 1 ? "" : "s");
	if (g->lineage[0] != '\0')
		buf_addf(out, ", lineage %s", g->lineage);
	if (g->format[0] != '\0')
		buf_addf(out, ", %s", g->format);
	if (g->writer[0] != '\0')
		buf_addf(out, " (%s)", g->writer);
	buf_addstr(out, ", ");
	human_time(out, v->now_real - g->mtime_ns);
	buf_addstr(out, " old");
}

/* Does the sentence begin with the name already? */
static bool names(const char *sentence, const char *name)
{
	return strncmp(sentence, name, strlen(name)) == 0;
}

static void add_sentence(struct buf *out, const char *object, const char *sentence)
{
	if (!names(sentence, object))
		buf_addf(out, "%s: ", object);
	buf_addstr(out, sentence);
}

static bool is_unshown(const struct version_info *info)
{
	return info->state == VERSION_WAITING || info->state == VERSION_BROKEN ||
	       info->state == VERSION_BLOCKED;
}

/* The highest number above what is whole, and in one clause what keeps it from being shown: the
 * first one that is in its way. */
static void line_unshown(const struct status_view *v, struct buf *out)
{
	const struct version_info *top = NULL, *cause = NULL;
	bool any = v->newest != NULL && v->newest->state != NULL;
	uint64_t whole = any ? v->newest->version : 0;

	if (v->report == NULL)
		return;
	for (size_t i = 0; i < v->report->version_count; i++) {
		const struct version_info *info = &v->report->versions[i];

		if (!is_unshown(info) || (any && info->number <= whole))
			continue;
		top = info;
		if (info->problem != NULL && (cause == NULL || cause->state == VERSION_WAITING))
			cause = info;
	}
	if (top == NULL && !any && v->report->problem_count > 0) {
		buf_addstr(out, "; ");
		add_sentence(out, v->report->problems[0].object, v->report->problems[0].text);
	}
	if (top == NULL)
		return;
	if (top->state == VERSION_BROKEN && top->problem != NULL)
		cause = top;
	buf_addf(out, "; newest object %llu is not shown: ", (ull)top->number);
	if (cause != NULL)
		add_sentence(out, cause->key, cause->problem);
	else if (top->state == VERSION_WAITING)
		buf_addf(out, "%s is still being written", top->key);
	else
		buf_addf(out, "%s has nothing whole to build on", top->key);
}

/* What is wrong with a store. */
static void line_store(struct store *store, struct buf *out)
{
	struct buf text = {0};

	if (store_describe(store, &text))
		buf_addf(out, "; %s", buf_str(&text));
	buf_release(&text);
}

static void make_line(const struct status_view *v, struct buf *out)
{
	bool back = v->weights && v->newest != NULL && v->newest != v->current;

	line_version(v, out);
	if (back)
		buf_addf(out, "; version %llu is ready", (ull)v->newest->version);
	status_loads_line(&v->loads, back, out);
	line_unshown(v, out);
	if (v->held_ns > 0) {
		buf_addstr(out, "; held for ");
		human_time(out, v->held_ns);
		buf_addstr(out, " more");
	}
	if (v->report != NULL && v->report->store_error != NULL) {
		buf_addstr(out, "; ");
		/* Most of a store's sentences say themselves what cannot be listed. */
		if (strstr(v->report->store_error, "cannot") == NULL)
			buf_addf(out, "cannot list %s: ", v->stack->store->name);
		buf_addstr(out, v->report->store_error);
	}
	line_store(v->stack->store, out);
	if (v->stack->base != NULL)
		line_store(v->stack->base, out);
}

void status_line(struct stack *s, struct buf *out)
{
	struct status_view v;

	status_view_take(&v, s);
	make_line(&v, out);
	status_view_release(&v);
}

/* ---- the text ---- */

static void text_versions(const struct status_view *v, struct buf *out)
{
	buf_addf(out, "versions kept: %zu\n", v->kept_count);
	for (size_t i = v->kept_count; i-- > 0;) {
		const struct history_entry *e = &v->kept[i];

		buf_addf(out, "  %llu", (ull)e->version);
		if (e->lineage[0] != '\0')
			buf_addf(out, "  lineage %s", e->lineage);
		buf_addf(out, "  %d open", e->opens);
		buf_addf(out, "%s%s%s\n", e->pinned ? "  pinned" : "",
			 e->current ? "  current" : "", e->newest && !e->current ? "  newest" : "");
	}
}

static void text_report(const struct status_view *v, struct buf *out)
{
	const struct run_report *r = v->report;

	if (r == NULL) {
		buf_addstr(out, "problems: the source has not been looked at yet\n");
		return;
	}
	buf_addf(out, "problems: %zu\n", r->problem_count);
	for (size_t i = 0; i < r->problem_count; i++) {
		buf_addstr(out, "  ");
		add_sentence(out, r->problems[i].object, r->problems[i].text);
		buf_addstr(out, "\n");
	}
	if (r->note_count > 0)
		buf_addstr(out, "notes:\n");
	for (size_t i = 0; i < r->note_count; i++)
		buf_addf(out, "  %s\n", r->notes[i]);
	buf_addstr(out, "last scan: ");
	human_date(out, run_report_time(r));
	buf_addstr(out, "\n");
}

void status_cache_text(const struct stack *s, struct buf *out)
{
	char *parent = s->opts->cache_dir != NULL ? strdup(s->opts->cache_dir) : cachedir_default();

	buf_addstr(out, "cache: ");
	if (s->cache_in_memory)
		buf_addf(out, "in memory%s%s", s->cache_why.text[0] != '\0' ? ": " : "",
			 s->cache_why.text);
	else
		buf_addstr(out, parent != NULL ? parent : "default directory");
	buf_addstr(out, "\n");
	free(parent);
}

void status_store_text(struct store *store, const char *what, struct buf *out)
{
	struct buf text = {0};

	(void)store_describe(store, &text);
	if (text.len > 0)
		buf_addf(out, "%s: %s\n", what, buf_str(&text));
	buf_release(&text);
}

/* Of the current version: how much of what its writer recorded has been compared. */
static void text_verified(const struct status_view *v, struct buf *out)
{
	static const char *const modes[] = {
		[VERIFY_LAZY] = "lazy", [VERIFY_EAGER] = "eager", [VERIFY_OFF] = "off"};

	if (v->weights)
		buf_addf(out, "verified: %s (--verify %s)\n",
			 verified_name((enum verified)__atomic_load_n(&v->current->verified,
								      __ATOMIC_RELAXED)),
			 modes[v->stack->opts->verify]);
}

void status_text(struct stack *s, struct buf *out)
{
	struct status_view v;

	status_view_take(&v, s);
	make_line(&v, out);
	buf_addf(out, "\nsource: %s\n", s->store->name);
	if (gate_state(s->store) == GATE_UNKNOWN)
		buf_addstr(out,
			   "  runs: its first objects will show whether it is one run or has one "
			   "in each of its directories (or say it: --runs)\n");
	status_store_text(s->store, "  access", out);
	if (s->base != NULL) {
		buf_addf(out, "base: %s\n", s->base->name);
		status_store_text(s->base, "  access", out);
	}
	if (s->opts->mountpoint != NULL)
		buf_addf(out, "mounted on: %s\n", s->opts->mountpoint);
	buf_addstr(out, "mounted since: ");
	human_date(out, s->started_real_ns);
	buf_addstr(out, "\n");
	text_verified(&v, out);
	status_loads_text(&v.loads, out);
	text_versions(&v, out);
	status_pointer_text(v.report, out);
	text_report(&v, out);
	status_counters_text(out);
	status_cache_text(s, out);
	status_blocks_text(s, out);
	status_serving_text(s, out);
	buf_addf(out, "weightfs %s\n", WEIGHTFS_VERSION);
	status_view_release(&v);
}

/* ---- JSON ---- */

json_t *status_text_json(const char *text)
{
	char shown[1024];
	json_t *j;

	if (text == NULL)
		return json_null();
	j = json_string(text);
	return j != NULL ? j : json_string(printable(shown, sizeof(shown), text, strlen(text)));
}

static json_t *number_json(uint64_t n)
{
	return json_integer((json_int_t)n);
}

/* Takes value; a failure leaves the member out and the caller's dump is then incomplete, which only
 * memory can cause. */
static void put(json_t *object, const char *key, json_t *value)
{
	if (json_object_set_new(object, key, value) < 0)
		return;
}

static json_t *versions_json(const struct status_view *v)
{
	json_t *list = json_array();

	for (size_t i = 0; i < v->kept_count; i++) {
		const struct history_entry *e = &v->kept[i];
		json_t *o = json_object();

		put(o, "version", number_json(e->version));
		put(o, "lineage",
		    e->lineage[0] != '\0' ? status_text_json(e->lineage) : json_null());
		put(o, "anchor", number_json(e->anchor));
		put(o, "deltas", number_json(e->deltas));
		put(o, "open", json_integer(e->opens));
		put(o, "pinned", json_boolean(e->pinned));
		put(o, "current", json_boolean(e->current));
		put(o, "newest", json_boolean(e->newest));
		json_array_append_new(list, o);
	}
	return list;
}

static json_t *problems_json(const struct run_report *r)
{
	json_t *list = json_array();

	for (size_t i = 0; r != NULL && i < r->problem_count; i++) {
		json_t *o = json_object();

		put(o, "object", status_text_json(r->problems[i].object));
		put(o, "error", status_text_json(r->problems[i].text));
		json_array_append_new(list, o);
	}
	return list;
}

static json_t *notes_json(const struct run_report *r)
{
	json_t *list = json_array();

	for (size_t i = 0; r != NULL && i < r->note_count; i++)
		json_array_append_new(list, status_text_json(r->notes[i]));
	return list;
}

json_t *status_store_json(struct store *store)
{
	struct buf text = {0};
	json_t *j;

	if (store != NULL)
		(void)store_describe(store, &text);
	j = text.len > 0 ? status_text_json(buf_str(&text)) : json_null();
	buf_release(&text);
	return j;
}

/* With which a tool reaches the same places: names, never secrets. */
json_t *status_options_json(const struct opts *opts)
{
	json_t *o = json_object();

	put(o, "token_file", status_text_json(opts->token_file));
	put(o, "ca_file", status_text_json(opts->ca_file));
	put(o, "endpoint_url", status_text_json(opts->endpoint_url));
	put(o, "region", status_text_json(opts->region));
	put(o, "profile", status_text_json(opts->profile));
	put(o, "no_sign_request", json_boolean(opts->no_sign_request));
	put(o, "request_payer", json_boolean(opts->request_payer));
	return o;
}

static void put_generation(const struct status_view *v, json_t *root)
{
	const struct generation *g = v->weights ? v->current : NULL;
	bool newest = v->newest != NULL && v->newest->state != NULL;

	put(root, "state", json_string(g != NULL ? "serving" : "waiting"));
	put(root, "version", g != NULL ? number_json(g->version) : json_null());
	put(root, "newest", newest ? number_json(v->newest->version) : json_null());
	put(root, "lineage",
	    g != NULL && g->lineage[0] != '\0' ? status_text_json(g->lineage) : json_null());
	put(root, "anchor", g != NULL ? number_json(g->state->anchor) : json_null());
	put(root, "deltas", g != NULL ? number_json(g->state->deltas) : json_null());
	put(root, "format",
	    g != NULL && g->format[0] != '\0' ? status_text_json(g->format) : json_null());
	put(root, "verified",
	    g != NULL ? json_string(verified_name(
				(enum verified)__atomic_load_n(&g->verified, __ATOMIC_RELAXED)))
		      : json_null());
	put(root, "writer",
	    g != NULL && g->writer[0] != '\0' ? status_text_json(g->writer) : json_null());
}

json_t *status_summary_json(struct stack *s)
{
	struct buf line = {0};
	json_t *o = json_object();
	struct status_view v;

	status_view_take(&v, s);
	make_line(&v, &line);
	put_generation(&v, o);
	put(o, "line", status_text_json(buf_str(&line)));
	put(o, "problems", number_json(v.report != NULL ? v.report->problem_count : 0));
	status_view_release(&v);
	buf_release(&line);
	return o;
}

void status_end_json(json_t *root, struct buf *out)
{
	char *text;

	put(root, "kernel", json_string(patch_kernel_name(kernel_chosen())));
	put(root, "counters", status_counters_json());
	text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
	if (text == NULL)
		out->failed = true;
	else
		buf_addf(out, "%s\n", text);
	free(text);
	json_decref(root);
}

void status_json(struct stack *s, struct buf *out)
{
	struct buf line = {0};
	struct status_view v;
	json_t *root = json_object();

	status_view_take(&v, s);
	make_line(&v, &line);
	put(root, "weightfs", json_string(WEIGHTFS_VERSION));
	put(root, "source", status_text_json(s->store->name));
	put(root, "part_of", status_text_json(s->part_of));
	put(root, "part", status_text_json(s->subject));
	put(root, "base", status_text_json(s->base != NULL ? s->base->name : NULL));
	put(root, "mountpoint", status_text_json(s->opts->mountpoint));
	put(root, "shard_size",
	    s->opts->shard_size > 0 ? number_json(s->opts->shard_size) : json_null());
	put(root, "times", json_string(s->opts->ignore_times ? "ignore" : "trust"));
	put(root, "forced_format", status_text_json(s->opts->format));
	put(root, "options", status_options_json(s->opts));
	put_generation(&v, root);
	put(root, "line", status_text_json(buf_str(&line)));
	put(root, "held_seconds", json_real((double)v.held_ns / NSEC_PER_SEC));
	put(root, "loads", status_loads_json(&v.loads));
	put(root, "settle_seconds", json_real((double)s->opts->settle_ns / NSEC_PER_SEC));
	put(root, "max_hold_seconds", json_real((double)s->opts->max_hold_ns / NSEC_PER_SEC));
	put(root, "mounted_since", json_real((double)s->started_real_ns / NSEC_PER_SEC));
	put(root, "versions", versions_json(&v));
	put(root, "pointer", status_pointer_json(v.report));
	put(root, "spans", status_spans_json(v.report));
	put(root, "problems", problems_json(v.report));
	put(root, "notes", notes_json(v.report));
	put(root, "store_error", status_text_json(v.report != NULL ? v.report->store_error : NULL));
	put(root, "access", status_store_json(s->store));
	put(root, "base_access", status_store_json(s->base));
	put(root, "last_scan",
	    v.report != NULL ? json_real((double)run_report_time(v.report) / NSEC_PER_SEC)
			     : json_null());
	put(root, "cache_in_memory", json_boolean(s->cache_in_memory));
	put(root, "blocks", status_blocks_json(s));
	put(root, "serving", status_serving_json(s));
	status_end_json(root, out);
	buf_release(&line);
	status_view_release(&v);
}
