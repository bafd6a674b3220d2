/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects of the block cache: their tables of pieces, their files, and when they come and go.
 *
 * An object is in the table while it is open, busy, moving or has blocks on disk; the last of these
 * to end removes it, and its files when they hold nothing.  Its descriptors are open while it is.
 * Each time they are opened anew, what was READY is STORED again: the directory may have been
 * emptied or filled by others meanwhile, so everything is hashed once more.
 *
 * `moving` is held by one thread that opens or removes the files; all others keep away until
 * cache->changed.
 */
#include <assert.h>
#include <stdlib.h>

#include "cache/block_internal.h"
#include "cache/clock.h"
#include "cache/log.h"
#include "cache/table.h"

enum { RECORDS = 512 };
static const int64_t LOOK_NS = NSEC_PER_SEC / 4;

struct block_object *object_new(struct blockcache *c, const struct identity *id, uint64_t size,
				const char *key)
{
	struct block_object *o = calloc(1, sizeof(*o));
	uint32_t blocks = 0;

	if (o == NULL)
		return NULL;
	o->cache = c;
	o->id = *id;
	o->size = size;
	identity_hex(id, o->hex);
	if (size <= DISK_OBJECT_MAX) {
		o->pieces = piece_count(size);
		blocks = o->pieces / BLOCK_PIECES + 1;
		o->state = calloc(1, (size_t)o->pieces + 1); /* PIECE_ABSENT */
		o->slot = malloc(blocks * sizeof(*o->slot));
		o->key = strdup(key);
	}
	if (o->state == NULL || o->slot == NULL || o->key == NULL) {
		object_free(o);
		return NULL;
	}
	memset(o->slot, 0xff, blocks * sizeof(*o->slot)); /* EVICT_NONE */
	return o;
}

void object_free(struct block_object *o)
{
	if (o == NULL)
		return;
	disk_file_unref(o->file);
	free(o->state);
	free(o->slot);
	free(o->key);
	free(o);
}

/* What the list of cold objects has of it counts by its pieces from now on. */
void object_forget_cold_locked(struct block_object *o)
{
	struct blockcache *c = o->cache;

	for (size_t i = 0; i < c->cold_count; i++) {
		if (!identity_equal(&c->cold[i].id, &o->id))
			continue;
		c->used -= MIN(c->used, c->cold[i].bytes);
		c->cold_count--;
		memmove(c->cold + i, c->cold + i + 1, (c->cold_count - i) * sizeof(*c->cold));
		break;
	}
}

void object_insert_locked(struct block_object *o)
{
	struct blockcache *c = o->cache;

	o->next = c->all;
	if (o->next != NULL)
		o->next->prev = o;
	c->all = o;
	object_forget_cold_locked(o);
}

static void remove_locked(struct block_object *o)
{
	struct blockcache *c = o->cache;

	table_remove_str(c->objects, o->hex);
	if (o->prev != NULL)
		o->prev->next = o->next;
	else
		c->all = o->next;
	if (o->next != NULL)
		o->next->prev = o->prev;
	if (!o->guest)
		c->used -= MIN(c->used, o->present);
}

void object_settle(struct block_object *o)
{
	struct blockcache *c = o->cache;
	bool over;

	lock_take(&c->lock);
	assert(o->busy > 0);
	o->busy--;
	over = o->refs == 0 && o->busy == 0 && !o->moving && o->kept == 0;
	if (over)
		o->moving = true;
	lock_release(&c->lock);
	if (!over)
		return;
	if (c->disk != NULL && disk_owned(c->disk) && !o->guest)
		disk_remove(c->disk, &o->id);
	lock_take(&c->lock);
	remove_locked(o);
	condition_broadcast(&c->changed);
	lock_release(&c->lock);
	object_free(o);
}

static void keep_locked(struct block_object *o, uint32_t block, bool old)
{
	struct blockcache *c = o->cache;

	if (o->slot[block] != EVICT_NONE) {
		if (!old)
			evict_touch(&c->evict, o->slot[block]);
	} else if (evict_add(&c->evict, o, block, old, &o->slot[block]) == 0) {
		o->kept++;
	} /* else it cannot be evicted until somebody reads it */
}

static void object_account_locked(struct block_object *o, uint32_t first, uint32_t count,
				  enum piece_state state)
{
	for (uint32_t p = first; p < first + count; p++) {
		o->state[p] = (uint8_t)state;
		o->present += piece_len(o->size, p);
	}
}

void object_stored_locked(struct block_object *o, uint32_t first, uint32_t count)
{
	bool mine = o->file != NULL && disk_file_writable(o->file);

	object_account_locked(o, first, count, mine ? PIECE_READY : PIECE_STORED);
	for (uint32_t b = first / BLOCK_PIECES; mine && b <= (first + count - 1) / BLOCK_PIECES;
	     b++)
		keep_locked(o, b, false);
}

void object_lost_locked(struct block_object *o, uint32_t first, uint32_t count)
{
	bool mine = o->file == NULL || disk_file_writable(o->file);

	for (uint32_t p = first; p < first + count; p++) {
		size_t len = piece_len(o->size, p);

		assert(o->state[p] == PIECE_STORED || o->state[p] == PIECE_READY);
		o->state[p] = PIECE_ABSENT;
		o->present -= len;
		if (mine)
			o->cache->used -= MIN(o->cache->used, len);
	}
}

void object_touch_locked(struct block_object *o, uint32_t first, uint32_t last)
{
	for (uint32_t b = first / BLOCK_PIECES; b <= last / BLOCK_PIECES; b++)
		if (o->slot[b] != EVICT_NONE)
			evict_touch(&o->cache->evict, o->slot[b]);
}

/* ---- files ---- */

/* What the records say, into state (ABSENT or STORED); the bytes of it. */
static int load_records(const struct block_object *o, struct disk_file *file, uint8_t *state,
			uint64_t *out_bytes)
{
	uint64_t records[RECORDS];

	*out_bytes = 0;
	for (uint32_t p = 0, n; p < o->pieces; p += n) {
		int rc;

		n = MIN(o->pieces - p, (uint32_t)RECORDS);
		rc = disk_file_records(file, p, n, records);
		if (rc < 0)
			return rc;
		for (uint32_t i = 0; i < n; i++) {
			if (records[i] == 0)
				continue;
			state[p + i] = PIECE_STORED;
			*out_bytes += piece_len(o->size, p + i);
		}
	}
	return 0;
}

/* Gives back what a kill left without a record. */
static void tidy(const struct block_object *o, struct disk_file *file, const uint8_t *state,
		 uint64_t bytes)
{
	if (!disk_file_writable(file) ||
	    disk_file_allocated(file) <= bytes + (uint64_t)2 * BLOCK_SIZE)
		return;
	for (uint32_t p = 0, n; p < o->pieces; p += n) {
		for (n = 1; p + n < o->pieces && state[p + n] == state[p]; n++)
			;
		if (state[p] == PIECE_ABSENT && disk_file_drop(file, p, n) < 0)
			return;
	}
}

/* A fresh look at an object that is moving: its open file and the states by the records. */
int object_open_file(struct block_object *o, struct disk_file **out, uint8_t **out_state)
{
	struct blockcache *c = o->cache;
	struct disk_file *file = NULL;
	uint8_t *state = calloc(1, (size_t)o->pieces + 1);
	bool foreign = false;
	uint64_t bytes;
	int rc = state == NULL ? -ENOMEM : 0;

	if (rc == 0)
		rc = disk_file_open(c->disk, &o->id, o->size, o->key, &file, &foreign);
	if (rc == 0)
		rc = load_records(o, file, state, &bytes);
	if (foreign) {
		lock_take(&c->lock);
		c->stats.damaged++;
		lock_release(&c->lock);
	}
	if (rc < 0) {
		disk_file_unref(file);
		free(state);
		return rc;
	}
	*out = file;
	*out_state = state;
	tidy(o, file, state, bytes);
	return 0;
}

/* Brings an object's states in line with its files, which were opened just now: what it thought to
 * be there counts as STORED at most, whatever it had seen through another descriptor. */
void object_install_locked(struct block_object *o, struct disk_file *file, const uint8_t *state,
			   bool old)
{
	struct blockcache *c = o->cache;
	bool mine = file != NULL && disk_file_writable(file);

	/* Before o->file changes: a guest's STORED pieces are not in `used`. */
	for (uint32_t p = 0; p < o->pieces; p++)
		if (o->state[p] == PIECE_STORED || o->state[p] == PIECE_READY)
			object_lost_locked(o, p, 1);
	o->file = file;
	for (uint32_t p = 0; file != NULL && p < o->pieces; p++) {
		if (state[p] != PIECE_STORED || o->state[p] != PIECE_ABSENT)
			continue;
		object_account_locked(o, p, 1, PIECE_STORED);
		c->used += mine ? piece_len(o->size, p) : 0;
	}
	for (uint32_t i = 0, blocks = o->pieces / BLOCK_PIECES + 1; i < blocks; i++) {
		uint32_t b = old ? blocks - 1 - i : i, first = b * BLOCK_PIECES;
		uint32_t n = MIN(o->pieces - first, (uint32_t)BLOCK_PIECES);
		bool any = mine && n > 0 && memchr(o->state + first, PIECE_STORED, n) != NULL;

		if (any) {
			keep_locked(o, b, old);
		} else if (o->slot[b] != EVICT_NONE) {
			evict_remove(&c->evict, o->slot[b]);
			o->slot[b] = EVICT_NONE;
			o->kept--;
		}
	}
}

static void warn_open(struct block_object *o, int err)
{
	struct blockcache *c = o->cache;
	char shown[256];
	bool first;

	lock_take(&c->lock);
	first = !c->warned_open;
	c->warned_open = true;
	lock_release(&c->lock);
	if (first)
		log_warning("the block cache %s cannot keep '%s' (%s): its blocks, and those of "
			    "others that cannot be kept, stay in memory",
			    disk_path(c->disk),
			    printable(shown, sizeof(shown), o->key, strlen(o->key)),
			    strerrordesc_np(-err));
}

void object_attach(struct block_object *o)
{
	struct blockcache *c = o->cache;
	bool owned = disk_owned(c->disk);
	struct disk_file *file = NULL;
	uint8_t *state = NULL;
	int rc = object_open_file(o, &file, &state);

	if (rc < 0 && owned)
		warn_open(o, rc);
	if (file != NULL)
		disk_file_touch(file);
	lock_take(&c->lock);
	object_install_locked(o, file, state, false);
	o->guest = file != NULL ? !disk_file_writable(file) : !owned;
	o->moving = false;
	condition_broadcast(&c->changed);
	lock_release(&c->lock);
	free(state);
}

/* A guest that came before the owner had files of the object looks for them now and then. */
static void look_for_file(struct block_object *o)
{
	struct blockcache *c = o->cache;
	int64_t now = clock_mono_ns();
	struct disk_file *file = NULL;
	bool due, foreign;

	lock_take(&c->lock);
	due = o->guest && o->file == NULL && !o->moving && now >= o->look_again_ns;
	if (due)
		o->look_again_ns = now + LOOK_NS;
	lock_release(&c->lock);
	if (!due || disk_file_open(c->disk, &o->id, o->size, o->key, &file, &foreign) < 0)
		return;
	lock_take(&c->lock);
	if (o->guest && o->file == NULL && !o->moving && !disk_file_writable(file)) {
		o->file = file;
		file = NULL;
	}
	lock_release(&c->lock);
	disk_file_unref(file);
}

void object_look(struct block_object *o, uint32_t first, uint32_t last)
{
	struct blockcache *c = o->cache;
	uint64_t records[RECORDS];
	struct disk_file *file = NULL;

	if (c->disk == NULL || disk_owned(c->disk))
		return;
	look_for_file(o);
	lock_take(&c->lock);
	if (o->file != NULL && !disk_file_writable(o->file) &&
	    memchr(o->state + first, PIECE_ABSENT, last - first + 1) != NULL)
		file = disk_file_ref(o->file);
	lock_release(&c->lock);
	if (file == NULL)
		return;
	for (uint32_t p = first, n; p <= last; p += n) {
		n = MIN(last - p + 1, (uint32_t)RECORDS);
		if (disk_file_records(file, p, n, records) < 0)
			break;
		lock_take(&c->lock);
		/* Promoted meanwhile: then the states are right already. */
		for (uint32_t i = 0; i < n && o->file == file; i++)
			if (records[i] != 0 && o->state[p + i] == PIECE_ABSENT)
				object_stored_locked(o, p + i, 1);
		lock_release(&c->lock);
	}
	disk_file_unref(file);
}
