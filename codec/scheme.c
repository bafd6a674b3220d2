/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parsers of schemes share: JSON, numbers, lists of files, patterns.
 *
 * A file's path comes from somebody else's index and is joined to the version's directory: it must
 * not lead out of it, nor name what a listing leaves out.
 *
 * An index that puts tensors into files is held against them: files of one save under the index of
 * another would be a mix.  What is kept of an index for that is a number per file; only where that
 * differs is the text read again, to find out by which tensor.
 *
 * No state; any number of threads.
 */
#include "codec/scheme.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

void scheme_version_release(struct scheme_version *v)
{
	for (size_t i = 0; i < v->file_count; i++)
		free(v->files[i]);
	free(v->files);
	v->files = NULL;
	v->file_count = 0;
	free(v->names);
	v->names = NULL;
	for (size_t i = 0; i < v->sum_count; i++)
		free(v->sums[i].path);
	free(v->sums);
	v->sums = NULL;
	v->sum_count = 0;
}

struct json_t *scheme_json(const char *text, size_t len, struct why *why)
{
	json_error_t error;
	json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);

	if (root == NULL)
		why_set(why, EBADMSG, "is not JSON: line %d: %s", error.line, SHOWN(error.text));
	return root;
}

bool scheme_number(const struct json_t *value, const char *prefix, uint64_t *out)
{
	const char *s = json_string_value(value);
	uint64_t n = 0;

	if (json_is_integer(value) && json_integer_value(value) >= 0) {
		*out = (uint64_t)json_integer_value(value);
		return true;
	}
	if (s == NULL || strlen(s) != json_string_length(value))
		return false;
	if (prefix != NULL && strncmp(s, prefix, strlen(prefix)) == 0)
		s += strlen(prefix);
	if (*s == '\0' || strspn(s, "0123456789") != strlen(s))
		return false;
	for (; *s != '\0'; s++)
		if (mul_overflows(n, 10, &n) || add_overflows(n, (uint64_t)(*s - '0'), &n) ||
		    n > INT64_MAX)
			return false;
	*out = n;
	return true;
}

/* ---- files ---- */

static bool path_is_plain(const char *path)
{
	const size_t len = strlen(path);

	if (len == 0 || len > SCHEME_FILE_MAX || path[len - 1] == '/')
		return false;
	for (const char *s = path; *s != '\0'; s++) {
		const bool first = s == path || s[-1] == '/';

		if ((unsigned char)*s < 0x20 || *s == 0x7f || *s == '\\')
			return false;
		if (first && (*s == '.' || *s == '/'))
			return false;
	}
	return true;
}

int scheme_file(struct scheme_version *v, const char *path, struct why *why)
{
	const size_t n = v->file_count;

	if (!path_is_plain(path))
		return why_set(why, EBADMSG, "\"%s\" is no plain name in this directory",
			       SHOWN(path));
	if (n > 0 && strcmp(v->files[n - 1], path) == 0)
		return 0;
	/* Room doubles: a full one is a power of two. */
	if ((n & (n - 1)) == 0) {
		char **grown = realloc(v->files, (n > 0 ? 2 * n : 1) * sizeof(*grown));

		if (grown == NULL)
			return why_set(why, ENOMEM, "out of memory");
		v->files = grown;
	}
	v->files[n] = strdup(path);
	if (v->files[n] == NULL)
		return why_set(why, ENOMEM, "out of memory");
	v->file_count++;
	return 0;
}

static int compare_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int compare_sum(const void *a, const void *b)
{
	return strcmp(((const struct scheme_sum *)a)->path, ((const struct scheme_sum *)b)->path);
}

void scheme_files_end(struct scheme_version *v)
{
	size_t kept = 0;

	if (v->file_count > 0)
		qsort(v->files, v->file_count, sizeof(*v->files), compare_text);
	for (size_t i = 0; i < v->file_count; i++) {
		if (kept > 0 && strcmp(v->files[kept - 1], v->files[i]) == 0)
			free(v->files[i]);
		else
			v->files[kept++] = v->files[i];
	}
	v->file_count = kept;
	if (v->sum_count > 0)
		qsort(v->sums, v->sum_count, sizeof(*v->sums), compare_sum);
}

int scheme_sum(struct scheme_version *v, const char *path, enum checksum_kind kind, const char *hex,
	       struct why *why)
{
	const size_t n = v->sum_count;
	struct scheme_sum *sum;

	if (hex == NULL || strlen(hex) != checksum_digits(kind) ||
	    strspn(hex, "0123456789abcdefABCDEF") != strlen(hex))
		return why_set(why, EBADMSG, "\"%s\" has no %s in hex", SHOWN(path),
			       checksum_name(kind));
	if (!path_is_plain(path))
		return 0;
	if ((n & (n - 1)) == 0) {
		sum = reallocarray(v->sums, n > 0 ? 2 * n : 1, sizeof(*sum));
		if (sum == NULL)
			return why_set(why, ENOMEM, "out of memory");
		v->sums = sum;
	}
	sum = &v->sums[n];
	sum->kind = kind;
	snprintf(sum->hex, sizeof(sum->hex), "%s", hex);
	sum->path = strdup(path);
	if (sum->path == NULL)
		return why_set(why, ENOMEM, "out of memory");
	v->sum_count++;
	return 0;
}

/* ---- the tensors of files ---- */

static void add_name(struct scheme_names *n, const char *tensor)
{
	n->count++;
	n->sum += XXH3_64bits(tensor, strlen(tensor));
}

int scheme_names(struct scheme_version *v, json_t *map, struct why *why)
{
	const char *tensor;
	json_t *value;

	v->names = calloc(v->file_count + 1, sizeof(*v->names));
	if (v->names == NULL)
		return why_set(why, ENOMEM, "out of memory");
	json_object_foreach (map, tensor, value) {
		const char *file = json_string_value(value);
		char **at = file != NULL ? bsearch(&file, v->files, v->file_count,
						   sizeof(*v->files), compare_text)
					 : NULL;

		if (at != NULL)
			add_name(&v->names[at - v->files], tensor);
	}
	return 0;
}

bool scheme_names_equal(const struct scheme_names *names, const struct st_header *header)
{
	struct scheme_names have = {0};

	for (size_t i = 0; i < header->count; i++)
		add_name(&have, header->tensors[i].name);
	return have.count == names->count && have.sum == names->sum;
}

int scheme_names_check(const char *text, size_t len, const char *file,
		       const struct st_header *header, bool exact, struct why *why)
{
	json_t *root = scheme_json(text, len, why), *value;
	json_t *map = json_object_get(root, "weight_map");
	const char *tensor;
	int err = root != NULL ? 0 : -EBADMSG;

	json_object_foreach (map, tensor, value) {
		const char *said = json_string_value(value);

		if (said == NULL || strcmp(said, file) != 0 || st_find(header, tensor) != NULL)
			continue;
		err = why_set(why, EBADMSG,
			      "has no tensor \"%s\", and the index beside it puts that there: the "
			      "two are not of one save",
			      SHOWN(tensor));
		break;
	}
	for (size_t i = 0; exact && err == 0 && i < header->count; i++) {
		const char *name = header->tensors[i].name;
		const char *said = json_string_value(json_object_get(map, name));

		if (said == NULL || strcmp(said, file) != 0)
			err = why_set(why, EBADMSG,
				      "has a tensor \"%s\", and the index beside it does not put "
				      "that there: the two are not of one save",
				      SHOWN(name));
	}
	json_decref(root);
	return err;
}

bool scheme_matches(const char *pattern, const char *path)
{
	const char *star = strchr(pattern, '*');
	const size_t before = star != NULL ? (size_t)(star - pattern) : 0;
	size_t len, after;

	if (star == NULL)
		return strcmp(pattern, path) == 0;
	len = strlen(path);
	after = strlen(star + 1);
	return len >= before + after && strncmp(path, pattern, before) == 0 &&
	       strcmp(path + len - after, star + 1) == 0 && strchr(path + before, '/') == NULL;
}
