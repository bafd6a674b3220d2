/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buckets for the tests of the core: anchors and deltas composed in C, put into a directory of
 * their own with the times a test wants, and a slow model of what every version is.
 *
 * The model knows objects only as what a test meant them to be (struct meant), never as bytes, so
 * that it shares nothing with the readers it is compared with.
 */
#ifndef TESTS_UNIT_FS_BUCKET_H
#define TESTS_UNIT_FS_BUCKET_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "codec/safetensors.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

/* Fewer rounds where everything is ten times slower. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOWER = 4 };
#else
enum { SLOWER = 1 };
#endif

/* ---- numbers from a seed ---- */

UNUSED static uint64_t rnd(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s * UINT64_C(0x2545f4914f6cdd1d);
}

UNUSED static uint64_t below(uint64_t *s, uint64_t n)
{
	return (rnd(s) >> 11) % n;
}

/* ---- an object, composed ---- */

enum { TENSORS_MAX = 80 };

struct obj {
	struct st_tensor t[TENSORS_MAX];
	char *names[TENSORS_MAX];
	uint64_t shapes[TENSORS_MAX][2];
	size_t count;
	struct st_meta meta[8];
	size_t metas;
	struct buf data;
};

UNUSED static void obj_meta(struct obj *o, const char *key, const char *value)
{
	o->meta[o->metas++] = (struct st_meta){key, value};
}

/* One-dimensional, or two-dimensional with `rows`. */
UNUSED static void obj_tensor(struct obj *o, const char *name, enum st_dtype dtype, uint64_t rows,
			      uint64_t n, const void *bytes)
{
	const size_t i = o->count++, len = (size_t)(n * st_dtype_bits(dtype) / 8);

	assert_true(i < TENSORS_MAX);
	o->names[i] = strdup(name);
	o->shapes[i][0] = rows ? rows : n;
	o->shapes[i][1] = rows ? n / rows : 0;
	o->t[i] = (struct st_tensor){
		.name = o->names[i],
		.name_len = (uint32_t)strlen(name),
		.shape = o->shapes[i],
		.rank = rows ? 2 : 1,
		.dtype = (uint8_t)dtype,
		.numel = n,
		.begin = o->data.len,
		.end = o->data.len + len,
	};
	buf_add(&o->data, bytes, len);
}

/* v2/v3: gaps in U16 where they fit, else U32. */
UNUSED static void obj_gaps(struct obj *o, const char *name, enum st_dtype dtype,
			    const uint64_t *pos, const void *values, size_t n)
{
	uint8_t *gaps = calloc(n + 1, 4);
	char key[200];
	bool wide = false;

	assert_non_null(gaps);
	for (size_t i = 0; i < n; i++)
		wide |= pos[i] - (i > 0 ? pos[i - 1] + 1 : 0) > UINT16_MAX;
	for (size_t i = 0; i < n; i++) {
		uint64_t gap = pos[i] - (i > 0 ? pos[i - 1] + 1 : 0);

		if (wide)
			store_le32(gaps + 4 * i, (uint32_t)gap);
		else
			store_le16(gaps + 2 * i, (uint16_t)gap);
	}
	snprintf(key, sizeof(key), "%s.idx", name);
	obj_tensor(o, key, wide ? ST_U32 : ST_U16, 0, n, gaps);
	snprintf(key, sizeof(key), "%s.val", name);
	obj_tensor(o, key, dtype, 0, n, values);
	free(gaps);
}

/* v1: absolute positions in I32. */
UNUSED static void obj_indices(struct obj *o, const char *name, enum st_dtype dtype,
			       const uint64_t *pos, const void *values, size_t n)
{
	uint8_t *raw = calloc(n + 1, 4);
	char key[200];

	assert_non_null(raw);
	for (size_t i = 0; i < n; i++)
		store_le32(raw + 4 * i, (uint32_t)pos[i]);
	snprintf(key, sizeof(key), "%s.indices", name);
	obj_tensor(o, key, ST_I32, 0, n, raw);
	snprintf(key, sizeof(key), "%s.values", name);
	obj_tensor(o, key, dtype, 0, n, values);
	free(raw);
}

/* The file's bytes; releases the object. */
UNUSED static char *obj_bytes(struct obj *o, size_t *out_len)
{
	struct why why = {0};
	struct buf b = {0};

	assert_int_equal(st_compose(o->t, o->count, o->meta, o->metas, 8, 0, &b, &why), 0);
	buf_add(&b, o->data.data, o->data.len);
	assert_false(b.failed);
	buf_release(&o->data);
	for (size_t i = 0; i < o->count; i++)
		free(o->names[i]);
	memset(o, 0, sizeof(*o));
	return buf_detach(&b, out_len);
}

/* ---- files ---- */

UNUSED static void write_bytes(const char *path, const void *bytes, size_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, len), len);
	assert_int_equal(close(fd), 0);
}

UNUSED static void set_time(const char *path, int64_t seconds)
{
	struct timespec ts[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};

	assert_int_equal(utimensat(AT_FDCWD, path, ts, 0), 0);
}

/* dir/key with that time, by rename; a time of 0: now. */
UNUSED static void put_bytes(const char *dir, const char *key, const void *bytes, size_t len,
			     int64_t seconds)
{
	char path[300], temp[300], *slash;

	snprintf(path, sizeof(path), "%s/%s", dir, key);
	slash = strrchr(path, '/');
	*slash = '\0';
	mkdir(path, 0755);
	*slash = '/';
	snprintf(temp, sizeof(temp), "%s/.temp", dir);
	write_bytes(temp, bytes, len);
	if (seconds > 0)
		set_time(temp, seconds);
	assert_int_equal(rename(temp, path), 0);
}

UNUSED static void put_obj(const char *dir, const char *key, struct obj *o, int64_t seconds)
{
	size_t len;
	char *bytes = obj_bytes(o, &len);

	put_bytes(dir, key, bytes, len, seconds);
	free(bytes);
}

UNUSED static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

UNUSED static void remove_tree(const char *path)
{
	assert_int_equal(nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
}

/* ---- the model: what versions are meant to be ---- */

enum { MODEL_TENSORS = 6 };

struct spec {
	const char *name;
	uint64_t rows, n;
};

/* All BF16. The first passes a patch block's boundary; one has no elements. */
static const struct spec specs[MODEL_TENSORS] = {
	{"a.weight", 8, 66000}, {"b.weight", 0, 37},  {"c.empty", 0, 0},
	{"d.bias", 0, 1},	{"e.scale", 0, 1000}, {"f.rare", 3, 300},
};

struct state_bytes { /* a whole model; tensors in the order of specs */
	uint16_t *v[MODEL_TENSORS];
};

enum part_meant { UNTOUCHED, WHOLE, SOME };

struct meant { /* one object */
	uint64_t number;
	bool anchor_dir, holes_legal, bad;
	enum part_meant kind[MODEL_TENSORS];
	uint16_t *values[MODEL_TENSORS]; /* WHOLE: n of them; SOME: count */
	uint64_t *pos[MODEL_TENSORS];
	size_t count[MODEL_TENSORS];
	struct meant *next; /* ascending by number */
};

UNUSED static void state_release(struct state_bytes *s)
{
	for (int t = 0; t < MODEL_TENSORS; t++)
		free(s->v[t]);
	*s = (struct state_bytes){0};
}

UNUSED static void meant_free(struct meant *list)
{
	while (list != NULL) {
		struct meant *next = list->next;

		for (int t = 0; t < MODEL_TENSORS; t++) {
			free(list->values[t]);
			free(list->pos[t]);
		}
		free(list);
		list = next;
	}
}

UNUSED static bool meant_complete(const struct meant *m)
{
	for (int t = 0; t < MODEL_TENSORS; t++)
		if (m->kind[t] != WHOLE)
			return false;
	return true;
}

UNUSED static void meant_apply(const struct meant *m, struct state_bytes *s)
{
	for (int t = 0; t < MODEL_TENSORS; t++) {
		if (m->kind[t] == WHOLE)
			memcpy(s->v[t], m->values[t], specs[t].n * 2);
		for (size_t i = 0; m->kind[t] == SOME && i < m->count[t]; i++)
			s->v[t][m->pos[t][i]] = m->values[t][i];
	}
}

/* The state of the newest whole version not above `limit`: its number, 0 when there is none. */
UNUSED static uint64_t model_state(const struct meant *list, uint64_t limit,
				   struct state_bytes *out)
{
	uint64_t newest = 0, previous = 0;
	bool whole = false;

	state_release(out);
	for (int t = 0; t < MODEL_TENSORS; t++)
		out->v[t] = calloc(specs[t].n + 1, 2);
	for (const struct meant *m = list; m != NULL && m->number <= limit; m = m->next) {
		bool follows = m->number == previous + 1 || m->holes_legal;

		whole = !m->bad && (meant_complete(m) || (whole && follows));
		previous = m->number;
		if (whole) {
			meant_apply(m, out);
			newest = m->number;
		}
	}
	return newest;
}

/* ---- from what is meant to bytes ---- */

enum writer { WRITE_V1, WRITE_V3 };

UNUSED static void meant_key(const struct meant *m, char out[64])
{
	snprintf(out, 64, "%s/step_%06llu.safetensors", m->anchor_dir ? "anchors" : "deltas",
		 (unsigned long long)m->number);
}

UNUSED static char *meant_bytes(const struct meant *m, enum writer writer, size_t *out_len)
{
	struct obj o = {0};
	char number[24];
	bool sparse = false;

	snprintf(number, sizeof(number), "%llu", (unsigned long long)m->number);
	for (int t = 0; t < MODEL_TENSORS; t++) {
		if (m->kind[t] == WHOLE)
			obj_tensor(&o, specs[t].name, ST_BF16, specs[t].rows, specs[t].n,
				   m->values[t]);
		else if (m->kind[t] == SOME)
			(writer == WRITE_V1 ? obj_indices : obj_gaps)(
				&o, specs[t].name, ST_BF16, m->pos[t], m->values[t], m->count[t]);
		sparse |= m->kind[t] == SOME;
	}
	obj_meta(&o, "format", "sparse_weight_patch");
	obj_meta(&o, "version", "1");
	obj_meta(&o, "sparse", sparse ? "True" : "False");
	obj_meta(&o, "model_version", number);
	if (writer == WRITE_V3)
		obj_meta(&o, "encoding", "gap_delta");
	return obj_bytes(&o, out_len);
}

UNUSED static void meant_whole(struct meant *m, int t, uint64_t *seed)
{
	m->kind[t] = WHOLE;
	m->values[t] = calloc(specs[t].n + 1, 2);
	assert_non_null(m->values[t]);
	for (uint64_t i = 0; i < specs[t].n; i++)
		m->values[t][i] = (uint16_t)rnd(seed);
}

/* Some elements: few, or now and then nearly all. */
UNUSED static void meant_some(struct meant *m, int t, uint64_t *seed)
{
	uint64_t step = below(seed, 8) == 0 ? 2 : 2 + below(seed, specs[t].n + 1);

	m->kind[t] = SOME;
	m->pos[t] = calloc(specs[t].n + 1, sizeof(uint64_t));
	m->values[t] = calloc(specs[t].n + 1, 2);
	assert_true(m->pos[t] != NULL && m->values[t] != NULL);
	for (uint64_t i = below(seed, step); i < specs[t].n; i += 1 + below(seed, step)) {
		m->pos[t][m->count[t]] = i;
		m->values[t][m->count[t]++] = (uint16_t)rnd(seed);
	}
}

/* The bytes of model.safetensors: the header of the first anchor, its metadata replaced, and the
 * state. */
UNUSED static char *model_file(const struct meant *first, enum writer writer,
			       const struct state_bytes *s, size_t *out_len)
{
	static const char pt[] = "{\"format\":\"pt\"}";
	char *file = meant_bytes(first, writer, out_len), *meta, *end;
	uint64_t n = load_le64(file);
	size_t at = 8 + n, gap;

	meta = memmem(file, at, "\"__metadata__\":", 15);
	assert_non_null(meta);
	meta += 15;
	end = memchr(meta, '}', (size_t)(file + at - meta)); /* no braces inside of ours */
	gap = (size_t)(end + 1 - meta) - (sizeof(pt) - 1);
	memcpy(meta, pt, sizeof(pt) - 1);
	memmove(meta + sizeof(pt) - 1, end + 1, (size_t)(file + at - end - 1));
	memset(file + at - gap, ' ', gap);
	for (int t = 0; t < MODEL_TENSORS; t++) {
		memcpy(file + at, s->v[t], specs[t].n * 2);
		at += specs[t].n * 2;
	}
	assert_int_equal(at, *out_len);
	return file;
}

#endif
