/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests of safetensors headers.  Include after cmocka.h.
 */
#ifndef TESTS_UNIT_CODEC_ST_CASES_H
#define TESTS_UNIT_CODEC_ST_CASES_H

#include "codec/safetensors.h"

/* The text of one tensor's entry. */
#define E(dtype, shape, begin, end)                                                                \
	"{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #begin "," #end "]}"

/* Parses a header that must be fine, of a file with `data` bytes behind it. */
static inline struct st_header *expect_good(const char *json, size_t len, uint64_t data)
{
	struct st_header *h = NULL;
	struct why why = {0};
	int rc = st_parse(json, len, 8 + len + data, &h, &why);

	if (rc != 0)
		fail_msg("%.60s: rc %d, \"%s\"", json, rc, why.text);
	return h;
}

#endif
