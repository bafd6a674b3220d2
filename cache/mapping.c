/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files mapped read-only, with a count of who uses them.
 *
 * A mapping lives on when its file is removed.  Pages that were read are given back from time to
 * time (they stay in the kernel's cache), so that looking through a large file once does not make
 * the process look large for ever; a reader that comes back faults them in again.
 *
 * Threads: any; the counts are atomic.
 */
#include "cache/mapping.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { TOUCH_WINDOW = 8 << 20 }; /* bytes read between two MADV_DONTNEED */

static const uint8_t no_bytes[1]; /* where a mapping of size 0 points */

int mapping_new(int fd, uint64_t size, struct mapping **out)
{
	struct mapping *m = calloc(1, sizeof(*m));
	void *bytes = (void *)no_bytes;

	if (m == NULL)
		return -ENOMEM;
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
	if (m->size > 0)
		munmap((void *)m->bytes, (size_t)m->size);
	free(m);
}

void mapping_touch(struct mapping *m, uint64_t n)
{
	uint64_t before = __atomic_fetch_add(&m->touched, n, __ATOMIC_RELAXED);

	if (m->size > 0 && before / TOUCH_WINDOW != (before + n) / TOUCH_WINDOW)
		madvise((void *)m->bytes, (size_t)m->size, MADV_DONTNEED);
}
