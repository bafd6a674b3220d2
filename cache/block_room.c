/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block cache's space: what has to go when something comes, and how a guest becomes the owner.
 *
 * Bytes on disk are counted in `used`: pieces of loaded objects exactly, objects from earlier runs
 * that nobody has opened (*cold* ones) by what the file system says they take.  What is reserved
 * for a write counts from before the write.
 *
 * What goes first: cold objects, the one not used for longest first; it is loaded for that, and its
 * blocks go to the old end of the list.  Then blocks by last use.  Never: blocks under a reader or
 * a fill, of pinned or lost objects that are open, of objects that are moving.
 *
 * A block on its way out is LEAVING from the choice, under the lock, until its hole is punched,
 * without it; who wants it meanwhile waits for that, so that no fresh bytes are punched away.
 */
#include <assert.h>
#include <stdlib.h>

#include "cache/block_internal.h"
#include "cache/clock.h"
#include "cache/log.h"
#include "cache/table.h"

enum { VICTIMS = 16 };
static const uint64_t SPACE_AGE = 16 << 20; /* bytes written between two looks at the free space */
static const int64_t OWN_NS = 2 * NSEC_PER_SEC;

struct victim {
	struct block_object *object; /* busy */
	struct disk_file *file;
	uint32_t first, count;
};

/* ---- eviction ---- */

static bool evictable_locked(const struct block_object *o, uint32_t first, uint32_t count)
{
	if (o->moving)
		return false;
	for (uint32_t p = first; p < first + count; p++)
		if (o->state[p] == PIECE_FILLING || o->state[p] == PIECE_LEAVING)
			return false;
	for (const struct reader *r = o->readers; r != NULL; r = r->next)
		if (r->first < first + count && r->last >= first)
			return false;
	return true;
}

static void leave_locked(struct victim *v, uint64_t *bytes)
{
	struct block_object *o = v->object;
	struct blockcache *c = o->cache;
	uint64_t freed = 0;

	for (uint32_t p = v->first; p < v->first + v->count; p++) {
		if (o->state[p] != PIECE_ABSENT)
			freed += piece_len(o->size, p);
		o->state[p] = PIECE_LEAVING;
	}
	o->present -= freed;
	o->busy++;
	v->file = o->file != NULL ? disk_file_ref(o->file) : NULL;
	c->used -= MIN(c->used, freed);
	if (c->space < UINT64_MAX - freed)
		c->space += freed;
	c->stats.evicted_bytes += freed;
	*bytes += freed;
}

/* Chooses what goes for `want` bytes. */
static size_t choose_locked(struct blockcache *c, uint64_t want, struct victim v[VICTIMS])
{
	uint32_t slot = evict_next(&c->evict, EVICT_NONE), left = c->evict.count;
	uint64_t bytes = 0;
	size_t n = 0;

	while (slot != EVICT_NONE && left-- > 0 && n < VICTIMS && bytes < want) {
		const struct evict_entry *e = evict_get(&c->evict, slot);
		struct block_object *o = e->owner;
		uint32_t next = evict_next(&c->evict, slot), block = e->block;

		v[n].object = o;
		v[n].first = block * BLOCK_PIECES;
		v[n].count = MIN(o->pieces - v[n].first, (uint32_t)BLOCK_PIECES);
		if (o->refs > 0 && (o->pins > 0 || o->lost)) {
			evict_touch(&c->evict, slot); /* not looked at again so soon */
		} else if (evictable_locked(o, v[n].first, v[n].count)) {
			evict_remove(&c->evict, slot);
			o->slot[block] = EVICT_NONE;
			o->kept--;
			leave_locked(&v[n++], &bytes);
		}
		slot = next;
	}
	return n;
}

static void punch_out(struct blockcache *c, struct victim *v, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct block_object *o = v[i].object;
		bool foreign = false;
		int rc = 0;

		if (v[i].file == NULL)
			rc = disk_file_open(c->disk, &o->id, o->size, o->key, &v[i].file, &foreign);
		if (rc == 0)
			rc = disk_file_drop(v[i].file, v[i].first, v[i].count);
		if (rc < 0)
			log_debug("the block cache cannot give back space: %s",
				  strerrordesc_np(-rc));
		disk_file_unref(v[i].file);
		lock_take(&c->lock);
		memset(o->state + v[i].first, PIECE_ABSENT, v[i].count);
		condition_broadcast(&c->changed);
		lock_release(&c->lock);
		object_settle(o);
	}
}

/* Loads a cold object, so that its blocks can be evicted one by one. */
static void load_cold(struct blockcache *c, const struct disk_entry *e)
{
	struct block_object *o;
	struct disk_file *file = NULL;
	uint8_t *state = NULL;
	uint64_t size;
	char *key;
	bool known;
	int rc = disk_inspect(c->disk, &e->id, &size, &key);

	if (rc < 0) {
		if (rc == -EBADMSG || rc == -ENOENT)
			disk_remove(c->disk, &e->id);
		return;
	}
	o = object_new(c, &e->id, size, key);
	free(key);
	if (o == NULL)
		return;
	lock_take(&c->lock);
	known = table_get_str(c->objects, o->hex) != NULL ||
		table_put_str(c->objects, o->hex, o) < 0;
	if (!known) {
		object_insert_locked(o);
		o->moving = o->cold = true;
		o->busy++;
	}
	lock_release(&c->lock);
	if (known) {
		object_free(o);
		return;
	}
	rc = object_open_file(o, &file, &state);
	lock_take(&c->lock);
	object_install_locked(o, rc == 0 ? file : NULL, state, true);
	o->file = NULL;
	o->moving = false;
	condition_broadcast(&c->changed);
	lock_release(&c->lock);
	disk_file_unref(file);
	free(state);
	object_settle(o);
}

/* True when the next to go is a cold object that is not loaded yet; it is taken off the list. */
static bool next_cold_locked(struct blockcache *c, struct disk_entry *out)
{
	uint32_t slot = evict_next(&c->evict, EVICT_NONE);

	if (c->cold_count == 0)
		return false;
	if (slot != EVICT_NONE) {
		const struct block_object *o = evict_get(&c->evict, slot)->owner;

		if (o->cold)
			return false;
	}
	*out = c->cold[--c->cold_count];
	c->used -= MIN(c->used, out->bytes);
	return true;
}

/* One round of evicting; false when there is nothing to evict. */
static bool evict_some(struct blockcache *c, uint64_t want)
{
	struct victim victims[VICTIMS];
	struct disk_entry cold;
	bool load;
	size_t n = 0;

	lock_take(&c->lock);
	load = next_cold_locked(c, &cold);
	if (!load)
		n = choose_locked(c, want, victims);
	lock_release(&c->lock);
	if (load)
		load_cold(c, &cold);
	punch_out(c, victims, n);
	return load || n > 0;
}

static void look_at_space(struct blockcache *c)
{
	uint64_t space;
	bool due;

	lock_take(&c->lock);
	due = c->space_age >= SPACE_AGE;
	lock_release(&c->lock);
	if (!due)
		return;
	space = disk_space(c->disk);
	lock_take(&c->lock);
	c->space = space;
	c->space_age = 0;
	lock_release(&c->lock);
}

int room_make(struct blockcache *c, uint64_t need)
{
	bool any = true;

	if (c->limit > 0 && need > c->limit)
		return -ENOSPC;
	look_at_space(c);
	while (any) {
		uint64_t over = 0;

		lock_take(&c->lock);
		if (c->limit > 0 && c->used + need > c->limit)
			over = c->used + need - c->limit;
		if (c->space != UINT64_MAX && c->space < c->floor + need)
			over = MAX(over, c->floor + need - c->space);
		if (over == 0) {
			c->used += need;
			c->space_age += need;
			if (c->space != UINT64_MAX)
				c->space -= need;
			lock_release(&c->lock);
			return 0;
		}
		lock_release(&c->lock);
		any = evict_some(c, over);
	}
	return -ENOSPC;
}

bool room_evict(struct blockcache *c, uint64_t bytes)
{
	uint64_t before, now;
	bool any = true;

	lock_take(&c->lock);
	before = now = c->stats.evicted_bytes;
	c->space_age = SPACE_AGE; /* it is not what we thought */
	lock_release(&c->lock);
	while (any && now - before < bytes) {
		any = evict_some(c, bytes - (now - before));
		lock_take(&c->lock);
		now = c->stats.evicted_bytes;
		lock_release(&c->lock);
	}
	return now > before;
}

/* ---- ownership ---- */

int room_list(struct blockcache *c)
{
	struct disk_entry *v;
	size_t count;
	int rc = disk_list(c->disk, &v, &count);

	if (rc < 0)
		return rc;
	lock_take(&c->lock);
	free(c->cold);
	c->cold = v;
	c->cold_count = count;
	for (size_t i = 0; i < count; i++)
		c->used += v[i].bytes;
	lock_release(&c->lock);
	return 0;
}

/* An open object that still is a guest, made `moving`; NULL: none is left. */
static struct block_object *next_guest(struct blockcache *c)
{
	struct block_object *o;
	bool wait;

	lock_take(&c->lock);
	do {
		wait = false;
		for (o = c->all; o != NULL && (o->refs == 0 || o->moving || !o->guest); o = o->next)
			wait = wait || o->moving;
		if (o == NULL && wait)
			(void)condition_wait(&c->changed, &c->lock, -1);
	} while (o == NULL && wait);
	if (o != NULL) {
		o->moving = true;
		o->busy++;
	}
	lock_release(&c->lock);
	return o;
}

static void promote(struct block_object *o)
{
	struct blockcache *c = o->cache;
	struct disk_file *file = NULL, *before;
	uint8_t *state = NULL;
	int rc = object_open_file(o, &file, &state);

	lock_take(&c->lock);
	before = o->file;
	if (rc == 0) {
		object_forget_cold_locked(o);
		object_install_locked(o, file, state, false);
	}
	o->guest = false;
	o->moving = false;
	condition_broadcast(&c->changed);
	lock_release(&c->lock);
	if (rc == 0)
		disk_file_unref(before);
	free(state);
	object_settle(o);
}

void room_adopt(struct blockcache *c)
{
	int64_t now = clock_mono_ns();
	struct block_object *o;
	bool due;

	if (c->disk == NULL || disk_owned(c->disk))
		return;
	lock_take(&c->lock);
	due = !c->adopting && now >= c->own_again_ns;
	if (due) {
		c->adopting = true;
		c->own_again_ns = now + OWN_NS;
	}
	lock_release(&c->lock);
	if (!due)
		return;
	if (disk_own(c->disk)) {
		log_info("the block cache %s is ours now", disk_path(c->disk));
		(void)room_list(c);
		while ((o = next_guest(c)) != NULL)
			promote(o);
	}
	lock_take(&c->lock);
	c->adopting = false;
	lock_release(&c->lock);
}
