/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Format "trl": the anchors and deltas of TRL's delta weight sync, every generation.
 *
 * One safetensors file per step.  A changed tensor X is a pair of one-dimensional tensors:
 *X.indices with X.values (v1), or X.idx with X.val (v2 and v3); any other key is a whole tensor of
 *that name.  That is decided per tensor and never from the object's path or the `sparse` flag,
 *because TRL writes full files under deltas/, and anchors that have only some tensors.  Positions
 *are flat, C order, ascending; values are absolute.
 *
 *	raw		I32, read as unsigned: the writer casts without a check, so a position of
 *2^31 or more comes out negative gap_delta	U16 or U32 per tensor: position[k] = position[k-1] +
 *1 + gap[k], from -1.  The sum is kept in 64 bits and may pass 2^32 nvcomp_cascaded	U8, a GPU
 *codec whose bitstream is not public: refused with what to set instead
 *
 * Pairing: an index is a key with an index suffix and an integer dtype whose partner exists.  So
 *parameters whose own names end in .idx or .val stay what they are, and X.val.idx with X.val.val
 *changes X.val.  A lone index is an error only where it cannot be anything else (see lone_index()).
 *
 * The files have no integrity data after v1.0, so every position is checked here.  Index and values
 *lie far apart in the file; both are read in windows.
 */
#include "codec/readers.h"

#include <stdio.h>
#include <stdlib.h>

enum {
	WINDOW = 256 * 1024, /* bytes of index, and of values, in memory at a time */
	BATCH = 16 * 1024,   /* elements handed to the patch writer at a time */
	NAME_CAP = 160,	     /* a printable name in a sentence */
};

static const struct suffix {
	const char *index, *values;
	bool modern; /* v2 and v3 */
} suffixes[] = {
	{".indices", ".values", false},
	{".idx", ".val", true},
};

/* ---- recognising ---- */

struct pair {
	const struct st_tensor *index, *values; /* NULL when the file has no such key */
	const struct suffix *suffix;		/* NULL when the key has no suffix of ours */
	size_t base;				/* bytes of the tensor's name */
};

static bool ends_with(const struct st_tensor *tensor, const char *suffix)
{
	size_t len = strlen(suffix);

	return tensor->name_len > len && strcmp(tensor->name + tensor->name_len - len, suffix) == 0;
}

static const struct st_tensor *find_suffixed(const struct st_header *header, const char *base,
					     size_t len, const char *suffix)
{
	char key[ST_NAME_MAX + 16];

	if (snprintf(key, sizeof(key), "%.*s%s", (int)len, base, suffix) >= (int)sizeof(key))
		return NULL;
	return st_find(header, key);
}

/* What the key looks like by its name and what there is beside it. */
static struct pair look(const struct st_header *header, const struct st_tensor *tensor)
{
	struct pair pair = {0};

	for (size_t i = 0; i < ARRAY_LEN(suffixes); i++) {
		const struct suffix *suffix = &suffixes[i];

		if (ends_with(tensor, suffix->index)) {
			pair.suffix = suffix;
			pair.base = tensor->name_len - strlen(suffix->index);
			pair.index = tensor;
			pair.values =
				find_suffixed(header, tensor->name, pair.base, suffix->values);
		} else if (ends_with(tensor, suffix->values)) {
			pair.suffix = suffix;
			pair.base = tensor->name_len - strlen(suffix->values);
			pair.values = tensor;
			pair.index = find_suffixed(header, tensor->name, pair.base, suffix->index);
		}
	}
	return pair;
}

/* Parameters are floats in every generation, so a float "index" is a parameter of that name. */
static bool is_pair(const struct pair *pair)
{
	return pair->index != NULL && pair->values != NULL &&
	       !st_dtype_is_float(pair->index->dtype) && pair->index->dtype != ST_BOOL;
}

static bool is_empty_marker(const struct st_tensor *tensor)
{
	return strcmp(tensor->name, "__empty_delta__") == 0 && tensor->dtype == ST_I32 &&
	       tensor->rank == 1 && tensor->shape[0] == 1;
}

static bool meta_is(const struct st_header *header, const char *key, const char *value)
{
	const char *have = st_meta(header, key);

	return have != NULL && strcmp(have, value) == 0;
}

static bool says_so(const struct st_header *header)
{
	if (meta_is(header, "format", "sparse_weight_patch") ||
	    meta_is(header, "format", "anchor_checkpoint"))
		return true;
	/* v1.1 has no `format`. */
	return st_meta(header, "format") == NULL && st_meta(header, "sparse") != NULL &&
	       st_meta(header, "num_params") != NULL;
}

static bool trl_probe(const struct st_header *header)
{
	if (says_so(header))
		return true;
	/* Metadata can get lost on the way; a pair says the same. */
	for (size_t i = 0; i < header->count; i++) {
		const struct pair pair = look(header, &header->tensors[i]);

		if (is_pair(&pair) || is_empty_marker(&header->tensors[i]))
			return true;
	}
	return false;
}

/* ---- opening ---- */

static int check_encoding(const struct pair *pair, const char *name, const char *encoding,
			  struct why *why)
{
	char shown[64];

	if ((encoding != NULL && strcmp(encoding, "nvcomp_cascaded") == 0) ||
	    (pair->suffix->modern && pair->index->dtype == ST_U8))
		return why_set(
			why, ENOTSUP,
			"tensor \"%s\": its index is in nvCOMP's nvcomp_cascaded encoding, whose "
			"bitstream has no public CPU decoder; set "
			"weight_sync_encoding=\"gap_delta\" (or \"raw\") on the trainer",
			name);
	if (encoding == NULL || strcmp(encoding, "raw") == 0 || strcmp(encoding, "gap_delta") == 0)
		return 0;
	return why_set(
		why, ENOTSUP,
		"tensor \"%s\": its index is in the encoding \"%s\", which is not known here; set "
		"weight_sync_encoding=\"gap_delta\" (or \"raw\") on the trainer",
		name, printable(shown, sizeof(shown), encoding, strlen(encoding)));
}

static int check_index_dtype(const struct pair *pair, const char *name, const char *encoding,
			     struct why *why)
{
	enum st_dtype dtype = pair->index->dtype;
	bool raw_ok = encoding == NULL || strcmp(encoding, "raw") == 0;
	bool gap_ok = pair->suffix->modern && (encoding == NULL || !raw_ok);

	if (dtype == ST_I32 && raw_ok)
		return 0;
	if ((dtype == ST_U16 || dtype == ST_U32) && gap_ok)
		return 0;
	if (!pair->suffix->modern && encoding != NULL && !raw_ok)
		return why_set(
			why, EBADMSG,
			"tensor \"%s\": the file says gap_delta, but %s pairs hold positions and "
			"not gaps",
			name, pair->suffix->index);
	return why_set(why, EBADMSG, "tensor \"%s\": its %s index is %s, but must be %s", name,
		       encoding != NULL ? encoding : pair->suffix->index, st_dtype_name(dtype),
		       raw_ok && gap_ok ? "I32, U16 or U32"
		       : raw_ok		? "I32"
					: "U16 or U32");
}

static int check_pair(const struct pair *pair, const char *name, const char *encoding,
		      struct why *why)
{
	const struct st_tensor *index = pair->index, *values = pair->values;
	int err;

	err = check_encoding(pair, name, encoding, why);
	if (err != 0)
		return err;
	if (index->rank != 1)
		return why_set(why, EBADMSG,
			       "tensor \"%s\": its index has %u dimensions, but must have 1", name,
			       index->rank);
	if (values->rank != 1)
		return why_set(why, EBADMSG,
			       "tensor \"%s\": its new values have %u dimensions, but must have 1",
			       name, values->rank);
	if (index->numel != values->numel)
		return why_set(
			why, EBADMSG,
			"tensor \"%s\": %llu indices but %llu values; there must be as many of "
			"each",
			name, (unsigned long long)index->numel, (unsigned long long)values->numel);
	if (index->numel == 0)
		return 0; /* whatever dtype an empty tensor got */
	if (st_dtype_bits(values->dtype) % 8 != 0)
		return why_set(
			why, ENOTSUP,
			"tensor \"%s\": single values of %s cannot be replaced, they are not whole "
			"bytes; publish the tensor whole",
			name, st_dtype_name(values->dtype));
	return check_index_dtype(pair, name, encoding, why);
}

/* An index whose values are missing and that cannot be a parameter: the file says that it is a
 * delta. */
static bool lone_index(const struct st_header *header, const struct pair *pair,
		       const struct st_tensor *tensor)
{
	return pair->index == tensor && pair->values == NULL && tensor->rank == 1 &&
	       (tensor->dtype == ST_I32 || tensor->dtype == ST_U16 || tensor->dtype == ST_U32) &&
	       meta_is(header, "format", "sparse_weight_patch") &&
	       meta_is(header, "sparse", "True");
}

static void add_sparse(struct delta *delta, const struct pair *pair, const char *name)
{
	const struct st_tensor *index = pair->index, *values = pair->values;

	delta->parts[delta->count++] = (struct part){
		.name = name,
		.kind = PART_SPARSE,
		.dtype = values->dtype,
		.bytes = index->end - index->begin + (values->end - values->begin),
		.changed = index->numel,
		.index = index,
		.values = values,
	};
}

/* What add_part() saw, for the label. */
struct seen {
	bool modern, raw, gap;
};

/* Makes the part of one key, if it is not the other half of a pair.  *names is where the next name
 * goes. */
static int add_part(const struct st_header *header, const struct st_tensor *tensor,
		    struct delta *delta, char **names, struct seen *seen, struct why *why)
{
	const char *encoding = st_meta(header, "encoding");
	const struct pair pair = look(header, tensor);
	char shown[NAME_CAP];
	int err;

	if (is_empty_marker(tensor))
		return 0;
	if (lone_index(header, &pair, tensor))
		return why_set(
			why, EBADMSG,
			"index \"%s\" has no values (\"%s\") beside it; the file is incomplete, "
			"publish it again",
			printable(shown, sizeof(shown), tensor->name, tensor->name_len),
			pair.suffix->values);
	if (!is_pair(&pair)) {
		part_full(&delta->parts[delta->count++], header, tensor);
		return 0;
	}
	if (tensor != pair.index)
		return 0;
	err = check_pair(&pair, printable(shown, sizeof(shown), tensor->name, pair.base), encoding,
			 why);
	if (err != 0)
		return err;
	memcpy(*names, tensor->name, pair.base);
	(*names)[pair.base] = '\0';
	add_sparse(delta, &pair, *names);
	*names += pair.base + 1;
	seen->modern |= pair.suffix->modern;
	if (tensor->numel > 0) {
		seen->raw |= tensor->dtype == ST_I32;
		seen->gap |= tensor->dtype != ST_I32;
	}
	return 0;
}

static void label(struct delta *delta, const struct st_header *header, const struct seen *seen)
{
	static const char *const kinds[] = {
		[TRL_RAW] = "raw", [TRL_GAP] = "gap_delta", [TRL_MIXED] = "mixed"};
	bool modern = st_meta(header, "encoding") != NULL || seen->modern;
	enum trl_encoding kind = seen->raw && seen->gap ? TRL_MIXED
				 : seen->raw		? TRL_RAW
				 : seen->gap		? TRL_GAP
							: TRL_NONE;

	delta->encoding = kind;
	/* With nothing sparse in it the file's word is all there is for the label. */
	if (kind == TRL_NONE && meta_is(header, "encoding", "raw"))
		kind = TRL_RAW;
	else if (kind == TRL_NONE && meta_is(header, "encoding", "gap_delta"))
		kind = TRL_GAP;
	delta->holes_legal = modern;
	if (meta_is(header, "format", "anchor_checkpoint") ||
	    st_meta(header, "checksum_sha256") != NULL)
		snprintf(delta->generation, sizeof(delta->generation), "TRL v1.0");
	else if (modern && kind != TRL_NONE)
		snprintf(delta->generation, sizeof(delta->generation), "TRL v2/v3 (%s)",
			 kinds[kind]);
	else
		snprintf(delta->generation, sizeof(delta->generation),
			 modern ? "TRL v2/v3" : "TRL v1");
}

static int trl_open(const struct st_header *header, const struct side *side, struct delta *delta,
		    struct why *why)
{
	struct seen seen = {0};
	size_t bytes = 1;
	char *names;
	int err;

	for (size_t i = 0; i < header->count; i++)
		for (size_t k = 0; k < ARRAY_LEN(suffixes); k++)
			if (ends_with(&header->tensors[i], suffixes[k].index))
				bytes += header->tensors[i].name_len;
	delta->names = malloc(bytes);
	if (delta->names == NULL)
		return why_set(why, ENOMEM, "out of memory for the names of changed tensors");
	err = delta_reserve(delta, header->count, why);
	if (err != 0)
		return err;
	names = delta->names;
	for (size_t i = 0; i < header->count; i++) {
		err = add_part(header, &header->tensors[header->by_name[i]], delta, &names, &seen,
			       why);
		if (err != 0)
			return err;
	}
	label(delta, header, &seen);
	delta->model_version = meta_number(header, "model_version");
	delta->base_version = meta_number(header, "prev_model_version");
	return 0;
}

/* ---- encoding ---- */

/* A walk over one part's elements. */
struct walk {
	const struct part *part;
	uint64_t numel;
	uint64_t place;	    /* of the next element, counting from 0 */
	uint64_t next;	    /* one above the last position; never above numel */
	uint64_t *position; /* BATCH of them */
	uint8_t *index, *values;
};

/* The sentence for the first bad position, which is at walk->place. */
static int refuse_position(const struct walk *walk, uint64_t position, struct why *why)
{
	const char *full = walk->part->name;
	char name[NAME_CAP];

	printable(name, sizeof(name), full, strlen(full));
	if (position >= walk->numel)
		return why_set(
			why, EBADMSG,
			"tensor \"%s\": index %llu at place %llu is outside the tensor of %llu "
			"elements",
			name, (unsigned long long)position, (unsigned long long)walk->place,
			(unsigned long long)walk->numel);
	if (position + 1 == walk->next)
		return why_set(why, EBADMSG,
			       "tensor \"%s\": index %llu at place %llu repeats the one before it",
			       name, (unsigned long long)position, (unsigned long long)walk->place);
	return why_set(why, EBADMSG,
		       "tensor \"%s\": index %llu at place %llu is not above %llu before it", name,
		       (unsigned long long)position, (unsigned long long)walk->place,
		       (unsigned long long)(walk->next - 1));
}

static int decode_raw(struct walk *walk, const uint8_t *index, size_t n, struct why *why)
{
	uint64_t next = walk->next;

	for (size_t i = 0; i < n; i++) {
		uint64_t position = load_le32(index + 4 * i);

		if (position < next || position >= walk->numel) {
			walk->next = next;
			walk->place += i;
			return refuse_position(walk, position, why);
		}
		walk->position[i] = position;
		next = position + 1;
	}
	walk->next = next;
	walk->place += n;
	return 0;
}

static int decode_gaps(struct walk *walk, const uint8_t *index, unsigned width, size_t n,
		       struct why *why)
{
	uint64_t next = walk->next;

	for (size_t i = 0; i < n; i++) {
		uint64_t gap = width == 2 ? load_le16(index + 2 * i) : load_le32(index + 4 * i);

		if (gap >= walk->numel - next) {
			walk->next = next;
			walk->place += i;
			return refuse_position(walk, next + gap, why);
		}
		walk->position[i] = next + gap;
		next += gap + 1;
	}
	walk->next = next;
	walk->place += n;
	return 0;
}

/* Decodes the n elements that the windows hold and hands them on. */
static int walk_window(struct walk *walk, size_t n, unsigned index_width, unsigned value_width,
		       struct patch_writer *writer, struct why *why)
{
	for (size_t done = 0; done < n;) {
		size_t batch = MIN(n - done, (size_t)BATCH);
		const uint8_t *index = walk->index + done * index_width;
		int err;

		if (walk->part->index->dtype == ST_I32)
			err = decode_raw(walk, index, batch, why);
		else
			err = decode_gaps(walk, index, index_width, batch, why);
		if (err == 0)
			err = patch_writer_add(writer, walk->position,
					       walk->values + done * value_width, batch, why);
		if (err != 0)
			return err;
		done += batch;
	}
	return 0;
}

static int read_part(const struct walk *walk, const struct source *src, uint64_t off, void *dst,
		     size_t len, const char *what, struct why *why)
{
	const char *full = walk->part->name;
	char name[NAME_CAP];
	int err = source_read(src, off, dst, len);

	if (err == 0)
		return 0;
	printable(name, sizeof(name), full, strlen(full));
	return why_set(why, -err, "tensor \"%s\": cannot read %s (%zu bytes at %llu)", name, what,
		       len, (unsigned long long)off);
}

static int trl_encode(const struct delta *delta, const struct part *part, const struct source *src,
		      struct patch_writer *writer, uint64_t numel, struct why *why)
{
	const unsigned index_width = st_dtype_width(part->index->dtype);
	const unsigned value_width = st_dtype_width(part->values->dtype);
	const uint64_t index_at = delta->header->data + part->index->begin;
	const uint64_t values_at = delta->header->data + part->values->begin;
	const uint64_t window = MIN(WINDOW / MAX(index_width, value_width), part->changed);
	struct walk walk = {.part = part, .numel = numel};
	char name[NAME_CAP];
	int err = 0;

	/* Cast to 32 bits, a position beyond that is another one. */
	if (part->index->dtype == ST_I32 && part->changed > 0 && numel > UINT64_C(1) << 32)
		return why_set(why, ENOTSUP,
			       "tensor \"%s\" has %llu elements, and its index has 32 bits for a "
			       "position: what it changes cannot be told; TRL v2 and v3 with the "
			       "encoding gap_delta can say it",
			       printable(name, sizeof(name), part->name, strlen(part->name)),
			       (unsigned long long)numel);
	walk.position = malloc(MIN(window, (uint64_t)BATCH) * sizeof(*walk.position));
	walk.index = malloc(window * index_width);
	walk.values = malloc(window * value_width);
	if (walk.position == NULL || walk.index == NULL || walk.values == NULL)
		err = why_set(why, ENOMEM, "out of memory to read a tensor's changes");
	while (err == 0 && walk.place < part->changed) {
		uint64_t place = walk.place;
		size_t n = MIN(window, part->changed - place);

		err = read_part(&walk, src, index_at + place * index_width, walk.index,
				n * index_width, "its index", why);
		if (err == 0)
			err = read_part(&walk, src, values_at + place * value_width, walk.values,
					n * value_width, "its new values", why);
		if (err == 0)
			err = walk_window(&walk, n, index_width, value_width, writer, why);
	}
	free(walk.position);
	free(walk.index);
	free(walk.values);
	return err;
}

const struct format format_trl = {
	.name = "trl",
	.probe = trl_probe,
	.probe_whole = says_so,
	.open = trl_open,
	.encode = trl_encode,
	.op = PATCH_SET,
};
