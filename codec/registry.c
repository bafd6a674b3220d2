/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registry of formats, and what is the same for all of them: open, sort, look up, encode, free.
 *
 * A reader (codec/read_*.c) turns a parsed header into a list of parts; this file asks the readers
 * in order who knows the object, brings the parts into name order, refuses a tensor that is
 * described twice and adds up the totals.  For delta_encode() it owns the patch writer: a reader
 * only decodes positions and values and hands them on in order.
 *
 * Not here: what any format looks like, and anything that touches a tensor's present bytes.
 *
 * A struct delta does not change after delta_open(); any number of threads may encode parts of one
 * delta at the same time, each with its own writer and windows.
 */
#include "codec/format.h"
#include "codec/readers.h"

#include <stdlib.h>

const struct format *const formats[] = {
	&format_wfp1,
	&format_packed,
	&format_trl,
	&format_hfdir_xor,
	&format_hfdir_overwrite,
	&format_grail,
	&format_skyrl,
	&format_primerl,
	&format_primerl_old,
	&format_arc,
	&format_changes,
	&format_full, /* takes anything */
	NULL,
};

/* What weightfs.json calls objects that say themselves what they are; "xor-zstd" is hfdir-xor. */
static const char *const encodings[] = {"safetensors", "packed", "wfp1",  "wfp1x",
					"trl-v1",      "trl-v3", "hfdir", "xor-zstd"};

const struct format *format_named(const char *name)
{
	for (size_t i = 0; formats[i] != NULL; i++)
		if (formats[i]->probe == NULL && strcmp(formats[i]->name, name) == 0)
			return formats[i];
	return NULL;
}

bool delta_encoding_known(const char *encoding)
{
	for (size_t i = 0; i < ARRAY_LEN(encodings); i++)
		if (strcmp(encoding, encodings[i]) == 0)
			return true;
	return format_named(encoding) != NULL;
}

void part_full(struct part *part, const struct st_header *header, const struct st_tensor *tensor)
{
	*part = (struct part){
		.name = tensor->name,
		.kind = PART_FULL,
		.dtype = tensor->dtype,
		.rank = tensor->rank,
		.shape = tensor->shape,
		.numel = tensor->numel,
		.offset = header->data + tensor->begin,
		.bytes = tensor->end - tensor->begin,
		.changed = tensor->numel,
	};
}

int64_t meta_number(const struct st_header *header, const char *key)
{
	const char *s = st_meta(header, key);
	int64_t n = 0;

	if (s == NULL || *s == '\0')
		return -1;
	for (; *s != '\0'; s++) {
		if (*s < '0' || *s > '9' || n > (INT64_MAX - (*s - '0')) / 10)
			return -1;
		n = n * 10 + (*s - '0');
	}
	return n;
}

int delta_reserve(struct delta *delta, size_t count, struct why *why)
{
	delta->parts = calloc(count > 0 ? count : 1, sizeof(*delta->parts));
	if (delta->parts == NULL)
		return why_set(why, ENOMEM, "out of memory for the list of %zu tensors", count);
	return 0;
}

static int part_compare(const void *a, const void *b)
{
	return strcmp(((const struct part *)a)->name, ((const struct part *)b)->name);
}

/* Name order, no tensor twice, totals. */
static int finish(struct delta *delta, struct why *why)
{
	bool sorted = true;
	char name[200];

	/* Readers that walk a header by name leave little to do. */
	for (size_t i = 1; i < delta->count && sorted; i++)
		sorted = part_compare(&delta->parts[i - 1], &delta->parts[i]) <= 0;
	if (!sorted)
		qsort(delta->parts, delta->count, sizeof(*delta->parts), part_compare);
	for (size_t i = 0; i < delta->count; i++) {
		const struct part *part = &delta->parts[i];

		if (i > 0 && strcmp(part[-1].name, part->name) == 0) {
			printable(name, sizeof(name), part->name, strlen(part->name));
			if (part[-1].kind != part->kind)
				return why_set(
					why, EBADMSG,
					"tensor \"%s\" is given both full and sparse; a file may "
					"have it only once",
					name);
			return why_set(why, EBADMSG,
				       "tensor \"%s\" is given twice; a file may have it only once",
				       name);
		}
		if (part->kind == PART_FULL)
			delta->full++;
		else
			delta->sparse++;
		/* Cannot overflow in a file whose tensors tile it, but sub-byte types come close.
		 */
		if (add_overflows(delta->changed, part->changed, &delta->changed))
			return why_set(why, EBADMSG,
				       "more changed elements than 64 bits can count");
	}
	return 0;
}

/* What open_header() is told instead of a name. */
static const char whole[] = "";

/* By name, or whoever recognises it. */
static const struct format *choose(const char *name, const struct st_header *header)
{
	for (size_t i = 0; formats[i] != NULL; i++) {
		const struct format *f = formats[i];
		bool (*probe)(const struct st_header *) = f->probe;

		if (name == whole && f->probe_whole != NULL)
			probe = f->probe_whole;
		if (name != NULL && name != whole ? strcmp(f->name, name) == 0
						  : probe != NULL && probe(header))
			return f;
	}
	return NULL;
}

int delta_open(const struct source *src, struct delta **out_delta, struct why *why)
{
	return delta_open_as(src, NULL, NULL, out_delta, why);
}

/* A safetensors file. */
static int open_header(const struct source *src, const char *format, const struct side *side,
		       struct delta *delta, struct why *why)
{
	int err = st_read(src, &delta->header, NULL, why);

	if (err != 0)
		return err;
	delta->format = choose(format, delta->header);
	if (delta->format == NULL)
		return why_set(why, ENOTSUP, "a safetensors file of no format that is known here");
	delta->data = delta->header->data;
	return delta->format->open(delta->header, side, delta, why);
}

int delta_open_as(const struct source *src, const char *format, const struct side *side,
		  struct delta **out_delta, struct why *why)
{
	const struct format *raw = format != NULL ? format_named(format) : NULL;
	struct delta *delta = calloc(1, sizeof(*delta));
	int err;

	if (delta == NULL)
		return why_set(why, ENOMEM, "out of memory");
	delta->model_version = -1;
	delta->base_version = -1;
	if (raw != NULL && raw->open_raw != NULL) {
		delta->format = raw;
		err = raw->open_raw(src, side, delta, why);
	} else {
		err = open_header(src, format, side, delta, why);
	}
	if (err == 0)
		err = finish(delta, why);
	if (err == 0)
		*out_delta = delta;
	else
		delta_free(delta);
	return err;
}

int delta_open_whole(const struct source *src, struct delta **out_delta, struct why *why)
{
	return delta_open_as(src, whole, NULL, out_delta, why);
}

int delta_open_found(const struct source *src, struct delta **out_delta, struct why *why)
{
	uint8_t head[PROBE_HEAD];
	const size_t len = (size_t)MIN(src->size, (uint64_t)sizeof(head));
	const char *name = NULL;
	int err = source_read(src, 0, head, len);

	if (err < 0)
		return why_set(why, -err, "cannot be read");
	for (size_t i = 0; formats[i] != NULL && name == NULL; i++)
		if (formats[i]->probe_raw != NULL && formats[i]->probe_raw(head, len))
			name = formats[i]->name;
	return delta_open_as(src, name, NULL, out_delta, why);
}

void delta_free(struct delta *delta)
{
	if (delta == NULL)
		return;
	free(delta->parts);
	free(delta->names);
	free(delta->extra);
	st_free(delta->original);
	st_free(delta->header);
	free(delta);
}

const struct part *delta_find(const struct delta *delta, const char *name)
{
	const struct part key = {.name = name};

	if (delta->count == 0)
		return NULL;
	return bsearch(&key, delta->parts, delta->count, sizeof(key), part_compare);
}

/* What can be said of a sparse part and its target before a byte is read. */
static int check_target(const struct part *part, const struct format *format, enum st_dtype dtype,
			struct why *why)
{
	char name[200];

	printable(name, sizeof(name), part->name, strlen(part->name));
	if (part->kind != PART_SPARSE)
		return why_set(why, EINVAL,
			       "tensor \"%s\" is whole in this file: nothing to encode", name);
	if (format->native)
		return why_set(why, EINVAL, "tensor \"%s\" is a patch already", name);
	if (!format->blind && part->changed > 0 && part->dtype != dtype)
		return why_set(
			why, EBADMSG,
			"tensor \"%s\": its new values are %s but the tensor is %s; start from a "
			"checkpoint or anchor that has it in %s, or have the trainer publish %s",
			name, st_dtype_name(part->dtype), st_dtype_name(dtype),
			st_dtype_name(part->dtype), st_dtype_name(dtype));
	return 0;
}

int delta_encode(const struct delta *delta, const struct part *part, const struct source *src,
		 enum st_dtype dtype, uint64_t numel, const struct sink *sink, uint64_t at,
		 uint64_t *out_len, struct why *why)
{
	unsigned width = st_dtype_width(dtype);
	struct patch_writer *writer;
	uint64_t len;
	int err;

	err = check_target(part, delta->format, dtype, why);
	if (err != 0)
		return err;
	if (part->changed == 0) {
		*out_len = 0;
		return 0;
	}
	if (delta->format->bytewise && width > 1) {
		if (mul_overflows(numel, width, &numel))
			return why_set(why, EBADMSG, "more bytes than 64 bits can count");
		width = 1;
	}
	writer = patch_writer_new(delta->format->op, width, numel, sink, at);
	if (writer == NULL)
		return why_set(why, ENOMEM, "out of memory for a patch");
	err = delta->format->encode(delta, part, src, writer, numel, why);
	if (err == 0)
		err = patch_writer_end(writer, &len, NULL, why);
	if (err == 0)
		*out_len = len;
	patch_writer_free(writer);
	return err;
}
