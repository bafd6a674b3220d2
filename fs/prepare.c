/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The preparing thread.
 *
 *	newest moved ──> write out (--materialize always) ──> warm (--warm) ──> ready: current may
 *move newest has stayed for --materialize-after ──> write out (--materialize auto)
 *
 * A version that arrives while another is prepared waits for its turn, and those that were
 * superseded meanwhile are skipped; what has begun is finished, so that current moves even where
 * versions come faster than they can be prepared.  Whatever goes wrong here costs speed only: the
 * version becomes ready in any case.
 *
 * Files of older versions: without --materialize-size they go as soon as nothing has them open;
 * with it, when room is needed.
 *
 * Threads: one, which is no FUSE worker: it may look names up in our own mount.  It holds no lock
 * while it does anything.
 */
#include "fs/prepare.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cache/clock.h"
#include "cache/log.h"
#include "fs/human.h"
#include "fs/warm.h"
#include "fs/wholes.h"

enum { NICE = 10 };
static const int64_t RETRY_FIRST = NSEC_PER_SEC, RETRY_LAST = 3600 * NSEC_PER_SEC;

typedef unsigned long long ull;

struct prepare {
	struct prepare_config config;
	struct history *history;
	struct serving *serving;
	struct wholes *wholes; /* NULL: nothing is written out */
	pthread_t thread;
	bool stop; /* atomic */
	/* the thread's own; numbers of root directories, which are never used twice */
	uint64_t prepared, written; /* versions that it is done with */
	uint64_t warmed;	    /* the number of a version's first file */
	uint64_t settling;	    /* the newest version, and since when it is that */
	int64_t settling_since;
	char unwritten[200];	       /* why the version under way was not written out, or "" */
	int64_t retry_at, retry_delay; /* then; retry_at 0: not again */
};

static bool is_stopped(void *ctx)
{
	const struct prepare *p = ctx;

	return __atomic_load_n(&p->stop, __ATOMIC_ACQUIRE);
}

/* ---- writing out ---- */

static struct node *file_node(const struct generation *g, uint32_t i)
{
	struct node *n = node_walk(g->root, g->state->layout->files[i].name);

	return n != NULL && n->kind == NODE_WEIGHTS ? n : NULL;
}

/* Takes the whole files of a version away unless they are open. */
static bool detach_version(struct prepare *p, const struct generation *g)
{
	bool any = false;

	for (uint32_t i = 0; i < g->state->layout->file_count; i++) {
		struct node *n = file_node(g, i);

		any |= n != NULL && node_detach(n);
	}
	return any;
}

/* The oldest version that is neither newest nor current gives its whole files up; false: none has
 * any to give.  all: every one of them does. */
static bool detach_older(struct prepare *p, bool all)
{
	struct history_entry *v;
	size_t count;
	bool any = false;

	if (history_list(p->history, &v, &count) < 0)
		return false;
	for (size_t i = 0; i < count && (all || !any); i++) {
		struct generation *g = v[i].current || v[i].newest
					       ? NULL
					       : history_version(p->history, v[i].version);

		if (g != NULL && g->state != NULL &&
		    g->state != __atomic_load_n(&p->serving->announced, __ATOMIC_ACQUIRE))
			any |= detach_version(p, g);
		generation_unref(g);
	}
	free(v);
	return any;
}

/* Files of versions that are neither newest nor current any more. */
static void tidy(struct prepare *p)
{
	struct generation *v[2] = {history_newest(p->history), history_current(p->history)};
	struct identity keep[2];
	size_t count = 0;

	if (p->config.stack->opts->materialize_size == 0)
		(void)detach_older(p, true);
	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		if (v[i] != NULL && v[i]->state != NULL)
			keep[count++] = v[i]->state->fingerprint;
		generation_unref(v[i]);
	}
	wholes_tidy(p->wholes, keep, count);
}

static int write_file(struct prepare *p, const struct generation *g, uint32_t i, bool *out_reused,
		      struct why *why)
{
	struct node *n = file_node(g, i);
	struct whole *whole;
	int fd, ret;

	*out_reused = true;
	if (n == NULL || node_is_whole(n))
		return 0;
	ret = wholes_get(p->wholes, g->state, i, &fd, out_reused, why);
	if (ret < 0)
		return ret;
	ret = whole_new(fd, n->size, p->config.ops, p->config.ops_ctx, p->serving, &whole);
	if (ret == 0)
		ret = node_attach(n, whole);
	if (ret < 0)
		return why_set(why, -ret, "%s cannot be registered with the kernel: %s",
			       g->state->layout->files[i].name, strerrordesc_np(-ret));
	return 0;
}

/* Tries again later: a disk gets room, a network comes back.  Ever less often, since each attempt
 * may write most of a version. */
static void not_written(struct prepare *p, const struct generation *g, const struct why *why)
{
	char said[sizeof(p->unwritten)];

	snprintf(said, sizeof(said), "; not written out: %.150s", why->text);
	if (strcmp(said, p->unwritten) != 0)
		log_warning("version %llu is not written out: %s", (ull)g->version, why->text);
	memcpy(p->unwritten, said, sizeof(said));
	p->retry_at = clock_mono_ns() + p->retry_delay;
	p->retry_delay = MIN(2 * p->retry_delay, RETRY_LAST);
}

static void write_version(struct prepare *p, const struct generation *g)
{
	int64_t begin = clock_mono_ns();
	struct why why = {0};
	bool reused = true;
	int ret;

	if (p->written != g->root->ino)
		p->retry_delay = RETRY_FIRST;
	p->written = g->root->ino;
	p->retry_at = 0;
	serving_preparing(p->serving, false, "writing version %llu out", (ull)g->version);
	do
		ret = wholes_room(p->wholes, g->state, &why);
	while (ret == -ENOSPC && !is_stopped(p) && detach_older(p, false));
	for (uint32_t i = 0; i < g->state->layout->file_count && ret == 0; i++) {
		bool one;

		ret = write_file(p, g, i, &one, &why);
		reused &= one;
	}
	if (ret == 0) {
		p->unwritten[0] = '\0';
		serving_preparing(p->serving, true, "version %llu %s in %.1f s", (ull)g->version,
				  reused ? "was written out before, and checked"
					 : "was written out",
				  (double)(clock_mono_ns() - begin) / NSEC_PER_SEC);
		log_info("version %llu %s: its files are passed through", (ull)g->version,
			 reused ? "was written out before" : "is written out");
	} else if (ret != -ECANCELED && ret != -ENOTCONN) { /* else the mount ends */
		serving_preparing(p->serving, true, "version %llu is not written out: %s",
				  (ull)g->version, why.text);
		not_written(p, g, &why);
	}
}

/* ---- warming ---- */

static void warm(struct prepare *p, const struct generation *g)
{
	const struct warm_config config = {
		.mountpoint = p->config.mountpoint,
		.budget = p->config.stack->opts->warm_budget,
		.push = p->config.push,
		.push_ctx = p->config.push_ctx,
		.stopped = is_stopped,
		.ctx = p,
	};
	const struct node *first = g->state->layout->file_count > 0 ? file_node(g, 0) : NULL;
	struct warm_result result;

	/* Companions alone have changed: its files are the same. */
	if (first != NULL && first->ino == p->warmed)
		return;
	serving_preparing(p->serving, false, "warming version %llu", (ull)g->version);
	warm_version(&config, g, &result);
	p->warmed = first != NULL ? first->ino : 0;
	serving_warmed(p->serving, result.done);
	if (result.total > 0)
		serving_preparing(p->serving, true, "version %llu: %llu of %llu MiB warmed%s%s%s",
				  (ull)g->version, (ull)(result.done >> 20),
				  (ull)(result.total >> 20), result.why != NULL ? ": " : "",
				  result.why != NULL ? result.why : "",
				  p->written == g->root->ino ? p->unwritten : "");
	if (result.why != NULL && !result.ends && !is_stopped(p))
		log_warning("version %llu: %llu of %llu MiB warmed: %s", (ull)g->version,
			    (ull)(result.done >> 20), (ull)(result.total >> 20), result.why);
}

/* ---- the thread ---- */

/* Where there are several runs they take turns: each would be as fast as the disk lets it. */
static bool take_turn(struct prepare *p)
{
	return turns_take_unless(p->config.stack->preparing, is_stopped, p);
}

static void give_turn(struct prepare *p)
{
	turns_give(p->config.stack->preparing);
}

static void write_in_turn(struct prepare *p, const struct generation *g)
{
	if (!take_turn(p))
		return;
	write_version(p, g);
	give_turn(p);
}

static void prepare_newest(struct prepare *p, const struct generation *g)
{
	const struct opts *o = p->config.stack->opts;

	p->prepared = g->root->ino;
	if (p->wholes != NULL && o->materialize == MATERIALIZE_ALWAYS)
		write_in_turn(p, g);
	if (o->warm && !is_stopped(p) && take_turn(p)) {
		warm(p, g);
		give_turn(p);
	}
	if (o->warm)
		history_ready(p->history, g);
}

/* Writes the newest version out once it has stayed that for long enough (--materialize auto), or
 * again when that has failed; returns when to look again, -1: when it moves. */
static int64_t settle(struct prepare *p, const struct generation *g)
{
	const struct opts *o = p->config.stack->opts;
	int64_t now = clock_mono_ns(), due;

	if (p->wholes == NULL)
		return -1;
	if (p->written == g->root->ino) {
		if (p->retry_at != 0 && p->retry_at <= now)
			write_in_turn(p, g);
		return p->retry_at != 0 ? p->retry_at : -1;
	}
	if (o->materialize != MATERIALIZE_AUTO)
		return -1;
	if (p->settling != g->root->ino) {
		p->settling = g->root->ino;
		p->settling_since = now;
	}
	due = p->settling_since + o->materialize_after_ns;
	if (due > now)
		return due;
	write_in_turn(p, g);
	return p->retry_at != 0 ? p->retry_at : -1;
}

static void *prepare_main(void *arg)
{
	struct prepare *p = arg;
	uint64_t seen = 0;

	log_set_subject(p->config.stack->subject);
	/* Not where somebody waits for it. */
	if (!p->config.stack->opts->warm)
		(void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
	while (!is_stopped(p)) {
		struct generation *g = history_newest(p->history);
		int64_t until = -1;

		if (g != NULL && g->state != NULL) {
			if (g->root->ino != p->prepared)
				prepare_newest(p, g);
			until = settle(p, g);
		}
		generation_unref(g);
		if (p->wholes != NULL)
			tidy(p);
		/* An older version's last handle closes without a word. */
		if (p->wholes != NULL && p->written != 0 && until < 0)
			until = clock_mono_ns() + 10 * NSEC_PER_SEC;
		if (!is_stopped(p))
			(void)history_moved(p->history, &seen, until);
	}
	return NULL;
}

void prepare_gate(struct stack *s)
{
	if (s->opts->warm)
		history_gate(s->history);
}

/* Where whole files go, when they can be of use; says why not. */
static int open_wholes(struct prepare *p, struct why *why)
{
	const struct opts *o = p->config.stack->opts;
	char *parent = o->cache_dir != NULL ? strdup(o->cache_dir) : cachedir_default();
	const struct wholes_config config = {
		.parent = parent,
		.limit = o->materialize_size,
		.stopped = is_stopped,
		.ctx = p,
	};
	int ret = 0;

	if (o->materialize == MATERIALIZE_NEVER)
		ret = why_set(why, ENOTSUP, "--materialize never");
	else if (parent == NULL)
		ret = why_set(why, ENOENT, "there is no cache directory");
	else if (p->config.ops == NULL)
		ret = -ENOTSUP; /* said already */
	else
		ret = wholes_new(&config, &p->wholes, why);
	if (ret == 0)
		ret = p->config.try(p->config.try_ctx, wholes_path(p->wholes), why);
	if (ret < 0) {
		wholes_free(p->wholes);
		p->wholes = NULL;
	}
	free(parent);
	return ret;
}

int prepare_start(const struct prepare_config *config, struct prepare **out, struct why *why)
{
	struct prepare *p = calloc(1, sizeof(*p));
	struct stack *s = config->stack;
	int ret;

	if (p == NULL)
		return why_set(why, ENOMEM, "out of memory");
	p->config = *config;
	p->history = s->history;
	p->serving = &s->serving;
	ret = open_wholes(p, why);
	serving_feature(p->serving, FEATURE_PASSTHROUGH, ret < 0 ? why->text : NULL);
	if (ret < 0 && s->opts->materialize == MATERIALIZE_ALWAYS) {
		why_prefix(why, "--materialize always");
		free(p);
		return ret;
	}
	if (p->wholes != NULL)
		nodes_allow_whole(s->nodes);
	ret = 0;
	if (p->wholes != NULL || s->opts->warm) {
		ret = -pthread_create(&p->thread, NULL, prepare_main, p);
		if (ret == 0)
			pthread_setname_np(p->thread, "prepare");
	}
	if (ret < 0 || (p->wholes == NULL && !s->opts->warm)) {
		wholes_free(p->wholes);
		free(p);
		return ret < 0 ? why_set(why, -ret, "threads cannot be started") : 0;
	}
	*out = p;
	return 0;
}

void prepare_cancel(struct prepare *p)
{
	if (p == NULL)
		return;
	__atomic_store_n(&p->stop, true, __ATOMIC_RELEASE);
	turns_wake(p->config.stack->preparing);
	history_wake(p->history);
}

void prepare_end(struct prepare *p)
{
	if (p == NULL)
		return;
	prepare_cancel(p);
	pthread_join(p->thread, NULL);
	wholes_free(p->wholes);
	free(p);
}
