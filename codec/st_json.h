/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A strict pull tokenizer for the JSON of a safetensors header: objects, arrays, strings and
 * non-negative integers, which is all the format has.  The caller says what must come next;
 * anything else is -EBADMSG with a sentence that gives the byte's position and what stands there.
 * Manifests of others have more in them (json_fields.h), which can only be passed over.
 *
 * One pass, no allocation, no recursion.  Strings are views of the text until they are unescaped.
 */
#ifndef CODEC_ST_JSON_H
#define CODEC_ST_JSON_H

#include "codec/base.h"

struct st_json {
	const char *begin, *at, *end; /* borrowed text */
	struct why *why;	      /* not NULL */
	const char *what;	      /* in sentences: "header" */
};

/* A string as it stands in the text, without its quotes: valid UTF-8 and valid escapes. */
struct st_json_str {
	const char *raw;
	size_t len;
	bool escaped; /* has a backslash */
};

void st_json_init(struct st_json *j, const char *text, size_t len, struct why *why);

/* Skips white space and takes the punctuation mark c. */
int st_json_punct(struct st_json *j, char c) MUST_CHECK;

/* Steps to the next member of an object or element of an array whose closing mark is `close`:
 * 1 when one follows (its comma is taken), 0 when the closing mark was taken.  `first` before the
 * first. */
int st_json_next(struct st_json *j, char close, bool first) MUST_CHECK;

int st_json_string(struct st_json *j, struct st_json_str *out_str) MUST_CHECK;
/* A string and the colon after it. */
int st_json_key(struct st_json *j, struct st_json_str *out_str) MUST_CHECK;
/* A plain integer of 0 ... 2^63 - 1. */
int st_json_uint(struct st_json *j, uint64_t *out_value) MUST_CHECK;
/* The same up to 2^64 - 1. */
int st_json_u64(struct st_json *j, uint64_t *out_value) MUST_CHECK;
/* Takes a null if one stands here. */
bool st_json_null(struct st_json *j);
/* Passes over any value, which may be nested 64 deep; -EBADMSG when it is none. */
int st_json_skip(struct st_json *j) MUST_CHECK;

/* Writes the string's UTF-8 bytes, never more than str->len, and returns their number. */
size_t st_json_unescape(const struct st_json_str *str, char *dst);
/* True when the string spells `word` (ASCII, at most 40 bytes), escaped or not. */
bool st_json_is(const struct st_json_str *str, const char *word);

/* Skips JSON white space and returns the position of what comes next. */
size_t st_json_pos(struct st_json *j);

#endif
