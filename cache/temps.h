/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Temp files of a directory that several processes use: tmp.<pid>.<count>, locked (flock) by who
 * writes them, so that those of a process that was killed are known and removed, however young.
 *
 * Thread-safe.
 */
#ifndef CACHE_TEMPS_H
#define CACHE_TEMPS_H

#include <stdbool.h>

enum { TEMPS_NAME = 64 };

/* Makes one; a descriptor for reading and writing, and its name.  *count is atomic, of the process
 * and the directory.  The lock goes with the last copy of the descriptor.  -errno. */
int temps_create(int dirfd, unsigned *count, char name[TEMPS_NAME]);
/* Is a file called so? */
bool temps_named(const char *name);
/* Removes those that nobody is writing. */
void temps_sweep(int dirfd);

#endif
