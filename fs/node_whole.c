/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole files of nodes, and their second numbers.
 *
 * The kernel reads an inode either through its own cache (with READ requests to us) or from a
 * backing file, never both ways at once, and a file that was opened the one way may be mapped for
 * hours.  So a node whose bytes have become a plain file is known by a fresh number from then on:
 * old handles go on under the old one.  All opens of the fresh number share one registration.
 *
 * When the file is taken away again (no open handle has it) names resolve to the first number.
 * The second one stays known, since a path walk may still carry it: opened then, it is read as any
 * other, which is safe because the kernel has no passthrough handle of it left, and it is never
 * given a whole file again: each gets a number of its own.
 *
 * Locks: the registry's.  Nothing is closed and no callback is made while it is held.
 */
#include "fs/node_internal.h"
#include "fs/serving.h"

#include <stdlib.h>
#include <unistd.h>

int whole_new(int fd, uint64_t size, const struct whole_ops *ops, void *ctx,
	      struct serving *serving, struct whole **out)
{
	struct whole *w = calloc(1, sizeof(*w));
	int ret = -ENOMEM;

	if (w)
		ret = ops->backing_open(ctx, fd, &w->backing);
	if (ret < 0) {
		close(fd);
		free(w);
		return ret;
	}
	w->refs = 1;
	w->fd = fd;
	w->size = size;
	w->serving = serving;
	w->ops = ops;
	w->ctx = ctx;
	if (serving)
		serving_whole(serving, 1, (int64_t)size);
	*out = w;
	return 0;
}

void whole_unref(struct whole *w)
{
	if (!w || __atomic_fetch_sub(&w->refs, 1, __ATOMIC_ACQ_REL) > 1)
		return;
	w->ops->backing_close(w->ctx, w->backing);
	if (w->serving)
		serving_whole(w->serving, -1, -(int64_t)w->size);
	close(w->fd);
	free(w);
}

int node_attach(struct node *n, struct whole *w)
{
	uint64_t *others;
	int ret = 0;

	w->ino = nodes_number(n->nodes);
	lock_take(&n->nodes->lock);
	others = realloc(n->others, (n->other_count + 1) * sizeof(*others));
	if (others)
		n->others = others;
	if (n->whole)
		ret = -EEXIST;
	else if (!others)
		ret = -ENOMEM;
	else
		ret = table_put(n->nodes->table, w->ino, n);
	if (ret == 0) {
		n->others[n->other_count++] = w->ino;
		n->whole = w;
	}
	lock_release(&n->nodes->lock);
	if (ret < 0)
		whole_unref(w);
	return ret;
}

bool node_detach(struct node *n)
{
	struct whole *w;

	lock_take(&n->nodes->lock);
	w = n->whole;
	if (w && w->opens)
		w = NULL;
	if (w)
		n->whole = NULL;
	lock_release(&n->nodes->lock);
	whole_unref(w);
	return w != NULL;
}

void nodes_allow_whole(struct nodes *n)
{
	__atomic_store_n(&n->whole, true, __ATOMIC_RELAXED);
}

bool node_may_be_whole(const struct node *n)
{
	return __atomic_load_n(&n->nodes->whole, __ATOMIC_RELAXED);
}

bool node_is_whole(const struct node *n)
{
	return node_number(n) != n->ino;
}

uint64_t node_number(const struct node *n)
{
	uint64_t number;

	if (n->kind != NODE_WEIGHTS)
		return n->ino;
	lock_take(&n->nodes->lock);
	number = n->whole ? n->whole->ino : n->ino;
	lock_release(&n->nodes->lock);
	return number;
}

struct whole *node_open_whole(struct node *n, uint64_t number)
{
	struct whole *w;

	if (n->kind != NODE_WEIGHTS || number == n->ino)
		return NULL;
	lock_take(&n->nodes->lock);
	w = n->whole;
	if (w && w->ino == number) {
		w->opens++;
		__atomic_fetch_add(&w->refs, 1, __ATOMIC_RELAXED);
	} else {
		w = NULL;
	}
	lock_release(&n->nodes->lock);
	return w;
}

void whole_closed(struct nodes *nodes, struct whole *w)
{
	if (!w)
		return;
	lock_take(&nodes->lock);
	w->opens--;
	lock_release(&nodes->lock);
	whole_unref(w);
}
