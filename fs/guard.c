/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The load guard; guard.h has the tables.
 *
 * Loads are a list: there are as many as processes that load at one time, hundreds at most, and
 * each event looks at all of them once.  A load is in the list exactly while it is active, as of
 * the last guard_tick() or event; the hold is on only while a load in the list has the current
 * view.
 *
 * A handle knows its load by a number that is not used again, so that the close of a handle that
 * outlived its load finds nothing and changes nothing, whatever loads the process has since.
 */
#include "fs/guard.h"

#include <stdio.h>
#include <stdlib.h>

void guard_init(struct guard *g, int64_t settle, int64_t max_hold)
{
	*g = (struct guard){.settle = settle, .max_hold = max_hold};
}

static void load_free(struct guard_load *l)
{
	for (unsigned i = 0; i < l->name_count; i++)
		free(l->names[i]);
	free(l);
}

void guard_release_all(struct guard *g)
{
	while (g->loads) {
		struct guard_load *l = g->loads;

		g->loads = l->next;
		load_free(l);
	}
	guard_init(g, g->settle, g->max_hold);
}

static int64_t later(int64_t t, int64_t by)
{
	int64_t sum;

	return __builtin_add_overflow(t, by, &sum) ? INT64_MAX : sum;
}

int64_t guard_load_end(const struct guard *g, const struct guard_load *l)
{
	return later(l->began, g->max_hold);
}

/* When it is over if nothing happens. */
static int64_t load_deadline(const struct guard *g, const struct guard_load *l)
{
	int64_t end = guard_load_end(g, l);

	return l->open ? end : MIN(end, later(l->last, g->settle));
}

static bool any_of_view(const struct guard *g, const void *view)
{
	for (const struct guard_load *l = g->loads; l; l = l->next)
		if (l->view == view)
			return true;
	return false;
}

/* The hold has lasted as long as it may: notes whose it was. */
static void expire(struct guard *g)
{
	const struct guard_load *longest = NULL;

	for (const struct guard_load *l = g->loads; l; l = l->next)
		if (l->view == g->current && (!longest || l->began < longest->began))
			longest = l;
	g->held = false;
	g->expired++;
	g->expired_pid = longest ? longest->pid : 0;
	snprintf(g->expired_command, sizeof(g->expired_command), "%s",
		 longest ? longest->command : "");
}

void guard_tick(struct guard *g, int64_t now)
{
	/* Before the loads: the one that began the hold ends at the same time. */
	if (g->held && now >= later(g->began, g->max_hold))
		expire(g);
	for (struct guard_load **at = &g->loads; *at;) {
		struct guard_load *l = *at;

		if (now < load_deadline(g, l)) {
			at = &l->next;
			continue;
		}
		*at = l->next;
		g->epoch += l->view != g->current;
		load_free(l);
	}
	if (g->held && !any_of_view(g, g->current))
		g->held = false;
}

static struct guard_load *load_of(const struct guard *g, int pid)
{
	struct guard_load *l = g->loads;

	while (l && l->pid != pid)
		l = l->next;
	return l;
}

static struct guard_load *load_numbered(const struct guard *g, uint64_t id)
{
	struct guard_load *l = g->loads;

	while (l && l->id != id)
		l = l->next;
	return l;
}

static void note_name(struct guard_load *l, const char *name)
{
	for (unsigned i = 0; i < l->name_count; i++)
		if (strcmp(l->names[i], name) == 0)
			return;
	if (l->name_count == GUARD_NAMES)
		return;
	/* Names are for people; without memory there is one less. */
	l->names[l->name_count] = strdup(name);
	l->name_count += l->names[l->name_count] != NULL;
}

static void begin_hold(struct guard *g, int64_t now)
{
	if (g->held)
		return;
	g->held = true;
	g->began = now;
}

void guard_index(struct guard *g, int pid, int64_t now)
{
	struct guard_load **at = &g->loads, *l;

	guard_tick(g, now);
	while (*at && (*at)->pid != pid)
		at = &(*at)->next;
	l = *at;
	if (!l || !l->sharded)
		return;
	if (l->view == g->current) {
		l->began = now;
		l->sharded = false;
		begin_hold(g, now);
		return;
	}
	*at = l->next;
	load_free(l);
	g->epoch++;
}

int guard_opened(struct guard *g, int pid, const char *name, bool index, bool open, int64_t now,
		 uint64_t *out_id, bool *out_new)
{
	struct guard_load *l;

	guard_tick(g, now);
	l = load_of(g, pid);
	*out_new = l == NULL;
	if (!l) {
		l = calloc(1, sizeof(*l));
		if (!l)
			return -ENOMEM;
		l->id = ++g->last_id;
		l->pid = pid;
		l->view = g->current;
		l->began = now;
		l->next = g->loads;
		g->loads = l;
		begin_hold(g, now);
	}
	l->last = now;
	if (open) {
		l->open++;
		l->opens++;
		l->sharded |= !index;
		note_name(l, name);
	}
	*out_id = l->id;
	return 0;
}

void guard_name(struct guard *g, uint64_t id, const char *command)
{
	struct guard_load *l = load_numbered(g, id);

	if (l)
		snprintf(l->command, sizeof(l->command), "%s", command);
}

void guard_closed(struct guard *g, uint64_t id, int64_t now)
{
	struct guard_load *l;

	guard_tick(g, now);
	l = load_numbered(g, id);
	if (!l || !l->open)
		return;
	l->open--;
	l->last = now;
}

bool guard_held(const struct guard *g)
{
	return g->held;
}

int64_t guard_deadline(const struct guard *g)
{
	int64_t first = g->held ? later(g->began, g->max_hold) : INT64_MAX;

	for (const struct guard_load *l = g->loads; l; l = l->next)
		first = MIN(first, load_deadline(g, l));
	return first;
}

void guard_release(struct guard *g)
{
	g->held = false;
}

void guard_moved(struct guard *g, const void *view)
{
	g->current = view;
	g->epoch++;
	g->held = false;
}

const void *guard_view(const struct guard *g, int pid)
{
	const struct guard_load *l = load_of(g, pid);

	return l ? l->view : NULL;
}

bool guard_uses(const struct guard *g, const void *view)
{
	return any_of_view(g, view);
}

bool guard_split(const struct guard *g)
{
	for (const struct guard_load *l = g->loads; l; l = l->next)
		if (l->view != g->current)
			return true;
	return false;
}
