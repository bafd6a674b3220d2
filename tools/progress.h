/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Progress of something long, on stderr: on a terminal a bar with rate and remaining time, redrawn
 * a few times a second; elsewhere nothing until the end.  One thread.
 */
#ifndef TOOLS_PROGRESS_H
#define TOOLS_PROGRESS_H

#include "codec/base.h"

/* As a total: how much is there, and how fast it goes, without a bar. */
#define PROGRESS_UNKNOWN UINT64_MAX

struct progress {
	const char *what; /* "export"; borrowed */
	const char *noun; /* what is counted; NULL: bytes; borrowed */
	uint64_t total, done;
	int64_t started, drawn; /* monotonic */
	bool terminal;
};

/* total in bytes. */
void progress_begin(struct progress *p, const char *what, uint64_t total);
/* total in things, such as "objects". */
void progress_begin_count(struct progress *p, const char *what, const char *noun, uint64_t total);
void progress_add(struct progress *p, uint64_t more);
/* Makes room for a line of something else; the next progress_add() draws again. */
void progress_hide(struct progress *p);
/* Removes the bar for good.  One that never began is fine. */
void progress_clear(struct progress *p);
/* Removes it and prints a sentence with how much, how long and how fast. */
void progress_end(struct progress *p, const char *fmt, ...) PRINTF(2, 3);

#endif
