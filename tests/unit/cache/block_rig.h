/* SPDX-License-Identifier: Apache-2.0 */
/* A block cache over a store in memory, as the tests of the block cache want it. */
#ifndef TESTS_UNIT_CACHE_BLOCK_RIG_H
#define TESTS_UNIT_CACHE_BLOCK_RIG_H

#include "tests/unit/cache/store_mem.h"

#include "cache/blob.h"
#include "cache/disk.h"

#include <sys/mman.h>
#include <unistd.h>

#define MIB   ((uint64_t)1 << 20)
#define PIECE ((uint64_t)PIECE_SIZE)

struct rig {
	struct mem_store *m;
	struct blockcache *c;
	struct why why;
};

static inline void rig_open(struct rig *r, const struct blockcache_config *config)
{
	*r = (struct rig){.m = mem_new()};
	assert_int_equal(blockcache_new(config, &r->c, &r->why), 0);
	r->m->base.blocks = r->c;
}

/* In scratch/cache. */
static inline void rig_open_disk(struct rig *r, uint64_t limit)
{
	struct blockcache_config config = {
		.dir = at("cache"), .holder = "/mnt/test", .limit = limit, .floor = 1};

	rig_open(r, &config);
	assert_int_equal(r->why.err, 0);
}

static inline void rig_open_memory(struct rig *r)
{
	struct blockcache_config config = {0};

	rig_open(r, &config);
	assert_int_equal(r->why.err, ENOENT);
}

static inline void rig_close(struct rig *r)
{
	mem_hold(r->m, false);
	blockcache_free(r->c);
	store_free(&r->m->base);
}

static inline struct blob *rig_blob(struct rig *r, uint64_t seed, uint64_t size)
{
	char key[] = "model.safetensors";
	struct object o = mem_object(seed, size, key);
	struct blob *b = NULL;

	assert_int_equal(blob_open(&r->m->base, &o, false, &b, NULL), 0);
	return b;
}

/* Waits until nothing is in flight any more. */
static inline struct blockcache_stats rig_quiet(struct rig *r)
{
	struct blockcache_stats st;
	struct timespec ts = {.tv_nsec = 1000000};

	for (;;) {
		blockcache_stats(r->c, &st);
		if (st.flying_bytes == 0)
			return st;
		nanosleep(&ts, NULL);
	}
}

/* Waits until nothing is open any more, also on behalf of fetches. */
static inline void rig_closed(struct rig *r)
{
	struct timespec ts = {.tv_nsec = 1000000};
	unsigned left;

	do {
		nanosleep(&ts, NULL);
		lock_take(&r->m->lock);
		left = r->m->handles;
		lock_release(&r->m->lock);
	} while (left > 0);
}

/* Reads a range and checks every byte of it. */
static inline void expect_bytes(struct blob *b, uint64_t seed, uint64_t off, size_t len)
{
	uint8_t *bytes = malloc(len + 1);

	assert_non_null(bytes);
	assert_int_equal(blob_read(b, off, bytes, len), 0);
	assert_true(mem_is(seed, off, bytes, len));
	free(bytes);
}

static inline void expect_whole(struct blob *b, uint64_t seed, size_t step)
{
	for (uint64_t off = 0; off < b->size; off += step)
		expect_bytes(b, seed, off, (size_t)MIN(b->size - off, (uint64_t)step));
}

/* What the kernel finds at a loan's address: written to a file, and read back. */
static inline bool loan_is(const struct loan *l, uint64_t seed, uint64_t off, size_t len)
{
	int fd = memfd_create("loan", MFD_CLOEXEC);
	uint8_t *bytes = malloc(len);
	bool same;

	assert_true(fd >= 0 && bytes != NULL);
	same = write(fd, l->bytes, len) == (ssize_t)len &&
	       pread(fd, bytes, len, 0) == (ssize_t)len && mem_is(seed, off, bytes, len);
	free(bytes);
	close(fd);
	return same;
}

static inline uint64_t rng(uint64_t *state)
{
	*state += UINT64_C(0x9e3779b97f4a7c15);
	return mem_word(*state, 7);
}

#endif
