/* SPDX-License-Identifier: Apache-2.0 */
/* Turns: at most so many threads at a time do what needs much memory.  Any thread. */
#ifndef FS_TURNS_H
#define FS_TURNS_H

#include "cache/lock.h"
#include "codec/base.h"

struct turns {
	struct lock lock; /* LOCK_QUEUE; guards the rest */
	struct condition given;
	unsigned free;
	bool open; /* nobody waits any more */
};

void turns_init(struct turns *t, unsigned count);
void turns_destroy(struct turns *t);
/* Waits for one; NULL is fine, in these. */
void turns_take(struct turns *t);
/* The same, unless stopped() says so; false: then there is none to give back. */
bool turns_take_unless(struct turns *t, bool (*stopped)(void *ctx), void *ctx) MUST_CHECK;
void turns_give(struct turns *t);
/* What stopped() says may have changed. */
void turns_wake(struct turns *t);
/* Going down: whoever waits need not. */
void turns_open(struct turns *t);

#endif
