/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log.
 *
 * A line is made on the stack and leaves with one write(2), so that lines of several threads and of
 * several processes on the same file never mix.  Text in a line may come from input (names, answers
 * of servers): control characters are replaced, so that one event stays one line and a terminal
 * gets no escape sequences.  A log that cannot be written is not an error of anybody's.
 *
 * State: the level, the descriptor of the file and the target, each atomic; no lock is needed.  The
 * file's descriptor keeps its number for ever: opening another file puts that behind the same
 * number (dup3), so that a writer never meets a closed or reused one.
 */
#include "cache/log.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "cache/clock.h"

enum { LINE_SIZE = 2048 };

static int log_max_level = LOG_LEVEL_INFO; /* atomic */
static int log_fd = -1;			   /* atomic; -1: no file */
static __thread char log_subject[120];
static bool log_syslog; /* atomic */

static const char *const level_names[] = {
	[LOG_LEVEL_ERROR] = "error",
	[LOG_LEVEL_WARNING] = "warning",
	[LOG_LEVEL_INFO] = "info",
	[LOG_LEVEL_DEBUG] = "debug",
};

int log_level_parse(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(level_names); i++)
		if (strcmp(name, level_names[i]) == 0)
			return (int)i;
	return -1;
}

void log_set_level(enum log_level level)
{
	__atomic_store_n(&log_max_level, (int)level, __ATOMIC_RELAXED);
}

int log_open_file(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0600);
	int none = -1, rc = 0;

	if (fd < 0)
		return -errno;
	if (__atomic_compare_exchange_n(&log_fd, &none, fd, false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE))
		return 0;
	if (dup3(fd, none, O_CLOEXEC) < 0)
		rc = -errno;
	close(fd);
	return rc;
}

void log_use_syslog(void)
{
	openlog("weightfs", LOG_PID, LOG_DAEMON);
	__atomic_store_n(&log_syslog, true, __ATOMIC_RELEASE);
}

/* Replaces what could break the line or move a terminal's cursor. */
static void clean(char *s, size_t len)
{
	unsigned char *u = (unsigned char *)s;

	for (size_t i = 0; i < len; i++) {
		if (u[i] < 0x20 || u[i] == 0x7f)
			u[i] = u[i] == '\n' || u[i] == '\t' ? ' ' : '?';
		else if (u[i] == 0xc2 && i + 1 < len && u[i + 1] >= 0x80 && u[i + 1] < 0xa0)
			u[i] = u[i + 1] = '?'; /* C1 controls as UTF-8 */
	}
}

static size_t put_time(char *dst, size_t cap)
{
	struct timespec ts = clock_timespec(clock_real_ns());
	struct tm tm;

	if (localtime_r(&ts.tv_sec, &tm) == NULL)
		return 0;
	return strftime(dst, cap, "%Y-%m-%dT%H:%M:%S%z ", &tm);
}

static size_t put_text(char *dst, size_t cap, const char *fmt, va_list ap)
{
	int n = vsnprintf(dst, cap, fmt, ap);
	size_t len = n < 0 ? 0 : (size_t)n;

	if (len >= cap) {
		len = cap - 1;
		memcpy(dst + len - 3, "...", 3);
	}
	clean(dst, len);
	return len;
}

void log_set_subject(const char *subject)
{
	snprintf(log_subject, sizeof(log_subject), "%s", subject != NULL ? subject : "");
	clean(log_subject, strlen(log_subject));
}

void log_at(enum log_level level, const char *fmt, ...)
{
	static const int priorities[] = {LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG};
	int saved_errno = errno, fd = __atomic_load_n(&log_fd, __ATOMIC_ACQUIRE);
	bool to_syslog = fd < 0 && __atomic_load_n(&log_syslog, __ATOMIC_ACQUIRE);
	char line[LINE_SIZE];
	size_t len = 0;
	ssize_t written;
	va_list ap;

	if ((int)level > __atomic_load_n(&log_max_level, __ATOMIC_RELAXED))
		return;
	if (fd >= 0)
		len = put_time(line, sizeof(line));
	if (!to_syslog)
		len += (size_t)snprintf(line + len, sizeof(line) - len, "%s: ", level_names[level]);
	if (log_subject[0] != '\0')
		len += (size_t)snprintf(line + len, sizeof(line) - len, "%s: ", log_subject);
	errno = saved_errno; /* for a %m in fmt */
	va_start(ap, fmt);
	len += put_text(line + len, sizeof(line) - len - 1, fmt, ap);
	va_end(ap);
	if (to_syslog) {
		line[len] = '\0';
		syslog(priorities[level], "%s", line);
	} else {
		line[len++] = '\n';
		written = write(fd >= 0 ? fd : STDERR_FILENO, line, len);
		(void)written; /* there is nobody left to tell */
	}
	errno = saved_errno;
}
