/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of version directories: the table of words, and parsing.
 *
 * A number is decimal, of any number of digits, below 2^63; the word is all that comes before it
 * and has to be one of the table to the letter, so that "step5a" or "tmp-checkpoint-6" is none.
 * Pure, no state.
 */
#include "cache/version_name.h"

#include <string.h>

/* In order of preference. */
static const char *const words[VERSION_NAME_WORDS] = {
	"weight_v",	"checkpoint-", "checkpoint_", "ckpt-",	"ckpt_",  "global_step_",
	"global_step-", "global_step", "step_",	      "step-",	"step",	  "iter_",
	"iteration_",	"version_",    "version-",    "epoch_", "epoch-", "v",
};

bool version_name(const char *name, size_t len, size_t *out_word, uint64_t *out_number)
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
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (strlen(words[i]) == digits && memcmp(words[i], name, digits) == 0) {
			*out_word = i;
			*out_number = n;
			return true;
		}
	return false;
}

bool version_name_in(const char *key, size_t *out_at, size_t *out_len, size_t *out_word,
		     uint64_t *out_number)
{
	const char *at = key, *slash;

	for (; (slash = strchr(at, '/')) != NULL; at = slash + 1)
		if (version_name(at, (size_t)(slash - at), out_word, out_number)) {
			*out_at = (size_t)(at - key);
			*out_len = (size_t)(slash - at);
			return true;
		}
	return false;
}

size_t version_name_word_len(size_t word)
{
	return strlen(words[word]);
}
