/* SPDX-License-Identifier: Apache-2.0 */
/*
 * History, the side of the load guard: opens and closes come in, and what a process sees goes out.
 *
 * The guard's views are slots of the history, and the guard is under the history's lock, so that an
 * open and a move of current never cross: either the open comes first and current stays, or the
 * epoch that the open brings is old and the name is looked up again.
 *
 * Current itself is moved in history.c only, when something is published or at a tick.
 *
 * Threads: any.
 */
#include "fs/history_private.h"

#include <stdlib.h>

#include "cache/clock.h"
#include "codec/buf.h"

void history_set_guard(struct history *h, int64_t settle_ns, int64_t max_hold_ns)
{
	guard_init(&h->guard, settle_ns, max_hold_ns);
}

bool history_guarded(const struct history *h)
{
	return h->guard.settle > 0;
}

uint64_t history_epoch(struct history *h)
{
	uint64_t epoch;

	lock_take(&h->lock);
	epoch = h->guard.epoch;
	lock_release(&h->lock);
	return epoch;
}

int history_load_opened(struct history *h, int pid, const char *name, bool index,
			const uint64_t *epoch, uint64_t *out_id, bool *out_new)
{
	int64_t now;
	bool stale;
	int ret;

	lock_take(&h->lock);
	now = clock_mono_ns();
	/* First, since that may change what the process sees. */
	guard_tick(&h->guard, now);
	if (index)
		guard_index(&h->guard, pid, now);
	stale = epoch && *epoch != h->guard.epoch;
	ret = guard_opened(&h->guard, pid, name, index, !stale, now, out_id, out_new);
	history_note_split(h);
	lock_release(&h->lock);
	return ret < 0 ? ret : stale ? -ESTALE : 0;
}

void history_load_named(struct history *h, uint64_t id, const char *command)
{
	lock_take(&h->lock);
	guard_name(&h->guard, id, command);
	lock_release(&h->lock);
}

void history_load_closed(struct history *h, uint64_t id)
{
	lock_take(&h->lock);
	guard_closed(&h->guard, id, clock_mono_ns());
	history_note_split(h);
	lock_release(&h->lock);
}

bool history_split(const struct history *h)
{
	return __atomic_load_n(&h->split, __ATOMIC_RELAXED);
}

struct generation *history_view(struct history *h, int pid)
{
	const struct slot *s;
	struct generation *g;

	lock_take(&h->lock);
	guard_tick(&h->guard, clock_mono_ns());
	s = guard_view(&h->guard, pid);
	g = slot_ref(s ? s : h->current);
	history_note_split(h);
	lock_release(&h->lock);
	return g;
}

/* Under the lock; false: out of memory. */
static bool load_fill(const struct history *h, const struct guard_load *l, struct history_load *out)
{
	struct buf files = {0};

	*out = (struct history_load){
		.pid = l->pid,
		.version = ((const struct slot *)l->view)->g->version,
		.holds = guard_held(&h->guard) && l->view == h->current,
		.began = l->began,
		.end = guard_load_end(&h->guard, l),
		.open = l->open,
		.opens = l->opens,
	};
	memcpy(out->command, l->command, sizeof(out->command));
	for (unsigned i = 0; i < l->name_count; i++)
		buf_addf(&files, "%s%s", i ? "\n" : "", l->names[i]);
	out->files = files.failed ? NULL : strdup(buf_str(&files));
	buf_release(&files);
	return out->files != NULL;
}

static int load_order(const void *a, const void *b)
{
	const struct history_load *x = a, *y = b;

	return x->began < y->began ? -1 : x->began > y->began;
}

int history_loads(struct history *h, struct history_load **out, size_t *out_count)
{
	struct history_load *v;
	size_t count = 0, filled = 0;

	lock_take(&h->lock);
	for (const struct guard_load *l = h->guard.loads; l; l = l->next)
		count++;
	v = calloc(MAX(count, 1), sizeof(*v));
	for (const struct guard_load *l = h->guard.loads; v && l && filled < count; l = l->next)
		if (load_fill(h, l, &v[filled++]) == false)
			break;
	lock_release(&h->lock);
	if (!v || filled < count || (count && !v[count - 1].files)) {
		history_loads_free(v, filled);
		return -ENOMEM;
	}
	qsort(v, count, sizeof(*v), load_order);
	*out = v;
	*out_count = count;
	return 0;
}

void history_loads_free(struct history_load *v, size_t count)
{
	for (size_t i = 0; v && i < count; i++)
		free(v[i].files);
	free(v);
}

uint64_t history_expired(struct history *h, int *out_pid, char out_command[16])
{
	uint64_t count;

	lock_take(&h->lock);
	count = h->guard.expired;
	*out_pid = h->guard.expired_pid;
	memcpy(out_command, h->guard.expired_command, sizeof(h->guard.expired_command));
	lock_release(&h->lock);
	return count;
}
