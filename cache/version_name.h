/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of directories that are a version each: a word that trainers use (codec/scheme.h), and a
 * number, such as weight_v000042 or checkpoint-100.  Here and not in fs/, since a store that looks
 * for what is new has to know where such directories come.
 */
#ifndef CACHE_VERSION_NAME_H
#define CACHE_VERSION_NAME_H

#include "codec/base.h"

/* A number at the end of a name, below 2^63, of any number of digits, and the length of what is in
 * front of it, which is not empty.  false: there is none. */
bool version_number(const char *name, size_t len, size_t *out_word_len, uint64_t *out_number);
/* Is what is in front of it a word of some scheme? */
bool version_name(const char *name, size_t len, size_t *out_word_len, uint64_t *out_number);
/* The outermost component of a key that is such a name and has something below it.  *out_at: where
 * it begins, *out_len: its length.  false: there is none. */
bool version_name_in(const char *key, size_t *out_at, size_t *out_len, size_t *out_word_len,
		     uint64_t *out_number);
/* The place of a word in a scheme's list; false: it is not in it. */
bool version_word(const char *const *words, const char *word, size_t len, size_t *out);

#endif
