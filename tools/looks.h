/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks at a run that is in use, after the first one: is what could not be read still there, or has
 * it been replaced or deleted meanwhile?  Each asks the store for its listing.  One thread.
 */
#ifndef TOOLS_LOOKS_H
#define TOOLS_LOOKS_H

#include "fs/run.h"

struct looks {
	struct run *run; /* borrowed; the rest is private but for `moved` */
	struct run_report *now;
	struct listing_ref *there;
	int64_t looked_ns;
	unsigned count;
	bool moved; /* something has changed since the first look */
};

/* Is the object that could not be read another one by now, or none? */
bool looks_object_moved(struct looks *v, const struct object *o);
/* Is a version that could not be read no longer one of the run? */
bool looks_version_moved(struct looks *v, const struct version_info *was);
/* Has what the first look met at a key passed?  `first`: its listing. */
bool looks_has_passed(struct looks *v, const struct listing *first, const char *key);
/* The report of a look that is made now, the caller's; NULL: there is none. */
struct run_report *looks_report(struct looks *v);
/* Does a look after that have the same problem? */
bool looks_has_problem(struct looks *v, const char *object, const char *text);
void looks_release(struct looks *v);

#endif
