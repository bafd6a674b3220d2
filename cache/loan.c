/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loans: a mapping for as long as one reply takes.
 *
 * Made anew for each loan and gone after it: mapping and unmapping a MiB costs a small part of what
 * copying it does, and so nothing has to bound or share mappings, page tables stay small whatever
 * the size of the model, and pages count as this process's only while they are sent.  The kernel
 * faults the pages in itself when it takes them, sixteen at a time.  That is quick for what is in
 * memory and slow for what is not, so the latter is not lent; pages that go in between are read
 * from the disk once more, which is only slow.
 *
 * No state; any thread.
 */
#include "cache/loan.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES_MAX = 1024 }; /* of a loan: 4 MiB */

/* The kernel's structs for cachestat(2), Linux 6.5; newer headers than ours have them. */
struct range {
	uint64_t off, len;
};
struct cached {
	uint64_t pages, dirty, writeback, evicted, recently;
};
enum { CALL_CACHESTAT = 451 };

/* Is all of it in memory, by what the page cache says of the file?  -1: it does not say. */
static int is_cached(int fd, uint64_t off, size_t len)
{
	struct range range = {off, len};
	struct cached got = {0};

	if (syscall(CALL_CACHESTAT, fd, &range, &got, 0) < 0)
		return -1;
	return got.pages >= (len + PAGE - 1) / PAGE;
}

/* The same, page by page.  (The kernel says yes for files of others, which costs the time of a
 * fault where it is not so.) */
static bool is_resident(void *map, size_t len)
{
	unsigned char pages[PAGES_MAX + 1];
	size_t n = (len + PAGE - 1) / PAGE;

	/* Where pages are larger, there are fewer, and the rest stays as it is here. */
	memset(pages, 1, n);
	if (mincore(map, len, pages) < 0)
		return false;
	for (size_t i = 0; i < n; i++)
		if (!(pages[i] & 1))
			return false;
	return true;
}

int loan_map(int fd, uint64_t off, size_t len, struct loan *out)
{
	int cached;
	void *map;

	if (off % PAGE != 0 || len < LOAN_MIN || len > (size_t)PAGES_MAX * PAGE)
		return -EAGAIN;
	cached = is_cached(fd, off, len);
	if (cached == 0)
		return -EAGAIN;
	map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, (off_t)off);
	if (map == MAP_FAILED)
		return -errno;
	if (cached < 0 && !is_resident(map, len)) {
		munmap(map, len);
		return -EAGAIN;
	}
	*out = (struct loan){.bytes = map, .map = map, .map_len = len};
	return 0;
}

void loan_end(struct loan *l)
{
	if (l->map != NULL)
		munmap(l->map, l->map_len);
	if (l->give_back != NULL)
		l->give_back(l);
}
