/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members of JSON objects by table.
 *
 * The tables are short (a dozen fields), so a member is looked for one by one.  A list's elements
 * are handed out as they come, with the tokenizer at their first byte; whoever takes them has to
 * take exactly one value each.
 */
#include "codec/json_fields.h"

#include "codec/safetensors.h"

#include <stdlib.h>

static int bad(struct st_json *j, const char *key, const char *what)
{
	return why_set(j->why, EBADMSG, "\"%s\" %s", SHOWN(key), what);
}

int json_text(struct st_json *j, const char *key, struct arena *arena, const char **out)
{
	struct st_json_str str;
	int err = st_json_string(j, &str);
	char *text;
	size_t n;

	if (err < 0)
		return why_prefix(j->why, "\"%s\"", SHOWN(key));
	text = arena_text(arena, str.len + 1);
	if (text == NULL)
		return why_set(j->why, ENOMEM, "out of memory");
	n = st_json_unescape(&str, text);
	text[n] = '\0';
	if (memchr(text, '\0', n) != NULL)
		return bad(j, key, "has a NUL in it");
	*out = text;
	return 0;
}

static int take_shape(struct st_json *j, const char *key, struct arena *arena,
		      struct json_shape *out)
{
	int rc = st_json_punct(j, '[');
	struct json_shape shape = {.numel = 1};
	uint64_t dims[ST_RANK_MAX], *copy;

	for (bool first = true; rc == 0; first = false) {
		rc = st_json_next(j, ']', first);
		if (rc <= 0)
			break;
		if (shape.rank == ST_RANK_MAX)
			return bad(j, key, "has too many dimensions");
		rc = st_json_uint(j, &dims[shape.rank]);
		if (rc == 0 && mul_overflows(shape.numel, dims[shape.rank], &shape.numel))
			return bad(j, key, "is of more elements than 64 bits can count");
		shape.rank++;
	}
	if (rc < 0)
		return why_prefix(j->why, "\"%s\"", SHOWN(key));
	copy = arena_alloc(arena, shape.rank * sizeof(*copy));
	if (copy == NULL)
		return why_set(j->why, ENOMEM, "out of memory");
	for (size_t i = 0; i < shape.rank; i++)
		copy[i] = dims[i];
	shape.dims = copy;
	*out = shape;
	return 0;
}

static int take_list(struct st_json *j, const struct field *f, void *into)
{
	int rc = st_json_punct(j, '[');

	if (rc < 0)
		return why_prefix(j->why, "\"%s\"", SHOWN(f->key));
	for (bool first = true; rc == 0; first = false) {
		rc = st_json_next(j, ']', first);
		if (rc <= 0)
			return rc;
		rc = f->item(j, into);
	}
	return rc;
}

static int take_field(struct st_json *j, const struct field *f, struct arena *arena, void *into)
{
	char *at = (char *)into + f->at;
	struct json_shape shape;
	const char *text;
	uint64_t number;
	int err;

	switch (f->kind) {
	case FIELD_TEXT:
		err = json_text(j, f->key, arena, &text);
		if (err == 0)
			memcpy(at, &text, sizeof(text));
		return err;
	case FIELD_SHAPE:
		err = take_shape(j, f->key, arena, &shape);
		if (err == 0)
			memcpy(at, &shape, sizeof(shape));
		return err;
	case FIELD_NUMBER:
		err = st_json_u64(j, &number);
		if (err < 0)
			return why_prefix(j->why, "\"%s\"", SHOWN(f->key));
		memcpy(at, &number, sizeof(number));
		return 0;
	default: return take_list(j, f, into);
	}
}

int json_fields(struct st_json *j, const struct field *fields, size_t count, struct arena *arena,
		void *into, uint32_t *out_seen)
{
	int rc = st_json_punct(j, '{');
	uint32_t there = 0, seen = 0;
	struct st_json_str key;

	for (bool first = true; rc == 0; first = false) {
		size_t i = 0;

		rc = st_json_next(j, '}', first);
		if (rc <= 0)
			break;
		rc = st_json_key(j, &key);
		while (rc == 0 && i < count && !st_json_is(&key, fields[i].key))
			i++;
		if (rc == 0 && i == count) {
			rc = st_json_skip(j);
		} else if (rc == 0) {
			if (there >> i & 1)
				return bad(j, fields[i].key, "is there twice");
			there |= UINT32_C(1) << i;
			if (fields[i].optional && st_json_null(j))
				continue;
			seen |= UINT32_C(1) << i;
			rc = take_field(j, &fields[i], arena, into);
		}
	}
	for (size_t i = 0; rc == 0 && i < count; i++)
		if (!fields[i].optional && !(seen >> i & 1))
			return bad(j, fields[i].key, "is missing");
	*out_seen = seen;
	return rc;
}

void *list_room(void *array, size_t n, size_t size)
{
	if ((n & (n - 1)) != 0)
		return array;
	return reallocarray(array, n > 0 ? 2 * n : 1, size);
}

int json_end(struct st_json *j)
{
	st_json_pos(j);
	if (j->at != j->end)
		return why_set(j->why, EBADMSG, "byte %zu of the %s: something stands behind it",
			       (size_t)(j->at - j->begin), j->what);
	return 0;
}

int torch_dtype(const char *name)
{
	static const struct {
		const char *name;
		enum st_dtype dtype;
	} names[] = {
		{"bfloat16", ST_BF16},
		{"float16", ST_F16},
		{"float32", ST_F32},
		{"float64", ST_F64},
		{"float8_e4m3fn", ST_F8_E4M3},
		{"float8_e5m2", ST_F8_E5M2},
		{"float8_e8m0fnu", ST_F8_E8M0},
		{"float8_e4m3fnuz", ST_F8_E4M3FNUZ},
		{"float8_e5m2fnuz", ST_F8_E5M2FNUZ},
		{"int8", ST_I8},
		{"uint8", ST_U8},
		{"int16", ST_I16},
		{"uint16", ST_U16},
		{"int32", ST_I32},
		{"uint32", ST_U32},
		{"int64", ST_I64},
		{"uint64", ST_U64},
		{"bool", ST_BOOL},
		{"complex64", ST_C64},
	};

	if (strncmp(name, "torch.", 6) == 0)
		name += 6;
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (strcmp(names[i].name, name) == 0)
			return names[i].dtype;
	return -1;
}
