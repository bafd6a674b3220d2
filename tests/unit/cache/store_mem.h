/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store without files or network, for tests of what lies above stores: objects whose bytes follow
 * from their seed, fetched asynchronously by one thread after a latency, counted, with faults by
 * script.  Included once per test binary, after scratch.h.
 */
#ifndef TESTS_UNIT_CACHE_STORE_MEM_H
#define TESTS_UNIT_CACHE_STORE_MEM_H

#include <endian.h>
#include <pthread.h>
#include <time.h>

#include "cache/clock.h"
#include "cache/lock.h"
#include "cache/store.h"

enum { MEM_LOG = 8192 };

struct mem_request {
	struct fetch *fetch;
	uint64_t seed;
	int64_t due_ns;
	struct mem_request *next;
};

struct mem_handle {
	struct handle base;
	uint64_t seed;
};

struct mem_store {
	struct store base;
	struct lock lock; /* guards what follows */
	struct condition work;
	struct mem_request *head, **tail;
	int64_t latency_ns;
	int fail_err; /* the next fail_count fetches end with it; 0: none */
	unsigned fail_count;
	bool hold;   /* nothing is answered while true */
	size_t part; /* so many bytes of a fetch come at once, and the rest once `part` is 0 again
		      */
	bool end;
	unsigned handles;
	unsigned fetches, background, flying, flying_max;
	uint64_t bytes;
	struct {
		uint64_t off;
		size_t len;
	} log[MEM_LOG];
	pthread_t thread;
};

static inline __attribute__((no_sanitize("thread"))) uint64_t mem_word(uint64_t seed, uint64_t i)
{
	uint64_t z = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15) + i * UINT64_C(0xbf58476d1ce4e5b9);

	z = (z ^ (z >> 29)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 32);
}

/* ThreadSanitizer would spend the whole test here, over memory that one thread owns. */
#define MEM_PLAIN __attribute__((no_sanitize("thread")))

/* The bytes [off, off + len) of the object of a seed. */
static inline MEM_PLAIN void mem_bytes(uint64_t seed, uint64_t off, void *dst, size_t len)
{
	uint8_t *p = dst;

	while (len > 0) {
		uint64_t w = htole64(mem_word(seed, off / 8));
		size_t skip = (size_t)(off % 8), n = MIN(8 - skip, len);

		if (n == 8)
			__builtin_memcpy(p, &w, 8);
		for (size_t i = 0; n < 8 && i < n; i++)
			p[i] = ((const uint8_t *)&w)[skip + i];
		p += n;
		off += n;
		len -= n;
	}
}

static inline MEM_PLAIN bool mem_is(uint64_t seed, uint64_t off, const void *bytes, size_t len)
{
	const uint8_t *p = bytes;
	uint64_t wrong = 0;

	while (len > 0) {
		uint64_t w = htole64(mem_word(seed, off / 8)), is = w;
		size_t skip = (size_t)(off % 8), n = MIN(8 - skip, len);

		if (n == 8)
			__builtin_memcpy(&is, p, 8);
		for (size_t i = 0; n < 8 && i < n; i++)
			((uint8_t *)&is)[skip + i] = p[i];
		wrong |= is ^ w;
		p += n;
		off += n;
		len -= n;
	}
	return wrong == 0;
}

static inline void mem_deliver(struct mem_store *m, const struct mem_request *r)
{
	struct fetch *f = r->fetch;
	size_t part;

	lock_take(&m->lock);
	part = MIN(m->part, f->len);
	lock_release(&m->lock);
	if (part > 0) {
		mem_bytes(r->seed, f->off, f->dst, part);
		fetch_more(f, part);
		lock_take(&m->lock);
		while (m->part > 0)
			(void)condition_wait(&m->work, &m->lock, -1);
		lock_release(&m->lock);
	}
	mem_bytes(r->seed, f->off + part, (uint8_t *)f->dst + part, f->len - part);
}

static inline void *mem_serve(void *arg)
{
	struct mem_store *m = arg;

	lock_take(&m->lock);
	while (!m->end || m->head != NULL) {
		struct mem_request *r = m->head;
		int err = 0;

		if (r == NULL || (m->hold && !m->end) || (r->due_ns > clock_mono_ns() && !m->end)) {
			(void)condition_wait(&m->work, &m->lock,
					     r != NULL && !m->hold ? r->due_ns : -1);
			continue;
		}
		m->head = r->next;
		if (m->head == NULL)
			m->tail = &m->head;
		if (m->end) {
			err = -ECANCELED;
		} else if (m->fail_count > 0) {
			m->fail_count--;
			err = m->fail_err;
		}
		lock_release(&m->lock);
		if (err == 0)
			mem_deliver(m, r);
		lock_take(&m->lock);
		m->flying--;
		lock_release(&m->lock);
		r->fetch->done(r->fetch, err);
		free(r);
		lock_take(&m->lock);
	}
	lock_release(&m->lock);
	return NULL;
}

static inline void mem_fetch(struct fetch *f)
{
	struct mem_handle *h = (struct mem_handle *)f->handle;
	struct mem_store *m = (struct mem_store *)h->base.store;
	struct mem_request *r = calloc(1, sizeof(*r));

	lock_take(&m->lock);
	*r = (struct mem_request){
		.fetch = f, .seed = h->seed, .due_ns = clock_mono_ns() + m->latency_ns};
	*m->tail = r;
	m->tail = &r->next;
	if (m->fetches < MEM_LOG) {
		m->log[m->fetches].off = f->off;
		m->log[m->fetches].len = f->len;
	}
	m->fetches++;
	m->background += f->background;
	m->bytes += f->len;
	m->flying++;
	m->flying_max = MAX(m->flying_max, m->flying);
	condition_broadcast(&m->work);
	lock_release(&m->lock);
}

static inline int mem_open(struct store *s, const struct object *object, struct handle **out,
			   struct why *why)
{
	struct mem_store *m = (struct mem_store *)s;
	struct mem_handle *h = calloc(1, sizeof(*h));

	*h = (struct mem_handle){.base = {.store = s, .size = object->size}};
	h->seed = load_le64(object->id.bytes);
	*out = &h->base;
	lock_take(&m->lock);
	m->handles++;
	lock_release(&m->lock);
	return 0;
}

static inline void mem_close(struct handle *h)
{
	struct mem_store *m = (struct mem_store *)h->store;

	lock_take(&m->lock);
	m->handles--;
	lock_release(&m->lock);
	free(h);
}

static inline void mem_stop(struct store *s)
{
	struct mem_store *m = (struct mem_store *)s;

	lock_take(&m->lock);
	m->end = true;
	condition_broadcast(&m->work);
	lock_release(&m->lock);
}

static inline void mem_free(struct store *s)
{
	struct mem_store *m = (struct mem_store *)s;

	mem_stop(s);
	pthread_join(m->thread, NULL);
	assert_int_equal(m->handles, 0);
	condition_destroy(&m->work);
	lock_destroy(&m->lock);
	free(m);
}

static const struct store_ops mem_ops = {
	.name = "memory",
	.open = mem_open,
	.fetch = mem_fetch,
	.close = mem_close,
	.free = mem_free,
	.stop = mem_stop,
};

static inline struct mem_store *mem_new(void)
{
	struct mem_store *m = calloc(1, sizeof(*m));
	static char name[] = "memory";

	assert_non_null(m);
	m->base = (struct store){.ops = &mem_ops, .name = name, .remote = true};
	m->tail = &m->head;
	lock_init(&m->lock, LOCK_QUEUE);
	condition_init(&m->work);
	assert_int_equal(pthread_create(&m->thread, NULL, mem_serve, m), 0);
	return m;
}

static inline void mem_fail(struct mem_store *m, int err, unsigned count)
{
	lock_take(&m->lock);
	m->fail_err = err;
	m->fail_count = count;
	lock_release(&m->lock);
}

static inline void mem_hold(struct mem_store *m, bool hold)
{
	lock_take(&m->lock);
	m->hold = hold;
	condition_broadcast(&m->work);
	lock_release(&m->lock);
}

static inline void mem_part(struct mem_store *m, size_t part)
{
	lock_take(&m->lock);
	m->part = part;
	condition_broadcast(&m->work);
	lock_release(&m->lock);
}

static inline unsigned mem_fetches(struct mem_store *m)
{
	unsigned n;

	lock_take(&m->lock);
	n = m->fetches;
	lock_release(&m->lock);
	return n;
}

static inline uint64_t mem_fetched(struct mem_store *m)
{
	uint64_t n;

	lock_take(&m->lock);
	n = m->bytes;
	lock_release(&m->lock);
	return n;
}

static inline void mem_forget(struct mem_store *m)
{
	lock_take(&m->lock);
	m->fetches = m->background = m->flying_max = 0;
	m->bytes = 0;
	lock_release(&m->lock);
}

/* How an object of a seed is listed. */
static inline struct object mem_object(uint64_t seed, uint64_t size, char *key)
{
	struct object o = {.key = key, .size = size, .mtime_ns = 1};

	store_le64(o.id.bytes, seed);
	store_le64(o.id.bytes + 8, size);
	return o;
}

#endif
