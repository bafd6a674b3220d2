/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts: one source, listed once for all the runs in it.  Each run has a store of its own that
 * shows what lies in one directory; its listings are cut out of the source's, its objects are the
 * source's own.  A part's notification tells that something in its directory has changed.
 */
#ifndef FS_PARTS_H
#define FS_PARTS_H

#include "fs/run.h"

struct parts; /* opaque */

/* The source is borrowed.  `first`: a listing that somebody has made just now, or NULL; borrowed.
 * A listing serves for max_age_ns. */
int parts_new(struct store *source, int64_t max_age_ns, struct listing_ref *first,
	      struct parts **out) MUST_CHECK;
void parts_free(struct parts *p); /* after all its stores; NULL is fine */
/* The listing of the source, with a reference.  `fresh`: of a moment after the call, else one may
 * serve that is not too old.  `ask`: store_refresh() first.  Blocks.  Callers that wait for the
 * same one share it. */
int parts_list(struct parts *p, bool fresh, bool ask, struct listing_ref **out,
	       struct why *why) MUST_CHECK;
/* The last one that there is, with a reference, or NULL. */
struct listing_ref *parts_last(struct parts *p);
/* From now on listings end, or fail, soon. */
void parts_stop(struct parts *p);
/* The store of the directory `path`, called `name`. */
int parts_open(struct parts *p, const char *path, const char *name, struct store **out) MUST_CHECK;

/* "place/path"; malloc'ed; NULL: out of memory. */
char *parts_name(const char *place, const char *path);

/* A new reference. */
struct listing_ref *listing_ref(struct listing_ref *l);

#endif
