/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls under way, in a list.
 *
 * A call is in the list from before its submission until its done() has begun, so that a stop finds
 * it.  One that is in the list but not yet submitted when the stop comes is not found by the
 * network client; that is why each build() asks live_stopping().  Cancelling is harmless for a call
 * that has ended meanwhile.
 *
 * Threads: any.  The lock is of a higher rank than the network client's, whose http_cancel() is
 * called with it held.
 */
#include "cache/remote/live.h"

void live_init(struct live_set *s, struct http *http)
{
	*s = (struct live_set){.http = http};
	lock_init(&s->lock, LOCK_SHARD);
}

void live_destroy(struct live_set *s)
{
	lock_destroy(&s->lock);
}

static bool enter(struct live_set *s, struct live *l)
{
	bool go;

	lock_take(&s->lock);
	go = !s->stopping;
	if (go) {
		l->next = s->first;
		l->link = &s->first;
		if (s->first != NULL)
			s->first->link = &l->next;
		s->first = l;
	}
	lock_release(&s->lock);
	return go;
}

void live_ended(struct live_set *s, struct live *l)
{
	lock_take(&s->lock);
	*l->link = l->next;
	if (l->next != NULL)
		l->next->link = l->link;
	lock_release(&s->lock);
}

bool live_submit(struct live_set *s, struct live *l)
{
	if (!enter(s, l))
		return false;
	http_submit(s->http, &l->call);
	return true;
}

int live_run(struct live_set *s, struct live *l)
{
	int rc;

	if (!enter(s, l))
		return why_set(&l->call.why, ECANCELED, "going down");
	rc = http_run(s->http, &l->call);
	live_ended(s, l);
	return rc;
}

void live_stop(struct live_set *s)
{
	lock_take(&s->lock);
	s->stopping = true;
	for (struct live *l = s->first; l != NULL; l = l->next)
		http_cancel(s->http, &l->call);
	lock_release(&s->lock);
}

bool live_stopping(struct live_set *s)
{
	bool stopping;

	lock_take(&s->lock);
	stopping = s->stopping;
	lock_release(&s->lock);
	return stopping;
}
