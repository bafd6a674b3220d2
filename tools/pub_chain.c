/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The local state's patch files (codec/patch_file.h), one for each version since the weights were
 * copied.
 *
 * They are read a window at a time, together with the copy, so a state costs the time of its
 * changes: some milliseconds a version for each gigabyte.  Nothing is checked here beyond what
 * makes reading safe, since the hash of the bytes that come out is compared anyway.
 */
#include "tools/pub_chain.h"

#include "cache/fileio.h"
#include "cache/mapping.h"
#include "codec/patch_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int by_name(const void *name, const void *tensor)
{
	return strcmp(name, ((const struct pub_tensor *)tensor)->name);
}

static int map_file(const char *path, struct mapping **out, struct why *why)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), ret;
	struct stat st;

	ret = fd < 0 || fstat(fd, &st) < 0 ? -errno : mapping_new(fd, (uint64_t)st.st_size, out);
	if (fd >= 0)
		close(fd);
	return ret < 0 ? why_set(why, -ret, "%s cannot be read: %s", SHOWN(path),
				 strerrordesc_np(-ret))
		       : 0;
}

static int add_patches(struct pub_chain *c, size_t n, size_t total,
		       const struct pub_checkpoint *base, struct why *why)
{
	const struct patch_file *f = c->files[n];

	for (size_t i = 0; i < f->count; i++) {
		const struct pub_tensor *t = bsearch(f->header->tensors[i].name, base->tensors,
						     base->count, sizeof(*base->tensors), by_name);

		if (t == NULL || f->patches[i].width != st_dtype_width(t->dtype) ||
		    f->patches[i].numel != t->bytes / f->patches[i].width)
			return why_set(why, EBADMSG, "it does not fit the weights");
		c->patches[(size_t)(t - base->tensors) * total + n] = &f->patches[i];
	}
	return 0;
}

static int add_file(struct pub_chain *c, const char *dir, const char *name, size_t total,
		    const struct pub_checkpoint *base, struct why *why)
{
	char *path = path_join(dir, name);
	size_t n = c->count;
	int ret;

	if (path == NULL)
		return why_set(why, ENOMEM, "out of memory");
	ret = map_file(path, &c->maps[n], why);
	if (ret == 0) {
		c->count++;
		c->bytes += c->maps[n]->size;
		ret = patch_file_open(c->maps[n]->bytes, c->maps[n]->size, false, &c->files[n],
				      why);
		if (ret == 0)
			ret = add_patches(c, n, total, base, why);
		if (ret < 0)
			why_prefix(why, "%s", SHOWN(path));
	}
	free(path);
	return ret;
}

int pub_chain_open(const char *dir, const json_t *names, const struct pub_checkpoint *base,
		   struct pub_chain *out, struct why *why)
{
	const size_t total = json_array_size(names);
	const json_t *value;
	size_t i;
	int ret = 0;

	if (total == 0)
		return 0;
	if (total > PUB_CHAIN_MAX)
		return why_set(why, EBADMSG, "there are more patches than a publisher keeps");
	out->patches = calloc(base->count * total + 1, sizeof(const struct patch *));
	if (out->patches == NULL)
		return why_set(why, ENOMEM, "out of memory");
	json_array_foreach (names, i, value) {
		const char *name = json_string_value(value);

		if (name == NULL || strchr(name, '/') != NULL || name[0] == '.')
			ret = why_set(why, EBADMSG, "a patch has no valid name");
		if (ret == 0)
			ret = add_file(out, dir, name, total, base, why);
	}
	return ret;
}

void pub_chain_release(struct pub_chain *c)
{
	for (size_t i = 0; i < c->count; i++) {
		patch_file_free(c->files[i]);
		mapping_unref(c->maps[i]);
	}
	free(c->patches);
	*c = (struct pub_chain){0};
}

int pub_chain_apply(const struct pub_chain *c, size_t tensor, uint64_t at, void *bytes, size_t len)
{
	int ret = 0;

	for (size_t i = 0; ret == 0 && i < c->count; i++) {
		const struct patch *p = c->patches[tensor * c->count + i];

		if (p == NULL)
			continue;
		ret = patch_apply(p, at, bytes, len);
		mapping_touch(c->maps[i], patch_cost(p, at, len));
	}
	return ret;
}

static int write_blobs(struct patch_file_writer *w, const struct pub_tensor *tensors, size_t count)
{
	const struct sink *sink = patch_file_writer_sink(w);
	size_t index = 0;
	int ret = 0;

	for (size_t i = 0; ret == 0 && i < count; i++) {
		const struct pub_tensor *t = &tensors[i];

		if (t->patch == NULL)
			continue;
		ret = sink->write(sink->ctx, patch_file_writer_at(w), t->blob, t->blob_len);
		if (ret == 0)
			ret = patch_file_writer_took(w, index++, t->blob_len);
	}
	return ret;
}

static int write_file(int fd, const struct pub_tensor *tensors, size_t count, const char **names,
		      struct why *why)
{
	struct patch_file_writer *w = NULL;
	struct sink sink = sink_fd(&fd);
	uint64_t size = 0;
	size_t n = 0;
	int ret;

	for (size_t i = 0; i < count; i++)
		if (tensors[i].patch != NULL)
			names[n++] = tensors[i].name;
	ret = patch_file_writer_new(names, n, NULL, 0, &sink, &w, why);
	if (ret == 0)
		ret = write_blobs(w, tensors, count);
	if (ret == 0)
		ret = patch_file_end(w, fd, &size, why);
	if (ret == 0 && ftruncate(fd, (off_t)size) < 0)
		ret = -errno;
	patch_file_writer_free(w);
	return ret;
}

int pub_chain_save(const char *path, const struct pub_tensor *tensors, size_t count,
		   struct why *why)
{
	const char **names = calloc(count + 1, sizeof(*names));
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), ret;

	if (names == NULL)
		ret = -ENOMEM;
	else
		ret = fd < 0 ? -errno : write_file(fd, tensors, count, names, why);
	if (ret < 0)
		why_set(why, -ret, "the publisher's state %s cannot be written: %s", SHOWN(path),
			strerrordesc_np(-ret));
	if (fd >= 0)
		close(fd);
	if (ret < 0)
		unlink(path);
	free(names);
	return ret;
}
