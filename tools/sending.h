/* SPDX-License-Identifier: Apache-2.0 */
/* An open file as the source of an upload that moves a progress bar and ends when it is told to.
 * One thread: that of store_put(). */
#ifndef TOOLS_SENDING_H
#define TOOLS_SENDING_H

#include "codec/io.h"
#include "tools/progress.h"

struct sending {
	int fd;
	struct progress *progress; /* NULL: none */
	const volatile bool *stop; /* once true, a read gives -EINTR; NULL: never */
	uint64_t size, seen;	   /* bytes; seen: read, those read again included */
};

/* Borrows s, and its file. */
struct source sending_source(struct sending *s);
/* It has arrived: what somebody else read (the kernel, another program) counts as well. */
void sending_done(const struct sending *s);

#endif
