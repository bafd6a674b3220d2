/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of directories that are a version each: a word that trainers use, and a number, such as
 * weight_v000042 or checkpoint-100.  Here and not in fs/, since a store that looks for what is new
 * has to know where such directories come.
 */
#ifndef CACHE_VERSION_NAME_H
#define CACHE_VERSION_NAME_H

#include "codec/base.h"

enum { VERSION_NAME_WEIGHT_V = 0 }; /* the word "weight_v", of HF-directory deltas */
enum { VERSION_NAME_WORDS = 18 };   /* every word's index is lower */

/* Is this such a name?  *out_word: index of its word, lower ones are preferred. */
bool version_name(const char *name, size_t len, size_t *out_word, uint64_t *out_number);
/* The outermost component of a key that is one and has something below it.  *out_at: where it
 * begins, *out_len: its length.  false: there is none. */
bool version_name_in(const char *key, size_t *out_at, size_t *out_len, size_t *out_word,
		     uint64_t *out_number);
/* The length of a word. */
size_t version_name_word_len(size_t word);

#endif
