/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SkyRL's checkpoint deltas: scheme "skyrl", format "skyrl-xor".
 *
 *	delta-00000007/delta-rank00000-file000000.safetensors, ..., manifest.json (written last)
 *
 * There are no whole checkpoints: version 0 is --base, and each version names the one it applies
 * to.  The manifest lists each changed tensor with its dtype and shape, its bytes packed and
 * unpacked, the payload file and the key there, and the checksum of its new bytes (xxh3-128; older
 * ones have a sha256 instead).  What lies under the key is U8: one zstd frame of the tensor's new
 * bytes XOR its old ones.
 *
 * A manifest and its payload files are of one publication only if they agree in everything: every
 * tensor that the manifest puts into a file is there, in the size it says, and nothing else is.
 * Ranks must not both have a tensor: XOR twice is no change.
 *
 * Source: SkyRL's skyrl/backends/skyrl_train/weight_sync/delta/checkpoint.py (until 2026-06
 * weight_sync/delta_checkpoint.py).
 *
 * No state; any number of threads.
 */
#include "codec/json_fields.h"
#include "codec/readers.h"
#include "codec/schemes.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- the manifest ---- */

struct record {
	const char *name, *dtype, *file, *key, *sum, *sum_name, *sha256;
	struct json_shape shape;
	uint64_t unpacked, packed;
	enum st_dtype type;
	enum checksum_kind kind;
};

struct manifest {
	uint64_t version, base, unpacked, packed; /* the last two 0: not said */
	struct record *records;
	size_t count;
	const char **files;
	size_t file_count;
	struct arena arena;
};

static void manifest_release(struct manifest *m)
{
	arena_release(&m->arena);
	free(m->records);
	free(m->files);
}

static int bad_record(struct why *why, const struct record *r, const char *what)
{
	return why_set(why, EBADMSG, "tensor \"%s\" %s", SHOWN(r->name), what);
}

static bool is_hex(const char *s)
{
	return strspn(s, "0123456789abcdefABCDEF") == strlen(s);
}

/* A record has one of two spellings of its checksum; what stands in it may be checked later. */
static int check_sum(struct record *r, struct why *why)
{
	if (r->sum == NULL) {
		r->sum = r->sha256;
		r->sum_name = "sha256";
	} else if (r->sum_name == NULL) {
		r->sum_name = "xxh3-128";
	}
	if (r->sum == NULL)
		return bad_record(why, r, "has no checksum");
	r->kind = checksum_find(r->sum_name);
	if (r->kind != CHECKSUM_XXH3_128 && r->kind != CHECKSUM_SHA256)
		return why_set(why, ENOTSUP,
			       "tensor \"%s\" has a checksum by \"%s\", which is not known here: "
			       "xxh3-128 and sha256 are",
			       SHOWN(r->name), SHOWN(r->sum_name));
	if (strlen(r->sum) != checksum_digits(r->kind) || !is_hex(r->sum))
		return bad_record(why, r, "has a checksum that is none of its kind");
	return 0;
}

static int check_record(struct record *r, struct why *why)
{
	const int type = torch_dtype(r->dtype);
	uint64_t bytes;

	if (type < 0)
		return why_set(why, ENOTSUP,
			       "tensor \"%s\" is of dtype \"%s\", which is not known here",
			       SHOWN(r->name), SHOWN(r->dtype));
	r->type = (enum st_dtype)type;
	if (mul_overflows(r->shape.numel, st_dtype_width(r->type), &bytes) || bytes != r->unpacked)
		return bad_record(why, r, "has another number of bytes than its dtype and shape");
	if (r->unpacked == 0 || r->packed == 0)
		return bad_record(why, r, "is listed as changed and has no bytes");
	return check_sum(r, why);
}

static int take_record(struct st_json *j, void *into)
{
	static const struct field fields[] = {
		{"name", FIELD_TEXT, false, offsetof(struct record, name), NULL},
		{"dtype", FIELD_TEXT, false, offsetof(struct record, dtype), NULL},
		{"shape", FIELD_SHAPE, false, offsetof(struct record, shape), NULL},
		{"uncompressed_num_bytes", FIELD_NUMBER, false, offsetof(struct record, unpacked),
		 NULL},
		{"compressed_num_bytes", FIELD_NUMBER, false, offsetof(struct record, packed),
		 NULL},
		{"payload_file", FIELD_TEXT, false, offsetof(struct record, file), NULL},
		{"payload_key", FIELD_TEXT, false, offsetof(struct record, key), NULL},
		{"checksum", FIELD_TEXT, true, offsetof(struct record, sum), NULL},
		{"checksum_algorithm", FIELD_TEXT, true, offsetof(struct record, sum_name), NULL},
		{"sha256", FIELD_TEXT, true, offsetof(struct record, sha256), NULL},
	};
	struct manifest *m = into;
	struct record *grown = list_room(m->records, m->count, sizeof(*grown));
	uint32_t seen;
	int err;

	if (grown == NULL)
		return why_set(j->why, ENOMEM, "out of memory");
	m->records = grown;
	grown[m->count] = (struct record){0};
	err = json_fields(j, fields, ARRAY_LEN(fields), &m->arena, &grown[m->count], &seen);
	if (err < 0)
		return why_prefix(j->why, "tensor %zu of its list", m->count);
	return check_record(&grown[m->count++], j->why);
}

static int take_file(struct st_json *j, void *into)
{
	struct manifest *m = into;
	const char **grown = list_room(m->files, m->file_count, sizeof(*grown));

	if (grown == NULL)
		return why_set(j->why, ENOMEM, "out of memory");
	m->files = grown;
	return json_text(j, "payload_files", &m->arena, &grown[m->file_count++]);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct record *)a)->name, ((const struct record *)b)->name);
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* What must hold of all records together. */
static int check_manifest(struct manifest *m, struct why *why)
{
	uint64_t unpacked = 0, packed = 0;

	if (m->count > 0)
		qsort(m->records, m->count, sizeof(*m->records), by_name);
	if (m->file_count > 0)
		qsort(m->files, m->file_count, sizeof(*m->files), by_text);
	for (size_t i = 0; i < m->count; i++) {
		const struct record *r = &m->records[i];

		if (i > 0 && strcmp(r[-1].name, r->name) == 0)
			return why_set(why, EBADMSG,
				       "tensor \"%s\" is listed twice (in \"%s\" and \"%s\"): two "
				       "ranks publish it, and one has to leave it out",
				       SHOWN(r->name), SHOWN(r[-1].file), SHOWN(r->file));
		if (m->file_count == 0 ||
		    bsearch(&r->file, m->files, m->file_count, sizeof(*m->files), by_text) == NULL)
			return why_set(why, EBADMSG,
				       "tensor \"%s\" lies in \"%s\", which is not one of the "
				       "payload_files",
				       SHOWN(r->name), SHOWN(r->file));
		if (add_overflows(unpacked, r->unpacked, &unpacked) ||
		    add_overflows(packed, r->packed, &packed))
			return why_set(why, EBADMSG, "has more bytes than 64 bits can count");
	}
	if ((m->unpacked != 0 && m->unpacked != unpacked) ||
	    (m->packed != 0 && m->packed != packed))
		return why_set(why, EBADMSG,
			       "its totals are not the sums over its tensors: it was changed, or "
			       "is cut");
	return 0;
}

/* manifest_release() also after a failure. */
static int read_manifest(const char *text, size_t len, struct manifest *m, struct why *why)
{
	static const struct field fields[] = {
		{"version", FIELD_NUMBER, false, offsetof(struct manifest, version), NULL},
		{"base_version", FIELD_NUMBER, false, offsetof(struct manifest, base), NULL},
		{"tensors", FIELD_LIST, false, 0, take_record},
		{"payload_files", FIELD_LIST, false, 0, take_file},
		{"total_uncompressed_num_bytes", FIELD_NUMBER, true,
		 offsetof(struct manifest, unpacked), NULL},
		{"total_compressed_num_bytes", FIELD_NUMBER, true,
		 offsetof(struct manifest, packed), NULL},
	};
	struct st_json j;
	uint32_t seen;
	int err;

	st_json_init(&j, text, len, why);
	j.what = "manifest";
	err = json_fields(&j, fields, ARRAY_LEN(fields), &m->arena, m, &seen);
	if (err == 0)
		err = json_end(&j);
	return err == 0 ? check_manifest(m, why) : err;
}

/* ---- the scheme ---- */

static int parse(const char *index, uint64_t number, const char *text, size_t len,
		 struct scheme_version *out, struct why *why)
{
	struct manifest m = {0};
	int err = read_manifest(text, len, &m, why);

	if (err == 0 && m.base >= m.version)
		err = why_set(why, EBADMSG, "applies to version %llu, which is not before it",
			      (unsigned long long)m.base);
	for (size_t i = 0; i < m.file_count && err == 0; i++) {
		err = scheme_file(out, m.files[i], why);
		if (err == -EBADMSG)
			why_prefix(why, "its payload_files");
	}
	scheme_files_end(out);
	out->delta = true;
	out->says_version = true;
	out->version = m.version;
	out->base = m.base;
	out->side = true;
	snprintf(out->encoding, sizeof(out->encoding), "skyrl-xor");
	snprintf(out->writer, sizeof(out->writer), "SkyRL");
	manifest_release(&m);
	return err;
}

static const char *const words[] = {"delta-", NULL};
static const char *const indexes[] = {"manifest.json", NULL};
static const char *const signs[] = {"manifest.json", "delta-rank*.safetensors", NULL};

const struct scheme scheme_skyrl = {
	.name = "skyrl",
	.words = words,
	.indexes = indexes,
	.signs = signs,
	.parse = parse,
};

/* ---- the format ---- */

static char *copy_text(char **to, const char *text)
{
	const size_t size = strlen(text) + 1;
	char *copy = *to;

	memcpy(copy, text, size);
	*to += size;
	return copy;
}

static int take_part(const struct st_header *header, const struct record *r, bool *used,
		     struct delta *delta, char **texts, uint64_t **dims, struct why *why)
{
	const struct st_tensor *t = st_find(header, r->key);
	size_t at;

	if (t == NULL)
		return bad_record(why, r,
				  "is not in this file, where its manifest puts it: the two are "
				  "of different publications");
	at = (size_t)(t - header->tensors);
	if (used[at])
		return bad_record(why, r, "has the key of another tensor in its manifest");
	if (t->dtype != ST_U8 || t->rank != 1 || t->end - t->begin != r->packed)
		return bad_record(why, r,
				  "is not U8 of one dimension, or of another size than its "
				  "manifest says: the two are of different publications");
	used[at] = true;
	if (r->shape.rank > 0)
		memcpy(*dims, r->shape.dims, r->shape.rank * sizeof(**dims));
	delta->parts[delta->count++] = (struct part){
		.name = copy_text(texts, r->name),
		.kind = PART_SPARSE,
		.dtype = (uint8_t)r->type,
		.rank = (uint8_t)r->shape.rank,
		.shape = *dims,
		.numel = r->shape.numel,
		.offset = header->data + t->begin,
		.bytes = t->end - t->begin,
		.changed = 1,
		.checksum = copy_text(texts, r->sum),
		.checksum_kind = r->kind,
	};
	*dims += r->shape.rank;
	return 0;
}

/* What the manifest puts into this file; its records are in order of names, and so are the parts.
 */
static int take_parts(const struct st_header *header, const struct manifest *m, const char *file,
		      struct delta *delta, struct why *why)
{
	bool *used = calloc(header->count + 1, sizeof(*used));
	char *texts = delta->names;
	uint64_t *dims = delta->extra;
	int err = used == NULL ? why_set(why, ENOMEM, "out of memory") : 0;

	for (size_t i = 0; i < m->count && err == 0; i++)
		if (strcmp(m->records[i].file, file) == 0)
			err = take_part(header, &m->records[i], used, delta, &texts, &dims, why);
	for (size_t i = 0; i < header->count && err == 0; i++)
		if (!used[i])
			err = why_set(why, EBADMSG,
				      "holds \"%s\", of which its manifest does not know: the two "
				      "are of different publications",
				      SHOWN(header->tensors[i].name));
	free(used);
	return err;
}

static int skyrl_open(const struct st_header *header, const struct side *side, struct delta *delta,
		      struct why *why)
{
	struct manifest m = {0};
	size_t count = 0, bytes = 1, dims = 1;
	int err;

	if (side == NULL)
		return why_set(why, EBADMSG, "is a payload file of SkyRL without its manifest");
	err = read_manifest(side->text, side->len, &m, why);
	if (err < 0)
		why_prefix(why, "its manifest");
	for (size_t i = 0; i < m.count && err == 0; i++)
		if (strcmp(m.records[i].file, side->file) == 0) {
			count++;
			dims += m.records[i].shape.rank;
			bytes += strlen(m.records[i].name) + strlen(m.records[i].sum) + 2;
		}
	if (err == 0)
		err = delta_reserve(delta, count, why);
	if (err == 0) {
		delta->names = malloc(bytes);
		delta->extra = calloc(dims, sizeof(uint64_t)) /* of the shapes */;
		if (delta->names == NULL || delta->extra == NULL)
			err = why_set(why, ENOMEM, "out of memory");
	}
	if (err == 0)
		err = take_parts(header, &m, side->file, delta, why);
	snprintf(delta->generation, sizeof(delta->generation), "skyrl-xor");
	manifest_release(&m);
	return err;
}

static int skyrl_encode(const struct delta *delta, const struct part *part,
			const struct source *src, struct patch_writer *writer, uint64_t numel,
			struct why *why)
{
	if (part->numel != numel)
		return why_set(
			why, EBADMSG,
			"tensor \"%s\" has %llu elements in the manifest and %llu in version "
			"0: the run started from another checkpoint than --base",
			SHOWN(part->name), (unsigned long long)part->numel,
			(unsigned long long)numel);
	return xor_encode(delta, part, src, writer, numel, why);
}

const struct format format_skyrl = {
	.name = "skyrl-xor",
	.checksums = true,
	.open = skyrl_open,
	.encode = skyrl_encode,
	.op = PATCH_XOR,
	.blind = true,
};
