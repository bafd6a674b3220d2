/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events for inotify.
 *
 * The kernel makes events out of what is done through it, and a name that means another file since
 * a moment ago is nothing that was done.  So the herald does something: it sets the times of the
 * names in our own mount, which handlers answer without a change (and only for this thread).
 * Watchers of a directory get IN_ATTRIB with the name; watchers of the file that a name meant
 * before get IN_ATTRIB for that file.  Names under .weightfs that changed are touched as well.
 *
 * Safe because the touching thread (fs/apart.c) is no worker and holds no lock: the walk and the
 * change are requests like anybody's.  Not possible where the file system was mounted read-only
 * (the kernel refuses before it asks us) or the kernel counts threads in another namespace; tried
 * at the start.
 *
 * Threads: one, and one for as long as something is touched.
 */
#include "fs/herald.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/log.h"
#include "fs/apart.h"

enum { NAMES_MAX = 1024 }; /* that one switch touches */

struct herald {
	struct stack *stack; /* borrowed */
	struct history *history;
	const char *mountpoint; /* borrowed */
	pthread_t thread;
	bool stop; /* atomic */
	struct lock lock;
	struct condition tried; /* with lock */
	bool done;		/* the try is over; guarded by lock */
	int err;		/* how it went; likewise */
};

/* Touches MOUNT/name, or MOUNT/.weightfs/name. */
static int touch(struct herald *h, const char *prefix, const char *name)
{
	char path[8192];
	int len = snprintf(path, sizeof(path), "%s/%s%s", h->mountpoint, prefix, name);

	if (len < 0 || (size_t)len >= sizeof(path))
		return -ENAMETOOLONG;
	return utimensat(AT_FDCWD, path, NULL, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

static bool is_stopped(struct herald *h)
{
	return __atomic_load_n(&h->stop, __ATOMIC_ACQUIRE);
}

/* The names of weights of one version below a prefix. */
static void touch_files(struct herald *h, const char *prefix, const struct generation *g)
{
	const struct layout *l = g->state->layout;

	for (uint32_t i = 0; i < MIN(l->file_count, (uint32_t)NAMES_MAX) && !is_stopped(h); i++)
		(void)touch(h, prefix, l->files[i].name);
}

/* What there is to be touched; NULL: nothing of that kind. */
struct news {
	struct herald *h;
	const struct generation *before, *now; /* a switch, when there is a `now` */
	const char *name;		       /* one under .weightfs */
};

/* In a thread apart, which is the one that handlers let through meanwhile. */
static int announce(void *ctx)
{
	const struct news *n = ctx;
	struct herald *h = n->h;
	char prefix[60];
	int ret;

	__atomic_store_n(&h->stack->serving.herald, gettid(), __ATOMIC_RELAXED);
	if (n->before != NULL) {
		snprintf(prefix, sizeof(prefix), ".weightfs/versions/%llu/",
			 (unsigned long long)n->before->version);
		touch_files(h, prefix, n->before);
	}
	if (n->now != NULL)
		touch_files(h, "", n->now);
	ret = touch(h, ".weightfs/", n->name);
	__atomic_store_n(&h->stack->serving.herald, 0, __ATOMIC_RELAXED);
	return ret;
}

static int try(struct herald *h)
{
	struct news news = {.h = h, .name = "version"};
	int err = apart_run(announce, &news);

	lock_take(&h->lock);
	h->done = true;
	h->err = err;
	condition_broadcast(&h->tried);
	lock_release(&h->lock);
	return err;
}

/* The version whose watchers are to be told when it is replaced. */
static void remember(struct herald *h, const struct generation *g)
{
	__atomic_store_n(&h->stack->serving.announced, g != NULL ? g->state : NULL,
			 __ATOMIC_RELEASE);
}

static void *herald_main(void *arg)
{
	struct herald *h = arg;
	struct generation *current = history_current(h->history);
	uint64_t newest = 0, seen = 0;
	struct news news;

	if (try(h) < 0)
		goto out;
	remember(h, current);
	while (!is_stopped(h)) {
		struct generation *now = history_current(h->history), *top;

		if (now != current && now != NULL && now->state != NULL) {
			news = (struct news){.h = h, .now = now, .name = "version"};
			if (current != NULL && current->state != NULL)
				news.before = current;
			(void)!apart_run(announce, &news);
		}
		remember(h, now);
		generation_unref(current);
		current = now;
		top = history_newest(h->history);
		if (top != NULL && top->root->ino != newest) {
			newest = top->root->ino;
			news = (struct news){.h = h, .name = "newest"};
			(void)!apart_run(announce, &news);
		}
		generation_unref(top);
		(void)history_moved(h->history, &seen, -1);
	}
out:
	remember(h, NULL);
	generation_unref(current);
	return NULL;
}

static void herald_free(struct herald *h)
{
	condition_destroy(&h->tried);
	lock_destroy(&h->lock);
	free(h);
}

static void note(struct herald *h, int err)
{
	struct serving *serving = &h->stack->serving;
	char why[160];

	snprintf(why, sizeof(why), "%s",
		 err == -EROFS ? "the file system is mounted read-only (-o ro), or its process "
				 "numbers are another namespace's"
			       : strerrordesc_np(-err));
	serving_feature(serving, FEATURE_INOTIFY, err < 0 ? why : NULL);
}

int herald_start(struct stack *s, const char *mountpoint, struct herald **out)
{
	struct herald *h;
	int err;

	if (!s->opts->inotify) {
		serving_feature(&s->serving, FEATURE_INOTIFY, "--inotify off");
		return 0;
	}
	h = calloc(1, sizeof(*h));
	if (h == NULL)
		return -ENOMEM;
	h->stack = s;
	h->history = s->history;
	h->mountpoint = mountpoint;
	lock_init(&h->lock, LOCK_QUEUE);
	condition_init(&h->tried);
	err = pthread_create(&h->thread, NULL, herald_main, h);
	if (err != 0) {
		herald_free(h);
		return -err;
	}
	pthread_setname_np(h->thread, "herald");
	lock_take(&h->lock);
	while (!h->done)
		(void)condition_wait(&h->tried, &h->lock, -1);
	err = h->err;
	lock_release(&h->lock);
	note(h, err);
	if (err < 0) {
		herald_end(h);
		return 0;
	}
	*out = h;
	return 0;
}

void herald_cancel(struct herald *h)
{
	if (h == NULL)
		return;
	__atomic_store_n(&h->stop, true, __ATOMIC_RELEASE);
	history_wake(h->history);
}

void herald_end(struct herald *h)
{
	if (h == NULL)
		return;
	herald_cancel(h);
	pthread_join(h->thread, NULL);
	herald_free(h);
}
