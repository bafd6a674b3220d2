/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What comes with a checkpoint but is none of its weight files: the stream that one can come as,
 * and the companions beside it.
 *
 * A stream is written to a file first, since a safetensors file says in front what comes at its
 * end, and a publisher reads tensors in an order of its own.
 *
 * Companions are every visible regular file that holds no weights, is none that a run has for
 * itself, and is not of a run or of a publisher's state below the checkpoint.  The same rule, on
 * the other side, says what a mount shows (fs/companions.c).
 *
 * No state; one thread.
 */
#include "tools/pub_checkpoint.h"

#include "cache/store.h"
#include "cache/fileio.h"
#include "fs/companions.h"
#include "fs/layout.h"
#include "fs/lineage.h"
#include "fs/manifest.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>

enum { SPOOL_WINDOW = 1 << 20 };

static int out_of_memory(struct why *why)
{
	return why_set(why, ENOMEM, "out of memory");
}

static int cannot(struct why *why, int err, const char *path, const char *what)
{
	return why_set(why, err, "%s cannot be %s: %s", SHOWN(path), what, strerrordesc_np(err));
}

/* ---- streams ---- */

int pub_checkpoint_spool(int fd, const char *path, struct progress *progress,
			 const volatile bool *stop, struct why *why)
{
	int to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), ret = 0;
	char *window = malloc(SPOOL_WINDOW);
	uint64_t at = 0;

	if (to < 0 || window == NULL)
		ret = to < 0 ? cannot(why, errno, path, "made") : out_of_memory(why);
	while (ret == 0) {
		ssize_t n = read(fd, window, SPOOL_WINDOW);

		if (*stop)
			ret = why_set(why, EINTR, "interrupted; nothing was published");
		else if (n < 0 && errno == EINTR)
			continue;
		else if (n < 0)
			ret = why_set(why, errno, "standard input cannot be read: %s",
				      strerrordesc_np(errno));
		else if (n == 0)
			break;
		else if ((ret = file_pwrite(to, window, (size_t)n, at)) < 0)
			cannot(why, -ret, path, "written");
		else
			at += (uint64_t)n;
		if (ret == 0 && progress != NULL)
			progress_add(progress, (uint64_t)n);
	}
	if (to >= 0)
		close(to);
	free(window);
	return ret;
}

/* ---- companions ---- */

static bool is_companion(const struct object *o, const struct pub_apart *apart)
{
	static const char leases[] = "leases/";
	const char *name = strrchr(o->key, '/');

	name = name != NULL ? name + 1 : o->key;
	return o->err == 0 && !pub_apart_has(apart, o->key) && !companions_weights(name) &&
	       !lineage_owns(o->key) && strcmp(name, LAYOUT_INDEX_NAME) != 0 &&
	       strcmp(o->key, MANIFEST_KEY) != 0 && strcmp(o->key, "index.json") != 0 &&
	       strncmp(o->key, leases, strlen(leases)) != 0;
}

static int hash_file(int fd, uint64_t size, char *window, char out[33])
{
	XXH3_state_t *state = XXH3_createState();
	XXH128_canonical_t canonical;
	int ret = state != NULL ? 0 : -ENOMEM;

	if (state != NULL)
		XXH3_128bits_reset(state);
	for (uint64_t at = 0; ret == 0 && at < size; at += SPOOL_WINDOW) {
		size_t len = (size_t)MIN(size - at, (uint64_t)SPOOL_WINDOW);

		ret = file_pread(fd, window, len, at);
		if (ret == 0)
			XXH3_128bits_update(state, window, len);
	}
	if (ret == 0) {
		XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
		manifest_hex(canonical.digest, out);
	}
	XXH3_freeState(state);
	return ret;
}

static int add_companion(struct pub_companions *c, const char *dir, const struct object *o,
			 char *window, struct why *why)
{
	struct pub_file *f = &c->files[c->count];
	int ret;

	f->path = path_join(dir, o->key);
	f->name = strdup(o->key);
	f->fd = f->path != NULL ? open(f->path, O_RDONLY | O_CLOEXEC | O_NOCTTY) : -1;
	ret = f->fd < 0 ? -errno : 0;
	c->count++;
	if (f->path == NULL || f->name == NULL)
		return out_of_memory(why);
	f->size = o->size;
	c->times[c->count - 1] = o->mtime_ns;
	if (ret == 0)
		ret = hash_file(f->fd, f->size, window, c->hashes[c->count - 1]);
	return ret == 0 ? 0 : cannot(why, -ret, f->path, "read");
}

static int add_all(struct pub_companions *c, const char *dir, const struct listing *l,
		   const struct pub_apart *apart, struct why *why)
{
	char *window = malloc(SPOOL_WINDOW);
	int ret = 0;

	c->files = calloc(l->count + 1, sizeof(*c->files));
	c->hashes = calloc(l->count + 1, sizeof(*c->hashes));
	c->times = calloc(l->count + 1, sizeof(*c->times));
	if (window == NULL || c->files == NULL || c->hashes == NULL || c->times == NULL)
		ret = out_of_memory(why);
	for (size_t i = 0; ret == 0 && i < l->count; i++)
		if (is_companion(&l->v[i], apart))
			ret = add_companion(c, dir, &l->v[i], window, why);
	free(window);
	return ret;
}

int pub_companions_open(const struct pub_checkpoint *c, const struct pub_places *places,
			struct pub_companions *out, struct why *why)
{
	struct pub_apart apart = {0};
	struct listing l = {0};
	struct store *s = NULL;
	int ret;

	if (!c->is_dir)
		return 0;
	ret = store_dir_new(c->path, true, &s, why);
	if (ret == 0)
		ret = store_list(s, "", &l, why);
	if (ret == 0 && pub_apart_make(places, c->path, &l, &apart) < 0)
		ret = out_of_memory(why);
	if (ret == 0)
		ret = add_all(out, c->path, &l, &apart, why);
	pub_apart_release(&apart);
	listing_release(&l);
	store_free(s);
	return ret;
}

void pub_companions_release(struct pub_companions *c)
{
	for (size_t i = 0; i < c->count; i++) {
		if (c->files[i].fd >= 0)
			close(c->files[i].fd);
		free((char *)c->files[i].name);
		free((char *)c->files[i].path);
	}
	free(c->files);
	free(c->hashes);
	free(c->times);
	*c = (struct pub_companions){0};
}
