/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prime-rl's broadcasts: scheme "prime-rl", and the manifests of its sparse ones.
 *
 *	broadcasts/step_7/model.safetensors, ..., STABLE	a whole checkpoint
 *	broadcasts/step_8/sparse_update_patch.safetensors, sparse_update_manifest.json, STABLE
 *	broadcasts/step_9/delta-00001-of-00029.safetensors, ..., sparse_manifest.json, STABLE
 *
 * STABLE is written last: a directory without it is unfinished.  A directory with a manifest of
 * changes is never a whole checkpoint, whatever else lies in it.  The older manifest also lies in
 * whole checkpoints, and says then that they are "full": it adds nothing.  A step written again
 * can leave files of its first time, so only what a manifest or an index names counts.
 *
 * Sources: prime-rl's src/prime_rl/utils/sparse_update.py, trainer/rl/broadcast/filesystem.py and,
 * of the older format, src/prime_rl/utils/sparse_weights.py.
 *
 * No state; any number of threads.
 */
#include "codec/primerl.h"
#include "codec/schemes.h"

#include <stdio.h>
#include <stdlib.h>

static const char update_name[] = "sparse_update_manifest.json";
static const char old_name[] = "sparse_manifest.json";

/* ---- the manifests ---- */

void primerl_release(struct primerl_manifest *m)
{
	arena_release(&m->arena);
	free(m->entries);
	free(m->files);
}

static int bad_entry(struct why *why, const struct primerl_entry *e, const char *what)
{
	return why_set(why, EBADMSG, "tensor \"%s\" %s", SHOWN(e->name), what);
}

/* What PyTorch makes a hash of. */
static bool can_hash(enum st_dtype type)
{
	switch (type) {
	case ST_BOOL:
	case ST_I8:
	case ST_U8:
	case ST_I16:
	case ST_I32:
	case ST_I64:
	case ST_F16:
	case ST_BF16:
	case ST_F32:
	case ST_F64: return true;
	default: return false;
	}
}

static int check_entry(struct primerl_entry *e, struct why *why)
{
	const int type = torch_dtype(e->dtype);

	if (type < 0)
		return why_set(why, ENOTSUP,
			       "tensor \"%s\" is of dtype \"%s\", which is not known here",
			       SHOWN(e->name), SHOWN(e->dtype));
	e->type = (enum st_dtype)type;
	if (e->numel != e->shape.numel)
		return bad_entry(why, e, "has another number of elements than its shape");
	if (e->changed > e->numel)
		return bad_entry(why, e, "changes more elements than it has");
	if (e->hashed && !can_hash(e->type))
		return bad_entry(why, e, "has a checksum, which its dtype cannot have");
	return 0;
}

/* The two formats differ in what they call things. */
static int take(struct st_json *j, const struct field *fields, size_t count,
		struct primerl_manifest *m)
{
	struct primerl_entry *grown = list_room(m->entries, m->count, sizeof(*grown));
	uint32_t seen;
	int err;

	if (grown == NULL)
		return why_set(j->why, ENOMEM, "out of memory");
	m->entries = grown;
	grown += m->count;
	*grown = (struct primerl_entry){.file = m->file};
	err = json_fields(j, fields, count, &m->arena, grown, &seen);
	if (err < 0)
		return why_prefix(j->why, "tensor %zu of its list", m->count);
	grown->hashed = seen >> 7 & 1;
	m->count++;
	return check_entry(grown, j->why);
}

static int take_entry(struct st_json *j, void *into)
{
	static const struct field fields[] = {
		{"name", FIELD_TEXT, false, offsetof(struct primerl_entry, name), NULL},
		{"dtype", FIELD_TEXT, false, offsetof(struct primerl_entry, dtype), NULL},
		{"shape", FIELD_SHAPE, false, offsetof(struct primerl_entry, shape), NULL},
		{"numel", FIELD_NUMBER, false, offsetof(struct primerl_entry, numel), NULL},
		{"changed_numel", FIELD_NUMBER, false, offsetof(struct primerl_entry, changed),
		 NULL},
		{"indices", FIELD_TEXT, false, offsetof(struct primerl_entry, indices), NULL},
		{"values", FIELD_TEXT, false, offsetof(struct primerl_entry, values), NULL},
		{"checksum", FIELD_NUMBER, true, offsetof(struct primerl_entry, hash), NULL},
	};

	return take(j, fields, ARRAY_LEN(fields), into);
}

static int take_old_entry(struct st_json *j, void *into)
{
	static const struct field fields[] = {
		{"name", FIELD_TEXT, false, offsetof(struct primerl_entry, name), NULL},
		{"dtype", FIELD_TEXT, false, offsetof(struct primerl_entry, dtype), NULL},
		{"shape", FIELD_SHAPE, false, offsetof(struct primerl_entry, shape), NULL},
		{"numel", FIELD_NUMBER, false, offsetof(struct primerl_entry, numel), NULL},
		{"num_changed", FIELD_NUMBER, false, offsetof(struct primerl_entry, changed), NULL},
		{"indices_key", FIELD_TEXT, false, offsetof(struct primerl_entry, indices), NULL},
		{"values_key", FIELD_TEXT, false, offsetof(struct primerl_entry, values), NULL},
	};

	return take(j, fields, ARRAY_LEN(fields), into);
}

static int add_file(struct primerl_manifest *m, const char *file, struct why *why)
{
	const char **grown = list_room(m->files, m->file_count, sizeof(*grown));

	if (grown == NULL)
		return why_set(why, ENOMEM, "out of memory");
	m->files = grown;
	grown[m->file_count++] = file;
	return 0;
}

/* A file of the older format: its tensors may stand before its name. */
static int take_old_file(struct st_json *j, void *into)
{
	static const struct field fields[] = {
		{"file", FIELD_TEXT, false, offsetof(struct primerl_manifest, file), NULL},
		{"tensors", FIELD_LIST, false, 0, take_old_entry},
	};
	struct primerl_manifest *m = into;
	const size_t first = m->count;
	uint32_t seen;
	int err;

	m->file = NULL;
	err = json_fields(j, fields, ARRAY_LEN(fields), &m->arena, m, &seen);
	if (err < 0)
		return why_prefix(j->why, "file %zu of its list", m->file_count);
	for (size_t i = first; i < m->count; i++)
		m->entries[i].file = m->file;
	return add_file(m, m->file, j->why);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct primerl_entry *)a)->name,
		      ((const struct primerl_entry *)b)->name);
}

static int check_manifest(struct primerl_manifest *m, bool old, struct why *why)
{
	if (strcmp(m->format, old ? "prime_rl_sparse_filesystem_v1" : "prime-rl-sparse-update") !=
		    0 ||
	    (!old && m->version != 1))
		return why_set(why, ENOTSUP,
			       "is in the format \"%s\" (version %llu), which is not known here",
			       SHOWN(m->format), (unsigned long long)m->version);
	if (!m->full && m->base >= m->step)
		return why_set(why, EBADMSG, "applies to step %llu, which is not before it",
			       (unsigned long long)m->base);
	if (m->count > 0)
		qsort(m->entries, m->count, sizeof(*m->entries), by_name);
	for (size_t i = 1; i < m->count; i++)
		if (strcmp(m->entries[i - 1].name, m->entries[i].name) == 0)
			return bad_entry(why, &m->entries[i], "is listed twice");
	return 0;
}

static int read_update(struct st_json *j, struct primerl_manifest *m)
{
	static const struct field fields[] = {
		{"format", FIELD_TEXT, false, offsetof(struct primerl_manifest, format), NULL},
		{"version", FIELD_NUMBER, false, offsetof(struct primerl_manifest, version), NULL},
		{"step", FIELD_NUMBER, false, offsetof(struct primerl_manifest, step), NULL},
		{"base_step", FIELD_NUMBER, false, offsetof(struct primerl_manifest, base), NULL},
		{"patch_file", FIELD_TEXT, true, offsetof(struct primerl_manifest, patch_file),
		 NULL},
		{"tensors", FIELD_LIST, false, 0, take_entry},
	};
	uint32_t seen;
	int err = json_fields(j, fields, ARRAY_LEN(fields), &m->arena, m, &seen);

	if (err < 0)
		return err;
	if (m->patch_file == NULL)
		return m->count == 0 ? 0
				     : why_set(j->why, EBADMSG,
					       "lists tensors, and no patch_file that has them");
	for (size_t i = 0; i < m->count; i++)
		m->entries[i].file = m->patch_file;
	return add_file(m, m->patch_file, j->why);
}

static int read_old(struct st_json *j, struct primerl_manifest *m)
{
	static const struct field fields[] = {
		{"format", FIELD_TEXT, false, offsetof(struct primerl_manifest, format), NULL},
		{"type", FIELD_TEXT, false, offsetof(struct primerl_manifest, type), NULL},
		{"step", FIELD_NUMBER, false, offsetof(struct primerl_manifest, step), NULL},
		{"base_step", FIELD_NUMBER, true, offsetof(struct primerl_manifest, base), NULL},
		{"patch_files", FIELD_LIST, true, 0, take_old_file},
	};
	uint32_t seen;
	int err = json_fields(j, fields, ARRAY_LEN(fields), &m->arena, m, &seen);

	if (err < 0)
		return err;
	if (strcmp(m->type, "full") == 0) {
		if (m->count > 0)
			return why_set(j->why, EBADMSG, "is of a full step, and lists changes");
		m->full = true;
		return 0;
	}
	if (strcmp(m->type, "delta") != 0)
		return why_set(j->why, ENOTSUP,
			       "is of type \"%s\", which is not known here: full and delta are",
			       SHOWN(m->type));
	if ((seen & 0x18) != 0x18)
		return why_set(j->why, EBADMSG, "has no base_step, or no patch_files");
	return 0;
}

int primerl_read(const char *text, size_t len, bool old, struct primerl_manifest *m,
		 struct why *why)
{
	struct st_json j;
	int err;

	st_json_init(&j, text, len, why);
	j.what = "manifest";
	err = old ? read_old(&j, m) : read_update(&j, m);
	if (err == 0)
		err = json_end(&j);
	return err == 0 ? check_manifest(m, old, why) : err;
}

/* ---- the scheme ---- */

static int parse(const char *index, uint64_t number, const char *text, size_t len,
		 struct scheme_version *out, struct why *why)
{
	const bool old = strcmp(index, old_name) == 0;
	struct primerl_manifest m = {0};
	int err;

	snprintf(out->writer, sizeof(out->writer), "prime-rl");
	if (!old && strcmp(index, update_name) != 0)
		return scheme_hfdir.parse(index, number, text, len, out, why);
	out->delta = true; /* also of one that is refused */
	err = primerl_read(text, len, old, &m, why);
	for (size_t i = 0; i < m.file_count && err == 0; i++) {
		err = scheme_file(out, m.files[i], why);
		if (err == -EBADMSG)
			why_prefix(why, old ? "its patch_files" : "its patch_file");
	}
	scheme_files_end(out);
	out->delta = !m.full;
	out->says_version = true;
	out->version = m.step;
	out->base = m.base;
	out->side = out->delta;
	if (out->delta)
		snprintf(out->encoding, sizeof(out->encoding), "%s",
			 old ? "prime-rl-sparse-v1" : "prime-rl-sparse");
	primerl_release(&m);
	return err;
}

static const char *const under[] = {"", "broadcasts/", "weights/", NULL};
static const char *const words[] = {"step_", NULL};
static const char *const indexes[] = {"model.safetensors.index.json", old_name, update_name, NULL};
static const char *const markers[] = {"STABLE", NULL};
static const char *const signs[] = {"STABLE", old_name, update_name, NULL};

const struct scheme scheme_primerl = {
	.name = "prime-rl",
	.under = under,
	.words = words,
	.indexes = indexes,
	.lone = "model.safetensors",
	.markers = markers,
	.marker_last = true,
	.delta_only = true,
	.signs = signs,
	.parse = parse,
};
