/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns: a counting semaphore on which waiting can be ended for all.
 *
 * Several runs of one source are looked into by a thread each.  Making patches of a large delta
 * needs buffers and processors, so not all of them do it at once, above all when a mount begins
 * with fifty runs that it has not seen before.
 */
#include "fs/turns.h"

void turns_init(struct turns *t, unsigned count)
{
	lock_init(&t->lock, LOCK_QUEUE);
	condition_init(&t->given);
	t->free = count;
	t->open = false;
}

void turns_destroy(struct turns *t)
{
	condition_destroy(&t->given);
	lock_destroy(&t->lock);
}

void turns_take(struct turns *t)
{
	if (t == NULL)
		return;
	lock_take(&t->lock);
	while (t->free == 0 && !t->open)
		(void)condition_wait(&t->given, &t->lock, -1);
	if (t->free > 0)
		t->free--;
	lock_release(&t->lock);
}

bool turns_take_unless(struct turns *t, bool (*stopped)(void *ctx), void *ctx)
{
	bool taken = true;

	if (t == NULL)
		return true;
	lock_take(&t->lock);
	while (t->free == 0 && !t->open && !stopped(ctx))
		(void)condition_wait(&t->given, &t->lock, -1);
	if (t->free > 0)
		t->free--;
	else
		taken = false;
	lock_release(&t->lock);
	return taken;
}

void turns_wake(struct turns *t)
{
	if (t == NULL)
		return;
	lock_take(&t->lock);
	condition_broadcast(&t->given);
	lock_release(&t->lock);
}

void turns_give(struct turns *t)
{
	if (t == NULL)
		return;
	lock_take(&t->lock);
	t->free++;
	condition_broadcast(&t->given);
	lock_release(&t->lock);
}

void turns_open(struct turns *t)
{
	lock_take(&t->lock);
	t->open = true;
	condition_broadcast(&t->given);
	lock_release(&t->lock);
}
