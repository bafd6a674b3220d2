/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The members of JSON objects that are wanted, taken by a table out of a text that holds more.
 *
 * Manifests of others come from the network and can have a member for each of a million tensors:
 * no tree is made of them, what nobody asks for is passed over, and what is asked for goes into a
 * struct.  Unlike a general parser's numbers, integers are exact up to 2^64 - 1, which is what a
 * hash in a manifest needs.
 *
 * A member that is there twice, of another kind than the table says, or missing without being
 * optional is -EBADMSG; the sentence has its name.  Pure and thread-safe.
 */
#ifndef CODEC_JSON_FIELDS_H
#define CODEC_JSON_FIELDS_H

#include "codec/arena.h"
#include "codec/st_json.h"

enum field_kind {
	FIELD_TEXT,   /* const char *: NUL-terminated, of the arena; no NUL in it */
	FIELD_NUMBER, /* uint64_t */
	FIELD_SHAPE,  /* struct json_shape: an array of numbers */
	FIELD_LIST,   /* nothing: each element of an array is given to item() */
};

struct json_shape {
	const uint64_t *dims; /* of the arena */
	size_t rank;	      /* at most 32 */
	uint64_t numel;	      /* their product, 1 of none */
};

struct field {
	const char *key;
	enum field_kind kind;
	bool optional; /* may be missing, or null */
	size_t at;     /* offset in the struct */
	/* Takes one element. */
	int (*item)(struct st_json *j, void *into);
};

enum { FIELDS_MAX = 32 };

/* Takes an object.  *out_seen: a bit for each of the (at most FIELDS_MAX) fields that was there and
 * not null; those that were not are left as they are.  -EBADMSG, -ENOMEM, what item() returns. */
int json_fields(struct st_json *j, const struct field *fields, size_t count, struct arena *arena,
		void *into, uint32_t *out_seen) MUST_CHECK;

/* A string as text of the arena; the sentence calls it `key`. */
int json_text(struct st_json *j, const char *key, struct arena *arena, const char **out) MUST_CHECK;

/* Room for one more in a malloc'ed array of n, which doubles when n is a power of two; NULL without
 * memory, and the array is then as it was. */
void *list_room(void *array, size_t n, size_t size);

/* Nothing but white space may be left. */
int json_end(struct st_json *j) MUST_CHECK;

/* The dtype that PyTorch calls so, with or without "torch." before it; -1: none that a file can
 * have. */
int torch_dtype(const char *name);

#endif
