/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache directory of one run, and its stand-in in memory.
 *
 * On disk a file is made as tmp.<pid>.<count> and takes its name by rename once it is written, so
 * other processes only see whole files; it is synced after that (cache/syncer.h), and what a power
 * cut leaves of it does not have its hash.  In memory a file is a memfd, and the names are kept in
 * a table.  One may turn into the other once, disk into memory: at the start when the directory
 * cannot be made or written, later when it has been deleted or become unwritable under us (logged
 * once).  Files on disk that can still be read stay readable.  A full disk is no such turn.
 *
 * The lock guards the tables and nothing slow: descriptors are opened, written, synced and closed
 * outside of it.  `in_memory` is atomic and only ever becomes true.
 *
 * Not here: what the files hold, which are worth keeping, any limit of size.
 */
#include "cache/cachedir.h"

#include <assert.h>
#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "cache/clock.h"
#include "cache/fileio.h"
#include "cache/lock.h"
#include "cache/log.h"
#include "cache/syncer.h"
#include "cache/table.h"
#include "cache/temps.h"

/* A file being written: where its bytes are going.  Found by descriptor. */
struct temp {
	int fd;
	char name[TEMPS_NAME]; /* "": in memory */
};

/* A committed file in memory.  Found by name. */
struct memory_file {
	char *name;
	int fd;
};

struct cachedir {
	char *path;
	int dirfd;	/* -1: never had a directory */
	bool in_memory; /* atomic */
	unsigned count; /* atomic; temp files made */
	struct syncer *syncer;
	struct lock lock;    /* guards what follows */
	struct table *temps; /* fd → struct temp */
	struct table *files; /* name → struct memory_file */
	bool warned_full;    /* atomic */
};

/* ---- opening ---- */

char *cachedir_default(void)
{
	const char *dir = secure_getenv("WEIGHTFS_CACHE_DIR");

	if (dir != NULL && dir[0] != '\0')
		return strdup(dir);
	if (geteuid() == 0)
		return strdup("/var/cache/weightfs");
	dir = secure_getenv("XDG_CACHE_HOME");
	if (dir != NULL && dir[0] == '/') /* its specification: ignore relative ones */
		return path_join(dir, "weightfs");
	dir = secure_getenv("HOME");
	if (dir != NULL && dir[0] == '/')
		return path_join(dir, ".cache/weightfs");
	return NULL;
}

static void run_name(const char *run, char out[33])
{
	XXH128_hash_t h = XXH3_128bits(run, strlen(run));

	snprintf(out, 33, "%016llx%016llx", (unsigned long long)h.high64,
		 (unsigned long long)h.low64);
}

/* Makes and opens the directory and tries that it can be written; -errno. */
static int open_dir(struct cachedir *d, const char *parent, const char *run)
{
	char name[33], temp[TEMPS_NAME];
	int fd, rc;

	run_name(run, name);
	d->path = path_join(parent, name);
	if (d->path == NULL)
		return -ENOMEM;
	rc = file_mkdirs(d->path);
	if (rc < 0)
		return rc;
	d->dirfd = open(d->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (d->dirfd < 0)
		return -errno;
	fd = temps_create(d->dirfd, &d->count, temp);
	if (fd < 0)
		return fd;
	unlinkat(d->dirfd, temp, 0);
	close(fd);
	temps_sweep(d->dirfd); /* there may be no space for a version otherwise */
	return 0;
}

static int choose_place(struct cachedir *d, const char *parent, const char *run, struct why *why)
{
	char *fallback = parent == NULL ? cachedir_default() : NULL;
	char shown[256];
	int rc;

	if (parent == NULL)
		parent = fallback;
	if (parent == NULL) {
		d->in_memory = true;
		why_set(why, ENOENT,
			"there is no place for a cache directory (HOME is not set): patches are "
			"kept in memory; give one with --cache-dir");
		return 0;
	}
	rc = open_dir(d, parent, run);
	if (rc < 0 && rc != -ENOMEM) {
		d->in_memory = true;
		why_set(why, -rc,
			"cache directory '%s' cannot be used (%s): patches are kept in memory; "
			"give another one with --cache-dir",
			printable(shown, sizeof(shown), parent, strlen(parent)),
			strerrordesc_np(-rc));
		rc = 0;
	}
	free(fallback);
	return rc;
}

int cachedir_open(const char *parent, const char *run, struct cachedir **out, bool *out_in_memory,
		  struct why *why)
{
	struct cachedir *d = calloc(1, sizeof(*d));
	int rc = -ENOMEM;

	if (d == NULL)
		return why_set(why, ENOMEM, "out of memory");
	d->dirfd = -1;
	lock_init(&d->lock, LOCK_SHARD);
	d->temps = table_new();
	d->files = table_new();
	d->syncer = syncer_new();
	if (d->temps != NULL && d->files != NULL && d->syncer != NULL)
		rc = choose_place(d, parent, run, why);
	if (rc < 0) {
		cachedir_close(d);
		return why_set(why, ENOMEM, "out of memory");
	}
	*out_in_memory = d->in_memory;
	*out = d;
	return 0;
}

static void drop_temp(struct cachedir *d, struct temp *t)
{
	if (t->name[0] != '\0')
		unlinkat(d->dirfd, t->name, 0);
	close(t->fd);
	free(t);
}

static void drop_left_temp(void *value, void *ctx)
{
	drop_temp(ctx, value);
}

static void free_memory_file(void *value, void *ctx)
{
	struct memory_file *f = value;

	close(f->fd);
	free(f->name);
	free(f);
}

void cachedir_close(struct cachedir *d)
{
	if (d == NULL)
		return;
	syncer_free(d->syncer);
	if (d->temps != NULL)
		table_each(d->temps, drop_left_temp, d);
	if (d->files != NULL)
		table_each(d->files, free_memory_file, NULL);
	table_free(d->temps);
	table_free(d->files);
	lock_destroy(&d->lock);
	if (d->dirfd >= 0)
		close(d->dirfd);
	free(d->path);
	free(d);
}

/* ---- from disk to memory ---- */

static bool is_in_memory(struct cachedir *d)
{
	return __atomic_load_n(&d->in_memory, __ATOMIC_ACQUIRE);
}

static void switch_to_memory(struct cachedir *d, int err)
{
	char shown[256];

	if (__atomic_exchange_n(&d->in_memory, true, __ATOMIC_ACQ_REL))
		return;
	log_warning("cache directory '%s' cannot be used any more (%s): patches are kept in memory "
		    "from now on",
		    printable(shown, sizeof(shown), d->path, strlen(d->path)),
		    strerrordesc_np(err));
}

static bool dir_is_gone(const struct cachedir *d)
{
	struct stat st;

	return fstat(d->dirfd, &st) == 0 && st.st_nlink == 0;
}

/* Puts a file's descriptor under its name, which replaces an older one of that name. */
static int keep_in_memory(struct cachedir *d, const char *name, int fd)
{
	struct memory_file *f = calloc(1, sizeof(*f)), *old;
	int rc = -ENOMEM;

	if (f == NULL)
		return -ENOMEM;
	f->fd = fd;
	f->name = strdup(name);
	if (f->name == NULL) {
		free(f);
		return -ENOMEM;
	}
	lock_take(&d->lock);
	old = table_get_str(d->files, name);
	rc = table_put_str(d->files, name, f);
	lock_release(&d->lock);
	if (rc < 0) {
		free(f->name);
		free(f);
	} else if (old != NULL) {
		free_memory_file(old, NULL);
	}
	return rc;
}

/* ---- files ---- */

static bool is_full(int err)
{
	return err == -ENOSPC || err == -EDQUOT;
}

static int new_memory_file(void)
{
	int fd = memfd_create("weightfs-cache", MFD_CLOEXEC);

	return fd >= 0 ? fd : -errno;
}

static void warn_full(struct cachedir *d, int err)
{
	char shown[256];

	if (__atomic_exchange_n(&d->warned_full, true, __ATOMIC_RELAXED))
		return;
	log_warning("cache directory '%s' is full (%s): patches are kept in memory while it is",
		    printable(shown, sizeof(shown), d->path, strlen(d->path)),
		    strerrordesc_np(-err));
}

int cachedir_create(struct cachedir *d, int *out_fd)
{
	struct temp *t = calloc(1, sizeof(*t));
	int fd = -1, rc;

	if (t == NULL)
		return -ENOMEM;
	if (!is_in_memory(d)) {
		fd = temps_create(d->dirfd, &d->count, t->name);
		if (fd == -ENOENT || fd == -EROFS || fd == -EACCES || fd == -EPERM)
			switch_to_memory(d, -fd);
		else if (is_full(fd))
			warn_full(d, fd);
	}
	if ((is_in_memory(d) || is_full(fd)) && fd < 0) {
		t->name[0] = '\0';
		fd = new_memory_file();
	}
	if (fd < 0) {
		free(t);
		return fd;
	}
	t->fd = fd;
	lock_take(&d->lock);
	rc = table_put(d->temps, (uint64_t)fd, t);
	lock_release(&d->lock);
	if (rc < 0)
		drop_temp(d, t);
	else
		*out_fd = fd;
	return rc;
}

bool cachedir_spill(struct cachedir *d, int fd, int err)
{
	struct temp *t;
	int memory;

	lock_take(&d->lock);
	t = table_get(d->temps, (uint64_t)fd);
	lock_release(&d->lock);
	if (t == NULL || t->name[0] == '\0' || !is_full(err))
		return false;
	memory = new_memory_file();
	if (memory < 0)
		return false;
	/* The place of the old file's descriptor, whose space comes back with that. */
	err = dup3(memory, fd, O_CLOEXEC);
	close(memory);
	if (err < 0)
		return false;
	unlinkat(d->dirfd, t->name, 0);
	t->name[0] = '\0';
	warn_full(d, -ENOSPC);
	return true;
}

/* The temp file of fd, which is the caller's from here on. */
static struct temp *take_temp(struct cachedir *d, int fd)
{
	struct temp *t;

	lock_take(&d->lock);
	t = table_remove(d->temps, (uint64_t)fd);
	lock_release(&d->lock);
	assert(t != NULL);
	return t;
}

static bool name_is_fine(const char *name)
{
	size_t len = strlen(name);

	if (len == 0 || len > NAME_MAX || name[0] == '.' || temps_named(name))
		return false;
	for (size_t i = 0; i < len; i++)
		if (!isalnum((unsigned char)name[i]) && strchr("._-", name[i]) == NULL)
			return false;
	return true;
}

/* Gives a finished temp file its name.  *kept: fd went into the table of files in memory. */
static int publish(struct cachedir *d, int fd, struct temp *t, const char *name, bool *kept)
{
	int rc = 0;

	if (t->name[0] != '\0') {
		if (renameat(d->dirfd, t->name, d->dirfd, name) == 0) {
			t->name[0] = '\0';
			return 0;
		}
		/* Removed, or the name cannot be had: as if it were removed after the commit. */
		unlinkat(d->dirfd, t->name, 0);
		t->name[0] = '\0';
		if (!dir_is_gone(d))
			return 0;
		/* Or the directory with all that is in it; the open file lives on. */
		switch_to_memory(d, ENOENT);
	}
	rc = keep_in_memory(d, name, fd);
	*kept = rc == 0;
	return rc;
}

int cachedir_commit(struct cachedir *d, int fd, const char *name, uint64_t size,
		    struct mapping **out)
{
	struct temp *t = take_temp(d, fd);
	struct mapping *m = NULL;
	bool kept = false;
	int rc = 0;

	if (t == NULL || !name_is_fine(name))
		rc = -EINVAL;
	else if (size > INT64_MAX)
		rc = -EFBIG;
	else if (ftruncate(fd, (off_t)size) < 0)
		rc = -errno;
	/* Mapped before it is published: after that nothing can fail but the disk. */
	if (rc == 0)
		rc = mapping_new(fd, size, &m);
	if (rc == 0)
		rc = publish(d, fd, t, name, &kept);
	if (rc < 0 && t != NULL && t->name[0] != '\0')
		unlinkat(d->dirfd, t->name, 0);
	if (rc == 0 && !kept)
		syncer_take(d->syncer, fd, m, name);
	else if (!kept)
		close(fd);
	free(t);
	if (rc < 0)
		mapping_unref(m);
	else
		*out = m;
	return rc;
}

void cachedir_abort(struct cachedir *d, int fd)
{
	struct temp *t = take_temp(d, fd);

	if (t != NULL)
		drop_temp(d, t);
}

void cachedir_note(struct cachedir *d, const char *name, const void *bytes, size_t len, bool append)
{
	const int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	char temp[TEMPS_NAME];
	bool whole;
	int fd = -1;

	if (name_is_fine(name) && !is_in_memory(d))
		fd = append ? openat(d->dirfd, name, flags, 0600)
			    : temps_create(d->dirfd, &d->count, temp);
	if (fd < 0)
		return;
	/* One write, so that what several processes append does not mix. */
	whole = write(fd, bytes, len) == (ssize_t)len;
	if (!append && (!whole || renameat(d->dirfd, temp, d->dirfd, name) < 0))
		unlinkat(d->dirfd, temp, 0);
	close(fd);
}

/* A descriptor of a file in memory (a duplicate, so that a removal meanwhile does not matter). */
static int open_in_memory(struct cachedir *d, const char *name)
{
	const struct memory_file *f;
	int fd = -ENOENT;

	lock_take(&d->lock);
	f = table_get_str(d->files, name);
	if (f != NULL) {
		fd = fcntl(f->fd, F_DUPFD_CLOEXEC, 0);
		if (fd < 0)
			fd = -errno;
	}
	lock_release(&d->lock);
	return fd;
}

int cachedir_map(struct cachedir *d, const char *name, struct mapping **out)
{
	struct stat st;
	int fd, rc;

	if (!name_is_fine(name))
		return -EINVAL;
	fd = open_in_memory(d, name);
	if (fd == -ENOENT && d->dirfd >= 0) {
		fd = openat(d->dirfd, name,
			    O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
		if (fd < 0)
			fd = -errno;
	}
	if (fd < 0)
		return fd;
	if (fstat(fd, &st) < 0)
		rc = -errno;
	else if (!S_ISREG(st.st_mode))
		rc = -EINVAL;
	else
		rc = mapping_new(fd, (uint64_t)st.st_size, out);
	close(fd);
	return rc;
}

void cachedir_remove(struct cachedir *d, const char *name)
{
	struct memory_file *f;

	if (!name_is_fine(name))
		return;
	lock_take(&d->lock);
	f = table_remove_str(d->files, name);
	lock_release(&d->lock);
	if (f != NULL)
		free_memory_file(f, NULL);
	if (d->dirfd >= 0)
		unlinkat(d->dirfd, name, 0);
}

/* ---- sweeping ---- */

/* Collects names under the lock, so that keep() is called without it. */
struct names {
	char **v;
	size_t count;
};

static void collect_name(void *value, void *ctx)
{
	const struct memory_file *f = value;
	struct names *names = ctx;
	char *copy = strdup(f->name);

	if (copy != NULL)
		names->v[names->count++] = copy;
}

static void sweep_memory(struct cachedir *d, bool (*keep)(const char *name, void *ctx), void *ctx)
{
	struct names names = {0};

	lock_take(&d->lock);
	names.v = calloc(table_count(d->files) + 1, sizeof(*names.v));
	if (names.v != NULL)
		table_each(d->files, collect_name, &names);
	lock_release(&d->lock);
	for (size_t i = 0; i < names.count; i++) {
		if (!keep(names.v[i], ctx))
			cachedir_remove(d, names.v[i]);
		free(names.v[i]);
	}
	free(names.v);
}

static void sweep_disk(struct cachedir *d, bool (*keep)(const char *name, void *ctx), void *ctx)
{
	DIR *dir = file_opendir(d->dirfd, ".");
	const struct dirent *de;

	if (dir == NULL)
		return;
	while ((de = readdir(dir)) != NULL) {
		bool stay = true;

		if (name_is_fine(de->d_name))
			stay = keep(de->d_name, ctx);
		if (!stay)
			unlinkat(d->dirfd, de->d_name, 0);
	}
	closedir(dir);
}

void cachedir_sweep(struct cachedir *d, bool (*keep)(const char *name, void *ctx), void *ctx)
{
	sweep_memory(d, keep, ctx);
	if (d->dirfd < 0)
		return;
	temps_sweep(d->dirfd);
	sweep_disk(d, keep, ctx);
}
