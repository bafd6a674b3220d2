/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Progress of something long, on stderr: on a terminal a bar with rate and remaining time, redrawn
 * a few times a second; elsewhere nothing until the end.  One thread.
 */
#ifndef TOOLS_PROGRESS_H
#define TOOLS_PROGRESS_H

#include "codec/base.h"

struct progress {
	const char *what; /* "export"; borrowed */
	uint64_t total, done;
	int64_t started, drawn; /* monotonic */
	bool terminal;
};

/* total in bytes. */
void progress_begin(struct progress *p, const char *what, uint64_t total);
void progress_add(struct progress *p, uint64_t bytes);
/* Removes the bar, so that something else can be said. */
void progress_clear(struct progress *p);
/* Removes it and prints a sentence with how much, how long and how fast. */
void progress_end(struct progress *p, const char *fmt, ...) PRINTF(2, 3);

#endif
