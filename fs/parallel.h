/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same work for many things at once: what a publication encodes, what a mount decodes.
 */
#ifndef FS_PARALLEL_H
#define FS_PARALLEL_H

#include <stddef.h>

/* Calls work(ctx, i) for each i below count, from up to `jobs` threads, of which this one is one;
 * returns when all are done.  Threads that cannot be had are done without.  Signals stay with the
 * calling thread. */
void parallel_for(unsigned jobs, size_t count, void (*work)(void *ctx, size_t i), void *ctx);

#endif
