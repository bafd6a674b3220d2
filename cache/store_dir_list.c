/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listing a directory store.
 *
 * A walk from the root with one descriptor per level; each name costs a stat and an access check
 * and nothing that grows with the number of names, then one sort.  What cannot be used is listed
 * with its error, so that somebody can say so; what vanishes during the walk is left out; an error
 * that would leave the listing incomplete (EIO, out of descriptors) fails it as a whole.
 *
 * Links to directories are followed inside the root only.  A circle is cut where a directory
 * would lie below itself, and so many links in all, since a few of them can unfold to
 * exponentially many paths.
 *
 * The root is held by descriptor, so it may be renamed.  When there is another directory at its
 * path (the old one moved away or deleted and a run started anew, or something mounted there), that
 * takes its place, watch included.
 */
#include "cache/store_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

enum { LINKS_MAX = 4096 }; /* links to directories followed in one listing */

struct walk {
	struct dir_store *d;
	const char *prefix;
	size_t prefix_len;
	struct object *v;
	size_t count, cap;
	unsigned links;
	struct {
		dev_t dev;
		ino_t ino;
	} above[DIR_DEPTH_MAX + 1];
	size_t len; /* of path, the key of what is looked at */
	char path[PATH_MAX + NAME_MAX + 2];
};

static int walk_dir(struct walk *w, int fd, unsigned depth);

static bool name_is_utf8(const char *name)
{
	const unsigned char *s = (const unsigned char *)name;

	while (*s != '\0') {
		unsigned n = *s < 0x80 ? 0 : *s >= 0xf0 ? 3 : *s >= 0xe0 ? 2 : *s >= 0xc2 ? 1 : 9;
		uint32_t c = n == 0 ? *s : *s & (0x3fu >> n);

		if (n == 9 || *s > 0xf4)
			return false;
		s++;
		for (unsigned i = 0; i < n; i++, s++) {
			if ((*s & 0xc0) != 0x80)
				return false;
			c = c << 6 | (*s & 0x3f);
		}
		if ((n == 2 && (c < 0x800 || (c >= 0xd800 && c < 0xe000))) ||
		    (n == 3 && (c < 0x10000 || c > 0x10ffff)))
			return false;
	}
	return true;
}

/*
 * Adds what w->path names: an object, when it has the prefix, or an error; that also on the way to
 * the prefix, since something with the prefix may lie behind it.
 */
static int add(struct walk *w, const struct stat *st, int err)
{
	struct object *o;

	if (st != NULL && strncmp(w->path, w->prefix, w->prefix_len) != 0)
		return 0;
	if (w->count == w->cap) {
		size_t cap = w->cap ? w->cap * 2 : 64;
		struct object *v = reallocarray(w->v, cap, sizeof(*v));

		if (v == NULL)
			return -ENOMEM;
		w->v = v;
		w->cap = cap;
	}
	o = &w->v[w->count];
	memset(o, 0, sizeof(*o));
	o->key = strdup(w->path);
	if (o->key == NULL)
		return -ENOMEM;
	o->err = err;
	if (st != NULL)
		store_dir_stat(st, o);
	w->count++;
	return 0;
}

/* An error met at one name: fine to list, or a reason to give up. */
static int add_failed(struct walk *w, int err)
{
	switch (err) {
	case EPERM:
	case EACCES: return add(w, NULL, EACCES);
	case ELOOP:
	case ENAMETOOLONG: return add(w, NULL, err);
	default: return -err;
	}
}

static bool vanished(int err)
{
	return err == ENOENT || err == ENOTDIR || err == ESTALE;
}

/* Somebody who looks for an object of that name should be told why there is none. */
static bool looks_like_weights(const char *name)
{
	static const char suffix[] = ".safetensors";
	size_t len = strlen(name);

	return len >= sizeof(suffix) - 1 && strcmp(name + len - (sizeof(suffix) - 1), suffix) == 0;
}

static int visit_dir(struct walk *w, int dirfd, const char *name, unsigned depth, bool link)
{
	const size_t before = w->count;
	int fd, err;

	if (depth >= DIR_DEPTH_MAX)
		return add(w, NULL, ENAMETOOLONG);
	if (link && w->links++ >= LINKS_MAX)
		return add(w, NULL, ELOOP);
	if (link) {
		fd = store_dir_open_beneath(w->d, w->path, O_RDONLY | O_DIRECTORY);
		err = -fd;
	} else {
		fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		err = errno;
	}
	if (fd >= 0) {
		err = walk_dir(w, fd, depth + 1);
		return err == 0 && w->count == before && looks_like_weights(name)
			       ? add(w, NULL, EISDIR)
			       : err;
	}
	if (vanished(err) || (!link && err == ELOOP)) /* a link has taken its place meanwhile */
		return 0;
	return add_failed(w, err);
}

static int visit_file(struct walk *w, int dirfd, const char *name, const struct stat *st)
{
	if (!S_ISREG(st->st_mode))
		return add(w, st, ENXIO);
	if (faccessat(dirfd, name, R_OK, AT_EACCESS) == 0)
		return add(w, st, 0);
	if (vanished(errno))
		return 0;
	return errno == EACCES ? add(w, st, EACCES) : add_failed(w, errno);
}

/* What a link leads to, looked at without opening it for reading; 0 or -errno. */
static int stat_target(struct walk *w, int dirfd, const char *name, struct stat *st)
{
	int fd, rc = 0;

	if (w->d->follow)
		return fstatat(dirfd, name, st, 0) < 0 ? -errno : 0;
	fd = store_dir_open_beneath(w->d, w->path, O_PATH);
	if (fd < 0)
		return fd;
	if (fstat(fd, st) < 0)
		rc = -errno;
	close(fd);
	return rc;
}

static int visit_link(struct walk *w, int dirfd, const char *name, unsigned depth)
{
	struct stat st;
	int rc = stat_target(w, dirfd, name, &st);

	if (rc < 0 && vanished(-rc)) {
		if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			return vanished(errno) ? 0 : add_failed(w, errno);
		return add(w, NULL, ENOENT);
	}
	if (rc < 0)
		return add_failed(w, -rc);
	if (S_ISDIR(st.st_mode))
		return visit_dir(w, dirfd, name, depth, true);
	return visit_file(w, dirfd, name, &st);
}

static int visit(struct walk *w, int dirfd, const struct dirent *de, unsigned depth)
{
	struct stat st;

	if (w->len >= PATH_MAX)
		return add(w, NULL, ENAMETOOLONG);
	if (!name_is_utf8(de->d_name))
		return add(w, NULL, EILSEQ);
	if (de->d_type == DT_DIR)
		return visit_dir(w, dirfd, de->d_name, depth, false);
	if (fstatat(dirfd, de->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return vanished(errno) ? 0 : add_failed(w, errno);
	if (S_ISDIR(st.st_mode))
		return visit_dir(w, dirfd, de->d_name, depth, false);
	if (S_ISLNK(st.st_mode))
		return visit_link(w, dirfd, de->d_name, depth);
	return visit_file(w, dirfd, de->d_name, &st);
}

/* May w->path, or something below it, have the prefix? */
static bool may_match(const struct walk *w)
{
	if (strncmp(w->path, w->prefix, MIN(w->len, w->prefix_len)) != 0)
		return false;
	return w->len >= w->prefix_len || w->prefix[w->len] == '/';
}

static int walk_names(struct walk *w, DIR *dir, unsigned depth)
{
	size_t before = w->len;

	for (;;) {
		const struct dirent *de;
		size_t name_len;
		int rc = 0;

		errno = 0;
		de = readdir(dir);
		if (de == NULL)
			return vanished(errno) ? 0 : -errno;
		if (de->d_name[0] == '.')
			continue;
		name_len = strlen(de->d_name);
		if (before > 0)
			w->path[w->len++] = '/';
		memcpy(w->path + w->len, de->d_name, name_len + 1);
		w->len += name_len;
		if (may_match(w))
			rc = visit(w, dirfd(dir), de, depth);
		w->len = before;
		w->path[before] = '\0';
		if (rc < 0)
			return rc;
	}
}

/* Walks the directory behind fd, which it closes. */
static int walk_dir(struct walk *w, int fd, unsigned depth)
{
	struct stat st;
	DIR *dir;
	int rc;

	if (fstat(fd, &st) < 0) {
		rc = -errno;
		close(fd);
		return rc;
	}
	for (unsigned i = 0; i < depth; i++) {
		if (w->above[i].dev != st.st_dev || w->above[i].ino != st.st_ino)
			continue;
		close(fd);
		return add(w, NULL, ELOOP);
	}
	w->above[depth].dev = st.st_dev;
	w->above[depth].ino = st.st_ino;
	dir = fdopendir(fd);
	if (dir == NULL) {
		rc = -errno;
		close(fd);
		return rc;
	}
	rc = walk_names(w, dir, depth);
	closedir(dir);
	return rc;
}

/* A fresh descriptor of what is at the root's path now, which becomes the root; of the old one,
 * while there is nothing. */
static int open_root(struct dir_store *d)
{
	int fd = open(d->real, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc;
	struct stat old, now;

	if (fstat(d->root_fd, &old) < 0 || (fd >= 0 && fstat(fd, &now) < 0)) {
		rc = -errno;
		goto failed;
	}
	if (fd < 0) {
		rc = -errno;
		if (old.st_nlink == 0)
			goto failed;
		fd = openat(d->root_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		return fd >= 0 ? fd : -errno;
	}
	if (now.st_dev == old.st_dev && now.st_ino == old.st_ino)
		return fd;
	if (dup3(fd, d->root_fd, O_CLOEXEC) < 0) {
		rc = -errno;
		goto failed;
	}
	store_dir_watch_rescan(d); /* before reading names, so that nothing falls in between */
	return fd;
failed:
	if (fd >= 0)
		close(fd);
	return rc;
}

static int compare_objects(const void *a, const void *b)
{
	return strcmp(((const struct object *)a)->key, ((const struct object *)b)->key);
}

/* Sorts, and drops names that readdir() has told twice because of a rename in between. */
static void sort_unique(struct walk *w)
{
	size_t kept = 0;

	if (w->count == 0)
		return;
	qsort(w->v, w->count, sizeof(w->v[0]), compare_objects);
	for (size_t i = 1; i < w->count; i++) {
		if (strcmp(w->v[i].key, w->v[kept].key) == 0)
			free(w->v[i].key);
		else
			w->v[++kept] = w->v[i];
	}
	w->count = kept + 1;
}

int store_dir_list(struct store *s, const char *prefix, struct listing *out, struct why *why)
{
	struct walk *w = calloc(1, sizeof(*w));
	struct listing found;
	char shown[256];
	int fd, rc;

	if (w == NULL)
		return why_set(why, ENOMEM, "out of memory");
	w->d = (struct dir_store *)s;
	w->prefix = prefix;
	w->prefix_len = strlen(prefix);
	fd = open_root(w->d);
	rc = fd < 0 ? fd : walk_dir(w, fd, 0);
	sort_unique(w);
	found = (struct listing){.v = w->v, .count = w->count};
	free(w);
	if (rc == 0) {
		*out = found;
		return 0;
	}
	listing_release(&found);
	return why_set(why, -rc, "directory '%s' cannot be listed: %s",
		       printable(shown, sizeof(shown), s->name, strlen(s->name)),
		       strerrordesc_np(-rc));
}
