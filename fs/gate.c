/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate of a source.
 *
 *	UNKNOWN ── a listing with a run at the top ──> ONE: everything is passed on, for ever
 *	UNKNOWN ── one with runs in directories ─────> SEVERAL: nothing is there for its reader
 *
 * The decision is made once in the life of a process, since what is mounted cannot change from
 * files into directories under those who use it.
 *
 * Handles are the source's own.  Locks: `lock` (LOCK_QUEUE) guards what changes.  Threads: any.
 */
#include "fs/gate.h"

#include "cache/lock.h"
#include "fs/parts.h"
#include "fs/runs.h"

#include <stdlib.h>

struct gate {
	struct store base;
	struct store *source;
	bool one, tool;
	struct lock lock;
	enum gate_state state;
	struct listing_ref *first; /* that had several runs */
	void (*fn)(void *ctx);
	void *ctx;
};

static struct gate *gate_of(struct store *s)
{
	return (struct gate *)s;
}

static int name_them(const struct gate *g, const struct runs *runs, struct why *why)
{
	struct buf names = {0};
	int ret;

	runs_names(runs, &names);
	ret = why_set(why, EISDIR, "%s holds %zu run%s: %s; name one, such as %s/%s",
		      g->source->name, runs->count, runs->count == 1 ? "" : "s", buf_str(&names),
		      g->source->name, SHOWN(runs->v[0]));
	buf_release(&names);
	return ret;
}

/* Decides, when it can be; with several runs the listing is taken over. */
static int decide(struct gate *g, struct listing *l, struct why *why)
{
	void (*fn)(void *) = NULL;
	struct listing_ref *first;
	struct runs runs = {0};
	int err = runs_find(l, true, &runs);

	if (err == 0 && g->tool && runs.count > 0)
		err = name_them(g, &runs, why);
	else if (err < 0)
		why_set(why, -err, "out of memory");
	first = err == 0 && runs.count > 0 ? calloc(1, sizeof(*first)) : NULL;
	if (first != NULL) {
		first->refs = 1;
		first->listing = *l;
		*l = (struct listing){0};
	}
	lock_take(&g->lock);
	if (err == 0 && (runs.top || (g->one && runs.count == 0))) {
		g->state = GATE_ONE;
	} else if (first != NULL && g->state == GATE_UNKNOWN) {
		g->state = GATE_SEVERAL;
		g->first = first;
		fn = g->fn;
		first = NULL;
	}
	lock_release(&g->lock);
	listing_unref(first);
	runs_release(&runs);
	if (fn != NULL)
		fn(g->ctx);
	return err;
}

/* There are several because somebody said so: can the source be listed at all? */
static int look_once(struct gate *g, struct why *why)
{
	struct listing_ref *first;
	bool known;
	int err;

	lock_take(&g->lock);
	known = g->first != NULL;
	lock_release(&g->lock);
	if (known)
		return 0;
	first = calloc(1, sizeof(*first));
	err = first != NULL ? store_list(g->source, "", &first->listing, why)
			    : why_set(why, ENOMEM, "out of memory");
	if (err < 0) {
		free(first);
		return err;
	}
	first->refs = 1;
	lock_take(&g->lock);
	if (g->first == NULL) {
		g->first = first;
		first = NULL;
	}
	lock_release(&g->lock);
	listing_unref(first);
	return 0;
}

static int list(struct store *s, const char *prefix, struct listing *out, struct why *why)
{
	struct gate *g = gate_of(s);
	enum gate_state state = gate_state(s);
	int err;

	*out = (struct listing){0};
	if (state == GATE_SEVERAL && !g->tool)
		return look_once(g, why);
	err = store_list(g->source, prefix, out, why);
	if (err < 0 || state == GATE_ONE || *prefix != '\0')
		return err;
	err = decide(g, out, why);
	if (err < 0)
		listing_release(out);
	return err;
}

static int open_object(struct store *s, const struct object *object, struct handle **out,
		       struct why *why)
{
	return store_open(gate_of(s)->source, object, out, why);
}

static int watch_fd(struct store *s)
{
	return store_watch_fd(gate_of(s)->source);
}

static void watch_drain(struct store *s)
{
	store_watch_drain(gate_of(s)->source);
}

static void stop(struct store *s)
{
	store_stop(gate_of(s)->source);
}

static void refresh(struct store *s)
{
	store_refresh(gate_of(s)->source);
}

static bool describe(struct store *s, struct buf *out)
{
	return store_describe(gate_of(s)->source, out);
}

static void release(struct store *s)
{
	struct gate *g = gate_of(s);

	listing_unref(g->first);
	store_free(g->source);
	lock_destroy(&g->lock);
	free(g);
}

/* ops is never asked for fetch, close and settled: handles are the source's own. */
static const struct store_ops gate_ops = {
	.name = "gate",
	.list = list,
	.open = open_object,
	.watch_fd = watch_fd,
	.watch_drain = watch_drain,
	.free = release,
	.stop = stop,
	.refresh = refresh,
	.describe = describe,
};

int gate_new(struct store *source, const struct gate_config *config, struct store **out)
{
	struct gate *g = calloc(1, sizeof(*g));

	if (g == NULL) {
		store_free(source);
		return -ENOMEM;
	}
	lock_init(&g->lock, LOCK_QUEUE);
	g->base.ops = &gate_ops;
	g->base.name = source->name;
	store_front(&g->base, source);
	g->source = source;
	g->one = config->one;
	g->tool = config->tool;
	g->state = config->several ? GATE_SEVERAL : GATE_UNKNOWN;
	*out = &g->base;
	return 0;
}

static bool is_gate(const struct store *s)
{
	return s->ops == &gate_ops;
}

enum gate_state gate_state(struct store *s)
{
	enum gate_state state = GATE_ONE;

	if (!is_gate(s))
		return state;
	lock_take(&gate_of(s)->lock);
	state = gate_of(s)->state;
	lock_release(&gate_of(s)->lock);
	return state;
}

void gate_subscribe(struct store *s, void (*fn)(void *ctx), void *ctx)
{
	struct gate *g = gate_of(s);
	bool now;

	lock_take(&g->lock);
	g->fn = fn;
	g->ctx = ctx;
	now = g->state == GATE_SEVERAL;
	lock_release(&g->lock);
	if (now && fn != NULL)
		fn(ctx);
}

struct store *gate_source(struct store *s, struct listing_ref **out_first)
{
	struct gate *g = gate_of(s);

	lock_take(&g->lock);
	*out_first = g->first != NULL ? listing_ref(g->first) : NULL;
	lock_release(&g->lock);
	return g->source;
}
