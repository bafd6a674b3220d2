/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a checkpoint that a trainer has written.
 *
 * Which files of a directory are its weights: those that model.safetensors.index.json names;
 * without one, model.safetensors; without that, every *.safetensors at the top.  An index must
 * agree with the files, since a checkpoint half written is the usual reason why it does not.
 *
 * Files stay open and mapped, so one that is replaced by rename is no danger.  One that is
 * rewritten in place is noticed by its size and time: pub_checkpoint_unchanged() is asked after the
 * last read and before anybody sees the result.
 *
 * One thread makes it; afterwards nothing changes but tensors' hashes and patches, by their owner.
 */
#include "tools/pub_checkpoint.h"

#include "cache/fileio.h"
#include "fs/layout.h"
#include "fs/manifest.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

enum { INDEX_MAX = 256 << 20, FILES_MAX = 100000 };

static const char suffix[] = ".safetensors";

static int out_of_memory(struct why *why)
{
	return why_set(why, ENOMEM, "out of memory");
}

static int cannot(struct why *why, int err, const char *path, const char *what)
{
	return why_set(why, err, "%s cannot be %s: %s", SHOWN(path), what, strerrordesc_np(err));
}

static bool ends_in(const char *name, const char *end)
{
	size_t a = strlen(name), b = strlen(end);

	return a > b && strcmp(name + a - b, end) == 0;
}

/* ---- which files ---- */

struct names {
	char **v;
	size_t count;
};

static void names_release(struct names *n)
{
	for (size_t i = 0; i < n->count; i++)
		free(n->v[i]);
	free(n->v);
}

static int names_add(struct names *n, const char *name)
{
	char **v = reallocarray(n->v, n->count + 1, sizeof(*v));

	if (v == NULL)
		return -ENOMEM;
	n->v = v;
	v[n->count] = strdup(name);
	return v[n->count] != NULL ? (n->count++, 0) : -ENOMEM;
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_unique(struct names *n)
{
	size_t kept = 0;

	if (n->count == 0)
		return;
	qsort(n->v, n->count, sizeof(*n->v), by_text);
	for (size_t i = 1; i < n->count; i++) {
		if (strcmp(n->v[kept], n->v[i]) == 0)
			free(n->v[i]);
		else
			n->v[++kept] = n->v[i];
	}
	n->count = kept + 1;
}

/* The files of an index; *out_map (owned by the caller) is its weight_map. */
static int names_of_index(const char *path, const char *text, size_t len, struct names *out,
			  json_t **out_map, struct why *why)
{
	json_error_t error;
	json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error), *map, *file;
	const char *tensor;
	int ret = 0;

	if (root == NULL)
		return why_set(why, EBADMSG, "%s is not valid JSON (line %d: %s)", SHOWN(path),
			       error.line, error.text);
	map = json_object_get(root, "weight_map");
	if (json_object_size(map) == 0)
		ret = why_set(why, EBADMSG, "%s has no weight_map", SHOWN(path));
	json_object_foreach (map, tensor, file) {
		const char *name = json_string_value(file);

		if (ret < 0)
			break;
		if (name == NULL || !path_is_safe(name) || strchr(name, '/') != NULL ||
		    name[0] == '.' || strlen(name) > MANIFEST_FILE_MAX || !ends_in(name, suffix))
			ret = why_set(why, EBADMSG,
				      "%s: the file of \"%s\" is no name of a .safetensors file "
				      "beside it",
				      SHOWN(path), SHOWN(tensor));
		/* Maps are in the order of tensors, so most repeat the one before. */
		else if (out->count == 0 || strcmp(out->v[out->count - 1], name) != 0)
			ret = names_add(out, name) < 0 ? out_of_memory(why) : 0;
	}
	names_unique(out);
	if (ret == 0)
		*out_map = json_incref(map);
	json_decref(root);
	return ret;
}

static int names_of_dir(const char *path, bool all, struct names *out, struct why *why)
{
	DIR *dir = opendir(path);
	bool single = false;
	struct dirent *e;
	int ret = 0;

	if (dir == NULL)
		return cannot(why, errno, path, "read");
	while (ret == 0 && (e = readdir(dir)) != NULL) {
		if (e->d_name[0] == '.' || !ends_in(e->d_name, suffix))
			continue;
		single |= strcmp(e->d_name, PUB_SINGLE_NAME) == 0;
		ret = names_add(out, e->d_name);
	}
	closedir(dir);
	if (ret == 0 && single && !all) {
		names_release(out);
		*out = (struct names){0};
		ret = names_add(out, PUB_SINGLE_NAME);
	}
	if (ret < 0)
		return out_of_memory(why);
	if (out->count == 0)
		return why_set(why, ENOENT,
			       "%s is no checkpoint: it has neither %s nor other .safetensors "
			       "files",
			       SHOWN(path), PUB_SINGLE_NAME);
	names_unique(out);
	return 0;
}

/* Loaders do not agree on which of the two they take. */
static int check_single(const char *path, const struct names *n, struct why *why)
{
	char *single = path_join(path, PUB_SINGLE_NAME);
	bool there = single != NULL && access(single, F_OK) == 0;

	free(single);
	for (size_t i = 0; there && i < n->count; i++)
		there = strcmp(n->v[i], PUB_SINGLE_NAME) != 0;
	return there ? why_set(why, EBADMSG,
			       "%s has both %s and an index that does not name it: one of them is "
			       "left from an earlier checkpoint and has to be removed",
			       SHOWN(path), PUB_SINGLE_NAME)
		     : 0;
}

/* A run has to be able to name them. */
static int check_names(const char *path, const struct names *n, struct why *why)
{
	for (size_t i = 0; i < n->count; i++) {
		char *key = path_join("anchors", n->v[i]);
		const bool fits = key != NULL && strlen(n->v[i]) <= MANIFEST_FILE_MAX &&
				  manifest_key_ok(key, "safetensors");

		free(key);
		if (!fits)
			return why_set(why, EBADMSG,
				       "%s: a run cannot have a weight file of the name \"%s\" (it "
				       "is too long, or no plain text): rename it",
				       SHOWN(path), SHOWN(n->v[i]));
	}
	return 0;
}

static int find_names(const char *path, struct names *out, json_t **out_map, struct why *why)
{
	char *index = path_join(path, LAYOUT_INDEX_NAME), *text = NULL;
	struct stat st;
	size_t len = 0;
	int ret;

	if (index == NULL)
		return out_of_memory(why);
	if (stat(index, &st) == 0 && !S_ISREG(st.st_mode))
		ret = -ENOTSUP; /* a pipe would keep us waiting */
	else
		ret = file_slurp(AT_FDCWD, index, INDEX_MAX, &text, &len);
	if (ret == -ENOENT)
		ret = names_of_dir(path, false, out, why);
	else if (ret < 0)
		ret = ret == -ENOTSUP
			      ? why_set(why, EBADMSG, "%s is not a regular file", SHOWN(index))
			      : cannot(why, -ret, index, "read");
	else
		ret = names_of_index(index, text, len, out, out_map, why);
	if (ret == 0 && *out_map != NULL)
		ret = check_single(path, out, why);
	if (ret == 0)
		ret = check_names(path, out, why);
	free(text);
	free(index);
	return ret;
}

/* ---- one file ---- */

static int map_file(struct pub_checkpoint *c, size_t i, struct why *why)
{
	struct pub_file *f = &c->files[i];
	struct source src;
	void *map;
	int ret;

	f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (f->fd < 0)
		return cannot(why, errno, f->path, "opened");
	if (fstat(f->fd, &c->stats[i]) < 0)
		return cannot(why, errno, f->path, "read");
	if (!S_ISREG(c->stats[i].st_mode))
		return why_set(why, EBADMSG,
			       "%s is not a regular file (a stream goes to standard input, and - "
			       "stands for it)",
			       SHOWN(f->path));
	ret = source_fd(f->fd, &src);
	if (ret < 0)
		return cannot(why, -ret, f->path, "read");
	f->size = src.size;
	ret = st_read(&src, &c->headers[i], NULL, why);
	if (ret < 0)
		return why_prefix(why, "%s", SHOWN(f->path));
	map = mmap(NULL, (size_t)f->size, PROT_READ, MAP_SHARED, f->fd, 0);
	if (map == MAP_FAILED)
		return cannot(why, errno, f->path, "mapped");
	c->maps[i] = map;
	return 0;
}

static int add_file(struct pub_checkpoint *c, const char *dir, const char *name, struct why *why)
{
	size_t i = c->file_count++;

	c->files[i] = (struct pub_file){.fd = -1};
	c->files[i].name = strdup(name);
	c->files[i].path = dir != NULL ? path_join(dir, name) : strdup(c->path);
	if (c->files[i].name == NULL || c->files[i].path == NULL)
		return out_of_memory(why);
	return map_file(c, i, why);
}

/* ---- all tensors ---- */

struct sortable {
	struct pub_tensor tensor;
	struct pub_place place;
};

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct sortable *)a)->tensor.name,
		      ((const struct sortable *)b)->tensor.name);
}

static void describe(const struct pub_checkpoint *c, size_t file, const struct st_tensor *t,
		     struct sortable *out)
{
	uint64_t off = c->headers[file]->data + t->begin;

	out->place = (struct pub_place){.file = file, .off = off};
	out->tensor = (struct pub_tensor){
		.name = t->name,
		.shape = t->shape,
		.rank = t->rank,
		.dtype = t->dtype,
		.data = c->maps[file] + off,
		.bytes = t->end - t->begin,
	};
}

static int collect(struct pub_checkpoint *c, struct sortable *all, struct why *why)
{
	size_t n = 0;

	for (size_t i = 0; i < c->file_count; i++)
		for (size_t j = 0; j < c->headers[i]->count; j++)
			describe(c, i, &c->headers[i]->tensors[j], &all[n++]);
	qsort(all, n, sizeof(*all), by_name);
	for (size_t i = 0; i < n; i++) {
		c->tensors[i] = all[i].tensor;
		c->places[i] = all[i].place;
		c->bytes += all[i].tensor.bytes;
		c->elements += all[i].tensor.bytes / st_dtype_width(all[i].tensor.dtype);
		if (i > 0 && strcmp(all[i - 1].tensor.name, all[i].tensor.name) == 0)
			return why_set(why, EBADMSG,
				       "%s: the tensor \"%s\" is in both %s and %s: remove the "
				       "stale one, or add an index that leaves it out",
				       SHOWN(c->path), SHOWN(all[i].tensor.name),
				       SHOWN(c->files[all[i - 1].place.file].name),
				       SHOWN(c->files[all[i].place.file].name));
	}
	c->count = n;
	return 0;
}

static int join_tensors(struct pub_checkpoint *c, struct why *why)
{
	struct sortable *all;
	size_t total = 0;
	int ret;

	for (size_t i = 0; i < c->file_count; i++)
		total += c->headers[i]->count;
	all = calloc(total + 1, sizeof(*all));
	c->tensors = calloc(total + 1, sizeof(*c->tensors));
	c->places = calloc(total + 1, sizeof(*c->places));
	if (all == NULL || c->tensors == NULL || c->places == NULL)
		ret = out_of_memory(why);
	else
		ret = collect(c, all, why);
	free(all);
	if (ret == 0 && c->count == 0)
		ret = why_set(why, EBADMSG, "%s has no tensors", SHOWN(c->path));
	return ret;
}

static const struct pub_tensor *find_tensor(const struct pub_checkpoint *c, const char *name)
{
	size_t low = 0, high = c->count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;
		int order = strcmp(name, c->tensors[mid].name);

		if (order == 0)
			return &c->tensors[mid];
		if (order < 0)
			high = mid;
		else
			low = mid + 1;
	}
	return NULL;
}

static int check_index(const struct pub_checkpoint *c, json_t *map, struct why *why)
{
	const char *name;
	json_t *file;

	json_object_foreach (map, name, file) {
		const struct pub_tensor *t = find_tensor(c, name);

		if (t == NULL || strcmp(c->files[c->places[t - c->tensors].file].name,
					json_string_value(file)) != 0)
			return why_set(
				why, EBADMSG,
				"%s: the index says that \"%s\" is in %s, and it is not: "
				"the checkpoint is not complete, or its index is a stale one",
				SHOWN(c->path), SHOWN(name), SHOWN(json_string_value(file)));
	}
	if (json_object_size(map) != c->count)
		return why_set(why, EBADMSG,
			       "%s: the index names %zu tensors and the files have %zu: the "
			       "checkpoint is not complete, or its index is a stale one",
			       SHOWN(c->path), json_object_size(map), c->count);
	return 0;
}

/* ---- opening ---- */

static int open_names(struct pub_checkpoint *c, const char *dir, const struct names *names,
		      struct why *why)
{
	int ret = 0;

	if (names->count > FILES_MAX)
		return why_set(why, E2BIG, "%s has more than %d weight files", SHOWN(c->path),
			       FILES_MAX);
	c->files = calloc(names->count, sizeof(*c->files));
	c->headers = calloc(names->count, sizeof(*c->headers));
	c->maps = calloc(names->count, sizeof(*c->maps));
	c->stats = calloc(names->count, sizeof(*c->stats));
	if (c->files == NULL || c->headers == NULL || c->maps == NULL || c->stats == NULL)
		return out_of_memory(why);
	for (size_t i = 0; ret == 0 && i < names->count; i++)
		ret = add_file(c, dir, names->v[i], why);
	return ret == 0 ? join_tensors(c, why) : ret;
}

static int open_path(struct pub_checkpoint *c, bool copy, struct why *why)
{
	struct names names = {0};
	json_t *map = NULL;
	struct stat st;
	int ret;

	if (stat(c->path, &st) < 0)
		return errno == ENOENT ? why_set(why, ENOENT, "the checkpoint %s does not exist",
						 SHOWN(c->path))
				       : cannot(why, errno, c->path, "read");
	c->is_dir = S_ISDIR(st.st_mode);
	if (c->is_dir)
		ret = copy ? names_of_dir(c->path, true, &names, why)
			   : find_names(c->path, &names, &map, why);
	else
		ret = names_add(&names, PUB_SINGLE_NAME) < 0 ? out_of_memory(why) : 0;
	if (ret == 0)
		ret = open_names(c, c->is_dir ? c->path : NULL, &names, why);
	if (ret == 0 && map != NULL)
		ret = check_index(c, map, why);
	json_decref(map);
	names_release(&names);
	return ret;
}

int pub_checkpoint_open(const char *path, bool copy, struct pub_checkpoint **out, struct why *why)
{
	struct pub_checkpoint *c = calloc(1, sizeof(*c));
	int ret = -ENOMEM;

	if (c != NULL && (c->path = strdup(path)) != NULL)
		ret = open_path(c, copy, why);
	else
		out_of_memory(why);
	if (ret < 0)
		pub_checkpoint_free(c);
	else
		*out = c;
	return ret;
}

void pub_checkpoint_free(struct pub_checkpoint *c)
{
	if (c == NULL)
		return;
	for (size_t i = 0; i < c->file_count; i++) {
		if (c->maps[i] != NULL)
			munmap((void *)c->maps[i], (size_t)c->files[i].size);
		if (c->files[i].fd >= 0)
			close(c->files[i].fd);
		st_free(c->headers[i]);
		free((char *)c->files[i].name);
		free((char *)c->files[i].path);
	}
	free(c->files);
	free(c->headers);
	free(c->maps);
	free(c->stats);
	free(c->tensors);
	free(c->places);
	free(c->path);
	free(c);
}

static int move_file(struct pub_checkpoint *c, size_t i, char *path, struct why *why)
{
	struct pub_file *f = &c->files[i];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st = {0};
	void *map = MAP_FAILED;

	if (fd >= 0 && fstat(fd, &st) == 0 && (uint64_t)st.st_size == f->size)
		map = mmap(NULL, (size_t)f->size, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) {
		cannot(why, errno != 0 ? errno : EIO, path, "read");
		if (fd >= 0)
			close(fd);
		return -why->err;
	}
	munmap((void *)c->maps[i], (size_t)f->size);
	close(f->fd);
	free((char *)f->path);
	c->maps[i] = map;
	c->stats[i] = st;
	f->fd = fd;
	f->path = path;
	return 0;
}

int pub_checkpoint_move(struct pub_checkpoint *c, const char *dir, struct why *why)
{
	int ret = 0;

	for (size_t i = 0; ret == 0 && i < c->file_count; i++) {
		char *path = path_join(dir, c->files[i].name);

		if (path == NULL)
			return out_of_memory(why);
		errno = 0;
		ret = move_file(c, i, path, why);
		if (ret < 0)
			free(path);
	}
	for (size_t i = 0; i < c->count; i++)
		c->tensors[i].data = c->maps[c->places[i].file] + c->places[i].off;
	c->moved = ret == 0;
	return ret;
}

/* ---- questions ---- */

int pub_checkpoint_unchanged(const struct pub_checkpoint *c, struct why *why)
{
	for (size_t i = 0; i < c->file_count; i++) {
		const struct stat *was = &c->stats[i];
		struct stat now;

		if (fstat(c->files[i].fd, &now) < 0)
			return cannot(why, errno, c->files[i].path, "read");
		if (now.st_size != was->st_size || now.st_mtim.tv_sec != was->st_mtim.tv_sec ||
		    now.st_mtim.tv_nsec != was->st_mtim.tv_nsec)
			return why_set(why, ESTALE,
				       "%s was written to while it was read: publish a checkpoint "
				       "when it is finished",
				       SHOWN(c->files[i].path));
	}
	return 0;
}

bool pub_checkpoint_alike(const struct pub_checkpoint *a, const struct pub_checkpoint *b,
			  struct why *why)
{
	size_t i;

	for (i = 0; i < a->count && i < b->count; i++) {
		const struct pub_tensor *x = &a->tensors[i], *y = &b->tensors[i];
		int order = strcmp(x->name, y->name);

		if (order != 0) {
			why_set(why, EINVAL, "the tensor \"%s\" is %s",
				SHOWN(order < 0 ? x->name : y->name), order < 0 ? "new" : "gone");
			return false;
		}
		if (x->dtype != y->dtype || x->rank != y->rank ||
		    memcmp(x->shape, y->shape, x->rank * sizeof(*x->shape)) != 0) {
			why_set(why, EINVAL, "the tensor \"%s\" has another dtype or shape",
				SHOWN(x->name));
			return false;
		}
	}
	if (a->count == b->count)
		return true;
	why_set(why, EINVAL, "the tensor \"%s\" is %s",
		SHOWN(i < a->count ? a->tensors[i].name : b->tensors[i].name),
		i < a->count ? "new" : "gone");
	return false;
}

int pub_state_hash(const struct pub_tensor *tensors, size_t count, char out[33])
{
	XXH3_state_t *state = XXH3_createState();
	XXH128_canonical_t canonical;

	if (state == NULL)
		return -ENOMEM;
	XXH3_128bits_reset(state);
	for (size_t i = 0; i < count; i++) {
		const char *dtype = st_dtype_name(tensors[i].dtype);

		XXH3_128bits_update(state, tensors[i].name, strlen(tensors[i].name) + 1);
		XXH3_128bits_update(state, dtype, strlen(dtype) + 1);
		XXH3_128bits_update(state, tensors[i].hash.bytes, 16);
	}
	XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
	manifest_hex(canonical.digest, out);
	XXH3_freeState(state);
	return 0;
}
