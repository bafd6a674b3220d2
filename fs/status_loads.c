/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the status that is about loads: who holds the plain paths where they are, with which
 * files, since when and for how much longer.
 *
 * Made from one snapshot of the history; nothing is decided here.  A command name is what the
 * process calls itself, so it is shown in printable form.
 *
 * Threads: any.
 */
#include "fs/status_private.h"

#include "cache/clock.h"
#include "fs/human.h"

#include <stdlib.h>

typedef unsigned long long ull;

enum { TEXT_FILES = 3 };

void status_loads_take(struct stack *s, struct status_loads *out)
{
	char command[16];
	int pid;

	*out = (struct status_loads){.now = clock_mono_ns()};
	out->expired = history_expired(s->history, &pid, command);
	if (history_loads(s->history, &out->v, &out->count) < 0) {
		out->v = NULL;
		out->count = 0;
	}
	for (size_t i = out->count; i-- > 0;)
		if (out->v[i].holds) {
			out->holders++;
			/* Rather one that has something open than one that settles. */
			if (!out->holder || out->v[i].open || !out->holder->open)
				out->holder = &out->v[i];
		}
}

void status_loads_release(struct status_loads *l)
{
	history_loads_free(l->v, l->count);
}

static void add_process(struct buf *out, const struct history_load *l)
{
	if (l->pid == 0) {
		buf_addstr(out, "processes of another pid namespace");
		return;
	}
	buf_addf(out, "pid %d", l->pid);
	if (l->command[0] != '\0')
		buf_addf(out, " (%s)", SHOWN(l->command));
}

void status_loads_line(const struct status_loads *l, bool back, struct buf *out)
{
	if (l->holder == NULL || (!back && !l->holder->open))
		return;
	buf_addstr(out, back ? ", held back by " : "; being loaded by ");
	add_process(out, l->holder);
	if (l->holders > 1)
		buf_addf(out, " and %zu more", l->holders - 1);
	buf_addstr(out, back ? ", loading for " : " for ");
	human_time(out, l->now - l->holder->began);
}

/* The next of the names; NULL: no more.  Moves on. */
static const char *next_name(const char **at, size_t *out_len)
{
	const char *name = *at;

	if (*name == '\0')
		return NULL;
	*out_len = strcspn(name, "\n");
	*at = name + *out_len + (name[*out_len] == '\n');
	return name;
}

static void text_files(const char *files, struct buf *out)
{
	unsigned count = 0;
	const char *name;
	size_t len;

	while ((name = next_name(&files, &len)) != NULL) {
		char shown[200];

		if (count < TEXT_FILES)
			buf_addf(out, "%s%s", count > 0 ? ", " : "",
				 printable(shown, sizeof(shown), name, len));
		count++;
	}
	if (count > TEXT_FILES)
		buf_addf(out, " and %u more", count - TEXT_FILES);
}

void status_loads_text(const struct status_loads *l, struct buf *out)
{
	if (l->count > 0)
		buf_addf(out, "loads by plain path: %zu\n", l->count);
	for (size_t i = 0; i < l->count; i++) {
		const struct history_load *one = &l->v[i];

		buf_addstr(out, "  ");
		add_process(out, one);
		buf_addf(out, "  version %llu  for ", (ull)one->version);
		human_time(out, l->now - one->began);
		buf_addf(out, "  %u open  %s for at most ", one->open,
			 one->holds ? "holds the plain paths" : "sees it by itself");
		human_time(out, one->end - l->now);
		buf_addstr(out, " more  ");
		text_files(one->files, out);
		buf_addstr(out, "\n");
	}
}

static void put(json_t *object, const char *key, json_t *value)
{
	/* Only memory can fail; the dump is then incomplete. */
	if (json_object_set_new(object, key, value) < 0)
		return;
}

static json_t *seconds(int64_t ns)
{
	return json_real((double)MAX(ns, 0) / NSEC_PER_SEC);
}

static json_t *files_json(const char *files)
{
	json_t *list = json_array();
	const char *name;
	size_t len;

	while ((name = next_name(&files, &len)) != NULL) {
		char shown[1024];

		if (json_array_append_new(
			    list, json_string(printable(shown, sizeof(shown), name, len))) < 0)
			break;
	}
	return list;
}

json_t *status_loads_json(const struct status_loads *l)
{
	json_t *list = json_array();

	for (size_t i = 0; i < l->count; i++) {
		const struct history_load *one = &l->v[i];
		json_t *o = json_object();

		put(o, "pid", one->pid != 0 ? json_integer(one->pid) : json_null());
		put(o, "command", json_string(SHOWN(one->command)));
		put(o, "version", json_integer((json_int_t)one->version));
		put(o, "holds", json_boolean(one->holds));
		put(o, "seconds", seconds(l->now - one->began));
		put(o, "left_seconds", seconds(one->end - l->now));
		put(o, "open", json_integer(one->open));
		put(o, "opens", json_integer(one->opens));
		put(o, "files", files_json(one->files));
		if (json_array_append_new(list, o) < 0)
			break;
	}
	return list;
}

void status_loads_metrics(const struct status_loads *l, struct buf *out)
{
	buf_addf(out,
		 "# HELP weightfs_loads Processes that load by plain path.\n"
		 "# TYPE weightfs_loads gauge\nweightfs_loads %zu\n"
		 "# HELP weightfs_holding Those that keep the plain paths from moving.\n"
		 "# TYPE weightfs_holding gauge\nweightfs_holding %zu\n"
		 "# HELP weightfs_holds_expired_total Holds that --max-hold has ended.\n"
		 "# TYPE weightfs_holds_expired_total counter\n"
		 "weightfs_holds_expired_total %llu\n",
		 l->count, l->holders, (ull)l->expired);
}
