/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sleeps in poll(2) on a file of a mount that holds a number.
 *
 * The file is read again after each wake-up, and at least once a second, so that nothing depends on
 * a wake-up that a kernel or a bind mount swallows.  A wake-up that brought nothing is followed by
 * a short rest: a file that is always readable must not turn the wait into a busy loop.
 *
 * One thread; no state.
 */
#include "tools/newest.h"

#include "cache/clock.h"
#include "tools/cli.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

static const int64_t LOOK_NS = NSEC_PER_SEC;	  /* without a wake-up */
static const int64_t REST_NS = NSEC_PER_SEC / 50; /* after one */

static int check_place(int fd, const char *at)
{
	struct stat ours, there;

	if (fstat(fd, &ours) < 0)
		return -errno;
	if (stat(at, &there) < 0)
		return errno == ENOENT || errno == ENOTDIR ? -ENODEV : 0;
	return ours.st_dev == there.st_dev ? 0 : -ENODEV;
}

int newest_read(int fd, const char *at, bool *out_any, uint64_t *out)
{
	char text[64];
	ssize_t n;

	do
		n = pread(fd, text, sizeof(text) - 1, 0);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	text[n] = '\0';
	text[strcspn(text, "\n")] = '\0';
	*out_any = parse_u64(text, out) == 0;
	return check_place(fd, at);
}

/* True: `other` is readable. */
static bool sleep_until(int fd, int other, int64_t until)
{
	struct pollfd p[2] = {{.fd = fd, .events = POLLIN | POLLPRI},
			      {.fd = other, .events = POLLIN}};
	int64_t left = until - clock_mono_ns();
	struct timespec ts = clock_timespec(left > 0 ? left : 0);

	/* Whatever ends it, the file is read next. */
	return ppoll(p, 2, &ts, NULL) > 0 && p[1].revents != 0;
}

void newest_sleep(int fd, int other, int64_t until)
{
	if (sleep_until(fd, other, MIN(until, clock_mono_ns() + LOOK_NS)))
		return;
	sleep_until(-1, other, MIN(until, clock_mono_ns() + REST_NS));
}
