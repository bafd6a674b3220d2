/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links and sources: the two reference-counted parts that states share.
 *
 * A link is a mapped patch file matched once to a layout: after that, finding the patch of a tensor
 * is one array access.  Consecutive versions share all links but the newest, and share the sources
 * as long as no full tensor arrives, so keeping sixteen versions costs little more than one.
 */
#include "fs/state.h"

#include "fs/kernel.h"

#include <stdlib.h>

struct sources *sources_ref(struct sources *s)
{
	__atomic_fetch_add(&s->refs, 1, __ATOMIC_RELAXED);
	return s;
}

void sources_unref(struct sources *s)
{
	if (s == NULL || __atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	for (uint32_t i = 0; i < s->blob_count; i++)
		blob_unref(s->blobs[i]);
	free(s->blobs);
	free(s->v);
	free(s);
}

/* Does the patch change the tensor by its elements, or by its bytes? */
static bool fits(const struct patch *p, const struct layout_tensor *t)
{
	const uint64_t numel = layout_patch_numel(t);

	return p->numel == numel || (p->width == 1 && numel > 0 && p->numel % numel == 0 &&
				     p->numel / numel <= st_dtype_width(t->dtype));
}

static int match(struct link *l, const struct layout *layout, const uint32_t *targets,
		 struct why *why)
{
	uint32_t at = 0;

	l->slot = malloc((layout->tensor_count ? layout->tensor_count : 1) * sizeof(*l->slot));
	if (l->slot == NULL)
		return why_set(why, ENOMEM, "out of memory");
	for (uint32_t i = 0; i < layout->tensor_count; i++)
		l->slot[i] = -1;
	for (size_t k = 0; k < l->file->count; k++) {
		const size_t i = l->file->header->by_name[k];
		const char *name = l->file->header->tensors[i].name;
		const struct patch *p = &l->file->patches[i];
		uint32_t t = targets != NULL ? targets[k] : layout_next(layout, name, &at);

		if (targets != NULL && t == LAYOUT_NONE)
			continue;
		if (t == LAYOUT_NONE)
			return why_set(why, EBADMSG, "patch of an unknown tensor \"%s\"",
				       SHOWN(name));
		if (!fits(p, &layout->tensors[t]))
			return why_set(why, EBADMSG,
				       "patch of \"%s\" is for %llu elements, the tensor has %llu",
				       SHOWN(name), (unsigned long long)p->numel,
				       (unsigned long long)layout_patch_numel(&layout->tensors[t]));
		if (p->width > st_dtype_width(layout->tensors[t].dtype))
			return why_set(why, EBADMSG,
				       "patch of \"%s\" has elements of %u bytes, the tensor is %s",
				       SHOWN(name), p->width,
				       st_dtype_name(layout->tensors[t].dtype));
		l->slot[t] = (int32_t)i;
		l->changed += p->changed;
	}
	return 0;
}

/* A file says what its name was when it was made: under another it is somebody's mistake. */
static int check_name(const struct link *l, struct why *why)
{
	const char *name = st_meta(l->file->header, "name");

	if (name != NULL && strcmp(name, l->name) != 0)
		return why_set(why, EBADMSG, "is another patch's file");
	return 0;
}

int link_new(uint64_t first, uint64_t last, struct mapping *mapping, bool check, const char *name,
	     const struct layout *layout, const uint32_t *targets, struct link **out,
	     struct why *why)
{
	struct link *l = calloc(1, sizeof(*l));
	int err;

	if (l == NULL) {
		mapping_unref(mapping);
		return why_set(why, ENOMEM, "out of memory");
	}
	l->refs = 1;
	l->first = first;
	l->last = last;
	l->mapping = mapping;
	if (mapping != NULL) {
		l->name = name != NULL ? strdup(name) : NULL;
		err = name != NULL && l->name == NULL
			      ? why_set(why, ENOMEM, "out of memory")
			      : patch_file_open(mapping->bytes, mapping->size, false, &l->file,
						why);
		if (err == 0)
			patch_file_use(l->file, kernel_chosen());
		if (err == 0 && check)
			err = patch_file_check(l->file, why);
		if (err == 0 && check && l->name != NULL)
			err = check_name(l, why);
		if (err == 0)
			err = match(l, layout, targets, why);
		if (mapping_broken(mapping))
			err = why_set(why, EIO, "its patch in the cache directory cannot be read");
		/* All of it has just been looked at; what readers need comes back by itself. */
		mapping_touch(mapping, mapping->size);
		if (err < 0) {
			link_unref(l);
			return err;
		}
	}
	*out = l;
	return 0;
}

bool link_broken(const struct link *l)
{
	if (l->mapping == NULL)
		return false;
	mapping_probe(l->mapping);
	return mapping_broken(l->mapping);
}

struct link *link_ref(struct link *l)
{
	__atomic_fetch_add(&l->refs, 1, __ATOMIC_RELAXED);
	return l;
}

void link_unref(struct link *l)
{
	if (l == NULL || __atomic_sub_fetch(&l->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	patch_file_free(l->file);
	mapping_unref(l->mapping);
	free(l->slot);
	free(l->name);
	free(l);
}
