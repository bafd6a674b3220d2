/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recall; recall.h says what it is for.
 *
 * A cache of 4 entries per set, by a hash of the thread (of the file for thread 0).  An entry that
 * is older than RECALL_NS is as good as free.  When a live one has to make room, which needs
 * thousands of threads at the same time, every open is taken for a plain one until the lost entry
 * would have expired: a hold too many does no harm, one too few tears a load.
 */
#include "fs/recall.h"

static const int64_t RECALL_NS = INT64_C(60000000000);
static const uint64_t BY_FILE = UINT64_C(1) << 63; /* the key of thread 0 */

static uint64_t key_of(int tid, uint64_t ino)
{
	return tid > 0 ? (uint64_t)tid : BY_FILE | ino;
}

static struct recall_entry *set_of(struct recall *r, uint64_t key)
{
	return r->entries[(key * UINT64_C(0x9E3779B97F4A7C15)) >> 32 & (RECALL_SETS - 1)];
}

static struct recall_entry *find(struct recall *r, uint64_t key)
{
	struct recall_entry *e = set_of(r, key);

	for (int i = 0; i < RECALL_WAYS; i++)
		if (e[i].key == key)
			return &e[i];
	return NULL;
}

static bool live(const struct recall_entry *e, int64_t now)
{
	return e->key && now - e->when < RECALL_NS;
}

static struct recall_entry *make_room(struct recall *r, uint64_t key, int64_t now)
{
	struct recall_entry *e = set_of(r, key), *oldest = e;

	for (int i = 0; i < RECALL_WAYS; i++) {
		if (!live(&e[i], now))
			return &e[i];
		if (e[i].when < oldest->when)
			oldest = &e[i];
	}
	r->lost = true;
	r->lost_until = now + RECALL_NS;
	return oldest;
}

void recall_plain(struct recall *r, int tid, uint64_t ino, uint64_t epoch, int64_t now)
{
	uint64_t key = key_of(tid, ino);
	struct recall_entry *e = find(r, key);
	bool again = e && e->again && live(e, now);

	if (!e)
		e = make_room(r, key, now);
	*e = (struct recall_entry){key, ino, epoch, now, again};
}

void recall_other(struct recall *r, int tid)
{
	struct recall_entry *e = tid > 0 ? find(r, (uint64_t)tid) : NULL;

	if (!e)
		return;
	/* The directories on the way to the name that is looked up again. */
	if (e->again)
		e->ino = 0;
	else
		e->key = 0;
}

bool recall_open(struct recall *r, int tid, uint64_t ino, int64_t now, struct recall_hit *out)
{
	struct recall_entry *e = find(r, key_of(tid, ino));

	*out = (struct recall_hit){0};
	if (!e || !live(e, now) || e->ino != ino)
		return r->lost && now < r->lost_until;
	*out = (struct recall_hit){.epoch = e->epoch, .known = true, .again = e->again};
	if (tid > 0)
		e->key = 0;
	return true;
}

void recall_again(struct recall *r, int tid, int64_t now)
{
	if (tid <= 0)
		return;
	recall_plain(r, tid, 0, 0, now);
	find(r, (uint64_t)tid)->again = true;
}
