/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files mapped read-only, with a count of who uses them.
 *
 * A mapping lives on when its file is removed.  Pages that were read are given back from time to
 * time (they stay in the kernel's cache), so that looking through a large file once does not make
 * the process look large for ever; a reader that comes back faults them in again.
 *
 * A page that is not there any more (the file was cut short by somebody, the disk fails) would end
 * the process by SIGBUS.  The handler here looks up whose page it is, marks that mapping as broken
 * and puts zeros in its place: the instruction goes on, and whoever read asks mapping_broken() and
 * gives an error.  Any other SIGBUS goes where it went before.
 *
 * Threads: any; the counts are atomic.  The table of mappings is read in the handler: slots are
 * never freed, and one that covers the address belongs to a mapping that the faulting thread holds.
 */
#include "cache/mapping.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	TOUCH_WINDOW = 8 << 20, /* bytes read between two MADV_DONTNEED */
	CHUNK = 256,		/* slots at a time */
};

/* Of a live mapping; end is set last and cleared first. */
struct slot {
	struct mapping *owner; /* atomic; NULL: free */
	uintptr_t begin, end;  /* atomic */
};

struct chunk {
	struct slot v[CHUNK];
	struct chunk *next; /* atomic */
};

static struct chunk first_chunk;
static struct sigaction previous; /* set once, before the first mapping */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const uint8_t no_bytes[1]; /* where a mapping of size 0 points */

/* ---- the guard ---- */

/* By the plain system call: this runs in a signal handler, and under ThreadSanitizer mmap() would
 * count as a write to what others are reading. */
static bool put_zeros(uintptr_t begin, size_t len)
{
	return syscall(SYS_mmap, begin, len, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		       0) >= 0;
}

/* Zeros instead of the mapping that the address lies in; false when it is none of ours. */
static bool mend(uintptr_t address)
{
	for (struct chunk *c = &first_chunk; c != NULL;
	     c = __atomic_load_n(&c->next, __ATOMIC_ACQUIRE))
		for (size_t i = 0; i < CHUNK; i++) {
			struct slot *s = &c->v[i];
			uintptr_t end = __atomic_load_n(&s->end, __ATOMIC_ACQUIRE);
			uintptr_t begin = __atomic_load_n(&s->begin, __ATOMIC_RELAXED);
			struct mapping *m = __atomic_load_n(&s->owner, __ATOMIC_RELAXED);

			if (address >= end || address < begin || m == NULL)
				continue;
			__atomic_store_n(&m->broken, true, __ATOMIC_SEQ_CST);
			return put_zeros(begin, end - begin);
		}
	return false;
}

static void on_bus_error(int number, siginfo_t *info, void *context)
{
	int err = errno;

	if (info->si_code > 0 && mend((uintptr_t)info->si_addr)) {
		errno = err;
		return;
	}
	if ((previous.sa_flags & SA_SIGINFO) != 0)
		previous.sa_sigaction(number, info, context);
	else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
		previous.sa_handler(number);
	else
		sigaction(number, &previous, NULL); /* and the instruction ends the process */
	errno = err;
}

static void guard(void)
{
	struct sigaction action = {.sa_flags = SA_SIGINFO};

	action.sa_sigaction = on_bus_error;
	sigemptyset(&action.sa_mask);
	(void)sigaction(SIGBUS, &action, &previous);
}

/* -ENOMEM: the mapping is not guarded. */
static int slot_take(struct mapping *m)
{
	for (struct chunk *c = &first_chunk;;) {
		struct chunk *next, *expected = NULL;

		for (size_t i = 0; i < CHUNK; i++) {
			struct slot *s = &c->v[i];
			struct mapping *nobody = NULL;

			if (!__atomic_compare_exchange_n(&s->owner, &nobody, m, false,
							 __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
				continue;
			__atomic_store_n(&s->begin, (uintptr_t)m->bytes, __ATOMIC_RELAXED);
			__atomic_store_n(&s->end, (uintptr_t)m->bytes + m->size, __ATOMIC_RELEASE);
			m->slot = s;
			return 0;
		}
		next = __atomic_load_n(&c->next, __ATOMIC_ACQUIRE);
		if (next == NULL) {
			next = calloc(1, sizeof(*next));
			if (next == NULL)
				return -ENOMEM;
			if (!__atomic_compare_exchange_n(&c->next, &expected, next, false,
							 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
				free(next);
				next = expected;
			}
		}
		c = next;
	}
}

static void slot_give(struct mapping *m)
{
	struct slot *s = m->slot;

	__atomic_store_n(&s->end, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&s->owner, NULL, __ATOMIC_RELEASE);
}

bool mapping_broken(const struct mapping *m)
{
#ifndef __SANITIZE_THREAD__ /* which has no fences */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
	return __atomic_load_n(&m->broken, __ATOMIC_SEQ_CST);
}

void mapping_break(struct mapping *m)
{
	__atomic_store_n(&m->broken, true, __ATOMIC_SEQ_CST);
}

void mapping_probe(const struct mapping *m)
{
	if (m->size > 0)
		(void)*(const volatile uint8_t *)(m->bytes + m->size - 1);
}

/* ---- mappings ---- */

int mapping_new(int fd, uint64_t size, struct mapping **out)
{
	struct mapping *m = calloc(1, sizeof(*m));
	void *bytes = (void *)no_bytes;

	if (m == NULL)
		return -ENOMEM;
	pthread_once(&once, guard);
	if (size > SIZE_MAX) {
		free(m);
		return -EFBIG;
	}
	if (size > 0)
		bytes = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);
	if (bytes == MAP_FAILED) {
		int rc = -errno;

		free(m);
		return rc;
	}
	m->bytes = bytes;
	m->size = size;
	m->refs = 1;
	if (size > 0 && slot_take(m) < 0) {
		munmap(bytes, (size_t)size);
		free(m);
		return -ENOMEM;
	}
	*out = m;
	return 0;
}

struct mapping *mapping_ref(struct mapping *m)
{
	__atomic_add_fetch(&m->refs, 1, __ATOMIC_RELAXED);
	return m;
}

void mapping_unref(struct mapping *m)
{
	int left;

	if (m == NULL)
		return;
	left = __atomic_sub_fetch(&m->refs, 1, __ATOMIC_ACQ_REL);
	assert(left >= 0);
	if (left > 0)
		return;
	if (m->size > 0) {
		slot_give(m);
		munmap((void *)m->bytes, (size_t)m->size);
	}
	free(m);
}

void mapping_touch(struct mapping *m, uint64_t n)
{
	uint64_t before = __atomic_fetch_add(&m->touched, n, __ATOMIC_RELAXED);

	if (m->size > 0 && before / TOUCH_WINDOW != (before + n) / TOUCH_WINDOW)
		madvise((void *)m->bytes, (size_t)m->size, MADV_DONTNEED);
}
