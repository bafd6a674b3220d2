/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pointer object of a run.
 *
 * A read is a listing of one key, which gives the identity, and the object at that identity; when
 * it was replaced in between it is read again.  A write is conditional on the identity, so whoever
 * read first and writes second is refused and has to look again.
 *
 * No state, no threads.  Blocks.
 */
#include "tools/pointer.h"

#include <stdlib.h>

enum { TRIES = 20 };

static int unusable(struct why *why)
{
	const struct why what = *why;

	return why_set(why, EBADMSG,
		       "%.350s; put back a good copy of it, or remove it and begin a new run "
		       "(publish --new-run)",
		       what.text);
}

static int read_at(struct store *store, const struct object *o, struct pointer *out,
		   struct why *why)
{
	struct handle *h = NULL;
	char *text = NULL;
	int ret;

	if (o->size > MANIFEST_MAX)
		return why_set(why, EFBIG, "%s of %s is larger than any that a publisher writes",
			       MANIFEST_KEY, store->name);
	ret = store_open(store, o, &h, why);
	if (ret < 0)
		return ret;
	text = malloc((size_t)o->size + 1);
	if (text == NULL)
		ret = why_set(why, ENOMEM, "out of memory");
	else
		ret = store_read(h, 0, text, (size_t)o->size);
	if (ret < 0 && text != NULL)
		why_set(why, -ret, "%s of %s cannot be read: %s", MANIFEST_KEY, store->name,
			strerrordesc_np(-ret));
	if (ret == 0) {
		ret = manifest_parse(text, (size_t)o->size, &out->manifest, why);
		if (ret < 0)
			why_prefix(why, "%s of %s", MANIFEST_KEY, store->name);
		if (ret == -EBADMSG)
			ret = unusable(why);
	}
	out->id = o->id;
	out->size = o->size;
	free(text);
	store_close(h);
	return ret;
}

int pointer_read(struct store *store, struct pointer *out, struct why *why)
{
	int ret = -ESTALE;

	for (int i = 0; i < TRIES && (ret == -ESTALE || ret == -ENOENT); i++) {
		struct listing l = {0};
		const struct object *o;

		ret = store_list(store, MANIFEST_KEY, &l, why);
		if (ret < 0)
			break;
		*out = (struct pointer){0};
		o = listing_find(&l, MANIFEST_KEY);
		ret = o != NULL ? read_at(store, o, out, why) : 0;
		listing_release(&l);
	}
	return ret;
}

void pointer_release(struct pointer *p)
{
	manifest_free(p->manifest);
	*p = (struct pointer){0};
}

/* For stores without conditions. */
static int check_and_put(struct store *store, const struct pointer *was, const struct source *src,
			 struct why *why)
{
	struct pointer now = {0};
	int ret = pointer_read(store, &now, why);

	if (ret == 0 && (now.manifest != NULL) != (was->manifest != NULL))
		ret = why_set(why, ESTALE, "%s of %s has changed meanwhile", MANIFEST_KEY,
			      store->name);
	else if (ret == 0 && now.manifest != NULL && !identity_equal(&now.id, &was->id))
		ret = why_set(why, ESTALE, "%s of %s has been replaced meanwhile", MANIFEST_KEY,
			      store->name);
	pointer_release(&now);
	return ret == 0 ? store_put(store, MANIFEST_KEY, src, why) : ret;
}

int pointer_write(struct store *store, const struct pointer *was, const struct buf *text,
		  struct why *why)
{
	const struct source src = source_memory(text->data, text->len);
	const struct put_condition condition = {
		.absent = was->manifest == NULL,
		.replace = was->manifest != NULL ? &was->id : NULL,
	};
	int ret = store_put_if(store, MANIFEST_KEY, &src, &condition, why);

	return ret == -ENOTSUP ? check_and_put(store, was, &src, why) : ret;
}
