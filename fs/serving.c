/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the mount has got from the kernel: a few facts behind a lock.
 *
 * A setting counts as what reading it back says, a feature as what trying it out gave: kernels
 * accept and ignore both.  So these lines of status are what a person can rely on.
 *
 * Not here: the trying out (fs/mount.c, fs/passthrough.c, fs/herald.c) and the preparing itself.
 *
 * Threads: any.  The lock is held for copies only.
 */
#include "fs/serving.h"

#include <stdarg.h>
#include <stdio.h>

void serving_init(struct serving *s)
{
	lock_init(&s->lock, LOCK_QUEUE);
}

void serving_destroy(struct serving *s)
{
	lock_destroy(&s->lock);
}

void serving_get(struct serving *s, struct serving_view *out)
{
	lock_take(&s->lock);
	*out = s->v;
	lock_release(&s->lock);
}

void serving_settings(struct serving *s, unsigned read_ahead_kb, unsigned max_background)
{
	lock_take(&s->lock);
	s->v.read_ahead_kb = read_ahead_kb;
	s->v.max_background = max_background;
	lock_release(&s->lock);
}

void serving_feature(struct serving *s, enum feature f, const char *why)
{
	struct serving_feature *to = &s->v.features[f];

	lock_take(&s->lock);
	to->on = why == NULL;
	snprintf(to->why, sizeof(to->why), "%s", why != NULL ? why : "");
	lock_release(&s->lock);
}

void serving_preparing(struct serving *s, bool done, const char *fmt, ...)
{
	char text[sizeof(s->v.preparing)];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	lock_take(&s->lock);
	memcpy(done ? s->v.prepared : s->v.preparing, text, sizeof(text));
	if (done)
		s->v.preparing[0] = '\0';
	lock_release(&s->lock);
}

void serving_warmed(struct serving *s, uint64_t bytes)
{
	lock_take(&s->lock);
	s->v.warm_bytes += bytes;
	lock_release(&s->lock);
}

void serving_whole(struct serving *s, int64_t files, int64_t bytes)
{
	lock_take(&s->lock);
	s->v.whole_files += (uint64_t)files;
	s->v.whole_bytes += (uint64_t)bytes;
	lock_release(&s->lock);
}
