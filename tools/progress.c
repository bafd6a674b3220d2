/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A progress bar for people, and one line of summary for logs.
 *
 *	export   45 % [#########...........]  1.2 GB of 2.7 GB, 540 MB/s, 3 s left
 *
 * Drawn on stderr, so that stdout stays the tool's.  The rate is that of the whole, not of the last
 * moment: the remaining time then does not jump about.
 */
#include "tools/progress.h"

#include "cache/clock.h"
#include "fs/human.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BAR = 24 };

static const int64_t REDRAW_NS = NSEC_PER_SEC / 8;

static double rate(const struct progress *p)
{
	int64_t ns = clock_mono_ns() - p->started;

	return (double)p->done * NSEC_PER_SEC / (double)(ns > 0 ? ns : 1);
}

static void draw(struct progress *p)
{
	double share = p->total > 0 ? (double)p->done / (double)p->total : 1, speed = rate(p);
	int full = (int)(share * BAR);
	struct buf b = {0};

	buf_addf(&b, "\r%s %3d %% [", p->what, (int)(share * 100));
	buf_fill(&b, '#', (size_t)full);
	buf_fill(&b, '.', (size_t)(BAR - full));
	buf_addstr(&b, "] ");
	human_bytes(&b, p->done);
	buf_addstr(&b, " of ");
	human_bytes(&b, p->total);
	buf_addstr(&b, ", ");
	human_bytes(&b, (uint64_t)speed);
	buf_addstr(&b, "/s");
	if (speed > 0 && p->total > p->done) {
		buf_addstr(&b, ", ");
		human_time(&b, (int64_t)((double)(p->total - p->done) / speed * NSEC_PER_SEC));
		buf_addstr(&b, " left");
	}
	buf_addstr(&b, "\033[K");
	fputs(buf_str(&b), stderr);
	fflush(stderr);
	buf_release(&b);
}

void progress_begin(struct progress *p, const char *what, uint64_t total)
{
	const char *term = getenv("TERM");

	*p = (struct progress){
		.what = what,
		.total = total,
		.started = clock_mono_ns(),
		.terminal =
			isatty(STDERR_FILENO) == 1 && (term == NULL || strcmp(term, "dumb") != 0),
	};
	if (p->terminal)
		draw(p);
	p->drawn = p->started;
}

void progress_add(struct progress *p, uint64_t bytes)
{
	p->done = MIN(p->done + bytes, p->total);
	if (p->terminal && clock_mono_ns() - p->drawn >= REDRAW_NS) {
		draw(p);
		p->drawn = clock_mono_ns();
	}
}

void progress_clear(struct progress *p)
{
	if (p->terminal)
		fputs("\r\033[K", stderr);
	p->terminal = false;
}

void progress_end(struct progress *p, const char *fmt, ...)
{
	double seconds = (double)(clock_mono_ns() - p->started) / NSEC_PER_SEC;
	struct buf b = {0};
	va_list args;

	progress_clear(p);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	buf_addstr(&b, ": ");
	human_bytes(&b, p->done);
	buf_addf(&b, " in %.*f s, ", seconds < 10 ? 1 : 0, seconds);
	human_bytes(&b, (uint64_t)rate(p));
	fprintf(stderr, "%s/s\n", buf_str(&b));
	buf_release(&b);
}
