/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of the mount in the kernel, read back.
 *
 * INIT can only make the read-ahead window smaller than 128 KiB, so root writes it where the block
 * layer has it, for the mount's device number.  It is the largest single factor of a cold
 * sequential read.  The number of requests in flight is part of INIT's reply; what the kernel made
 * of it is to be seen under its fusectl file system, where that is mounted.
 *
 * Pushing bytes waits for a read of the same pages that is in flight.  That one is answered by a
 * worker, which waits for nobody here, as long as it is no worker that pushes.
 */
#include "fs/settings.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "cache/log.h"

/* The number in a file; 0: none. */
static unsigned number_in(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	char text[24] = "";
	ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;

	if (fd >= 0)
		close(fd);
	return n > 0 ? (unsigned)strtoul(text, NULL, 10) : 0;
}

static int write_number(const char *path, unsigned number)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC), ret = 0;
	char text[24];
	int len = snprintf(text, sizeof(text), "%u", number);

	if (fd < 0)
		return -errno;
	if (write(fd, text, (size_t)len) != len)
		ret = -errno;
	close(fd);
	return ret;
}

void settings_apply(dev_t dev, struct serving *serving)
{
	char path[100];
	unsigned read_ahead, background;
	int ret;

	snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb", major(dev), minor(dev));
	ret = geteuid() == 0 ? write_number(path, SETTINGS_READ_AHEAD_KB) : -EPERM;
	read_ahead = number_in(path);
	if (ret == 0 && read_ahead == SETTINGS_READ_AHEAD_KB)
		log_info("read-ahead of the mount: %u KiB", read_ahead);
	else if (ret == -EPERM)
		log_info("read-ahead stays at the kernel's window; a mount by root gets %d KiB",
			 SETTINGS_READ_AHEAD_KB);
	else
		log_warning("%s says %u after %d was written (%s): sequential reads will be slower",
			    path, read_ahead, SETTINGS_READ_AHEAD_KB, strerrordesc_np(-ret));
	snprintf(path, sizeof(path), "/sys/fs/fuse/connections/%u/max_background", minor(dev));
	background = number_in(path);
	if (background > 0 && background != SETTINGS_MAX_BACKGROUND)
		log_warning("the kernel takes %u requests in the background, not %d", background,
			    SETTINGS_MAX_BACKGROUND);
	serving_settings(serving, read_ahead, background);
}

bool device_enter(struct device *d)
{
	__atomic_fetch_add(&d->users, 1, __ATOMIC_SEQ_CST);
	if (!__atomic_load_n(&d->closed, __ATOMIC_SEQ_CST))
		return true;
	device_leave(d);
	return false;
}

void device_leave(struct device *d)
{
	__atomic_fetch_sub(&d->users, 1, __ATOMIC_SEQ_CST);
}

void device_close(struct device *d)
{
	const struct timespec ts = {0, 5000000};

	__atomic_store_n(&d->closed, true, __ATOMIC_SEQ_CST);
	for (int i = 0; i < 200 && __atomic_load_n(&d->users, __ATOMIC_SEQ_CST) > 0; i++)
		nanosleep(&ts, NULL);
}

int settings_push(void *ctx, uint64_t ino, uint64_t off, const void *data, size_t len)
{
	struct fuse_bufvec v = FUSE_BUFVEC_INIT(len);
	struct device *d = ctx;
	int ret;

	if (!device_enter(d))
		return -ENOTCONN;
	v.buf[0].mem = (void *)(uintptr_t)data; /* read only */
	ret = fuse_lowlevel_notify_store(d->session, ino, (off_t)off, &v, FUSE_BUF_NO_SPLICE);
	device_leave(d);
	return ret;
}
