/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that keeps the runs of a source.
 *
 * A round lists the source, takes out what has gone, makes what is new; between rounds it shows
 * those whose first look is over and frees those that nobody has open any more.
 *
 * It is the only one that changes the list of members, so it reads that list without the lock.  It
 * may use the mount itself (the front's herald does): it is no worker of the session, and holds no
 * lock then.
 */
#include "fs/roster_private.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cache/clock.h"
#include "cache/log.h"
#include "fs/gate.h"
#include "fs/runs.h"

enum { MISSING_MAX = 2 };		  /* listings in a row */
enum { FILES_OURS = 64, FILES_EACH = 8 }; /* open: of the process, of a run */
static const int64_t PENDING_NS = 20 * INT64_C(1000000), TICK_NS = NSEC_PER_SEC;
static const int64_t LOCAL_AGE_NS = 100 * INT64_C(1000000);
static const int64_t COALESCE_NS = 10 * INT64_C(1000000), RETRY_NS = 10 * NSEC_PER_SEC;

static void member_free(struct member *m)
{
	inodes_free(m->inodes);
	stack_free(m->stack);
	free(m->opts.source);
	free(m->opts.mountpoint);
	free(m->path);
	free(m);
}

void roster_free_members(struct member *m)
{
	while (m != NULL) {
		struct member *next = m->next;

		member_free(m);
		m = next;
	}
}

static struct member *member_new(struct roster *r, const char *path)
{
	struct member *m = calloc(1, sizeof(*m));

	if (m == NULL)
		return NULL;
	m->opts = *r->top->opts;
	m->opts.source = parts_name(r->top->opts->source, path);
	m->opts.mountpoint = parts_name(r->mountpoint, path);
	m->path = strdup(path);
	if (m->opts.source == NULL || m->opts.mountpoint == NULL || m->path == NULL) {
		member_free(m);
		return NULL;
	}
	return m;
}

/* Makes its stack and starts its watch. */
static int set_up(struct roster *r, struct member *m, struct why *why)
{
	char *name = parts_name(r->top->store->name, m->path);
	struct stack *stack = NULL;
	struct inodes *inodes = NULL;
	struct store *part = NULL;
	struct serving_view serving;
	const uint64_t number = ++r->last_run;
	int err = name == NULL ? -ENOMEM : parts_open(r->parts, m->path, name, &part);

	free(name);
	if (err < 0)
		return why_set(why, -err, "it cannot be set up: %s", strerrordesc_np(-err));
	err = stack_new_part(r->top, &m->opts, part, number, m->path, &stack, why);
	if (err < 0)
		return err;
	serving_get(&r->top->serving, &serving);
	serving_settings(&stack->serving, serving.read_ahead_kb, serving.max_background);
	watch_share(stack->watch, &r->turns, m->path);
	stack->preparing = &r->preparing;
	inodes = inodes_new(stack, number);
	if (inodes == NULL) {
		stack_free(stack);
		return why_set(why, ENOMEM, "out of memory");
	}
	r->ops.made(r->ctx, stack);
	err = watch_start(stack->watch);
	if (err < 0) {
		inodes_free(inodes);
		stack_free(stack);
		return why_set(why, -err, "its thread cannot be started: %s",
			       strerrordesc_np(-err));
	}
	lock_take(&r->lock);
	m->run = number;
	m->stack = stack;
	m->inodes = inodes;
	m->trouble = (struct why){0};
	lock_release(&r->lock);
	return 0;
}

/* Each costs a few threads and files, and the process needs some for whoever reads. */
static size_t most_runs(void)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur < FILES_OURS + FILES_EACH)
		return 1;
	return (size_t)MIN((files.rlim_cur - FILES_OURS) / FILES_EACH, (rlim_t)ROSTER_MOST);
}

static void try_set_up(struct roster *r, struct member *m)
{
	const bool full = r->made >= most_runs();
	struct why why = {0};

	if (m->stack != NULL || clock_mono_ns() < m->retry_at)
		return;
	if (full) {
		why_set(&why, EMFILE,
			"as many runs are shown as this mount can have: mount this one by itself");
	} else if (set_up(r, m, &why) == 0) {
		r->made++;
		return;
	}
	m->retry_at = full ? 0 : clock_mono_ns() + RETRY_NS;
	if (full && !r->full)
		log_error("%s: %s; so with those after it", SHOWN(m->path), why.text);
	else if (!full && strcmp(m->trouble.text, why.text) != 0)
		log_error("%s: %s", SHOWN(m->path), why.text);
	r->full |= full;
	lock_take(&r->lock);
	m->trouble = why;
	lock_release(&r->lock);
}

/* Puts it in its place in the list. */
static void insert(struct roster *r, struct member *m)
{
	struct member **at = &r->members;

	lock_take(&r->lock);
	while (*at != NULL && strcmp((*at)->path, m->path) < 0)
		at = &(*at)->next;
	m->next = *at;
	*at = m;
	lock_release(&r->lock);
}

static bool is_listed(const struct listing *l, const struct member *m)
{
	char *prefix;
	size_t begin, end;

	if (asprintf(&prefix, "%s/", m->path) < 0)
		return true;
	end = runs_slice(l, prefix, &begin);
	free(prefix);
	return end > begin;
}

static int add_new(struct roster *r, const struct runs *found)
{
	const struct member *at = r->members;

	for (size_t i = 0; i < found->count; i++) {
		bool known = false;
		struct member *m;

		/* Both are sorted, and nearly all are known. */
		while (at != NULL && strcmp(at->path, found->v[i]) < 0)
			at = at->next;
		if (at != NULL && strcmp(at->path, found->v[i]) == 0)
			continue;
		for (m = r->members; m != NULL && !known; m = m->next)
			known = runs_nested(m->path, found->v[i]);
		if (known)
			continue;
		m = member_new(r, found->v[i]);
		if (m == NULL)
			return -ENOMEM;
		m->plain = r->top_listing != NULL && is_listed(&r->top_listing->listing, m);
		insert(r, m);
		log_info("%s: a run", SHOWN(m->path));
	}
	return 0;
}

void roster_end_member(struct roster *r, struct member *m)
{
	if (m->stack == NULL)
		return;
	watch_stop(m->stack->watch);
	r->ops.ended(r->ctx, m->stack, m->what);
	m->what = NULL;
	m->begun = false;
}

/* Takes out what has been missing for long enough; true: one is missing for the first time. */
static bool take_out(struct roster *r, const struct listing *l)
{
	struct member **at = &r->members, *m;
	size_t count = 0;
	bool first = false, any;

	lock_take(&r->lock);
	while ((m = *at) != NULL) {
		m->missing = is_listed(l, m) ? 0 : m->missing + 1;
		first |= m->missing > 0 && m->missing < MISSING_MAX;
		if (m->missing < MISSING_MAX) {
			at = &m->next;
			continue;
		}
		*at = m->next;
		m->shown = false;
		/* At once: what is open of it is found by its number while it ends. */
		m->next = r->gone;
		r->gone = m;
		count++;
	}
	lock_release(&r->lock);
	any = count > 0;
	for (m = r->gone; count > 0; m = m->next, count--) {
		if (m->inodes != NULL)
			inodes_set_gone(m->inodes);
		log_info("%s: nothing of this run is listed any more", SHOWN(m->path));
		roster_end_member(r, m);
	}
	if (any)
		r->ops.changed(r->ctx);
	return first;
}

static void reap(struct roster *r)
{
	struct member **at = &r->gone, *idle = NULL, *m;

	lock_take(&r->lock);
	while ((m = *at) != NULL) {
		if (m->inodes != NULL && !inodes_idle(m->inodes)) {
			at = &m->next;
			continue;
		}
		*at = m->next;
		m->next = idle;
		idle = m;
		r->made -= m->stack != NULL;
	}
	lock_release(&r->lock);
	roster_free_members(idle);
}

/* Shows those that have been looked at, and begins what the front has for them; true: some are
 * still being looked at. */
static bool show(struct roster *r)
{
	bool pending = false, changed = false, usable;

	lock_take(&r->lock);
	usable = r->usable;
	lock_release(&r->lock);
	for (struct member *m = r->members; m != NULL; m = m->next) {
		bool scanned = m->stack != NULL && watch_scanned(m->stack->watch);

		pending |= m->stack != NULL && !scanned;
		if (!scanned)
			continue;
		lock_take(&r->lock);
		changed |= !m->shown;
		m->shown = true;
		lock_release(&r->lock);
		if (usable && !m->begun) {
			m->begun = true;
			r->ops.begun(r->ctx, m->stack, &m->what);
		}
	}
	if (changed)
		r->ops.changed(r->ctx);
	lock_take(&r->lock);
	r->begun = usable;
	condition_broadcast(&r->moved);
	lock_release(&r->lock);
	return pending;
}

/* ---- the thread ---- */

/* Notes which directories cannot be listed; what is new of it is logged. */
static void note_shut(struct roster *r, const struct runs *runs, const struct listing *l)
{
	const struct object *first;
	const size_t n = runs_shut(runs, l, &first);
	char text[sizeof(r->shut)] = "";
	bool same;

	if (n > 0)
		snprintf(text, sizeof(text),
			 "%zu director%s cannot be listed, such as %s (permission denied): a "
			 "run in there is not seen",
			 n, n == 1 ? "y" : "ies", SHOWN(first->key));
	lock_take(&r->lock);
	same = strcmp(r->shut, text) == 0;
	memcpy(r->shut, text, sizeof(text));
	lock_release(&r->lock);
	if (n > 0 && !same)
		log_warning("%s", text);
}

/* Takes over what the listing has; -errno: nothing was changed. */
static int follow(struct roster *r, struct listing_ref *l)
{
	struct listing_ref *old = NULL;
	struct runs runs = {0}, top = {0};
	int err = runs_find(&l->listing, false, &runs);
	bool missing;

	if (err == 0)
		err = runs_find(&l->listing, true, &top);
	if (err == 0) {
		note_shut(r, &runs, &l->listing);
		missing = take_out(r, &l->listing);
		err = add_new(r, &runs);
		for (struct member *m = r->members; m != NULL; m = m->next)
			try_set_up(r, m);
		lock_take(&r->lock);
		r->top_mark = top.top;
		if (!missing || r->top_listing == NULL) {
			old = r->top_listing;
			r->top_listing = listing_ref(l);
		}
		lock_release(&r->lock);
	}
	listing_unref(old);
	runs_release(&runs);
	runs_release(&top);
	return err;
}

static void run_round(struct roster *r, bool fresh)
{
	struct listing_ref *l = NULL;
	struct why why = {0};
	bool asked, said;
	int err;

	lock_take(&r->lock);
	asked = r->asked;
	r->asked = false;
	r->rounds_begun++;
	lock_release(&r->lock);
	r->round_at = clock_mono_ns();
	store_watch_drain(roster_source(r));
	err = parts_list(r->parts, fresh || asked, asked, &l, &why);
	if (err == 0 && (err = follow(r, l)) < 0)
		why_set(&why, -err, "out of memory");
	/* Without a network at the start there is the one that the store remembers. */
	else if (r->top_listing == NULL && (l = parts_last(r->parts)) != NULL)
		(void)!follow(r, l);
	listing_unref(l);
	r->round_cost = clock_mono_ns() - r->round_at;
	lock_take(&r->lock);
	said = strcmp(r->listing.text, why.text) == 0;
	r->listing = why;
	r->listed_real_ns = err == 0 ? clock_real_ns() : r->listed_real_ns;
	r->rounds_ended++;
	condition_broadcast(&r->moved);
	lock_release(&r->lock);
	if (err < 0 && !said)
		log_error("%s; the runs that are shown stay", why.text);
}

/* Sleeps until something is to be done; true: the source says that it has changed. */
static bool sleep_until(struct roster *r, int64_t until, bool listen)
{
	struct pollfd fds[2] = {
		{.fd = r->wake_fd, .events = POLLIN},
		{.fd = listen ? store_watch_fd(roster_source(r)) : -1, .events = POLLIN}};
	int64_t left = until - clock_mono_ns();
	struct timespec ts = clock_timespec(left > 0 ? left : 0);
	uint64_t count;

	if (ppoll(fds, 2, &ts, NULL) <= 0)
		return false;
	if (fds[0].revents != 0 && read(r->wake_fd, &count, sizeof(count)) < 0)
		return false;
	return (fds[1].revents & POLLIN) != 0;
}

/* Several runs it is: the source's own watch ends, and its listing is ours. */
static int take_over(struct roster *r)
{
	struct listing_ref *first = NULL;
	struct store *source = gate_source(r->top->store, &first);
	int64_t age = r->top->opts->poll_ns;
	struct parts *parts = NULL;
	int err;

	watch_retire(r->top->watch);
	if (!source->remote)
		age = MIN(age, LOCAL_AGE_NS);
	err = parts_new(source, age, first, &parts);
	listing_unref(first);
	if (err < 0)
		return err;
	__atomic_store_n(&r->parts, parts, __ATOMIC_RELEASE);
	r->ops.changed(r->ctx);
	return 0;
}

/* True: go on. */
static bool wants(struct roster *r, bool *out_several, bool *out_asked)
{
	bool go;

	lock_take(&r->lock);
	*out_several = r->several;
	*out_asked = r->asked;
	go = !r->stop;
	lock_release(&r->lock);
	return go;
}

static void settled(struct roster *r)
{
	lock_take(&r->lock);
	r->settled = true;
	condition_broadcast(&r->moved);
	lock_release(&r->lock);
}

static void keep(struct roster *r)
{
	bool several, asked, pending;
	int64_t next;

	run_round(r, false);
	while (wants(r, &several, &asked)) {
		bool changed = false;

		pending = show(r);
		reap(r);
		if (!pending)
			settled(r);
		next = r->round_at + MAX(r->top->opts->poll_ns, 2 * r->round_cost);
		if (!asked && clock_mono_ns() < next)
			changed = sleep_until(
				r, MIN(next, clock_mono_ns() + (pending ? PENDING_NS : TICK_NS)),
				true);
		/* One upload makes several events. */
		if (changed)
			sleep_until(r, clock_mono_ns() + MAX(COALESCE_NS, r->round_cost), false);
		if (wants(r, &several, &asked) && (asked || changed || clock_mono_ns() >= next))
			run_round(r, changed);
	}
}

void *roster_main(void *arg)
{
	struct roster *r = arg;
	bool several, asked;

	while (wants(r, &several, &asked) && !several)
		sleep_until(r, INT64_MAX, false);
	if (several && take_over(r) == 0)
		keep(r);
	else if (several)
		log_error("out of memory: no run can be shown");
	lock_take(&r->lock);
	r->ended = true;
	condition_broadcast(&r->moved);
	lock_release(&r->lock);
	return NULL;
}
