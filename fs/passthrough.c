/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passthrough with any libfuse from 3.13 on.
 *
 * Where libfuse does not know of it (before 3.17), its input and output go through two functions of
 * ours.  They read and write as it would itself, but for two replies: INIT's gets the flag and the
 * stack depth, the one to an open that is to be passed through gets its flag and number.  Which
 * reply is which is known because the handler that causes it runs in the same thread directly
 * before: `pending` says what the next reply of this thread is.  INIT's request is looked at on its
 * way in, since such a libfuse does not tell whether the kernel has the feature.
 *
 * A registration needs CAP_SYS_ADMIN and a file system that is not stacked itself (an overlay).
 *
 * Threads: any worker; what is shared is written once, by INIT.
 */
#include "fs/passthrough.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#define HOOKED (FUSE_VERSION >= FUSE_MAKE_VERSION(3, 13) && FUSE_VERSION < FUSE_MAKE_VERSION(3, 17))

enum { CAP_SYS_ADMIN_BIT = 21 };

struct backing_map {
	int32_t fd;
	uint32_t flags;
	uint64_t padding;
};
#define BACKING_OPEN  _IOW(229, 1, struct backing_map)
#define BACKING_CLOSE _IOW(229, 2, uint32_t)

static bool may_administer(void)
{
	FILE *f = fopen("/proc/self/status", "re");
	unsigned long long caps = 0;
	char line[200];

	while (f && fgets(line, sizeof(line), f))
		if (strncmp(line, "CapEff:", 7) == 0)
			caps = strtoull(line + 7, NULL, 16);
	if (f)
		fclose(f);
	return caps >> CAP_SYS_ADMIN_BIT & 1;
}

#if HOOKED

enum { IN_HEADER = 40, OUT_HEADER = 16, INIT_OPCODE = 26 };
enum { INIT_IN_FLAGS = IN_HEADER + 12, INIT_IN_FLAGS2 = IN_HEADER + 16 };
enum { INIT_OUT_FLAGS = 12, INIT_OUT_FLAGS2 = 32, INIT_OUT_DEPTH = 36, INIT_OUT_SIZE = 64 };
enum { OPEN_OUT_FLAGS = 8, OPEN_OUT_BACKING = 12, OPEN_OUT_SIZE = 16 };
enum { FLAG_INIT_EXT = 1 << 30, FLAG2_PASSTHROUGH = 1 << 5, FOPEN_FLAG_PASSTHROUGH = 1 << 7 };

enum { PENDING_NONE = 0, PENDING_INIT = -1 }; /* above 0: an open with that backing */
static __thread int32_t pending;

static void or_u32(uint8_t *at, uint32_t bits)
{
	uint32_t v;

	memcpy(&v, at, sizeof(v));
	v |= bits;
	memcpy(at, &v, sizeof(v));
}

/* Writes a reply of header and one struct, which is completed first. */
static ssize_t write_completed(int fd, const struct iovec *iov, int32_t what)
{
	uint8_t body[INIT_OUT_SIZE];
	struct iovec out[2] = {iov[0], {body, iov[1].iov_len}};

	memcpy(body, iov[1].iov_base, iov[1].iov_len);
	if (what == PENDING_INIT) {
		or_u32(body + INIT_OUT_FLAGS, FLAG_INIT_EXT);
		or_u32(body + INIT_OUT_FLAGS2, FLAG2_PASSTHROUGH);
		or_u32(body + INIT_OUT_DEPTH, 1);
	} else {
		or_u32(body + OPEN_OUT_FLAGS, FOPEN_FLAG_PASSTHROUGH);
		memcpy(body + OPEN_OUT_BACKING, &what, sizeof(what));
	}
	return writev(fd, out, 2);
}

static ssize_t hook_writev(int fd, struct iovec *iov, int count, void *userdata)
{
	int32_t what = pending;
	size_t want = what == PENDING_INIT ? INIT_OUT_SIZE : OPEN_OUT_SIZE;

	pending = PENDING_NONE;
	if (what != PENDING_NONE && count == 2 && iov[0].iov_len == OUT_HEADER &&
	    iov[1].iov_len == want)
		return write_completed(fd, iov, what);
	return writev(fd, iov, count);
}

static ssize_t hook_read(int fd, void *data, size_t len, void *userdata)
{
	struct passthrough *p = userdata;
	ssize_t n = read(fd, data, len);
	const uint8_t *in = data;
	uint32_t opcode, flags, flags2;

	if (n < INIT_IN_FLAGS2 + 4)
		return n;
	memcpy(&opcode, in + 4, sizeof(opcode));
	if (opcode != INIT_OPCODE)
		return n;
	memcpy(&flags, in + INIT_IN_FLAGS, sizeof(flags));
	memcpy(&flags2, in + INIT_IN_FLAGS2, sizeof(flags2));
	if ((flags & FLAG_INIT_EXT) && (flags2 & FLAG2_PASSTHROUGH))
		__atomic_store_n(&p->offered, true, __ATOMIC_RELEASE);
	return n;
}

static int hook(struct fuse_session *se)
{
	static const struct fuse_custom_io io = {.writev = hook_writev, .read = hook_read};

	return fuse_session_custom_io(se, &io, fuse_session_fd(se));
}

void passthrough_init(struct passthrough *p, struct fuse_conn_info *conn)
{
	if (p->wanted && __atomic_load_n(&p->offered, __ATOMIC_ACQUIRE))
		pending = PENDING_INIT;
}

void passthrough_reply(struct passthrough *p, const struct whole *w, struct fuse_file_info *fi)
{
	fi->keep_cache = 0;
	pending = w->backing;
}

#elif FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)

static int hook(struct fuse_session *se)
{
	return 0;
}

void passthrough_init(struct passthrough *p, struct fuse_conn_info *conn)
{
	if (p->wanted)
		__atomic_store_n(&p->offered, fuse_set_feature_flag(conn, FUSE_CAP_PASSTHROUGH),
				 __ATOMIC_RELEASE);
	else
		fuse_unset_feature_flag(conn, FUSE_CAP_PASSTHROUGH);
}

void passthrough_reply(struct passthrough *p, const struct whole *w, struct fuse_file_info *fi)
{
	fi->keep_cache = 0;
	fi->backing_id = w->backing;
}

#else

static int hook(struct fuse_session *se)
{
	return -ENOTSUP;
}

void passthrough_init(struct passthrough *p, struct fuse_conn_info *conn)
{
}

void passthrough_reply(struct passthrough *p, const struct whole *w, struct fuse_file_info *fi)
{
}

#endif

int passthrough_want(struct passthrough *p, struct fuse_session *se, struct why *why)
{
	if (!may_administer())
		return why_set(why, ENOTSUP, "passthrough needs CAP_SYS_ADMIN (mount as root)");
	if (hook(se) < 0)
		return why_set(why, ENOTSUP, "passthrough needs libfuse 3.13 or later");
	p->wanted = true;
	return 0;
}

static int backing_open(void *ctx, int fd, int32_t *out)
{
	struct device *d = ctx;
	struct backing_map map = {.fd = fd};
	int id;

	if (!device_enter(d))
		return -ENOTCONN;
	id = ioctl(fuse_session_fd(d->session), BACKING_OPEN, &map);
	if (id < 0)
		id = -errno;
	device_leave(d);
	*out = id;
	return id < 0 ? id : 0;
}

static void backing_close(void *ctx, int32_t backing)
{
	struct device *d = ctx;
	uint32_t id = (uint32_t)backing;

	/* Registrations end with the connection at the latest. */
	if (!device_enter(d))
		return;
	(void)ioctl(fuse_session_fd(d->session), BACKING_CLOSE, &id);
	device_leave(d);
}

const struct whole_ops passthrough_ops = {backing_open, backing_close};

int passthrough_try(struct passthrough *p, const char *dir, struct why *why)
{
	char path[4200];
	int32_t id = 0;
	int fd, ret;

	if (!__atomic_load_n(&p->offered, __ATOMIC_ACQUIRE))
		return why_set(why, ENOTSUP,
			       "this kernel has no FUSE passthrough (Linux 6.9 or later has)");
	snprintf(path, sizeof(path), "%s/tmp.try.XXXXXX", dir);
	fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0)
		return why_set(why, errno, "%s cannot be written: %s", dir, strerrordesc_np(errno));
	(void)unlink(path);
	ret = backing_open(p->device, fd, &id);
	if (ret == 0)
		backing_close(p->device, id);
	close(fd);
	if (ret == -ELOOP)
		return why_set(why, ENOTSUP,
			       "%s lies on a stacked file system (an overlay), from which the "
			       "kernel passes nothing through",
			       dir);
	return ret < 0 ? why_set(why, -ret, "the kernel refuses passthrough: %s",
				 strerrordesc_np(-ret))
		       : 0;
}
