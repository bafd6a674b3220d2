/* SPDX-License-Identifier: Apache-2.0 */
/*
 * History: the list of generations, newest publication first, and the two pointers into it.
 *
 * A slot owns a reference.  It stays while one of these holds: it is current or newest; it is
 * pinned; its state has open handles; a load keeps it; it was published (not asked for) and is
 * among the last `keep` published that no later publication of the same version has replaced.  A
 * replaced slot hands its pin to its successor. `current` and `newest` always point into the list,
 * so they need no reference of their own.
 *
 * The lock (LOCK_HISTORY) is held for list and pointer changes only.  What is dropped is collected
 * on a list of its own and released after the lock, because the last reference of a generation
 * closes files and takes locks of lower layers; the subscriber is called after the lock for the
 * same reason.
 *
 * Threads: any.
 */
#include "fs/history.h"

#include <stdlib.h>

#include "cache/clock.h"
#include "fs/history_private.h"

static const int64_t SOON_MIN_NS = NSEC_PER_SEC / 100;

struct generation *generation_ref(struct generation *g)
{
	__atomic_fetch_add(&g->refs, 1, __ATOMIC_RELAXED);
	return g;
}

void generation_unref(struct generation *g)
{
	if (!g || __atomic_fetch_sub(&g->refs, 1, __ATOMIC_ACQ_REL) > 1)
		return;
	node_unref(g->root);
	state_unref(g->state);
	free(g);
}

struct history *history_new(unsigned keep)
{
	struct history *h = calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	lock_init(&h->lock, LOCK_HISTORY);
	condition_init(&h->changed);
	h->keep = MAX(keep, 1);
	return h;
}

/* Without the lock. */
static void slots_drop(struct slot *s)
{
	while (s) {
		struct slot *next = s->next;

		generation_unref(s->g);
		free(s);
		s = next;
	}
}

void history_free(struct history *h)
{
	if (!h)
		return;
	guard_release_all(&h->guard);
	slots_drop(h->slots);
	condition_destroy(&h->changed);
	lock_destroy(&h->lock);
	free(h);
}

static int slot_opens(const struct slot *s)
{
	return s->g->state ? __atomic_load_n(&s->g->state->opens, __ATOMIC_RELAXED) : 0;
}

/* Takes what need not be kept off the list and returns it, for slots_drop() after the lock. */
static struct slot *retire(struct history *h)
{
	struct slot **at = &h->slots, *dropped = NULL;
	unsigned kept = 0;

	while (*at) {
		struct slot *s = *at;
		/* One without weights is shown only while there is nothing else. */
		bool regular = !s->asked && !s->replaced && s->g->state && kept < h->keep;

		kept += regular;
		if (regular || s->pinned || s == h->current || s == h->newest || slot_opens(s) ||
		    guard_uses(&h->guard, s)) {
			at = &s->next;
			continue;
		}
		*at = s->next;
		s->next = dropped;
		dropped = s;
	}
	return dropped;
}

/* Where current wants to be: the latest publication that is ready.  While nothing (or nothing with
 * weights) is shown, waiting would only make it longer: the newest. */
static struct slot *wanted(struct history *h)
{
	if (!h->current || !h->current->g->state)
		return h->newest;
	for (struct slot *s = h->slots; s && s != h->current; s = s->next)
		if (s->ready && !s->asked && !s->replaced)
			return s;
	return h->current;
}

static void move(struct history *h, struct slot *to)
{
	h->current = to;
	guard_moved(&h->guard, h->current);
	history_note_split(h);
}

/* Lets current follow unless something holds it; true when it moved. */
static bool follow(struct history *h)
{
	struct slot *to = wanted(h);
	int64_t now = clock_mono_ns();
	bool held;

	if (h->held_until && h->held_until <= now)
		h->held_until = 0;
	guard_tick(&h->guard, now);
	held = h->held_until || guard_held(&h->guard);
	if (h->current == to || (held && h->current)) {
		history_note_split(h);
		return false;
	}
	move(h, to);
	return true;
}

/* Off a version that was taken out, whatever holds it: who is loading it goes on with it. */
static bool leave(struct history *h)
{
	struct slot *to = h->slots;

	if (!h->current || !h->current->replaced || h->current == h->newest)
		return follow(h);
	while (to && (!to->ready || to->asked || to->replaced))
		to = to->next;
	move(h, to ? to : h->newest);
	return true;
}

/* Ends a change: wakes waiters, gives up the lock, drops what was retired, tells the subscriber. */
static void finish(struct history *h, bool moved)
{
	struct slot *dropped = retire(h);
	void (*fn)(void *ctx) = moved ? h->fn : NULL;
	void *ctx = h->fn_ctx;

	if (moved) {
		h->moves++;
		condition_broadcast(&h->changed);
	}
	lock_release(&h->lock);
	slots_drop(dropped);
	if (fn)
		fn(ctx);
}

static struct slot *slot_of(struct history *h, uint64_t version)
{
	for (struct slot *s = h->slots; s; s = s->next)
		if (s->g->version == version && !s->replaced)
			return s;
	return NULL;
}

static struct slot *slot_new(struct generation *g)
{
	struct slot *s = calloc(1, sizeof(*s));

	if (s)
		s->g = generation_ref(g);
	return s;
}

/* Puts a slot first and lets it take the place (and the pin) of the one of the same version. */
static void slot_push(struct history *h, struct slot *s)
{
	struct slot *old = slot_of(h, s->g->version);

	if (old) {
		s->pinned |= old->pinned;
		old->pinned = false;
		old->replaced = true;
	}
	s->next = h->slots;
	h->slots = s;
}

int history_publish(struct history *h, struct generation *g)
{
	struct slot *s = slot_new(g);

	if (!s)
		return -ENOMEM;
	lock_take(&h->lock);
	slot_push(h, s);
	s->ready = !h->gated;
	h->newest = s;
	follow(h);
	finish(h, true);
	return 0;
}

int history_add_older(struct history *h, struct generation *g)
{
	struct slot *s = slot_new(g), **at = &h->slots;

	if (!s)
		return -ENOMEM;
	lock_take(&h->lock);
	if (slot_of(h, g->version)) {
		lock_release(&h->lock);
		slots_drop(s);
		return 0;
	}
	while (*at)
		at = &(*at)->next;
	*at = s;
	finish(h, false);
	return 0;
}

int history_add_pinned(struct history *h, struct generation *g)
{
	struct slot *s = slot_new(g), *old;

	if (!s)
		return -ENOMEM;
	lock_take(&h->lock);
	old = slot_of(h, g->version);
	if (old) {
		/* It came by itself meanwhile, or is pinned already: the one that is there stays.
		 */
		old->pinned = true;
		lock_release(&h->lock);
		slots_drop(s);
		return 0;
	}
	s->asked = s->pinned = true;
	slot_push(h, s);
	finish(h, false);
	return 0;
}

void history_drop(struct history *h, uint64_t first, uint64_t last)
{
	lock_take(&h->lock);
	for (struct slot *s = h->slots; s; s = s->next)
		if (s != h->newest && s->g->version >= first && s->g->version <= last) {
			s->pinned = false;
			s->replaced = true;
		}
	finish(h, leave(h));
}

struct generation *slot_ref(const struct slot *s)
{
	return s ? generation_ref(s->g) : NULL;
}

struct generation *history_current(struct history *h)
{
	struct generation *g;

	lock_take(&h->lock);
	g = slot_ref(h->current);
	lock_release(&h->lock);
	return g;
}

struct generation *history_newest(struct history *h)
{
	struct generation *g;

	lock_take(&h->lock);
	g = slot_ref(h->newest);
	lock_release(&h->lock);
	return g;
}

struct generation *history_version(struct history *h, uint64_t version)
{
	struct generation *g;

	lock_take(&h->lock);
	g = slot_ref(slot_of(h, version));
	lock_release(&h->lock);
	return g;
}

int history_pin(struct history *h, uint64_t version)
{
	struct slot *s;

	lock_take(&h->lock);
	s = slot_of(h, version);
	if (s)
		s->pinned = true;
	lock_release(&h->lock);
	return s ? 0 : -ENOENT;
}

int history_unpin(struct history *h, uint64_t version)
{
	struct slot *s;

	lock_take(&h->lock);
	s = slot_of(h, version);
	if (!s || !s->pinned) {
		lock_release(&h->lock);
		return -ENOENT;
	}
	s->pinned = false;
	finish(h, false);
	return 0;
}

void history_unpin_all(struct history *h)
{
	lock_take(&h->lock);
	for (struct slot *s = h->slots; s; s = s->next)
		s->pinned = false;
	finish(h, false);
}

void history_hold(struct history *h, int64_t ns)
{
	int64_t until;

	lock_take(&h->lock);
	if (ns <= 0 || __builtin_add_overflow(clock_mono_ns(), ns, &until))
		until = ns <= 0 ? 0 : INT64_MAX;
	h->held_until = until;
	finish(h, follow(h));
}

void history_release(struct history *h)
{
	lock_take(&h->lock);
	h->held_until = 0;
	guard_release(&h->guard);
	finish(h, follow(h));
}

void history_tick(struct history *h)
{
	lock_take(&h->lock);
	finish(h, follow(h));
}

int64_t history_held_until(struct history *h)
{
	int64_t until;

	lock_take(&h->lock);
	until = h->held_until > clock_mono_ns() ? h->held_until : 0;
	lock_release(&h->lock);
	return until;
}

void history_gate(struct history *h)
{
	lock_take(&h->lock);
	h->gated = true;
	lock_release(&h->lock);
}

void history_ready(struct history *h, const struct generation *g)
{
	lock_take(&h->lock);
	for (struct slot *s = h->slots; s; s = s->next)
		if (s->g == g)
			s->ready = true;
	finish(h, follow(h));
}

int history_moved(struct history *h, uint64_t *seen, int64_t until_mono_ns)
{
	int ret = 0;

	lock_take(&h->lock);
	while (ret == 0 && h->moves == *seen)
		ret = condition_wait(&h->changed, &h->lock, until_mono_ns);
	*seen = h->moves;
	lock_release(&h->lock);
	return ret;
}

void history_wake(struct history *h)
{
	lock_take(&h->lock);
	h->moves++;
	condition_broadcast(&h->changed);
	lock_release(&h->lock);
}

int64_t history_wake_at(struct history *h)
{
	int64_t now = clock_mono_ns(), at = INT64_MAX;

	lock_take(&h->lock);
	if (h->held_until)
		at = MAX(h->held_until, now);
	if (h->guard.loads) {
		/* A close, which tells nobody, may bring the end of a load nearer. */
		int64_t soon = now + MAX(h->guard.settle / 2, SOON_MIN_NS);

		at = MIN(at, MIN(soon, MAX(guard_deadline(&h->guard), now)));
	}
	lock_release(&h->lock);
	return at;
}

static void entry_fill(struct history *h, const struct slot *s, struct history_entry *e)
{
	const struct generation *g = s->g;

	*e = (struct history_entry){
		.version = g->version,
		.anchor = g->state ? g->state->anchor : 0,
		.deltas = g->state ? g->state->deltas : 0,
		.opens = slot_opens(s),
		.mtime_ns = g->mtime_ns,
		.pinned = s->pinned,
		.current = s == h->current,
		.newest = s == h->newest,
	};
	memcpy(e->lineage, g->lineage, sizeof(e->lineage));
}

static int entry_order(const void *a, const void *b)
{
	const struct history_entry *x = a, *y = b;

	if (x->version != y->version)
		return x->version < y->version ? -1 : 1;
	return x->mtime_ns < y->mtime_ns ? -1 : x->mtime_ns > y->mtime_ns;
}

int history_list(struct history *h, struct history_entry **out, size_t *out_count)
{
	struct history_entry *v;
	size_t count = 0;

	lock_take(&h->lock);
	for (struct slot *s = h->slots; s; s = s->next)
		count++;
	v = calloc(MAX(count, 1), sizeof(*v));
	if (v) {
		size_t i = 0;

		for (struct slot *s = h->slots; s; s = s->next)
			entry_fill(h, s, &v[i++]);
	}
	lock_release(&h->lock);
	if (!v)
		return -ENOMEM;
	qsort(v, count, sizeof(*v), entry_order);
	*out = v;
	*out_count = count;
	return 0;
}

bool history_lineage(struct history *h, const struct state *state, char out[9])
{
	bool found = false;

	lock_take(&h->lock);
	for (struct slot *s = h->slots; s && !found; s = s->next) {
		found = s->g->state == state;
		if (found)
			memcpy(out, s->g->lineage, sizeof(s->g->lineage));
	}
	lock_release(&h->lock);
	return found;
}

void history_subscribe(struct history *h, void (*fn)(void *ctx), void *ctx)
{
	lock_take(&h->lock);
	h->fn = fn;
	h->fn_ctx = ctx;
	lock_release(&h->lock);
}

int history_wait(struct history *h, bool newest, uint64_t n, int64_t until_mono_ns)
{
	int ret = 0;

	lock_take(&h->lock);
	for (;;) {
		const struct slot *s = newest ? h->newest : h->current;

		/* A generation without a state has only companions: no version yet. */
		if (s && s->g->state && s->g->version >= n)
			break;
		ret = condition_wait(&h->changed, &h->lock, until_mono_ns);
		if (ret < 0)
			break;
	}
	lock_release(&h->lock);
	return ret;
}
