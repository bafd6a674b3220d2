/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The patch file that a fold is: the patches of several links, tensor by tensor merged into one.
 *
 * Tensor after tensor, so that memory is that of one patch's blocks whatever the model's size; what
 * lies below a full tensor inside the group is left out.  Where the file goes and how it is called
 * is fs/fold.c's.
 *
 * No state; the run's thread.
 */
#include "fs/run_internal.h"

#include "cache/fileio.h"

#include <stdlib.h>

/* The patches of tensor t among the links, oldest first. */
static size_t patches_of(struct link *const *links, uint32_t n, uint32_t t, uint64_t from,
			 const struct patch **out)
{
	size_t k = 0;

	for (uint32_t i = 0; i < n; i++)
		if (links[i]->slot != NULL && links[i]->slot[t] >= 0 && links[i]->last > from)
			out[k++] = &links[i]->file->patches[links[i]->slot[t]];
	return k;
}

int fold_merge(int fd, const char *name, struct link *const *links, uint32_t n,
	       const uint64_t *from, const struct layout *layout, uint64_t *out_size,
	       struct why *why)
{
	const struct st_meta meta[] = {{"name", name}};
	const char **names =
		calloc(layout->tensor_count ? layout->tensor_count : 1, sizeof(char *));
	uint32_t *tensors =
		calloc(layout->tensor_count ? layout->tensor_count : 1, sizeof(*tensors));
	const struct patch **patches = calloc(n ? n : 1, sizeof(struct patch *));
	struct patch_file_writer *w = NULL;
	struct sink sink = sink_fd(&fd);
	size_t count = 0;
	int err = names == NULL || tensors == NULL || patches == NULL ? -ENOMEM : 0;

	for (uint32_t t = 0; err == 0 && t < layout->tensor_count; t++)
		if (patches_of(links, n, t, from[t], patches) > 0) {
			tensors[count] = t;
			names[count++] = layout->tensors[t].name;
		}
	if (err == 0)
		err = patch_file_writer_new(names, count, meta, ARRAY_LEN(meta), &sink, &w, why);
	for (size_t i = 0; err == 0 && i < count; i++) {
		size_t k = patches_of(links, n, tensors[i], from[tensors[i]], patches);
		uint64_t len = 0;

		err = patch_merge(patches, k, patch_file_writer_sink(w), patch_file_writer_at(w),
				  &len, NULL, why);
		if (err == 0)
			err = patch_file_writer_took(w, i, len);
	}
	for (uint32_t i = 0; i < n; i++)
		if (link_broken(links[i]))
			err = why_set(why, EIO, "a patch in the cache directory cannot be read");
	if (err == 0)
		err = patch_file_end(w, fd, out_size, why);
	patch_file_writer_free(w);
	free(names);
	free(tensors);
	free(patches);
	return err;
}

int fold_last_fulls(struct run *r, size_t first, size_t n, const struct target *target,
		    uint64_t **out, struct why *why)
{
	const uint32_t tensors = target->layout->tensor_count;
	uint64_t *from = calloc(tensors ? tensors : 1, sizeof(*from));
	const struct object *o;
	int err = from == NULL ? why_set(why, ENOMEM, "out of memory") : 0;

	for (size_t i = first; err == 0 && i < first + n; i++)
		for (size_t k = 0; !step_is_native(&r->lineage.steps[i]) &&
				   (o = step_above(&r->lineage.steps[i], k)) != NULL;
		     k++) {
			const uint64_t number = r->lineage.steps[i].number;
			struct exam *e = exam_get(r, o);

			err = e != NULL && e->state == EXAM_OK
				      ? exam_match(r, e, o, number, target, false)
				      : -EAGAIN;
			if (err < 0 && e != NULL)
				*why = e->why;
			for (size_t f = 0; err == 0 && f < e->full_count; f++)
				from[e->fulls[f].tensor] = number;
			if (err < 0)
				break;
		}
	if (err == 0)
		*out = from;
	else
		free(from);
	return err;
}
