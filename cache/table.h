/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash table from u64 or string keys to pointers: the only user of uthash, with allocation
 * failure as an error instead of exit(). Not locked: the owner's lock guards it.  Values are
 * borrowed and never NULL.
 */
#ifndef CACHE_TABLE_H
#define CACHE_TABLE_H

#include "codec/base.h"

struct table; /* opaque */

struct table *table_new(void);	  /* NULL: out of memory */
void table_free(struct table *t); /* NULL is fine; values are not freed */
size_t table_count(const struct table *t);

/* Sets the value of a key, replacing an old one; -ENOMEM. */
int table_put(struct table *t, uint64_t key, void *value) MUST_CHECK;
void *table_get(const struct table *t, uint64_t key); /* NULL: absent */
void *table_remove(struct table *t, uint64_t key);    /* the value, NULL: absent */

/* The same with string keys, which are copied. A table holds one kind of keys only. */
int table_put_str(struct table *t, const char *key, void *value) MUST_CHECK;
void *table_get_str(const struct table *t, const char *key);
void *table_remove_str(struct table *t, const char *key);

/* Calls fn for each value in unspecified order; fn must not change the table. */
void table_each(const struct table *t, void (*fn)(void *value, void *ctx), void *ctx);

#endif
