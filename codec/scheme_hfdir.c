/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scheme "hfdir": a directory per version that looks like a Hugging Face checkpoint.
 *
 *	weight_v000007/model.safetensors.index.json, model-00000-of-00001.safetensors, ...
 *	checkpoint-100/model.safetensors, config.json, ...
 *
 * The index is written last.  With delta_encoding in its metadata the tensors of its shards are
 * changes (codec/read_hfdir.c) to base_version; without, the directory is a whole checkpoint, and
 * so is one with a lone model.safetensors and no index.  What is there and cannot be understood
 * makes the directory unusable: to guess at a delta would show weights that never were.
 *
 * Sources: slime's slime/utils/disk_delta.py and SGLang's weight_sync/local_checkpoint.py
 * (weight_v), ModelExpress's docs/S3_DELTA_WEIGHT_REFIT.md (v1, v2), stitch's
 * src/stitch/stores/s3.py (updates/), and what transformers, verl and others call their
 * checkpoints.
 *
 * No state; any number of threads.
 */
#include "codec/schemes.h"

#include <jansson.h>
#include <stdio.h>

/* "000012", "v12", "weight_v000012", 12. */
static bool take_version(const json_t *v, uint64_t *out)
{
	return scheme_number(v, "weight_v", out) || scheme_number(v, "v", out);
}

static bool sum_is_known(const char *name)
{
	const enum checksum_kind kind = name != NULL ? checksum_find(name) : CHECKSUM_NONE;

	return kind == CHECKSUM_XXH3_128 || kind == CHECKSUM_ADLER32 || kind == CHECKSUM_BLAKE3;
}

static int take_delta(const json_t *meta, struct scheme_version *x, struct why *why)
{
	const char *encoding = json_string_value(json_object_get(meta, "delta_encoding"));
	const char *version = json_string_value(json_object_get(meta, "version"));
	const json_t *packed = json_object_get(meta, "compression_format");
	const char *format = json_string_value(packed);
	const json_t *sums = json_object_get(meta, "checksum_format");

	x->delta = true;
	if (encoding == NULL ||
	    (strcmp(encoding, "xor") != 0 && strcmp(encoding, "overwrite") != 0))
		return why_set(why, ENOTSUP,
			       "has the delta_encoding \"%s\", which is not known here: xor and "
			       "overwrite are",
			       encoding != NULL ? SHOWN(encoding) : "");
	if (packed != NULL && (format == NULL || strcmp(format, "zstd") != 0))
		return why_set(why, ENOTSUP,
			       "has the compression_format \"%s\", which is not known here: zstd "
			       "is",
			       format != NULL ? SHOWN(format) : "");
	if (sums != NULL && !json_is_null(sums) && !sum_is_known(json_string_value(sums)))
		return why_set(why, ENOTSUP,
			       "has the checksum_format \"%s\", which is not known here: xxh3-128, "
			       "adler32 and blake3 are",
			       json_is_string(sums) ? SHOWN(json_string_value(sums)) : "");
	snprintf(x->encoding, sizeof(x->encoding), "hfdir-%s", encoding);
	snprintf(x->writer, sizeof(x->writer), "%s",
		 version != NULL && version[0] == 'v' ? "ModelExpress" : "slime");
	if (!take_version(json_object_get(meta, "base_version"), &x->base))
		return why_set(why, EBADMSG,
			       "does not say which version it applies to: its base_version is no "
			       "number");
	return 0;
}

static bool is_shard(const char *name)
{
	const size_t len = strlen(name);

	return len > 12 && strcmp(name + len - 12, ".safetensors") == 0 &&
	       strchr(name, '/') == NULL;
}

static int take_files(json_t *map, struct scheme_version *x, struct why *why)
{
	const char *tensor;
	json_t *value;

	json_object_foreach (map, tensor, value) {
		const char *file = json_string_value(value);
		int err = -EBADMSG;

		if (file != NULL && strlen(file) == json_string_length(value) && is_shard(file))
			err = scheme_file(x, file, why);
		if (err == -EBADMSG)
			return why_set(why, EBADMSG,
				       "its weight_map puts tensor \"%s\" into \"%s\", which is no "
				       "plain name of a safetensors file in this directory",
				       SHOWN(tensor), file != NULL ? SHOWN(file) : "");
		if (err < 0)
			return err;
	}
	scheme_files_end(x);
	return scheme_names(x, map, why);
}

static int parse(const char *index, uint64_t number, const char *text, size_t len,
		 struct scheme_version *out, struct why *why)
{
	json_t *root = scheme_json(text, len, why);
	const json_t *meta;
	json_t *map;
	int err = 0;

	if (root == NULL)
		return -EBADMSG;
	meta = json_object_get(root, "metadata");
	map = json_object_get(root, "weight_map");
	out->says_version = take_version(json_object_get(meta, "version"), &out->version);
	if (!json_is_object(map))
		err = why_set(why, EBADMSG, "has no weight_map, or one that is not a JSON object");
	else if (json_object_get(meta, "delta_encoding") != NULL)
		err = take_delta(meta, out, why);
	if (err == 0)
		err = take_files(map, out, why);
	if (err == 0 && !out->delta && out->file_count == 0)
		err = why_set(why, EBADMSG,
			      "is of a whole checkpoint, and its weight_map names no file");
	json_decref(root);
	return err;
}

/* Whole checkpoints only. */
static int parse_whole(const char *index, uint64_t number, const char *text, size_t len,
		       struct scheme_version *out, struct why *why)
{
	int err = parse(index, number, text, len, out, why);

	if (err == 0 && out->delta)
		return why_set(
			why, ENOTSUP,
			"is of a delta, and --format checkpoints was asked for: say --format "
			"hfdir");
	return err;
}

static const char *const words[] = {
	"weight_v",	"checkpoint-",	"checkpoint_", "ckpt-",	   "ckpt_",
	"global_step_", "global_step-", "global_step", "step_",	   "step-",
	"step",		"iter_",	"iteration_",  "version_", "version-",
	"epoch_",	"epoch-",	"v",	       NULL,
};
static const char *const indexes[] = {"model.safetensors.index.json", NULL};
/* A directory that has any weights counts as one whose upload has begun. */
static const char *const signs[] = {"*.safetensors", "model.safetensors.index.json", NULL};

const struct scheme scheme_hfdir = {
	.name = "hfdir",
	.words = words,
	.indexes = indexes,
	.lone = "model.safetensors",
	.signs = signs,
	.parse = parse,
	.latest_word = "weight_v",
	.latest_writer = "stitch",
};

const struct scheme scheme_checkpoints = {
	.name = "checkpoints",
	.words = words,
	.indexes = indexes,
	.lone = "model.safetensors",
	.signs = signs,
	.parse = parse_whole,
	.latest_word = "weight_v",
};
