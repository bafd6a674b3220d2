/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directories that are left out of checkpoints.
 *
 * A run is known by its pointer; the one that is published may not have one yet, so it is known by
 * its place, as the state is.  Places are compared by their real paths.
 *
 * No state; one thread.
 */
#include "tools/pub_apart.h"

#include "fs/manifest.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static int add(struct pub_apart *a, const char *name, size_t len)
{
	char **v = reallocarray(a->v, a->count + 1, sizeof(*v));

	if (v == NULL)
		return -ENOMEM;
	a->v = v;
	v[a->count] = strndup(name, len);
	return v[a->count] != NULL ? (a->count++, 0) : -ENOMEM;
}

/* The one that is `top` itself, or above it, is not below it. */
static int add_place(struct pub_apart *a, const char *top, const char *place)
{
	char *real = place != NULL ? realpath(place, NULL) : NULL;
	size_t len = strlen(top);
	int ret = 0;

	if (len > 0 && top[len - 1] == '/')
		len--; /* the root */
	if (real != NULL && strncmp(real, top, len) == 0 && real[len] == '/' &&
	    real[len + 1] != '\0')
		ret = add(a, real + len + 1, strlen(real + len + 1));
	free(real);
	return ret;
}

int pub_apart_make(const struct pub_places *places, const char *top, const struct listing *l,
		   struct pub_apart *out)
{
	static const char pointer[] = "/" MANIFEST_KEY;
	char *real = realpath(top, NULL);
	int ret = 0;

	for (size_t i = 0; real != NULL && ret == 0 && i < PUB_PLACES; i++)
		ret = add_place(out, real, places->v[i]);
	for (size_t i = 0; ret == 0 && i < l->count; i++) {
		const char *key = l->v[i].key;
		const size_t len = strlen(key), tail = strlen(pointer);

		if (len > tail && strcmp(key + len - tail, pointer) == 0)
			ret = add(out, key, len - tail);
	}
	free(real);
	return ret;
}

bool pub_apart_has(const struct pub_apart *a, const char *key)
{
	for (size_t i = 0; i < a->count; i++) {
		const size_t len = strlen(a->v[i]);

		if (strncmp(key, a->v[i], len) == 0 && key[len] == '/')
			return true;
	}
	return false;
}

void pub_apart_release(struct pub_apart *a)
{
	for (size_t i = 0; i < a->count; i++)
		free(a->v[i]);
	free(a->v);
	*a = (struct pub_apart){0};
}
