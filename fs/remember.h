/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A remote store that remembers: its last good listing is kept in a file, so that a mount with a
 * warm cache starts without a network and shows what was there.
 */
#ifndef FS_REMEMBER_H
#define FS_REMEMBER_H

#include "cache/store.h"

/* Wraps `inner`, which is taken over in any case.  dir: where listings are kept (made when needed);
 * NULL: nowhere.  salt: what tells two places of one name apart, or NULL. -ENOMEM. */
int remember_new(struct store *inner, const char *dir, const char *salt, struct store **out,
		 struct why *why) MUST_CHECK;

#endif
