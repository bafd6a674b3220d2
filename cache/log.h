/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log: one line per event, to stderr ("<level>: <text>", no time), to a file (with time in
 * front), or to syslog. Control characters are replaced and a line beyond 2 KiB is cut.  A file,
 * once opened, takes all lines. Logged once, at the boundary that understands the event; libraries
 * below return errors instead. Thread-safe; one write(2) per line.  Never log tokens, signatures or
 * signed URLs.
 */
#ifndef CACHE_LOG_H
#define CACHE_LOG_H

#include "codec/base.h"

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Level of a name ("error", "warning", "info", "debug") or -1. */
int log_level_parse(const char *name);
void log_set_level(enum log_level level);
/* Opens (appends to, mode 0600) a log file; -errno.  Another call switches to another file (after a
 * rotation).  `syslog` sends lines to syslog(3) instead of stderr. */
int log_open_file(const char *path);
void log_use_syslog(void);
/* What this thread's lines are about, in front of each; copied.  NULL: nothing. */
void log_set_subject(const char *subject);
void log_at(enum log_level level, const char *fmt, ...) PRINTF(2, 3);
#define log_error(...)	 log_at(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_at(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...)	 log_at(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)	 log_at(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
