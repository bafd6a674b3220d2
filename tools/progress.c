/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A progress bar for people, and one line of summary for logs.
 *
 *	export   45 % [#########...........]  1.2 GB of 2.7 GB, 540 MB/s, 3 s left
 *
 * Drawn on stderr, so that stdout stays the tool's.  The rate is that of the whole, not of the last
 * moment: the remaining time then does not jump about.  Of a stream nobody knows the end:
 *
 *	standard input  1.2 GB, 540 MB/s
 */
#include "tools/progress.h"

#include "cache/clock.h"
#include "fs/human.h"

#include <inttypes.h>
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

/* 12 objects, or 1.2 GB. */
static void add_amount(struct buf *b, const struct progress *p, uint64_t n)
{
	if (p->noun != NULL)
		buf_addf(b, "%" PRIu64, n);
	else
		human_bytes(b, n);
}

/* How far it is, where that can be known. */
static void add_bar(struct buf *b, const struct progress *p)
{
	double share = p->total > 0 ? (double)p->done / (double)p->total : 1;
	int full = (int)(share * BAR);

	buf_addf(b, " %3d %% [", (int)(share * 100));
	buf_fill(b, '#', (size_t)full);
	buf_fill(b, '.', (size_t)(BAR - full));
	buf_addstr(b, "]");
}

static void draw(struct progress *p)
{
	const bool known = p->total != PROGRESS_UNKNOWN;
	double speed = rate(p);
	struct buf b = {0};

	buf_addf(&b, "\r%s", p->what);
	if (known)
		add_bar(&b, p);
	buf_addstr(&b, "  ");
	add_amount(&b, p, p->done);
	if (known) {
		buf_addstr(&b, " of ");
		add_amount(&b, p, p->total);
	}
	if (p->noun != NULL)
		buf_addf(&b, " %s", p->noun);
	buf_addstr(&b, ", ");
	add_amount(&b, p, (uint64_t)speed);
	buf_addstr(&b, "/s");
	if (known && speed > 0 && p->total > p->done) {
		buf_addstr(&b, ", ");
		human_time(&b, (int64_t)((double)(p->total - p->done) / speed * NSEC_PER_SEC));
		buf_addstr(&b, " left");
	}
	buf_addstr(&b, "\033[K");
	fputs(buf_str(&b), stderr);
	fflush(stderr);
	buf_release(&b);
}

void progress_begin_count(struct progress *p, const char *what, const char *noun, uint64_t total)
{
	const char *term = getenv("TERM");

	*p = (struct progress){
		.what = what,
		.noun = noun,
		.total = total,
		.started = clock_mono_ns(),
		.terminal =
			isatty(STDERR_FILENO) == 1 && (term == NULL || strcmp(term, "dumb") != 0),
	};
	if (p->terminal)
		draw(p);
	p->drawn = p->started;
}

void progress_begin(struct progress *p, const char *what, uint64_t total)
{
	progress_begin_count(p, what, NULL, total);
}

void progress_add(struct progress *p, uint64_t more)
{
	/* Not past the total: bytes are read again when a part is sent again. */
	p->done += MIN(more, p->total - p->done);
	if (p->terminal && clock_mono_ns() - p->drawn >= REDRAW_NS) {
		draw(p);
		p->drawn = clock_mono_ns();
	}
}

void progress_hide(struct progress *p)
{
	if (!p->terminal)
		return;
	fputs("\r\033[K", stderr);
	fflush(stderr);
	p->drawn = p->started - REDRAW_NS;
}

void progress_clear(struct progress *p)
{
	progress_hide(p);
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
	add_amount(&b, p, p->done);
	if (p->noun != NULL)
		buf_addf(&b, " %s", p->noun);
	buf_addf(&b, " in %.*f s, ", seconds < 10 ? 1 : 0, seconds);
	add_amount(&b, p, (uint64_t)rate(p));
	fprintf(stderr, "%s/s\n", buf_str(&b));
	buf_release(&b);
}
