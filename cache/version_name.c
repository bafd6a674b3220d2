/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of version directories: parsing, and the words of all schemes.
 *
 * The word is all that comes before the number and has to be one of a scheme's to the letter, so
 * that "step5a" or "tmp-checkpoint-6" is none.  Pure, no state.
 */
#include "cache/version_name.h"

#include "codec/scheme.h"

#include <string.h>

bool version_number(const char *name, size_t len, size_t *out_word_len, uint64_t *out_number)
{
	size_t digits = len;
	uint64_t n = 0;

	while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9')
		digits--;
	if (digits == len || digits == 0)
		return false;
	for (size_t i = digits; i < len; i++)
		if (mul_overflows(n, 10, &n) || add_overflows(n, (uint64_t)(name[i] - '0'), &n) ||
		    n > INT64_MAX)
			return false;
	*out_word_len = digits;
	*out_number = n;
	return true;
}

bool version_word(const char *const *words, const char *word, size_t len, size_t *out)
{
	for (size_t i = 0; words != NULL && words[i] != NULL; i++)
		if (strlen(words[i]) == len && memcmp(words[i], word, len) == 0) {
			*out = i;
			return true;
		}
	return false;
}

bool version_name(const char *name, size_t len, size_t *out_word_len, uint64_t *out_number)
{
	size_t at;

	if (!version_number(name, len, out_word_len, out_number))
		return false;
	for (size_t i = 0; schemes[i] != NULL; i++)
		if (version_word(schemes[i]->words, name, *out_word_len, &at))
			return true;
	return false;
}

bool version_name_in(const char *key, size_t *out_at, size_t *out_len, size_t *out_word_len,
		     uint64_t *out_number)
{
	const char *at = key, *slash;

	for (; (slash = strchr(at, '/')) != NULL; at = slash + 1)
		if (version_name(at, (size_t)(slash - at), out_word_len, out_number)) {
			*out_at = (size_t)(at - key);
			*out_len = (size_t)(slash - at);
			return true;
		}
	return false;
}
