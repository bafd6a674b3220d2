/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightfs inspect FILE: explains and checks any safetensors, delta or patch file, also one inside
 * a mount.
 *
 * tools/facts.c finds out; this file prints, for people or as JSON.  A file that a mount would
 * refuse is an error with the mount's own sentence, and nothing is printed about it.
 */
#include "fs/human.h"
#include "tools/cli.h"
#include "tools/facts.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

enum { OPT_JSON, OPT_TENSORS };
enum { SOME_TENSORS = 12, VALUE_CAP = 100, NAME_CAP = 200 };

static const struct cli_opt own[] = {
	[OPT_JSON] = {"json", 0, NULL, "as JSON, with every tensor"},
	[OPT_TENSORS] = {"tensors", 't', NULL, "list every tensor, not only the largest"},
	{NULL, 0, NULL, NULL},
};

static const struct cli cli = {
	.verb = "inspect",
	.args = "[--json | --tensors] FILE",
	.about =
		"Explains a safetensors file, an anchor or delta of a run (also one in a zstd\n"
		"frame), or a patch file of the cache: what it is, its metadata, its tensors, how\n"
		"much of them changes and how the positions are written.  Everything that a mount\n"
		"checks before it shows a file is checked, so exit code 0 means that the file is\n"
		"sound.\n",
	.own = own,
	.min_args = 1,
	.max_args = 1,
	.examples =
		"  weightfs inspect bucket/deltas/step_000042.safetensors\n"
		"  weightfs inspect --tensors /mnt/policy/model.safetensors\n"
		"  weightfs inspect --json bucket/anchors/step_000001.safetensors | jq .totals\n",
};

/* ---- for people ---- */

static const char *kind_text(const struct facts *f)
{
	switch (f->kind[0]) {
	case 'c': return "shard of a delta (what it applies to stands in its index)";
	case 'f': return "whole tensors";
	case 's': return "sparse delta";
	case 'm': return "delta with whole and sparse tensors";
	case 'e': return "nothing: no tensor changes";
	default: return "patch file";
	}
}

static void print_metadata(const struct st_header *header)
{
	char key[NAME_CAP], value[VALUE_CAP];

	if (header == NULL || header->meta_count == 0)
		return;
	printf("metadata:\n");
	for (size_t i = 0; i < header->meta_count; i++) {
		const struct st_meta *m = &header->meta[i];

		printf("  %s: %s\n", printable(key, sizeof(key), m->key, strlen(m->key)),
		       printable(value, sizeof(value), m->value, strlen(m->value)));
	}
}

static void print_shape(const struct tensor_facts *t)
{
	printf("  [");
	for (unsigned i = 0; i < t->rank; i++)
		printf("%s%" PRIu64, i > 0 ? ", " : "", t->shape[i]);
	printf("]");
}

static void print_tensor(const struct facts *f, const struct tensor_facts *t)
{
	struct buf b = {0};
	char name[NAME_CAP];

	human_bytes(&b, t->bytes);
	printf("  %s  %s", printable(name, sizeof(name), t->name, strlen(t->name)),
	       f->patch != NULL ? t->index : st_dtype_name(t->dtype));
	if (t->shape != NULL)
		print_shape(t);
	if (t->sparse) {
		printf("  %" PRIu64 " changed", t->changed);
		if (t->numel > 0)
			printf(" of %" PRIu64 " (%.3g%%)", t->numel,
			       100.0 * (double)t->changed / (double)t->numel);
		if (f->patch == NULL)
			printf(", %s", t->index);
	}
	if (t->any && t->changed == 1)
		printf(", at %" PRIu64, t->first);
	else if (t->any)
		printf(", %" PRIu64 "...%" PRIu64 ", gaps %" PRIu64 "...%" PRIu64, t->first,
		       t->last, t->min_gap, t->max_gap);
	printf("  %s\n", buf_str(&b));
	buf_release(&b);
}

static int by_bytes(const void *a, const void *b)
{
	const struct tensor_facts *x = *(const struct tensor_facts *const *)a;
	const struct tensor_facts *y = *(const struct tensor_facts *const *)b;

	return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : strcmp(x->name, y->name);
}

/* All by name, or the largest few. */
static int print_tensors(const struct facts *f, bool all)
{
	const struct tensor_facts **order = calloc(f->count + 1, sizeof(*order));
	size_t shown = all ? f->count : MIN(f->count, (size_t)SOME_TENSORS);

	if (order == NULL)
		return cli_error("out of memory");
	for (size_t i = 0; i < f->count; i++)
		order[i] = &f->tensors[i];
	if (shown < f->count)
		qsort(order, f->count, sizeof(*order), by_bytes);
	for (size_t i = 0; i < shown; i++)
		print_tensor(f, order[i]);
	if (shown < f->count)
		printf("  ... and %zu smaller ones; --tensors lists them\n", f->count - shown);
	free(order);
	return EXIT_CODE_OK;
}

static int print_text(const char *path, const struct facts *f, bool all)
{
	struct buf b = {0};
	char name[NAME_CAP];
	const struct st_tensor *odd = f->header != NULL ? st_misaligned(f->header) : NULL;

	human_bytes(&b, f->size);
	printf("%s: %s, %s\n", path, kind_text(f), f->generation);
	printf("size: %" PRIu64 " bytes (%s)", f->size, buf_str(&b));
	if (f->unpacked > 0)
		printf(", a zstd frame of %" PRIu64, f->unpacked);
	printf(", header %" PRIu64 ", data %" PRIu64 "\n", f->header_bytes, f->data_bytes);
	buf_release(&b);
	print_metadata(f->header);
	printf("tensors: %zu", f->count);
	if (f->sparse > 0)
		printf(", %zu whole and %zu sparse; %" PRIu64 " elements change", f->whole,
		       f->sparse, f->changed);
	else if (f->count > 0)
		printf("; %" PRIu64 " elements", f->elements);
	if (f->sparse > 0 && f->elements > 0)
		printf(", %.3g%% of %" PRIu64, 100.0 * (double)f->changed / (double)f->elements,
		       f->elements);
	printf("\n");
	if (print_tensors(f, all) != EXIT_CODE_OK)
		return EXIT_CODE_FAILURE;
	if (odd != NULL)
		printf("note: \"%s\" does not start at a multiple of its element size\n",
		       printable(name, sizeof(name), odd->name, strlen(odd->name)));
	if (f->patch != NULL)
		printf("checked: hash and every block\n");
	else if (f->sparse > 0)
		printf("checked: positions ascend in every sparse tensor\n");
	return cli_done();
}

/* ---- for scripts ---- */

static json_t *integer(uint64_t n)
{
	return json_integer((json_int_t)n);
}

static json_t *tensor_json(const struct facts *f, const struct tensor_facts *t)
{
	json_t *o = json_pack("{s:s, s:s, s:o}", "name", t->name, "kind",
			      f->patch != NULL ? "patch"
			      : t->sparse      ? "sparse"
					       : "full",
			      "bytes", integer(t->bytes));

	if (f->patch == NULL)
		json_object_set_new(o, "dtype", json_string(st_dtype_name(t->dtype)));
	if (t->shape != NULL) {
		json_t *shape = json_array();

		for (unsigned i = 0; i < t->rank; i++)
			json_array_append_new(shape, integer(t->shape[i]));
		json_object_set_new(o, "shape", shape);
	}
	if (!t->sparse || t->numel > 0)
		json_object_set_new(o, "numel", integer(t->numel));
	if (t->sparse) {
		json_object_set_new(o, "changed", integer(t->changed));
		json_object_set_new(o, f->patch != NULL ? "op" : "index", json_string(t->index));
	}
	if (t->any) {
		json_object_set_new(o, "first", integer(t->first));
		json_object_set_new(o, "last", integer(t->last));
		json_object_set_new(o, "min_gap", integer(t->min_gap));
		json_object_set_new(o, "max_gap", integer(t->max_gap));
	}
	return o;
}

static json_t *metadata_json(const struct st_header *header)
{
	json_t *o = json_object();

	for (size_t i = 0; header != NULL && i < header->meta_count; i++)
		json_object_set_new(o, header->meta[i].key, json_string(header->meta[i].value));
	return o;
}

static int print_json(const char *path, const struct facts *f)
{
	json_t *tensors = json_array(), *root;
	char shown[1024];
	int ret = EXIT_CODE_OK;

	for (size_t i = 0; i < f->count; i++)
		json_array_append_new(tensors, tensor_json(f, &f->tensors[i]));
	root = json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:{s:o, s:o, s:o, s:o, s:o, s:o}}",
			 "file", printable(shown, sizeof(shown), path, strlen(path)), "kind",
			 f->kind, "format", f->generation, "size", integer(f->size), "header_bytes",
			 integer(f->header_bytes), "metadata", metadata_json(f->header), "tensors",
			 tensors, "totals", "tensors", integer(f->count), "full", integer(f->whole),
			 "sparse", integer(f->sparse), "changed", integer(f->changed), "elements",
			 f->elements > 0 ? integer(f->elements) : json_null(), "data_bytes",
			 integer(f->data_bytes));
	if (root != NULL && f->unpacked > 0)
		json_object_set_new(root, "unpacked", integer(f->unpacked));
	if (root == NULL || json_dumpf(root, stdout, JSON_INDENT(2)) < 0)
		ret = cli_error("%s cannot be described as JSON", path);
	else
		printf("\n");
	json_decref(root);
	return ret == EXIT_CODE_OK ? cli_done() : ret;
}

int verb_inspect(int argc, char **argv)
{
	struct cli_line line;
	struct facts *f = NULL;
	struct why why = {0};
	int fd, ret = cli_parse(&cli, argc, argv, NULL, &line);

	if (ret >= 0)
		return ret;
	fd = open(line.args[0], O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return cli_error("%s: %s", line.args[0], errno_text(errno));
	if (facts_gather(fd, &f, &why) < 0)
		ret = cli_error("%s: %s", line.args[0], why.text);
	else if (line.value[OPT_JSON] != NULL)
		ret = print_json(line.args[0], f);
	else
		ret = print_text(line.args[0], f, line.value[OPT_TENSORS] != NULL);
	facts_free(f);
	close(fd);
	return ret;
}
