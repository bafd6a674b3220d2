/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loans: a mapping for as long as one reply takes.
 *
 * Made anew for each loan and gone after it: mapping, filling in and unmapping a MiB costs a
 * quarter of what copying it does, and so nothing has to bound or share mappings, page tables stay
 * small whatever the size of the model, and pages count as this process's only while they are sent.
 * The page table is filled in one go; otherwise the kernel would fault page by page while it
 * copies.
 *
 * No state; any thread.
 */
#include "cache/loan.h"

#include <sys/mman.h>

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#endif

enum { PAGE = 4096, PAGES_MAX = 1024 }; /* of a loan: 4 MiB */

/* Are all pages in memory?  (The kernel says yes for files of others, which costs the time of a
 * fault where it is not so.) */
static bool is_resident(void *map, size_t len)
{
	unsigned char pages[PAGES_MAX + 1];
	size_t n = (len + PAGE - 1) / PAGE;

	if (mincore(map, len, pages) < 0)
		return false;
	for (size_t i = 0; i < n; i++)
		if (!(pages[i] & 1))
			return false;
	return true;
}

int loan_map(int fd, uint64_t off, size_t len, struct loan *out)
{
	void *map;
	int rc = 0;

	if (off % PAGE != 0 || len < LOAN_MIN || len > (size_t)PAGES_MAX * PAGE)
		return -EAGAIN;
	map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, (off_t)off);
	if (map == MAP_FAILED)
		return -errno;
	if (!is_resident(map, len))
		rc = -EAGAIN;
	else if (madvise(map, len, MADV_POPULATE_READ) < 0)
		rc = errno == EINVAL ? -ENOTSUP : -EAGAIN;
	if (rc < 0) {
		munmap(map, len);
		return rc;
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
