/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A local directory as a store: opening, reading, and the question whether a file is still being
 * written.
 *
 * A handle is an open descriptor, so a file that is deleted or replaced by rename keeps its bytes
 * for whoever reads it.  What a descriptor does not protect from is a rewrite in place; hence each
 * read looks at size and mtime afterwards, and hands out nothing when they are not those that were
 * pinned.
 *
 * Paths are resolved from the root's descriptor and, unless links may be followed out of it, never
 * leave the root: by openat2(RESOLVE_BENEATH), and where that is missing or refuses an absolute
 * link, by looking where the opened file really lies.
 *
 * Lending cannot look afterwards: then the kernel has the bytes.  So it holds a read lease for as
 * long as it lends, which is granted only while nobody has the file open for writing, and keeps
 * whoever wants to waiting in open() for the millisecond that it takes.
 *
 * Nothing changes after creation but the atomics, the directory behind root_fd (see
 * store_dir_list.c), and a handle's lease, which its lock guards.  Reads complete in the calling
 * thread.
 */
#include "cache/store_dir.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "cache/clock.h"
#include "cache/fileio.h"
#include "cache/lock.h"

struct dir_handle {
	struct handle base;
	int fd;
	int64_t mtime_ns;
	struct identity id;
	struct lock lease_lock; /* LOCK_QUEUE */
	unsigned leases;	/* who relies on the lease; guarded by it */
	bool no_lease;		/* this file system or file has none; guarded by it */
};

static int fd_path(int fd, char *dst, size_t cap)
{
	char link[64];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, dst, cap - 1);
	if (n < 0)
		return -errno;
	dst[n] = '\0';
	return 0;
}

static bool lies_below(const char *path, const char *root)
{
	size_t len = strlen(root);

	if (len == 1) /* "/" */
		return true;
	return strncmp(path, root, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

/* Opens first and then looks where that is, so that nothing can be exchanged in between. */
static int open_and_look(const struct dir_store *d, const char *path, int flags)
{
	char where[PATH_MAX], root[PATH_MAX], link[64];
	int fd = openat(d->root_fd, path, O_PATH | O_CLOEXEC), out;

	if (fd < 0)
		return -errno;
	out = fd_path(fd, where, sizeof(where));
	if (out == 0)
		out = fd_path(d->root_fd, root, sizeof(root));
	if (out == 0 && !lies_below(where, root))
		out = -ELOOP;
	if (out < 0 || (flags & O_PATH)) {
		if (out == 0)
			return fd;
		close(fd);
		return out;
	}
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	out = open(link, flags | O_CLOEXEC);
	if (out < 0)
		out = -errno;
	close(fd);
	return out;
}

int store_dir_open_beneath(const struct dir_store *d, const char *path, int flags)
{
	struct open_how how = {
		.flags = (unsigned)flags | O_CLOEXEC,
		.resolve = RESOLVE_BENEATH,
	};
	long fd;

	/* EAGAIN: something was renamed during the walk, so that the kernel could not be sure. */
	for (int tries = 0; tries < 100; tries++) {
		fd = syscall(SYS_openat2, d->root_fd, path, &how, sizeof(how));
		if (fd >= 0 || (errno != EAGAIN && errno != EINTR))
			break;
	}
	if (fd >= 0)
		return (int)fd;
	/* EXDEV: out of the root, or an absolute link that may well come back into it.
	 * ENOSYS, EPERM: an old kernel, or a sandbox that does not know the call. */
	if (errno == EXDEV || errno == ENOSYS || errno == EPERM || errno == EAGAIN)
		return open_and_look(d, path, flags);
	return -errno;
}

int store_dir_open_path(const struct dir_store *d, const char *path, int flags)
{
	int fd;

	if (!d->follow)
		return store_dir_open_beneath(d, path, flags);
	fd = openat(d->root_fd, path, flags | O_CLOEXEC);
	return fd >= 0 ? fd : -errno;
}

static int64_t stat_mtime_ns(const struct stat *st)
{
	int64_t ns;

	if (__builtin_mul_overflow((int64_t)st->st_mtim.tv_sec, NSEC_PER_SEC, &ns) ||
	    __builtin_add_overflow(ns, (int64_t)st->st_mtim.tv_nsec, &ns))
		return st->st_mtim.tv_sec < 0 ? INT64_MIN : INT64_MAX;
	return ns;
}

void store_dir_stat(const struct stat *st, struct object *out)
{
	uint8_t raw[32];
	XXH128_canonical_t hash;

	out->size = (uint64_t)st->st_size;
	out->mtime_ns = stat_mtime_ns(st);
	store_le64(raw, (uint64_t)st->st_dev);
	store_le64(raw + 8, (uint64_t)st->st_ino);
	store_le64(raw + 16, out->size);
	store_le64(raw + 24, (uint64_t)out->mtime_ns);
	XXH128_canonicalFromHash(&hash, XXH3_128bits(raw, sizeof(raw)));
	memcpy(out->id.bytes, hash.digest, sizeof(out->id.bytes));
}

/* Is the open file still what was pinned?  0, -ESTALE or another error. */
static int check_pinned(const struct dir_handle *h)
{
	struct object now = {0};
	struct stat st;

	if (fstat(h->fd, &st) < 0)
		return -errno;
	store_dir_stat(&st, &now);
	return memcmp(&now.id, &h->id, sizeof(now.id)) == 0 ? 0 : -ESTALE;
}

static int open_failed(const char *key, int err, struct why *why)
{
	char shown[256];

	printable(shown, sizeof(shown), key, strlen(key));
	switch (err) {
	case ENOENT: return why_set(why, err, "'%s' does not exist any more", shown);
	case ESTALE: return why_set(why, err, "'%s' changed since it was listed", shown);
	case ELOOP:
		return why_set(why, err, "'%s' is a symbolic link that leads out of the directory",
			       shown);
	case EMFILE:
		return why_set(why, err,
			       "'%s' cannot be opened: too many open files (raise ulimit -n)",
			       shown);
	default: return why_set(why, err, "'%s' cannot be opened: %s", shown, strerrordesc_np(err));
	}
}

static int dir_open(struct store *s, const struct object *object, struct handle **out,
		    struct why *why)
{
	struct dir_store *d = (struct dir_store *)s;
	struct dir_handle *h = calloc(1, sizeof(*h));
	int rc;

	if (h == NULL)
		return why_set(why, ENOMEM, "out of memory");
	h->base.store = s;
	h->base.size = object->size;
	h->mtime_ns = object->mtime_ns;
	h->id = object->id;
	lock_init(&h->lease_lock, LOCK_QUEUE);
	/* O_NONBLOCK: a fifo may have taken the file's place. */
	h->fd = store_dir_open_path(d, object->key, O_RDONLY | O_NONBLOCK | O_NOCTTY);
	rc = h->fd < 0 ? h->fd : check_pinned(h);
	if (rc < 0) {
		if (h->fd >= 0)
			close(h->fd);
		lock_destroy(&h->lease_lock);
		free(h);
		return open_failed(object->key, -rc, why);
	}
	*out = &h->base;
	return 0;
}

static void dir_close(struct handle *handle)
{
	struct dir_handle *h = (struct dir_handle *)handle;

	close(h->fd);
	lock_destroy(&h->lease_lock);
	free(h);
}

static void dir_fetch(struct fetch *f)
{
	struct dir_handle *h = (struct dir_handle *)f->handle;
	int rc = file_pread(h->fd, f->dst, f->len, f->off);

	if (rc == -ENODATA)
		rc = -ESTALE; /* the range was checked: the file got shorter */
	if (rc == 0)
		rc = check_pinned(h);
	f->done(f, rc);
}

/*
 * A read lease is granted only while nobody has the file open for writing.  Should a writer come
 * meanwhile, the kernel signals the lease's holder; SIGIO would kill us, SIGURG is ignored unless
 * somebody asks for it.  The descriptor has one lease for all that rely on it; once a writer waits
 * there are no more of them, and the last one lets it in.  -EAGAIN: there is a writer; -ENOTSUP:
 * not our file, or a file system without leases.
 */
static int lease_take(struct dir_handle *h)
{
	int rc = 0;

	lock_take(&h->lease_lock);
	if (h->no_lease) {
		rc = -ENOTSUP;
	} else if (h->leases > 0) {
		rc = fcntl(h->fd, F_GETLEASE) == F_RDLCK ? 0 : -EAGAIN;
	} else if (fcntl(h->fd, F_SETSIG, SIGURG) < 0 || fcntl(h->fd, F_SETLEASE, F_RDLCK) < 0) {
		rc = errno == EAGAIN ? -EAGAIN : -ENOTSUP;
		h->no_lease = rc == -ENOTSUP;
	}
	h->leases += rc == 0;
	lock_release(&h->lease_lock);
	return rc;
}

static void lease_give(struct dir_handle *h)
{
	lock_take(&h->lease_lock);
	if (--h->leases == 0)
		fcntl(h->fd, F_SETLEASE, F_UNLCK);
	lock_release(&h->lease_lock);
}

static void lease_end(struct loan *l)
{
	lease_give(l->owner);
}

static int dir_lend(struct handle *handle, uint64_t off, size_t len, struct loan *out)
{
	struct dir_handle *h = (struct dir_handle *)handle;
	int rc = lease_take(h);

	if (rc < 0)
		return rc;
	rc = check_pinned(h);
	if (rc == 0)
		rc = loan_map(h->fd, off, len, out);
	if (rc < 0) {
		lease_give(h);
		return rc;
	}
	out->give_back = lease_end;
	out->owner = h;
	return 0;
}

static int dir_settled(struct handle *handle)
{
	struct dir_handle *h = (struct dir_handle *)handle;
	int rc = lease_take(h);

	if (rc == 0) {
		lease_give(h);
	} else if (rc == -ENOTSUP) {
		int64_t age; /* trust a second of silence */

		rc = 0;
		if (!__builtin_sub_overflow(clock_real_ns(), h->mtime_ns, &age) && age >= 0 &&
		    age < NSEC_PER_SEC)
			rc = -EAGAIN;
	}
	return check_pinned(h) == -ESTALE ? -ESTALE : rc;
}

static void dir_free(struct store *s)
{
	struct dir_store *d = (struct dir_store *)s;

	if (d->watch_fd >= 0)
		close(d->watch_fd);
	if (d->root_fd >= 0)
		close(d->root_fd);
	free(d->real);
	free(d->base.name);
	free(d);
}

static const struct store_ops dir_ops = {
	.name = "dir",
	.list = store_dir_list,
	.open = dir_open,
	.settled = dir_settled,
	.fetch = dir_fetch,
	.lend = dir_lend,
	.close = dir_close,
	.put = store_dir_put,
	.put_if = store_dir_put_if,
	.remove = store_dir_remove,
	.watch_fd = store_dir_watch_fd,
	.watch_drain = store_dir_watch_drain,
	.free = dir_free,
};

static int root_failed(const char *path, int err, struct why *why)
{
	char shown[256];

	printable(shown, sizeof(shown), path, strlen(path));
	switch (err) {
	case ENOENT: return why_set(why, err, "directory '%s' does not exist", shown);
	case ENOTDIR: return why_set(why, err, "'%s' is not a directory", shown);
	default:
		return why_set(why, err, "directory '%s' cannot be read: %s", shown,
			       strerrordesc_np(err));
	}
}

/* Do its bytes come over a network, or from some program? */
static bool is_far(int fd)
{
	static const uint32_t far[] = {
		0x6969,	    /* NFS */
		0xff534d42, /* CIFS */
		0xfe534d42, /* SMB2 */
		0x00c36400, /* Ceph */
		0x0bd00bd0, /* Lustre */
		0x47504653, /* GPFS */
		0x5346414f, /* AFS */
		0x65735546, /* FUSE */
	};
	struct statfs st;

	if (fstatfs(fd, &st) < 0)
		return false;
	for (size_t i = 0; i < ARRAY_LEN(far); i++)
		if ((uint32_t)st.f_type == far[i])
			return true;
	return false;
}

int store_dir_new(const char *path, bool follow, struct store **out, struct why *why)
{
	struct dir_store *d = calloc(1, sizeof(*d));
	int rc = 0;

	if (d == NULL)
		return why_set(why, ENOMEM, "out of memory");
	d->base.ops = &dir_ops;
	d->follow = follow;
	d->watch_fd = -1;
	d->root_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (d->root_fd < 0)
		rc = root_failed(path, errno, why);
	else if ((d->real = realpath(path, NULL)) == NULL)
		rc = root_failed(path, errno, why);
	else if ((d->base.name = strdup(path)) == NULL)
		rc = why_set(why, ENOMEM, "out of memory");
	if (rc == 0)
		d->base.far = is_far(d->root_fd);
	if (rc == 0)
		*out = &d->base;
	else
		dir_free(&d->base);
	return rc;
}
