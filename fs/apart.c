/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls into our own mount that a kill can end.
 *
 * A call into a FUSE mount cannot be interrupted once its request has been read from the device:
 * it waits for the answer, or for the device to be closed.  When this process is killed, workers
 * die unanswering, and a thread of ours in such a call would wait for ever: the device is closed
 * when the last thread that shares the descriptors has ended, and that is the one that waits.  The
 * mount would hang for everybody instead of being dead.
 *
 * So the call is made by a thread with a table of descriptors of its own, an empty one.  Who waits
 * for that thread waits in a way that a kill ends.
 *
 * Threads: one for each call, which ends with it.
 */
#include "fs/apart.h"

#include <pthread.h>
#include <unistd.h>

#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE (1U << 1)
#endif

struct apart {
	int (*fn)(void *ctx);
	void *ctx;
	int ret;
};

static void *apart_main(void *arg)
{
	struct apart *a = arg;

	/* Linux before 5.9 has no such call; there it is as if made by anybody. */
	(void)close_range(0, ~0U, CLOSE_RANGE_UNSHARE);
	a->ret = a->fn(a->ctx);
	return NULL;
}

int apart_run(int (*fn)(void *ctx), void *ctx)
{
	struct apart a = {.fn = fn, .ctx = ctx};
	pthread_t thread;
	int err = pthread_create(&thread, NULL, apart_main, &a);

	if (err != 0)
		return -err;
	pthread_join(thread, NULL);
	return a.ret;
}

struct look {
	const char *path;
	struct stat *out;
};

static int look(void *ctx)
{
	const struct look *l = ctx;

	return stat(l->path, l->out) < 0 ? -errno : 0;
}

int apart_stat(const char *path, struct stat *out)
{
	struct look l = {path, out};

	return apart_run(look, &l);
}
