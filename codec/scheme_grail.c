/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scheme "grail": runs of one-covenant's grail (PULSE).
 *
 *	grail/checkpoints/checkpoint-{window}/
 *		FULL/	model.safetensors (or shards), config.json, tokenizer files, metadata.json,
 *			manifest.sig
 *		DELTA/	delta_sparse.bin.zst, delta_metadata.json, metadata.json, manifest.sig
 *		READY-{window}	empty, written last
 *
 * The window is the version: a number of the chain's blocks, which only rises.  Windows are no
 * consecutive numbers, and a delta says in prev_window what it applies to.  At every few windows
 * there are both FULL and DELTA, of the same state; FULL is then uploaded in the background, so it
 * may become whole after READY and after the next windows.
 *
 *	metadata.json	window, checkpoint_type FULL | DELTA, prev_window, anchor_window,
 *			weights_hash (FULL: null), file_manifest {name: SHA-256}, and what concerns
 *			the trainer only
 *
 * weights_hash is 32 hex digits: the XXH3-128 of all tensors' bytes in the order of names; of older
 * trainers 64, a SHA-256 (CHECKSUM_TORCH).
 * manifest.sig, a wallet's signature of metadata.json, is not checked: whose key it should be is
 * nothing that a bucket can say.
 *
 * Source: grail/shared/checkpoint_paths.py, grail/trainer/checkpoint_publisher.py.  Pure.
 */
#include "codec/schemes.h"

#include <jansson.h>
#include <stdio.h>

static const char delta_object[] = "delta_sparse.bin.zst";

/* model.safetensors, model-00001-of-00002.safetensors: what an engine loads, and no adapter. */
static bool is_weights(const char *name)
{
	const size_t len = strlen(name);

	return len > 12 && strcmp(name + len - 12, ".safetensors") == 0 &&
	       strncmp(name, "model", 5) == 0 && strchr(name, '/') == NULL;
}

/* The objects that hold weights, and the sums of all. */
static int take_files(const char *part, json_t *files, struct scheme_version *v, struct why *why)
{
	char path[SCHEME_FILE_MAX + 16];
	json_t *value;
	const char *name;
	int err = 0;

	if (!json_is_object(files))
		return why_set(why, EBADMSG, "has no file_manifest, or one that is not an object");
	json_object_foreach (files, name, value) {
		if (snprintf(path, sizeof(path), "%s/%s", part, name) >= (int)sizeof(path))
			err = why_set(why, EBADMSG, "a name of %zu bytes", strlen(name));
		if (err == 0)
			err = scheme_sum(v, path, CHECKSUM_SHA256, json_string_value(value), why);
		if (err == 0 && (v->delta ? strcmp(name, delta_object) == 0 : is_weights(name)))
			err = scheme_file(v, path, why);
		if (err == -EBADMSG)
			why_prefix(why, "its file_manifest");
		if (err < 0)
			return err;
	}
	scheme_files_end(v);
	if (v->file_count == 0)
		return why_set(why, EBADMSG, "its file_manifest does not list %s",
			       v->delta ? delta_object : "a safetensors file");
	return 0;
}

static int take_state(const json_t *value, struct scheme_version *v, struct why *why)
{
	const char *hash = json_string_value(value);

	if (value == NULL || json_is_null(value))
		return 0;
	if (hash == NULL || (strlen(hash) != 32 && strlen(hash) != 64) ||
	    strspn(hash, "0123456789abcdefABCDEF") != strlen(hash))
		return why_set(why, EBADMSG,
			       "its weights_hash is not 32 hex digits of an XXH3-128, nor 64 of a "
			       "SHA-256");
	v->state.kind = strlen(hash) == 64 ? CHECKSUM_TORCH : CHECKSUM_XXH3_128;
	snprintf(v->state.hex, sizeof(v->state.hex), "%s", hash);
	return 0;
}

static int take(const char *part, const json_t *root, struct scheme_version *v, struct why *why)
{
	const char *type = json_string_value(json_object_get(root, "checkpoint_type"));
	int err;

	v->delta = strcmp(part, "DELTA") == 0;
	if (json_object_get(root, "checkpoint_type") != NULL &&
	    (type == NULL || strcmp(type, part) != 0))
		return why_set(why, EBADMSG, "lies in %s, and its checkpoint_type is \"%s\"", part,
			       type != NULL ? SHOWN(type) : "");
	v->says_version = scheme_number(json_object_get(root, "window"), NULL, &v->version);
	if (!v->says_version)
		return why_set(why, EBADMSG, "does not say its window");
	if (v->delta && !scheme_number(json_object_get(root, "prev_window"), NULL, &v->base))
		return why_set(why, EBADMSG,
			       "does not say which window it applies to: its prev_window is no "
			       "number");
	if (v->delta && v->base >= v->version)
		return why_set(why, EBADMSG,
			       "is of window %llu and applies to window %llu, which is not before "
			       "it",
			       (unsigned long long)v->version, (unsigned long long)v->base);
	snprintf(v->encoding, sizeof(v->encoding), "%s", v->delta ? "grail" : "");
	snprintf(v->writer, sizeof(v->writer), "grail");
	err = take_state(json_object_get(root, "weights_hash"), v, why);
	return err == 0 ? take_files(part, json_object_get(root, "file_manifest"), v, why) : err;
}

static int parse(const char *index, uint64_t number, const char *text, size_t len,
		 struct scheme_version *out, struct why *why)
{
	json_t *root = scheme_json(text, len, why);
	int err;

	if (root == NULL)
		return -EBADMSG;
	err = take(strncmp(index, "DELTA/", 6) == 0 ? "DELTA" : "FULL", root, out, why);
	json_decref(root);
	return err;
}

static const char *const under[] = {"grail/checkpoints/", "checkpoints/", "", NULL};
static const char *const words[] = {"checkpoint-", NULL};
static const char *const indexes[] = {"FULL/metadata.json", "DELTA/metadata.json", NULL};
static const char *const markers[] = {"READY-*", NULL};

const struct scheme scheme_grail = {
	.name = "grail",
	.under = under,
	.words = words,
	.indexes = indexes,
	.markers = markers,
	.signs = indexes,
	.parse = parse,
	.rising = true,
};
