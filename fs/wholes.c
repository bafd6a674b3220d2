/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole files on disk: find, check, write, make room.
 *
 * The name is the record: it has the hash of the content, so there is no moment at which a file is
 * there and what is known of it is not.  Finding one costs a scan of a directory of a few names.
 *
 * Writing: space is taken first (a full disk is known before the first byte), then the bytes, a
 * sync, the pages are dropped and read again, so that what is compared is what the disk has, and
 * what is in the page cache afterwards is the file.  Two writers of one file exclude each other by
 * the flock() on the temp file; the second finds the result when it gets there.
 * A lock that is had may be on a file that has been removed meanwhile: st_nlink says so.
 * Not here: what is written when (fs/prepare.c), and the kernel's part (fs/node_whole.c).
 */
#include "fs/wholes.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "cache/fileio.h"
#include "cache/log.h"

enum { CHUNK = 4 << 20, NAME_SIZE = 100, HEX = 32, WAIT_MS = 100 };
static const uint64_t FLOOR_MAX = UINT64_C(1) << 30; /* left free, or 5 % where that is less */

struct wholes {
	struct wholes_config config;
	char *path;
	int dir;
	uint8_t *chunk;	      /* CHUNK bytes */
	struct identity *got; /* versions, for wholes_tidy() */
	size_t got_count;
};

struct found { /* a complete file in the directory */
	char name[NAME_SIZE];
	int64_t used_s;
	uint64_t bytes;
};

struct found_list {
	struct found *v;
	size_t count;
	uint64_t bytes;
};

/* ---- the directory ---- */

static bool is_hex(const char *s)
{
	return strspn(s, "0123456789abcdef") >= HEX;
}

/* "<32 hex>.<digits>.<32 hex>" */
static bool is_ours(const char *name)
{
	size_t len = strlen(name), digits;

	if (len >= NAME_SIZE || !is_hex(name) || name[HEX] != '.')
		return false;
	digits = strspn(name + HEX + 1, "0123456789");
	return digits > 0 && len == HEX + 1 + digits + 1 + HEX && name[HEX + 1 + digits] == '.' &&
	       is_hex(name + HEX + 2 + digits);
}

static void prefix_of(const struct identity *fingerprint, uint32_t file, char out[NAME_SIZE])
{
	char hex[33];

	identity_hex(fingerprint, hex);
	snprintf(out, NAME_SIZE, "%s.%u.", hex, file);
}

/* Calls fn for every name until it returns true. */
static bool each_name(struct wholes *w, bool (*fn)(struct wholes *w, const char *name, void *ctx),
		      void *ctx)
{
	DIR *dir = file_opendir(w->dir, ".");
	const struct dirent *de;
	bool found = false;

	if (dir == NULL)
		return false;
	while (!found && (de = readdir(dir)) != NULL)
		found = fn(w, de->d_name, ctx);
	closedir(dir);
	return found;
}

/* Opens a file and locks it so; -errno, -EWOULDBLOCK: somebody has it, -ENOENT: it was removed,
 * -EBADMSG: it is no file. */
static int open_locked(struct wholes *w, const char *name, int flags, int lock)
{
	/* Whatever lies there: a pipe must not make us wait. */
	int fd = openat(w->dir, name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600), ret = 0;
	struct stat st;

	if (fd < 0)
		return errno == ELOOP || errno == EISDIR || errno == ENXIO ? -EBADMSG : -errno;
	if (flock(fd, lock | LOCK_NB) < 0 || fstat(fd, &st) < 0)
		ret = -errno;
	else if (st.st_nlink == 0)
		ret = -ENOENT;
	else if (!S_ISREG(st.st_mode))
		ret = -EBADMSG;
	if (ret < 0)
		close(fd);
	return ret < 0 ? ret : fd;
}

/* Removes what has a name of ours but not what it says; a directory only when it is empty. */
static int remove_bad(struct wholes *w, const char *name)
{
	if (unlinkat(w->dir, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno == EISDIR && unlinkat(w->dir, name, AT_REMOVEDIR) == 0)
		return 0;
	return -errno;
}

/* Removes a file unless somebody uses it. */
static bool remove_unused(struct wholes *w, const char *name)
{
	int fd = open_locked(w, name, O_RDONLY, LOCK_EX);
	bool gone;

	if (fd == -EBADMSG)
		return remove_bad(w, name) == 0;
	if (fd < 0)
		return false;
	gone = unlinkat(w->dir, name, 0) == 0;
	close(fd);
	return gone;
}

static bool sweep_one(struct wholes *w, const char *name, void *ctx)
{
	if (strncmp(name, "tmp.", 4) == 0)
		(void)remove_unused(w, name);
	return false;
}

/* Makes the directory where it is missing. */
static int open_directory(struct wholes *w)
{
	int ret = file_mkdirs(w->path), fd;

	if (ret < 0)
		return ret;
	fd = open(w->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (w->dir >= 0)
		close(w->dir);
	w->dir = fd;
	return faccessat(fd, ".", W_OK, AT_EACCESS) < 0 ? -errno : 0;
}

/* The cache directory may be deleted at any time. */
static bool was_removed(const struct wholes *w)
{
	struct stat st;

	return fstat(w->dir, &st) == 0 && st.st_nlink == 0;
}

int wholes_new(const struct wholes_config *config, struct wholes **out, struct why *why)
{
	struct wholes *w = calloc(1, sizeof(*w));
	int ret = -ENOMEM;

	if (w != NULL) {
		w->config = *config;
		w->dir = -1;
		w->path = path_join(config->parent, "whole");
		w->chunk = aligned_alloc(4096, CHUNK);
		ret = w->path != NULL && w->chunk != NULL ? 0 : -ENOMEM;
	}
	if (ret == 0)
		ret = open_directory(w);
	if (ret < 0) {
		why_set(why, -ret, "%s/whole cannot be written: %s", config->parent,
			strerrordesc_np(-ret));
		wholes_free(w);
		return ret;
	}
	each_name(w, sweep_one, NULL);
	*out = w;
	return 0;
}

void wholes_free(struct wholes *w)
{
	if (w == NULL)
		return;
	if (w->dir >= 0)
		close(w->dir);
	free(w->got);
	free(w->chunk);
	free(w->path);
	free(w);
}

const char *wholes_path(const struct wholes *w)
{
	return w->path;
}

/* ---- finding and checking ---- */

struct wanted {
	char prefix[NAME_SIZE], name[NAME_SIZE];
};

static bool name_matches(struct wholes *w, const char *name, void *ctx)
{
	struct wanted *want = ctx;

	if (!is_ours(name) || strncmp(name, want->prefix, strlen(want->prefix)) != 0)
		return false;
	snprintf(want->name, sizeof(want->name), "%s", name);
	return true;
}

static bool find(struct wholes *w, const struct state *s, uint32_t file, struct wanted *out)
{
	prefix_of(&s->fingerprint, file, out->prefix);
	return each_name(w, name_matches, out);
}

static bool stopped(const struct wholes *w)
{
	return w->config.stopped != NULL && w->config.stopped(w->config.ctx);
}

static void hash_hex(XXH3_state_t *state, char out[HEX + 1])
{
	XXH128_hash_t h = XXH3_128bits_digest(state);

	snprintf(out, HEX + 1, "%016llx%016llx", (unsigned long long)h.high64,
		 (unsigned long long)h.low64);
}

/* The hash of a file as the disk has it. */
static int hash_file(struct wholes *w, int fd, uint64_t size, char out[HEX + 1])
{
	XXH3_state_t *state = XXH3_createState();
	int ret = state != NULL ? 0 : -ENOMEM;

	if (ret == 0)
		XXH3_128bits_reset(state);
	for (uint64_t at = 0; ret == 0 && at < size;) {
		size_t n = (size_t)MIN(size - at, (uint64_t)CHUNK);

		ret = stopped(w) ? -ECANCELED : file_pread(fd, w->chunk, n, at);
		if (ret == 0)
			XXH3_128bits_update(state, w->chunk, n);
		at += n;
	}
	if (ret == 0)
		hash_hex(state, out);
	XXH3_freeState(state);
	return ret;
}

/* Opens a complete file, with a shared lock, once its bytes are what its name says. */
static int open_checked(struct wholes *w, const char *name, uint64_t size, int *out_fd)
{
	int fd = open_locked(w, name, O_RDONLY, LOCK_SH), ret = 0;
	char hash[HEX + 1] = "";
	struct stat st;

	if (fd < 0)
		return fd;
	if (fstat(fd, &st) < 0)
		ret = -errno;
	else if ((uint64_t)st.st_size != size)
		ret = -EBADMSG;
	else
		ret = hash_file(w, fd, size, hash);
	if (ret == 0 && strcmp(hash, name + strlen(name) - HEX) != 0)
		ret = -EBADMSG;
	if (ret < 0) {
		close(fd);
		return ret;
	}
	(void)futimens(fd, NULL); /* used now */
	*out_fd = fd;
	return 0;
}

/* ---- writing ---- */

static int write_bytes(struct wholes *w, const struct state *s, uint32_t file, int fd,
		       char hash[HEX + 1])
{
	const uint64_t size = s->layout->files[file].size;
	XXH3_state_t *state = XXH3_createState();
	int ret = state != NULL ? 0 : -ENOMEM;

	if (ret == 0) {
		XXH3_128bits_reset(state);
		/* Not every file system can; then it shows while it is written. */
		if (size > 0 && fallocate(fd, 0, 0, (off_t)size) < 0 &&
		    (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
			ret = -errno;
	}
	for (uint64_t at = 0; ret == 0 && at < size;) {
		size_t n = (size_t)MIN(size - at, (uint64_t)CHUNK);

		ret = stopped(w) ? -ECANCELED : state_read(s, file, at, w->chunk, n);
		if (ret == 0)
			ret = file_pwrite(fd, w->chunk, n, at);
		if (ret == 0)
			XXH3_128bits_update(state, w->chunk, n);
		at += n;
	}
	if (ret == 0)
		hash_hex(state, hash);
	XXH3_freeState(state);
	return ret;
}

/* Syncs, reads it all again, and gives it its name. */
static int finish(struct wholes *w, int fd, uint64_t size, const char *temp, const char *prefix,
		  const char *hash, char name[NAME_SIZE])
{
	char again[HEX + 1];
	int ret = fchmod(fd, 0400) < 0 ? -errno
				       : file_sync(fd, size, w->config.stopped, w->config.ctx);

	if (ret < 0)
		return ret;
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	ret = hash_file(w, fd, size, again);
	if (ret == 0 && strcmp(again, hash) != 0)
		ret = -EBADMSG;
	if (ret < 0)
		return ret;
	snprintf(name, NAME_SIZE, "%.60s%.32s", prefix, hash);
	if (renameat(w->dir, temp, w->dir, name) < 0)
		return -errno;
	return fsync(w->dir) < 0 && errno != EINVAL ? -errno : 0;
}

static int write_file(struct wholes *w, const struct state *s, uint32_t file, int temp_fd,
		      const char *temp, const char *prefix, int *out_fd)
{
	char hash[HEX + 1] = "", name[NAME_SIZE];
	struct stat st;
	int ret = 0, fd;

	errno = 0;
	if (ftruncate(temp_fd, 0) < 0)
		ret = -errno;
	if (ret == 0)
		ret = write_bytes(w, s, file, temp_fd, hash);
	if (ret == 0)
		ret = finish(w, temp_fd, s->layout->files[file].size, temp, prefix, hash, name);
	if (ret < 0) {
		(void)unlinkat(w->dir, temp, 0);
		return ret;
	}
	/* A descriptor that cannot write, before the lock of this one goes. */
	fd = openat(w->dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || flock(temp_fd, LOCK_SH) < 0 || flock(fd, LOCK_SH) < 0 || fstat(fd, &st) < 0 ||
	    st.st_nlink == 0) {
		ret = errno != 0 ? -errno : -ENOENT;
		if (fd >= 0)
			close(fd);
		return ret;
	}
	*out_fd = fd;
	return 0;
}

static void pause_a_little(void)
{
	nanosleep(&(struct timespec){0, WAIT_MS * 1000000}, NULL);
}

/* The temp file, locked; waits while another process writes it.  -EEXIST: it is complete now. */
static int open_temp(struct wholes *w, const struct state *s, uint32_t file, const char *temp)
{
	struct wanted want;

	for (;;) {
		int fd = open_locked(w, temp, O_RDWR | O_CREAT, LOCK_EX);

		if (fd >= 0 && find(w, s, file, &want)) {
			(void)unlinkat(w->dir, temp, 0);
			close(fd);
			return -EEXIST;
		}
		if (fd == -EBADMSG) {
			fd = remove_bad(w, temp);
			if (fd == 0)
				continue;
		} else if (fd == -ENOENT && was_removed(w)) {
			fd = open_directory(w);
			if (fd == 0)
				continue;
		}
		if (fd != -EWOULDBLOCK && fd != -ENOENT)
			return fd;
		if (stopped(w))
			return -ECANCELED;
		pause_a_little();
	}
}

static void remember(struct wholes *w, const struct identity *fingerprint)
{
	struct identity *v;

	if (w->config.limit > 0)
		return; /* what goes is chosen by use */
	for (size_t i = 0; i < w->got_count; i++)
		if (identity_equal(&w->got[i], fingerprint))
			return;
	v = realloc(w->got, (w->got_count + 1) * sizeof(*v));
	if (v == NULL)
		return; /* it stays until room is needed */
	w->got = v;
	w->got[w->got_count++] = *fingerprint;
}

/* Uses a file that is there; -ENOENT: there is none, or it was damaged. */
static int get_found(struct wholes *w, const struct state *s, uint32_t file, int *out_fd)
{
	struct wanted want;
	int ret;

	while (find(w, s, file, &want)) {
		ret = stopped(w) ? -ECANCELED
				 : open_checked(w, want.name, s->layout->files[file].size, out_fd);
		if (ret == -EWOULDBLOCK) {
			pause_a_little(); /* being finished, or removed */
		} else if (ret == -EBADMSG || ret == -ENODATA || ret == -EIO) {
			log_warning("%s/%s is damaged: it is written anew", w->path, want.name);
			ret = remove_bad(w, want.name);
			if (ret < 0)
				return ret;
		} else if (ret != -ENOENT) {
			return ret;
		}
	}
	return -ENOENT;
}

int wholes_get(struct wholes *w, const struct state *s, uint32_t file, int *out_fd,
	       bool *out_reused, struct why *why)
{
	char temp[NAME_SIZE + 4], prefix[NAME_SIZE];
	int ret, fd;

	remember(w, &s->fingerprint);
	prefix_of(&s->fingerprint, file, prefix);
	snprintf(temp, sizeof(temp), "tmp.%.*s", (int)strlen(prefix) - 1, prefix);
	do {
		ret = get_found(w, s, file, out_fd);
		*out_reused = ret == 0;
		fd = ret == -ENOENT ? open_temp(w, s, file, temp) : ret;
	} while (fd == -EEXIST);
	if (ret == -ENOENT && fd >= 0) {
		ret = write_file(w, s, file, fd, temp, prefix, out_fd);
		close(fd);
	} else if (ret == -ENOENT) {
		ret = fd;
	}
	(void)madvise(w->chunk, CHUNK, MADV_DONTNEED); /* there may be one for each of many runs */
	if (ret < 0)
		why_set(why, -ret, "%s cannot be written out: %s", s->layout->files[file].name,
			ret == -EBADMSG	    ? "the disk gives back other bytes than were written"
			: ret == -ECANCELED ? "the mount is being taken down"
			: ret == -ENOTEMPTY ? "a directory in the cache directory has its name"
					    : strerrordesc_np(-ret));
	return ret;
}

/* ---- room ---- */

static bool add_found(struct wholes *w, const char *name, void *ctx)
{
	struct found_list *list = ctx;
	struct found *v;
	struct stat st;

	if (!is_ours(name) || fstatat(w->dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return false;
	v = realloc(list->v, (list->count + 1) * sizeof(*v));
	if (v == NULL)
		return true;
	list->v = v;
	v = &v[list->count++];
	*v = (struct found){.used_s = st.st_mtim.tv_sec, .bytes = (uint64_t)st.st_blocks * 512};
	snprintf(v->name, sizeof(v->name), "%s", name);
	list->bytes += v->bytes;
	return false;
}

static int by_use(const void *a, const void *b)
{
	const struct found *x = a, *y = b;

	return x->used_s != y->used_s ? (x->used_s < y->used_s ? -1 : 1) : strcmp(x->name, y->name);
}

/* Bytes that may be written before the floor; UINT64_MAX when the file system does not say. */
static uint64_t free_space(const struct wholes *w)
{
	struct statvfs st;
	uint64_t space, floor;

	if (fstatvfs(w->dir, &st) < 0 || st.f_blocks == 0)
		return UINT64_MAX;
	space = (uint64_t)st.f_bavail * st.f_frsize;
	floor = MIN(FLOOR_MAX, (uint64_t)st.f_blocks * st.f_frsize / 20);
	return space > floor ? space - floor : 0;
}

int wholes_room(struct wholes *w, const struct state *s, struct why *why)
{
	const uint64_t limit = w->config.limit > 0 ? w->config.limit : UINT64_MAX;
	struct found_list list = {0};
	uint64_t need = 0;
	struct wanted want;
	char hex[33];
	bool fits;

	identity_hex(&s->fingerprint, hex);
	for (uint32_t i = 0; i < s->layout->file_count; i++)
		if (!find(w, s, i, &want))
			need += s->layout->files[i].size;
	if (need == 0)
		return 0;

	if (need > limit)
		return why_set(why, ENOSPC,
			       "the version has %llu MiB to write, --materialize-size is %llu MiB",
			       (unsigned long long)(need >> 20), (unsigned long long)(limit >> 20));
	each_name(w, add_found, &list);
	if (list.count > 0)
		qsort(list.v, list.count, sizeof(*list.v), by_use);
	fits = list.bytes <= limit - need && free_space(w) >= need;
	for (size_t i = 0; i < list.count && !fits; i++) {
		if (strncmp(list.v[i].name, hex, HEX) == 0 || !remove_unused(w, list.v[i].name))
			continue;
		list.bytes -= list.v[i].bytes;
		fits = list.bytes <= limit - need && free_space(w) >= need;
	}
	free(list.v);
	return fits ? 0
		    : why_set(why, ENOSPC, "%s has no room for %llu MiB more", w->path,
			      (unsigned long long)(need >> 20));
}

struct version_files {
	char hex[33];
	bool left; /* somebody uses one */
};

static bool remove_version(struct wholes *w, const char *name, void *ctx)
{
	struct version_files *v = ctx;

	if (is_ours(name) && strncmp(name, v->hex, HEX) == 0)
		v->left |= !remove_unused(w, name);
	return false;
}

void wholes_tidy(struct wholes *w, const struct identity *keep, size_t count)
{
	size_t left = 0;

	for (size_t i = 0; i < w->got_count; i++) {
		struct version_files v = {.left = false};

		for (size_t k = 0; k < count; k++)
			v.left |= identity_equal(&w->got[i], &keep[k]);
		identity_hex(&w->got[i], v.hex);
		if (!v.left)
			each_name(w, remove_version, &v);
		if (v.left)
			w->got[left++] = w->got[i];
	}
	w->got_count = left;
}
