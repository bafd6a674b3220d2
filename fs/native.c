/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Published patch files: downloaded into the cache directory as they are, checked whole, and used.
 *
 * Nothing is transcoded, so the file in the cache is the object byte for byte, under a name made of
 * its identity; a restart finds it and checks it again.  The check is the file's own hash, then
 * every blob's directory and payload (patch_file_check()), and that each blob fits the tensor as it
 * is stored below: which tensor it is, its elements and their width.
 *
 * The whole object is wanted at once, so that the network has many ranges under way while the first
 * are written.
 */
#include "fs/run_internal.h"

#include "cache/fileio.h"

#include <stdlib.h>

enum { NATIVE_PIECE = 512 << 10 }; /* written while the next one comes */

static int copy(struct blob *blob, int fd, struct why *why)
{
	const struct block_range all = {0, blob->size};
	struct sink sink = sink_fd(&fd);
	uint8_t *piece = malloc(NATIVE_PIECE);
	int err = piece == NULL ? why_set(why, ENOMEM, "out of memory") : 0;

	if (err == 0)
		blob_want(blob, &all, 1);
	for (uint64_t at = 0; err == 0 && at < blob->size;) {
		size_t len = (size_t)MIN(blob->size - at, (uint64_t)NATIVE_PIECE);

		err = blob_read(blob, at, piece, len);
		if (err < 0) {
			why_set(why, -err, "cannot be read");
			break;
		}
		err = sink.write(sink.ctx, at, piece, len);
		if (err < 0)
			why_set(why, -err, "cannot be written to the cache directory");
		at += len;
	}
	free(piece);
	return err;
}

int native_fetch(struct cachedir *cache, struct blob *blob, int *out_fd, struct why *why)
{
	int fd, err = cachedir_create(cache, &fd);

	if (err < 0)
		return why_set(why, -err, "no file for it can be made in the cache directory");
	err = copy(blob, fd, why);
	if (err < 0 && cachedir_spill(cache, fd, err)) {
		*why = (struct why){0};
		err = copy(blob, fd, why);
	}
	if (err < 0)
		cachedir_abort(cache, fd);
	else
		*out_fd = fd;
	return err;
}

static int download(struct run *r, struct blob *blob, const char *name, struct mapping **out,
		    struct why *why)
{
	struct cachedir *cache = r->config.cache;
	int fd, err = native_fetch(cache, blob, &fd, why);

	if (err < 0)
		return err;
	err = cachedir_commit(cache, fd, name, blob->size, out);
	if (err < 0)
		return why_set(why, -err, "it cannot be stored in the cache directory%s",
			       err == -ENOSPC ? " (no space left)" : "");
	return 0;
}

/* The layout tensor of each of the file's, in name order, which is that of the parts. */
int native_targets(struct run *r, const struct delta *d, const struct layout *l, uint32_t **out,
		   struct why *why)
{
	uint32_t *targets = calloc(d->count + 1, sizeof(*targets));
	int err = targets == NULL ? why_set(why, ENOMEM, "out of memory") : 0;

	for (size_t i = 0; i < d->count && err == 0; i++)
		err = exam_target(r, l, d, &d->parts[i], &targets[i], why);
	if (err < 0)
		free(targets);
	else
		*out = targets;
	return err;
}

/* A patch is for elements as they are stored, whatever they are shown as. */
static int check_widths(const struct link *l, const struct target *target, struct why *why)
{
	for (uint32_t t = 0; t < target->layout->tensor_count; t++) {
		const uint8_t dtype = target->now->v[t].dtype;
		const struct patch *p;

		if (l->slot == NULL || l->slot[t] < 0)
			continue;
		p = &l->file->patches[l->slot[t]];
		if (p->width != st_dtype_width(dtype))
			return why_set(
				why, EBADMSG,
				"the patch of \"%s\" has elements of %u bytes, the tensor is "
				"stored as %s",
				SHOWN(target->layout->tensors[t].name), p->width,
				st_dtype_name(dtype));
	}
	return 0;
}

int native_open(uint64_t number, struct mapping *mapping, const char *name,
		const struct target *target, const uint32_t *targets, struct link **out,
		struct why *why)
{
	struct link *link = NULL;
	int err =
		link_new(number, number, mapping, true, name, target->layout, targets, &link, why);

	if (err == 0)
		err = check_widths(link, target, why);
	if (err < 0)
		link_unref(link);
	else
		*out = link;
	return err;
}

int native_link(struct run *r, const struct delta *d, struct blob *blob, uint64_t number,
		const struct target *target, const char *name, struct link **out, struct why *why)
{
	struct mapping *mapping = NULL;
	uint32_t *targets = NULL;
	int err = native_targets(r, d, target->layout, &targets, why);

	if (err < 0)
		return err;
	if (cachedir_map(r->config.cache, name, &mapping) == 0) {
		err = native_open(number, mapping, name, target, targets, out, NULL);
		if (err == 0)
			goto out;
		cachedir_remove(r->config.cache, name); /* damaged: get it again */
	}
	err = download(r, blob, name, &mapping, why);
	if (err == 0) {
		err = native_open(number, mapping, name, target, targets, out, why);
		if (err < 0)
			cachedir_remove(r->config.cache, name);
	}
out:
	free(targets);
	return err;
}
