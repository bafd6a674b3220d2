/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One source, listed once for many.
 *
 *	one caller lists ──> last ──> each part whose slice differs is notified
 *	the others wait for it, and take what it got
 *
 * A part that was notified takes the listing that caused it however old it is by then: what it has
 * not seen is news.  The first time that it lists, a part is given the last listing there is, also
 * when the source cannot be reached by then: a mount that starts without a network has got one from
 * the store's memory (fs/remember.c), and no other.
 *
 * Locks: `lock` (LOCK_QUEUE) guards everything that changes; the source is listed without it.
 * Threads: any.
 */
#include "fs/parts.h"

#include "cache/clock.h"
#include "cache/lock.h"
#include "fs/runs.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct part {
	struct store base;
	struct parts *parts;
	char *prefix; /* "team/run1/" */
	int fd;	      /* an eventfd */
	/* guarded by parts->lock */
	struct part *next;
	bool listed;	/* it has been given a listing */
	bool news;	/* the last listing differs from what it was given */
	bool ask, stop; /* of store_refresh() and store_stop() */
};

struct parts {
	struct store *source; /* borrowed */
	int64_t max_age_ns;
	struct lock lock;
	struct condition done;
	bool busy, stop;	  /* busy: somebody lists */
	uint64_t begun, ended;	  /* listings */
	int64_t started_ns;	  /* when the one that ended last began */
	struct listing_ref *last; /* that succeeded; NULL: none has */
	int err;		  /* of the one that ended last */
	struct why why;
	struct part *first;
};

struct listing_ref *listing_ref(struct listing_ref *l)
{
	__atomic_fetch_add(&l->refs, 1, __ATOMIC_RELAXED);
	return l;
}

int parts_new(struct store *source, int64_t max_age_ns, struct listing_ref *first,
	      struct parts **out)
{
	struct parts *p = calloc(1, sizeof(*p));

	if (p == NULL)
		return -ENOMEM;
	p->source = source;
	p->max_age_ns = max_age_ns;
	p->started_ns = clock_mono_ns();
	if (first != NULL) {
		p->last = listing_ref(first);
		p->begun = p->ended = 1;
	}
	lock_init(&p->lock, LOCK_QUEUE);
	condition_init(&p->done);
	*out = p;
	return 0;
}

void parts_free(struct parts *p)
{
	if (p == NULL)
		return;
	listing_unref(p->last);
	condition_destroy(&p->done);
	lock_destroy(&p->lock);
	free(p);
}

void parts_stop(struct parts *p)
{
	lock_take(&p->lock);
	p->stop = true;
	condition_broadcast(&p->done);
	lock_release(&p->lock);
	store_stop(p->source);
}

/* ---- listing ---- */

static bool same_slice(const struct listing *a, const struct listing *b, const char *prefix)
{
	size_t i, j, i_end = runs_slice(a, prefix, &i), j_end = runs_slice(b, prefix, &j);

	if (i_end - i != j_end - j)
		return false;
	for (; i < i_end; i++, j++)
		if (!object_same(&a->v[i], &b->v[j]))
			return false;
	return true;
}

/* Takes the listing over; with the lock. */
static void replace(struct parts *p, struct listing_ref *now)
{
	uint64_t one = 1;

	for (struct part *part = p->first; part != NULL; part = part->next) {
		if (p->last != NULL && same_slice(&p->last->listing, &now->listing, part->prefix))
			continue;
		part->news = true;
		/* A full counter is as good a wake-up as any. */
		if (write(part->fd, &one, sizeof(one)) < 0)
			continue;
	}
	listing_unref(p->last);
	p->last = now;
}

/* Lists the source; with the lock, which is given back meanwhile. */
static void list_source(struct parts *p, bool ask)
{
	struct listing_ref *now = calloc(1, sizeof(*now));
	int64_t started = clock_mono_ns();
	struct why why = {0};
	int err;

	p->busy = true;
	p->begun++;
	lock_release(&p->lock);
	if (ask)
		store_refresh(p->source);
	err = now == NULL ? -ENOMEM : store_list(p->source, "", &now->listing, &why);
	if (err < 0 && why.text[0] == '\0')
		why_set(&why, -err, "cannot list %s", p->source->name);
	lock_take(&p->lock);
	p->busy = false;
	p->ended = p->begun;
	p->started_ns = started;
	p->err = err;
	p->why = why;
	if (err == 0) {
		now->refs = 1;
		replace(p, now);
	} else {
		free(now);
	}
	condition_broadcast(&p->done);
}

/* Until a listing has ended that is the target or a later one; with the lock. */
static int list_until(struct parts *p, uint64_t target, bool ask, const bool *stop)
{
	while (p->ended < target) {
		if (p->stop || *stop)
			return -ECANCELED;
		if (p->busy)
			(void)condition_wait(&p->done, &p->lock, -1);
		else
			list_source(p, ask);
	}
	return p->err;
}

/* Which listing will do; with the lock. */
static uint64_t target_of(const struct parts *p, bool fresh)
{
	if (fresh)
		return p->begun + 1;
	if (p->ended > 0 && clock_mono_ns() - p->started_ns <= p->max_age_ns)
		return p->ended;
	return p->busy ? p->begun : p->begun + 1;
}

int parts_list(struct parts *p, bool fresh, bool ask, struct listing_ref **out, struct why *why)
{
	const bool never = false;
	int err;

	lock_take(&p->lock);
	err = list_until(p, target_of(p, fresh), ask, &never);
	if (err == 0)
		*out = listing_ref(p->last);
	else if (err == -ECANCELED)
		why_set(why, ECANCELED, "the mount is being taken down");
	else
		*why = p->why;
	lock_release(&p->lock);
	return err;
}

struct listing_ref *parts_last(struct parts *p)
{
	struct listing_ref *l;

	lock_take(&p->lock);
	l = p->last != NULL ? listing_ref(p->last) : NULL;
	lock_release(&p->lock);
	return l;
}

/* ---- one part ---- */

static struct part *part_of(struct store *s)
{
	return (struct part *)s;
}

/* What lies in the part's directory, under the names it has there. */
static int cut(const struct part *part, const struct listing *from, const char *prefix,
	       struct listing *out)
{
	size_t skip = strlen(part->prefix), want = strlen(prefix), begin,
	       end = runs_slice(from, part->prefix, &begin);
	struct listing l = {0};

	l.v = calloc(MAX(end - begin, (size_t)1), sizeof(*l.v));
	if (l.v == NULL)
		return -ENOMEM;
	for (size_t i = begin; i < end; i++) {
		const char *key = from->v[i].key + skip;

		if (strncmp(key, prefix, want) != 0)
			continue;
		l.v[l.count] = from->v[i];
		l.v[l.count].key = strdup(key);
		if (l.v[l.count++].key == NULL) {
			listing_release(&l);
			return -ENOMEM;
		}
	}
	*out = l;
	return 0;
}

static void drain(struct store *s)
{
	uint64_t count;

	if (read(part_of(s)->fd, &count, sizeof(count)) < 0)
		return; /* it was empty */
}

static int part_list(struct store *s, const char *prefix, struct listing *out, struct why *why)
{
	struct part *part = part_of(s);
	struct parts *p = part->parts;
	struct listing_ref *l = NULL;
	int err = 0;
	bool ask;

	lock_take(&p->lock);
	ask = part->ask;
	part->ask = false;
	if (ask || !part->news)
		err = list_until(p, target_of(p, ask), ask, &part->stop);
	if (err < 0 && err != -ECANCELED && !part->listed && p->last != NULL)
		err = 0;
	if (err == 0) {
		l = listing_ref(p->last);
		part->listed = true;
		part->news = false;
		drain(s);
	} else if (err == -ECANCELED) {
		why_set(why, ECANCELED, "the mount is being taken down");
	} else if (why != NULL) {
		*why = p->why;
	}
	lock_release(&p->lock);
	if (err < 0)
		return err;
	err = cut(part, &l->listing, prefix, out);
	listing_unref(l);
	return err < 0 ? why_set(why, -err, "out of memory") : 0;
}

static int part_open(struct store *s, const struct object *object, struct handle **out,
		     struct why *why)
{
	struct object whole = *object;
	int err;

	if (asprintf(&whole.key, "%s%s", part_of(s)->prefix, object->key) < 0)
		return why_set(why, ENOMEM, "out of memory");
	err = store_open(part_of(s)->parts->source, &whole, out, why);
	free(whole.key);
	return err;
}

static int part_watch_fd(struct store *s)
{
	return part_of(s)->fd;
}

static void part_stop(struct store *s)
{
	struct parts *p = part_of(s)->parts;

	lock_take(&p->lock);
	part_of(s)->stop = true;
	condition_broadcast(&p->done);
	lock_release(&p->lock);
}

static void part_refresh(struct store *s)
{
	struct parts *p = part_of(s)->parts;

	lock_take(&p->lock);
	part_of(s)->ask = true;
	lock_release(&p->lock);
}

static bool part_describe(struct store *s, struct buf *out)
{
	return store_describe(part_of(s)->parts->source, out);
}

static void part_free(struct store *s)
{
	struct part *part = part_of(s);
	struct parts *p = part->parts;

	lock_take(&p->lock);
	for (struct part **at = &p->first; *at != NULL; at = &(*at)->next) {
		if (*at == part) {
			*at = part->next;
			break;
		}
	}
	lock_release(&p->lock);
	if (part->fd >= 0)
		close(part->fd);
	free(part->prefix);
	free(part->base.name);
	free(part);
}

/* ops is never asked for fetch, close and settled: handles are the source's own. */
static const struct store_ops part_ops = {
	.name = "part",
	.list = part_list,
	.open = part_open,
	.watch_fd = part_watch_fd,
	.watch_drain = drain,
	.free = part_free,
	.stop = part_stop,
	.refresh = part_refresh,
	.describe = part_describe,
};

char *parts_name(const char *place, const char *path)
{
	size_t len = strlen(place);
	char *joined;

	while (len > 1 && place[len - 1] == '/')
		len--;
	return asprintf(&joined, "%.*s/%s", (int)len, place, path) < 0 ? NULL : joined;
}

int parts_open(struct parts *p, const char *path, const char *name, struct store **out)
{
	struct part *part = calloc(1, sizeof(*part));
	int err = 0;

	if (part == NULL)
		return -ENOMEM;
	part->base.ops = &part_ops;
	store_front(&part->base, p->source);
	part->parts = p;
	part->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (part->fd < 0)
		err = -errno;
	part->base.name = strdup(name);
	if (asprintf(&part->prefix, "%s/", path) < 0)
		part->prefix = NULL;
	if (err == 0 && (part->base.name == NULL || part->prefix == NULL))
		err = -ENOMEM;
	if (err < 0) {
		part_free(&part->base);
		return err;
	}
	lock_take(&p->lock);
	part->next = p->first;
	p->first = part;
	lock_release(&p->lock);
	*out = &part->base;
	return 0;
}
