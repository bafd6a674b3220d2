/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Syncing later.
 *
 *	take ──> queued ──> fsync ──> closed, the mapping let go of
 *			      └─ failed ──> the mapping is broken, said in the log
 *
 * A disk may take milliseconds for each, and a start with ten thousand small patches makes them
 * faster.  So when many wait, a file is closed at once and synced by its mapping.  Where there is
 * no memory or thread it is done at once, in the caller.  At the end what still waits is let go of:
 * the kernel will write it, and what it does not write has not its hash.
 *
 * Threads: any for syncer_take(); the lock guards the making of the pool and the count only.
 */
#include "cache/syncer.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cache/lock.h"
#include "cache/log.h"
#include "cache/pool.h"

enum { OPEN_MOST = 256 }; /* files that wait open */

struct syncer {
	bool ending;	   /* atomic */
	struct lock lock;  /* LOCK_QUEUE; guards the rest */
	struct pool *pool; /* NULL: none yet, or there cannot be one */
	unsigned open;	   /* files that wait */
};

struct file {
	struct pool_job job;
	struct syncer *syncer;
	int fd;			 /* -1: closed already */
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
	__atomic_store_n(&s->ending, true, __ATOMIC_RELAXED);
	pool_free(s->pool);
	lock_destroy(&s->lock);
	free(s);
}

static void sync_now(int fd, struct mapping *m, const char *what)
{
	int ret = fd >= 0 ? fsync(fd) : msync((void *)m->bytes, (size_t)m->size, MS_SYNC);

	if (ret < 0) {
		int err = errno;

		mapping_break(m);
		log_warning("%s in the cache directory cannot be put on the disk (%s): it is made "
			    "again",
			    what, strerrordesc_np(err));
	}
	if (fd >= 0)
		close(fd);
}

static void run(struct pool_job *job)
{
	struct file *f = (struct file *)job;
	struct syncer *s = f->syncer;

	lock_take(&s->lock);
	s->open -= f->fd >= 0;
	lock_release(&s->lock);
	if (!__atomic_load_n(&s->ending, __ATOMIC_RELAXED))
		sync_now(f->fd, f->mapping, f->what);
	else if (f->fd >= 0)
		close(f->fd);
	mapping_unref(f->mapping);
	free(f);
}

/* The pool; NULL: there is none.  *out_open: the file may wait open. */
static struct pool *enter(struct syncer *s, bool *out_open)
{
	struct pool *p;

	lock_take(&s->lock);
	if (s->pool == NULL && pool_new(1, &s->pool) < 0)
		s->pool = NULL;
	p = s->pool;
	*out_open = s->open < OPEN_MOST;
	s->open += p != NULL && *out_open;
	lock_release(&s->lock);
	return p;
}

void syncer_take(struct syncer *s, int fd, struct mapping *m, const char *what)
{
	struct file *f = calloc(1, sizeof(*f));
	bool wait_open = true;
	struct pool *p = f != NULL ? enter(s, &wait_open) : NULL;

	if (p == NULL) {
		free(f);
		sync_now(fd, m, what);
		return;
	}
	f->syncer = s;
	f->job.run = run;
	f->fd = wait_open ? fd : -1;
	if (!wait_open)
		close(fd);
	f->mapping = mapping_ref(m);
	strncpy(f->what, what, sizeof(f->what) - 1);
	pool_submit(p, &f->job, POOL_LATER);
}
