/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies below a checkpoint's directory, or below one that is watched, and is none of the
 * trainer's: the run that is published, other runs, and the publisher's own state.  Taken for part
 * of it, each version would be published with all those before it.
 */
#ifndef TOOLS_PUB_APART_H
#define TOOLS_PUB_APART_H

#include "cache/store.h"

enum { PUB_PLACES = 3 };

/* Where a publisher writes on this machine: the destination, its state, and what holds that of
 * other destinations, too.  NULL: not on this machine.  Borrowed. */
struct pub_places {
	const char *v[PUB_PLACES];
};

/* Directories, relative to where the listing was made. */
struct pub_apart {
	char **v;
	size_t count;
};

/* top: the directory that was listed.  Zero-initialise *out; release it in any case.  -ENOMEM. */
int pub_apart_make(const struct pub_places *places, const char *top, const struct listing *l,
		   struct pub_apart *out) MUST_CHECK;
/* Is this object below one of them? */
bool pub_apart_has(const struct pub_apart *a, const char *key);
void pub_apart_release(struct pub_apart *a);

#endif
