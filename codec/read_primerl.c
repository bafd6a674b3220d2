/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prime-rl's sparse patches: formats "prime-rl-sparse" and "prime-rl-sparse-v1".
 *
 * The changes of a tensor are two tensors of a patch file, which the manifest beside it names (its
 * layout: codec/scheme_primerl.c): its positions (I32, or I64 when there are 2^31 elements or more;
 * the older format always), ascending, and the new values.  The newer manifest may have a hash of
 * each pair: the XOR of all its numbers, each widened to 64 bits (PyTorch's hash_tensor()).  It is
 * of the change and not of the tensor, so it is compared when the change is read.  The newer
 * patch may be one zstd frame as a whole, which its first bytes tell.
 *
 * A patch that does not agree with its manifest in every tensor and size is of another broadcast,
 * and refused.
 *
 * No state; any number of threads.
 */
#include "codec/primerl.h"
#include "codec/readers.h"

#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 8192 };

static int bad_entry(struct why *why, const char *name, const char *what)
{
	return why_set(why, EBADMSG, "tensor \"%s\" %s", SHOWN(name), what);
}

/* What encode() compares; in the parts' order. */
struct wanted {
	uint64_t hash;
	bool hashed;
};

/* One of a part's two tensors, each of which has one part. */
static int find(const struct st_header *header, const struct primerl_entry *e, const char *key,
		bool *used, const struct st_tensor **out, struct why *why)
{
	const struct st_tensor *t = st_find(header, key);

	if (t == NULL)
		return why_set(why, EBADMSG,
			       "tensor \"%s\": \"%s\" is not in this file, where its manifest puts "
			       "it: the two are of different broadcasts",
			       SHOWN(e->name), SHOWN(key));
	if (used[t - header->tensors])
		return why_set(why, EBADMSG, "tensor \"%s\": \"%s\" is named twice by its manifest",
			       SHOWN(e->name), SHOWN(key));
	used[t - header->tensors] = true;
	if (t->rank != 1 || t->numel != e->changed)
		return why_set(why, EBADMSG,
			       "tensor \"%s\": \"%s\" has %llu elements, and %llu in its manifest: "
			       "the two are of different broadcasts",
			       SHOWN(e->name), SHOWN(key), (unsigned long long)t->numel,
			       (unsigned long long)e->changed);
	*out = t;
	return 0;
}

static int take_part(const struct st_header *header, const struct primerl_entry *e, bool *used,
		     struct delta *delta, char **names, uint64_t **dims, struct why *why)
{
	const size_t size = strlen(e->name) + 1;
	const struct st_tensor *index = NULL, *values = NULL;
	struct wanted *wanted = delta->extra;
	int err = find(header, e, e->indices, used, &index, why);

	if (err == 0)
		err = find(header, e, e->values, used, &values, why);
	if (err < 0)
		return err;
	if (index->dtype != ST_I32 && index->dtype != ST_I64)
		return bad_entry(why, e->name, "has positions that are neither I32 nor I64");
	if (values->dtype != e->type)
		return bad_entry(why, e->name,
				 "has values of another dtype than its manifest says");
	memcpy(*names, e->name, size);
	if (e->shape.rank > 0)
		memcpy(*dims, e->shape.dims, e->shape.rank * sizeof(**dims));
	wanted[delta->count] = (struct wanted){e->hash, e->hashed};
	delta->parts[delta->count++] = (struct part){
		.name = *names,
		.kind = PART_SPARSE,
		.dtype = values->dtype,
		.rank = (uint8_t)e->shape.rank,
		.shape = *dims,
		.numel = e->numel,
		.bytes = (index->end - index->begin) + (values->end - values->begin),
		.changed = e->changed,
		.index = index,
		.values = values,
	};
	*names += size;
	*dims += e->shape.rank;
	return 0;
}

/* What the manifest puts into this file; its entries are in order of names, and so are the parts.
 */
static int take_parts(const struct st_header *header, const struct primerl_manifest *m,
		      const char *file, struct delta *delta, uint64_t *dims, struct why *why)
{
	bool *used = calloc(header->count + 1, sizeof(*used));
	char *names = delta->names;
	int err = used == NULL ? why_set(why, ENOMEM, "out of memory") : 0;

	for (size_t i = 0; i < m->count && err == 0; i++)
		if (strcmp(m->entries[i].file, file) == 0)
			err = take_part(header, &m->entries[i], used, delta, &names, &dims, why);
	for (size_t i = 0; i < header->count && err == 0; i++)
		if (!used[i])
			err = why_set(why, EBADMSG,
				      "holds \"%s\", of which its manifest does not know: the two "
				      "are of different broadcasts",
				      SHOWN(header->tensors[i].name));
	free(used);
	return err;
}

static int sparse_open(const struct st_header *header, const struct side *side, bool old,
		       struct delta *delta, struct why *why)
{
	struct primerl_manifest m = {0};
	size_t count = 0, bytes = 1, dims = 0;
	struct wanted *wanted = NULL;
	void *shapes = NULL; /* numbers of all of them; behind `wanted` */
	int err;

	if (side == NULL)
		return why_set(why, EBADMSG, "is a patch of prime-rl without its manifest");
	err = primerl_read(side->text, side->len, old, &m, why);
	if (err < 0)
		why_prefix(why, "its manifest");
	for (size_t i = 0; i < m.count && err == 0; i++)
		if (strcmp(m.entries[i].file, side->file) == 0) {
			count++;
			dims += m.entries[i].shape.rank;
			bytes += strlen(m.entries[i].name) + 1;
		}
	if (err == 0)
		err = delta_reserve(delta, count, why);
	if (err == 0) {
		delta->names = malloc(bytes);
		wanted = calloc(1, (count + 1) * sizeof(*wanted) + dims * sizeof(uint64_t));
		delta->extra = wanted;
		shapes = wanted != NULL ? wanted + count + 1 : NULL;
		if (delta->names == NULL || wanted == NULL)
			err = why_set(why, ENOMEM, "out of memory");
	}
	if (err == 0)
		err = take_parts(header, &m, side->file, delta, shapes, why);
	snprintf(delta->generation, sizeof(delta->generation), "prime-rl-sparse%s",
		 old ? "-v1" : "");
	primerl_release(&m);
	return err;
}

static int update_open(const struct st_header *header, const struct side *side, struct delta *delta,
		       struct why *why)
{
	return sparse_open(header, side, false, delta, why);
}

static int old_open(const struct st_header *header, const struct side *side, struct delta *delta,
		    struct why *why)
{
	return sparse_open(header, side, true, delta, why);
}

/* ---- the hash ---- */

/* A float's bits as a float64's, a NaN quiet: what a processor makes of it. */
static uint64_t widen(uint64_t bits, unsigned exponent_bits, unsigned fraction_bits)
{
	const uint64_t exponent_max = (UINT64_C(1) << exponent_bits) - 1;
	const uint64_t sign = bits >> (exponent_bits + fraction_bits) & 1;
	uint64_t exponent = bits >> fraction_bits & exponent_max;
	uint64_t fraction = bits & ((UINT64_C(1) << fraction_bits) - 1);
	const uint64_t bias = 1023 - (exponent_max >> 1);

	if (exponent == exponent_max) {
		exponent = 2047;
		if (fraction != 0)
			fraction |= UINT64_C(1) << (fraction_bits - 1);
	} else if (exponent != 0) {
		exponent += bias;
	} else if (fraction != 0) {
		/* Every one of them is a normal float64. */
		exponent = bias + 1;
		while (!(fraction >> fraction_bits & 1)) {
			fraction <<= 1;
			exponent--;
		}
		fraction &= (UINT64_C(1) << fraction_bits) - 1;
	}
	return sign << 63 | exponent << 52 | fraction << (52 - fraction_bits);
}

static uint64_t widen_value(const uint8_t *p, enum st_dtype type)
{
	switch (type) {
	case ST_BF16: return widen(load_le16(p), 8, 7);
	case ST_F16: return widen(load_le16(p), 5, 10);
	case ST_F32: return widen(load_le32(p), 8, 23);
	case ST_I8: return (uint64_t)(int64_t)(int8_t)*p;
	case ST_I16: return (uint64_t)(int64_t)(int16_t)load_le16(p);
	case ST_I32: return (uint64_t)(int64_t)(int32_t)load_le32(p);
	case ST_F64:
	case ST_I64: return load_le64(p);
	case ST_BOOL: return *p != 0;
	default: return *p; /* U8, and no other that has a hash */
	}
}

/* ---- encoding ---- */

struct walk {
	const struct part *part;
	unsigned index_width, value_width;
	uint64_t hash;
	bool hashed;
	uint64_t positions[BATCH];
	uint8_t index[BATCH * 8], values[BATCH * 8];
};

static int read_batch(struct walk *w, const struct delta *delta, const struct source *src,
		      uint64_t at, size_t n, struct why *why)
{
	const struct part *part = w->part;
	const uint64_t data = delta->header->data;
	int err = source_read(src, data + part->index->begin + at * w->index_width, w->index,
			      n * w->index_width);

	if (err == 0)
		err = source_read(src, data + part->values->begin + at * w->value_width, w->values,
				  n * w->value_width);
	if (err < 0)
		return why_set(why, -err, "tensor \"%s\" cannot be read", SHOWN(part->name));
	/* A negative position becomes one far beyond the tensor, which the patch refuses. */
	for (size_t i = 0; i < n; i++)
		w->positions[i] = w->index_width == 8
					  ? load_le64(w->index + 8 * i)
					  : (uint64_t)(int32_t)load_le32(w->index + 4 * i);
	for (size_t i = 0; i < n && w->hashed; i++)
		w->hash ^=
			w->positions[i] ^ widen_value(w->values + i * w->value_width, part->dtype);
	return 0;
}

static int sparse_encode(const struct delta *delta, const struct part *part,
			 const struct source *src, struct patch_writer *writer, uint64_t numel,
			 struct why *why)
{
	const struct wanted *wanted = (const struct wanted *)delta->extra + (part - delta->parts);
	struct walk *w;
	int err = 0;

	if (part->numel != numel)
		return why_set(why, EBADMSG,
			       "tensor \"%s\" has %llu elements in the manifest and %llu in the "
			       "version before: the run started from another checkpoint",
			       SHOWN(part->name), (unsigned long long)part->numel,
			       (unsigned long long)numel);
	w = malloc(sizeof(*w));
	if (w == NULL)
		return why_set(why, ENOMEM, "out of memory to read a tensor's changes");
	w->part = part;
	w->index_width = st_dtype_width(part->index->dtype);
	w->value_width = st_dtype_width(part->dtype);
	w->hash = 0;
	w->hashed = wanted->hashed;
	for (uint64_t at = 0; at < part->changed && err == 0; at += BATCH) {
		const size_t n = (size_t)MIN(part->changed - at, (uint64_t)BATCH);

		err = read_batch(w, delta, src, at, n, why);
		if (err == 0)
			err = patch_writer_add(writer, w->positions, w->values, n, why);
		if (err == -EBADMSG)
			why_prefix(why, "tensor \"%s\"", SHOWN(part->name));
	}
	if (err == 0 && w->hashed && w->hash != wanted->hash)
		err = bad_entry(why, part->name,
				"is not what its checksum is of: the patch was changed, or is of "
				"another broadcast than its manifest");
	free(w);
	return err;
}

const struct format format_primerl = {
	.name = "prime-rl-sparse",
	.open = update_open,
	.encode = sparse_encode,
	.op = PATCH_SET,
	.framed = FRAMED_BY_MAGIC,
};

const struct format format_primerl_old = {
	.name = "prime-rl-sparse-v1",
	.open = old_open,
	.encode = sparse_encode,
	.op = PATCH_SET,
};
