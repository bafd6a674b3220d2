/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that are lent in place of being copied: an address to hand to the kernel (write, writev),
 * which reads them from there, one copy less than reading them into a buffer first.
 *
 * Until the loan ends they are what was asked for: whoever lends sees to it that nobody can write
 * or evict them meanwhile.  The program itself must not look at them: a file that somebody cut
 * short all the same is SIGBUS to it, and only -EFAULT to a system call.
 */
#ifndef CACHE_LOAN_H
#define CACHE_LOAN_H

#include "codec/base.h"

enum { LOAN_MIN = 64 << 10 }; /* less is not worth the mapping */

struct loan {
	const void *bytes;
	/* private */
	void *map; /* NULL: nothing to unmap */
	size_t map_len;
	void (*give_back)(struct loan *l); /* may be NULL */
	void *owner, *note;		   /* give_back's */
};

/* Maps bytes [off, off + len) of a file; give_back and owner are the caller's to set.  -EAGAIN:
 * not all of it is in memory now (reading it is faster than faulting it in), or off is not at a
 * page, which would be two copies a page for the kernel; mmap()'s.  Does not block on the disk. */
int loan_map(int fd, uint64_t off, size_t len, struct loan *out) MUST_CHECK;
void loan_end(struct loan *l);

#endif
