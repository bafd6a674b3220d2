/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The runs of a source: what others ask of them, and their beginning and end.
 *
 *	listed ──> made (stack, watch) ──> first round over: shown ──> begun (what the front has)
 *	nothing of it listed, twice ──> gone: not shown, watch and threads ended ──> idle: freed
 *
 * A run that is gone is kept until the last open file of it has been closed: those go on reading
 * from its stack, whose store is a part of the source's.
 *
 * While a run is missing for the first time, the top's listing stays the one before, so that its
 * directory does not go ahead of it.
 *
 * Locks: `lock` (LOCK_SHARD) guards the list of members, the listing and the flags; a member's
 * other fields are the thread's own, but for path, stack and inodes, which never change once they
 * are set.  Nothing is made, ended or waited for with the lock held.
 */
#include "fs/roster_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cache/thread.h"
#include "fs/gate.h"

/* Runs that are looked into at a time, some of which may wait for a network; and runs of which a
 * version is warmed or written out. */
enum { TURNS = 8, PREPARING = 2 };

/* ---- for everybody ---- */

bool roster_several(const struct roster *r)
{
	return __atomic_load_n(&r->parts, __ATOMIC_ACQUIRE) != NULL;
}

struct stack *roster_top(const struct roster *r)
{
	return r->top;
}

static struct listing_ref *listing(void *ctx)
{
	struct roster *r = ctx;
	struct listing_ref *l;

	lock_take(&r->lock);
	l = r->top_listing != NULL ? listing_ref(r->top_listing) : NULL;
	lock_release(&r->lock);
	return l;
}

struct store *roster_source(const struct roster *r)
{
	struct listing_ref *unused = NULL;
	struct store *s = gate_source(r->top->store, &unused);

	listing_unref(unused);
	return s;
}

/* With the lock. */
static struct member *find(struct roster *r, const char *path)
{
	for (struct member *m = r->members; m != NULL; m = m->next)
		if (strcmp(m->path, path) == 0)
			return m;
	return NULL;
}

static int look(void *ctx, const char *path, struct inodes **out)
{
	struct roster *r = ctx;
	const struct member *m;
	int ret = 0;

	lock_take(&r->lock);
	m = find(r, path);
	if (m != NULL && m->shown) {
		*out = inodes_ref(m->inodes);
		ret = 1;
	} else if (m != NULL && !m->plain) {
		ret = -ENOENT;
	}
	lock_release(&r->lock);
	return ret;
}

static struct inodes *run_by_number(void *ctx, uint64_t run)
{
	struct roster *r = ctx;
	struct inodes *found = NULL;

	lock_take(&r->lock);
	for (int i = 0; i < 2 && found == NULL; i++)
		for (struct member *m = i == 0 ? r->members : r->gone; m != NULL; m = m->next)
			if (m->run == run && m->inodes != NULL)
				found = inodes_ref(m->inodes);
	lock_release(&r->lock);
	return found;
}

static bool several(void *ctx)
{
	return roster_several(ctx);
}

static struct store *store_of(void *ctx)
{
	return roster_source(ctx);
}

static void text(void *ctx, uint64_t ino, struct buf *out)
{
	switch (ino) {
	case INO_STATUS: roster_text(ctx, out); break;
	case INO_STATUS_JSON: roster_json(ctx, out); break;
	case INO_METRICS: roster_metrics(ctx, out); break;
	default: break;
	}
}

static void wake(struct roster *r)
{
	uint64_t one = 1;

	/* A full counter is as good a wake-up as any. */
	if (write(r->wake_fd, &one, sizeof(one)) < 0)
		return;
}

int roster_view(struct roster *r, struct roster_view *out)
{
	struct roster_view v = {0};
	size_t n = 0;

	lock_take(&r->lock);
	for (const struct member *m = r->members; m != NULL; m = m->next)
		n++;
	v.v = calloc(MAX(n, (size_t)1), sizeof(*v.v));
	for (const struct member *m = r->members; m != NULL && v.v != NULL; m = m->next) {
		struct roster_entry *e = &v.v[v.count];

		e->path = strdup(m->path);
		if (e->path == NULL)
			break;
		v.count++;
		e->inodes = m->inodes != NULL ? inodes_ref(m->inodes) : NULL;
		e->shown = m->shown;
		e->trouble = m->trouble;
	}
	v.listing = r->listing;
	v.listed_real_ns = r->listed_real_ns;
	v.top = r->top_mark;
	memcpy(v.shut, r->shut, sizeof(v.shut));
	lock_release(&r->lock);
	if (v.v == NULL || v.count < n) {
		roster_view_release(&v);
		return -ENOMEM;
	}
	*out = v;
	return 0;
}

void roster_view_release(struct roster_view *v)
{
	for (size_t i = 0; i < v->count; i++) {
		inodes_unref(v->v[i].inodes);
		free(v->v[i].path);
	}
	free(v->v);
	*v = (struct roster_view){0};
}

int roster_refresh(struct roster *r, struct why *why)
{
	struct roster_view v;
	uint64_t number;
	int err = 0;

	lock_take(&r->lock);
	number = r->rounds_begun + 1;
	r->asked = true;
	wake(r);
	while (!r->stop && !r->ended && r->rounds_ended < number)
		(void)condition_wait(&r->moved, &r->lock, -1);
	if (r->rounds_ended < number)
		err = why_set(why, ECANCELED, "the mount is being taken down");
	else if (r->listing.err != 0)
		err = why_set(why, r->listing.err, "%s", r->listing.text);
	lock_release(&r->lock);
	if (err == 0 && roster_view(r, &v) < 0)
		err = why_set(why, ENOMEM, "out of memory");
	if (err < 0)
		return err;
	/* What the source has was just listed; a run that fails says so itself. */
	for (size_t i = 0; i < v.count; i++)
		if (v.v[i].inodes != NULL)
			(void)!watch_look(inodes_stack(v.v[i].inodes)->watch);
	roster_view_release(&v);
	return 0;
}

/* The gate's: its listing had several runs. */
static void on_several(void *ctx)
{
	struct roster *r = ctx;

	lock_take(&r->lock);
	r->several = true;
	lock_release(&r->lock);
	wake(r);
}

int roster_new(struct stack *top, struct inodes *inodes, const char *mountpoint,
	       const struct roster_ops *ops, void *ctx, struct roster **out)
{
	struct roster *r = calloc(1, sizeof(*r));

	if (r == NULL)
		return -ENOMEM;
	r->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (r->wake_fd < 0) {
		int err = errno;

		free(r);
		return -err;
	}
	r->top = top;
	r->inodes = inodes;
	r->mountpoint = mountpoint;
	r->ops = *ops;
	r->ctx = ctx;
	turns_init(&r->turns, TURNS);
	turns_init(&r->preparing, PREPARING);
	lock_init(&r->lock, LOCK_SHARD);
	condition_init(&r->moved);
	r->runs = (struct inodes_runs){r, several, listing, store_of, look, run_by_number, text};
	inodes_set_runs(inodes, &r->runs);
	gate_subscribe(top->store, on_several, r);
	*out = r;
	return 0;
}

int roster_start(struct roster *r)
{
	int err = thread_start(&r->thread, "roster", roster_main, r);

	r->started = err == 0;
	return err;
}

int roster_settle(struct roster *r)
{
	int err;

	lock_take(&r->lock);
	while (r->several && !r->settled && !r->stop && !r->ended)
		(void)condition_wait(&r->moved, &r->lock, -1);
	err = r->stop || r->ended ? -ECANCELED : 0;
	lock_release(&r->lock);
	return err;
}

void roster_usable(struct roster *r)
{
	lock_take(&r->lock);
	r->usable = true;
	wake(r);
	while (r->several && !r->begun && !r->stop && !r->ended)
		(void)condition_wait(&r->moved, &r->lock, -1);
	lock_release(&r->lock);
}

void roster_cancel(struct roster *r)
{
	struct parts *parts;
	struct roster_view v;

	if (r == NULL)
		return;
	lock_take(&r->lock);
	r->stop = true;
	condition_broadcast(&r->moved);
	lock_release(&r->lock);
	wake(r);
	turns_open(&r->turns);
	turns_open(&r->preparing);
	parts = __atomic_load_n(&r->parts, __ATOMIC_ACQUIRE);
	if (parts != NULL)
		parts_stop(parts);
	/* So that commands that wait for a run's watch come back. */
	if (roster_view(r, &v) < 0)
		return;
	for (size_t i = 0; i < v.count; i++)
		if (v.v[i].inodes != NULL)
			watch_stop(inodes_stack(v.v[i].inodes)->watch);
	roster_view_release(&v);
}

void roster_end(struct roster *r)
{
	if (r == NULL)
		return;
	roster_cancel(r);
	if (r->started)
		pthread_join(r->thread, NULL);
	r->started = false;
	gate_subscribe(r->top->store, NULL, NULL);
	for (struct member *m = r->members; m != NULL; m = m->next)
		roster_end_member(r, m);
}

void roster_free(struct roster *r)
{
	if (r == NULL)
		return;
	inodes_set_runs(r->inodes, NULL);
	roster_free_members(r->members);
	roster_free_members(r->gone);
	parts_free(r->parts);
	listing_unref(r->top_listing);
	turns_destroy(&r->turns);
	turns_destroy(&r->preparing);
	condition_destroy(&r->moved);
	lock_destroy(&r->lock);
	close(r->wake_fd);
	free(r);
}
