/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What to fetch before it is asked for: finds the streams among the reads of one object, whoever
 * reads, and says how far ahead of each to be.  A pure data structure: no lock, no I/O, no clock.
 *
 * Up to 16 streams at once, ascending or descending.  The first read of a place says nothing; one
 * that continues it exactly makes an ascending stream, two a descending one.  Then reads a little
 * off the head (the kernel's arrive in any order, other ranks lag) still belong to it.  The window
 * is a power of two of about four times what the stream has read so far, from limits->min to
 * limits->max: it doubles, and what is fetched in vain stays in proportion.
 */
#ifndef CACHE_PREFETCH_H
#define CACHE_PREFETCH_H

#include "codec/base.h"

enum { PREFETCH_STREAMS = 16 };

struct prefetch_limits {
	uint64_t min, max; /* window, bytes; powers of two */
	uint64_t step;	   /* ask for about that much at a time, at most */
	uint64_t align;	   /* far ends are multiples of it */
};

struct prefetch_stream { /* private; used 0: free */
	uint64_t lo, hi; /* what was read without a gap lately; the head is hi, or lo going down */
	uint64_t run;	 /* bytes read so far */
	uint64_t frontier; /* asked for up to here */
	uint64_t used;
	unsigned up, down;
	int8_t direction; /* 0: not a stream yet */
};

struct prefetch { /* zeroed is empty */
	struct prefetch_stream v[PREFETCH_STREAMS];
	uint64_t tick;
};

struct prefetch_advice {
	bool sequential;   /* the read belongs to a stream: fetch whole blocks */
	bool down;	   /* a descending one */
	uint64_t off, len; /* to fetch ahead; len 0: nothing.  Going down, from the end first */
	unsigned stream;   /* for prefetch_trim() */
};

/* Takes note of a read of [off, off + len) of an object of `size` bytes; len > 0.  missed: some of
 * it was neither there nor under way, so what was asked for ahead got lost. */
void prefetch_read(struct prefetch *p, const struct prefetch_limits *limits, uint64_t size,
		   uint64_t off, uint64_t len, bool missed, struct prefetch_advice *out);
/* Of the advice only `done` bytes from its near end were asked for: the rest comes up again. */
void prefetch_trim(struct prefetch *p, const struct prefetch_advice *advice, uint64_t done);

#endif
