/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fireworks' incremental snapshots: format "arc-v2" and scheme "arc".
 *
 *	step_7/model-00001-of-00002.safetensors, ...	a delta, file by file of the checkpoint
 *	step_7/incremental_snapshot_metadata.json	what it applies to, see below
 *
 * A delta file has the tensors of the checkpoint's file of that name, all of them, changed or not:
 * U8 of one dimension, one zstd frame of the new bytes XOR the old ones.  The file's metadata have,
 * under each tensor's name, the Adler-32 of its new bytes, in decimal.
 *
 * The files do not say what they apply to; that is in the request by which a server is told to load
 * them.  Its object `incremental_snapshot_metadata`, alone or in the whole request, has to lie
 * beside the files, written last: previous_snapshot_identity is the directory that the delta
 * applies to.  Without it, as with any file of compressed changes whose index says nothing, the
 * files are refused ("changes"): taken for a checkpoint they would show frames as weights.
 *
 * Not read: arc_v1 (zlib), and arc_v3, which is Python's pickle and, by its mixture of new values
 * and of differences, is no patch without the bytes it applies to.
 *
 * Source: the package fireworks-delta-compression 0.1.0 (its containers, checksums and names), and
 * docs.fireworks.ai, fine-tuning/rl-rollout-delta-checkpoints (the request).
 *
 * No state; any number of threads.
 */
#include "codec/readers.h"
#include "codec/schemes.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the request ---- */

static const char request_name[] = "incremental_snapshot_metadata.json";

/* Whatever the case of ASCII letters in `text`; `word` is in lower case. */
static bool is_word(const char *text, const char *word)
{
	for (; *text != '\0' && *word != '\0'; text++, word++)
		if ((*text >= 'A' && *text <= 'Z' ? *text + ('a' - 'A') : *text) != *word)
			return false;
	return *text == *word;
}

static int take_formats(const json_t *meta, struct why *why)
{
	const char *packed = json_string_value(json_object_get(meta, "compression_format"));
	const json_t *sums = json_object_get(meta, "checksum_format");
	const char *sum = json_string_value(sums);

	if (packed == NULL ||
	    (!is_word(packed, "arc_v2") && !is_word(packed, "xor_one_to_one_zstd")))
		return why_set(why, ENOTSUP,
			       "has the compression_format \"%s\", which is not read here: have "
			       "the trainer write arc_v2",
			       packed != NULL ? SHOWN(packed) : "");
	/* Theirs is spelled with the l first. */
	if (sums != NULL &&
	    (sum == NULL || (strcmp(sum, "alder32") != 0 && strcmp(sum, "adler32") != 0)))
		return why_set(why, ENOTSUP,
			       "has the checksum_format \"%s\", which is not known here: alder32 "
			       "is",
			       sum != NULL ? SHOWN(sum) : "");
	return 0;
}

/* The number of a directory that is named as an identity, perhaps with a path before it. */
static bool take_identity(const struct scheme *s, const json_t *value, uint64_t *out)
{
	const char *text = json_string_value(value), *slash;

	if (text == NULL || strlen(text) != json_string_length(value))
		return false;
	slash = strrchr(text, '/');
	text = slash != NULL ? slash + 1 : text;
	for (size_t i = 0; s->words[i] != NULL; i++) {
		const size_t len = strlen(s->words[i]);
		json_t *number;
		bool ok;

		if (strncmp(text, s->words[i], len) != 0)
			continue;
		number = json_string(text + len);
		ok = number != NULL && scheme_number(number, NULL, out);
		json_decref(number);
		if (ok)
			return true;
	}
	return false;
}

static int arc_parse(const char *index, uint64_t number, const char *text, size_t len,
		     struct scheme_version *out, struct why *why)
{
	const json_t *meta, *base;
	json_t *root;
	int err;

	/* Of a whole snapshot. */
	if (strcmp(index, request_name) != 0)
		return scheme_hfdir.parse(index, number, text, len, out, why);
	root = scheme_json(text, len, why);
	if (root == NULL)
		return -EBADMSG;
	meta = json_object_get(root, "incremental_snapshot_metadata");
	if (meta == NULL)
		meta = root;
	base = json_object_get(meta, "previous_snapshot_identity");
	out->delta = true;
	out->all = true;
	out->says_version =
		take_identity(&scheme_arc, json_object_get(root, "identity"), &out->version);
	snprintf(out->encoding, sizeof(out->encoding), "arc-v2");
	snprintf(out->writer, sizeof(out->writer), "Fireworks");
	err = take_formats(meta, why);
	if (err == 0 && !take_identity(&scheme_arc, base, &out->base))
		err = why_set(why, EBADMSG,
			      "does not say what it applies to: its previous_snapshot_identity is "
			      "\"%s\", and should be the name of a directory such as step_000041",
			      json_string_value(base) != NULL ? SHOWN(json_string_value(base))
							      : "");
	json_decref(root);
	return err;
}

static const char *const words[] = {
	"step_",      "step-",	  "step",	 "snap-",	"snap_",	"snapshot-",
	"snapshot_",  "weight_v", "checkpoint-", "checkpoint_", "global_step_", "global_step-",
	"iteration_", "version_", "version-",	 "v",		NULL,
};
static const char *const indexes[] = {"model.safetensors.index.json", request_name, NULL};
static const char *const signs[] = {"*.safetensors", request_name, NULL};

const struct scheme scheme_arc = {
	.name = "arc",
	.words = words,
	.indexes = indexes,
	.sole = request_name,
	.lone = "model.safetensors",
	.signs = signs,
	.parse = arc_parse,
};

/* ---- a file ---- */

/* A number of 32 bits in decimal, as 8 hex digits. */
static bool take_sum(const char *text, char out[9])
{
	uint64_t n = 0;

	if (text == NULL || *text == '\0' || strspn(text, "0123456789") != strlen(text))
		return false;
	for (; *text != '\0'; text++) {
		n = n * 10 + (uint64_t)(*text - '0');
		if (n > UINT32_MAX)
			return false;
	}
	snprintf(out, 9, "%08x", (unsigned)n);
	return true;
}

static int arc_open(const struct st_header *header, const struct side *side, struct delta *delta,
		    struct why *why)
{
	char(*sums)[9] = calloc(header->count + 1, sizeof(*sums));
	int err = delta_reserve(delta, header->count, why);

	delta->extra = sums;
	if (sums == NULL)
		return why_set(why, ENOMEM, "out of memory");
	if (err < 0)
		return err;
	for (size_t i = 0; i < header->count; i++) {
		const struct st_tensor *t = &header->tensors[i];

		err = part_frame(&delta->parts[i], header, t, "", why);
		if (err < 0)
			return err;
		if (!take_sum(st_meta(header, t->name), sums[i]))
			return why_set(why, EBADMSG,
				       "tensor \"%s\" has no checksum: the file's metadata should "
				       "have its Adler-32 in decimal",
				       SHOWN(t->name));
		delta->parts[i].checksum = sums[i];
		delta->parts[i].checksum_kind = CHECKSUM_ADLER32;
		delta->count++;
	}
	snprintf(delta->generation, sizeof(delta->generation), "arc_v2");
	return 0;
}

/* What begins otherwise is of another of their formats, and said to be. */
static int arc_encode(const struct delta *delta, const struct part *part, const struct source *src,
		      struct patch_writer *writer, uint64_t numel, struct why *why)
{
	static const char envelope[] = "ARC3_ENVELOPE";
	char head[sizeof(envelope) - 1] = {0};
	int err = source_read(src, part->offset, head,
			      (size_t)MIN((uint64_t)sizeof(head), part->bytes));

	if (err < 0)
		return why_set(why, -err, "tensor \"%s\" cannot be read", SHOWN(part->name));
	if (memcmp(head, envelope, sizeof(head)) == 0 ||
	    memcmp(head + 1, "\0\0\0\0\0\0\0{", 8) == 0)
		return why_set(why, ENOTSUP,
			       "tensor \"%s\" is in arc_v3, which is not read here: have the "
			       "trainer write arc_v2",
			       SHOWN(part->name));
	if (head[0] == 'x')
		return why_set(why, ENOTSUP,
			       "tensor \"%s\" is in arc_v1, which is not read here: have the "
			       "trainer write arc_v2",
			       SHOWN(part->name));
	return xor_encode(delta, part, src, writer, numel, why);
}

const struct format format_arc = {
	.name = "arc-v2",
	.checksums = true,
	.open = arc_open,
	.encode = arc_encode,
	.op = PATCH_XOR,
	.blind = true,
};

/* ---- changes that nothing says of what ---- */

bool delta_only_changes(const struct st_header *header)
{
	for (size_t i = 0; i < header->count; i++) {
		const struct st_tensor *t = &header->tensors[i];

		if (t->dtype != ST_U8 || t->rank != 1 || st_meta(header, t->name) == NULL)
			return false;
	}
	return header->count > 0;
}

static int changes_open(const struct st_header *header, const struct side *side,
			struct delta *delta, struct why *why)
{
	return why_set(
		why, ENOTSUP,
		"has compressed changes and no weights, and nothing beside it says what they "
		"apply to: its index should have a delta_encoding and a base_version, or, for "
		"arc_v2, an incremental_snapshot_metadata.json should lie there");
}

const struct format format_changes = {
	.name = "changes",
	.probe = delta_only_changes,
	.open = changes_open,
};
