/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Syncing later.
 *
 *	take ──> queued ──> fsync ──> closed, the mapping let go of
 *			      └─ failed ──> the mapping is broken, said in the log
 *
 * Where there is no memory or thread for that it is done at once, in the caller; also when so many
 * wait already that the disk does not keep up: each holds an open file.
 *
 * Threads: any for syncer_take(); the lock guards the making of the pool and the count only.
 */
#include "cache/syncer.h"

#include <stdlib.h>
#include <unistd.h>

#include "cache/lock.h"
#include "cache/log.h"
#include "cache/pool.h"

struct syncer {
	struct lock lock;  /* LOCK_QUEUE; guards the rest */
	struct pool *pool; /* NULL: none yet, or there cannot be one */
	unsigned waiting;
};

struct file {
	struct pool_job job;
	struct syncer *syncer;
	int fd;
	struct mapping *mapping; /* a reference */
	char what[64];
};

struct syncer *syncer_new(void)
{
	struct syncer *s = calloc(1, sizeof(*s));

	if (s != NULL)
		lock_init(&s->lock, LOCK_QUEUE);
	return s;
}

void syncer_free(struct syncer *s)
{
	if (s == NULL)
		return;
	pool_free(s->pool);
	lock_destroy(&s->lock);
	free(s);
}

static void sync_now(int fd, struct mapping *m, const char *what)
{
	if (fsync(fd) < 0) {
		int err = errno;

		mapping_break(m);
		log_warning("%s in the cache directory cannot be put on the disk (%s): it is made "
			    "again",
			    what, strerrordesc_np(err));
	}
	close(fd);
}

static void run(struct pool_job *job)
{
	struct file *f = (struct file *)job;

	sync_now(f->fd, f->mapping, f->what);
	mapping_unref(f->mapping);
	lock_take(&f->syncer->lock);
	f->syncer->waiting--;
	lock_release(&f->syncer->lock);
	free(f);
}

/* The pool, with a place in its queue; NULL: there is none. */
static struct pool *enter(struct syncer *s)
{
	struct pool *p = NULL;

	lock_take(&s->lock);
	if (s->pool == NULL && pool_new(1, &s->pool) < 0)
		s->pool = NULL;
	if (s->waiting < SYNCER_MOST)
		p = s->pool;
	s->waiting += p != NULL;
	lock_release(&s->lock);
	return p;
}

void syncer_take(struct syncer *s, int fd, struct mapping *m, const char *what)
{
	struct file *f = calloc(1, sizeof(*f));
	struct pool *p = f != NULL ? enter(s) : NULL;

	if (p == NULL) {
		free(f);
		sync_now(fd, m, what);
		return;
	}
	f->syncer = s;
	f->job.run = run;
	f->fd = fd;
	f->mapping = mapping_ref(m);
	strncpy(f->what, what, sizeof(f->what) - 1);
	pool_submit(p, &f->job, POOL_LATER);
}
