/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams among reads.
 *
 *	read touches...			stream is			then
 *	nothing known			-				a new candidate, [lo, hi)
 *	the end of a candidate		ascending			advice from now on
 *	the start of one, twice		descending			advice from now on
 *	near the head of a stream	as it was			head moves, advice
 *
 * Candidates match exactly, so that random readers do not look like streams; a stream once found
 * matches loosely.  A place for a new candidate is taken from the one not used for longest.
 *
 * Not here: what is present, how much is in flight, and asking anybody for anything.
 */
#include "cache/prefetch.h"

#include <assert.h>

static const uint64_t NEAR = 4 << 20; /* how far off its head a read may be */

static bool joins_candidate(struct prefetch_stream *s, uint64_t off, uint64_t end)
{
	if (off >= s->lo && off <= s->hi) {
		if (end > s->hi) {
			s->up += off > s->lo; /* else it is the same place once more */
			s->down = 0;
			s->hi = end;
		}
	} else if (off < s->lo && end >= s->lo && end <= s->hi) {
		s->down++;
		s->up = 0;
		s->lo = off;
	} else {
		return false;
	}
	s->run = s->hi - s->lo;
	if (s->up >= 1)
		s->direction = 1;
	else if (s->down >= 2)
		s->direction = -1;
	s->frontier = s->direction > 0 ? s->hi : s->lo;
	return true;
}

static bool joins_stream(struct prefetch_stream *s, uint64_t off, uint64_t end)
{
	uint64_t head = s->direction > 0 ? s->hi : s->lo;

	if (off > head + NEAR || head > end + NEAR)
		return false;
	if (s->direction > 0 && end > s->hi) {
		s->run += MIN(end - s->hi, end - off);
		s->hi = end;
	} else if (s->direction < 0 && off < s->lo) {
		s->run += MIN(s->lo - off, end - off);
		s->lo = off;
	}
	return true;
}

static struct prefetch_stream *find(struct prefetch *p, uint64_t off, uint64_t end)
{
	struct prefetch_stream *oldest = &p->v[0];

	for (int i = 0; i < PREFETCH_STREAMS; i++)
		if (p->v[i].used != 0 && p->v[i].direction != 0 && joins_stream(&p->v[i], off, end))
			return &p->v[i];
	for (int i = 0; i < PREFETCH_STREAMS; i++)
		if (p->v[i].used != 0 && p->v[i].direction == 0 &&
		    joins_candidate(&p->v[i], off, end))
			return &p->v[i];
	for (int i = 1; i < PREFETCH_STREAMS; i++)
		if (p->v[i].used < oldest->used)
			oldest = &p->v[i];
	*oldest = (struct prefetch_stream){.lo = off, .hi = end, .run = end - off};
	return oldest;
}

static uint64_t window_of(const struct prefetch_stream *s, const struct prefetch_limits *limits)
{
	uint64_t w = limits->min;

	while (w < limits->max && w < 4 * s->run)
		w *= 2;
	return w;
}

void prefetch_read(struct prefetch *p, const struct prefetch_limits *limits, uint64_t size,
		   uint64_t off, uint64_t len, bool missed, struct prefetch_advice *out)
{
	struct prefetch_stream *s;
	uint64_t window, step, end = off + len;

	assert(len > 0 && end <= size);
	s = find(p, off, end);
	s->used = ++p->tick;
	*out = (struct prefetch_advice){.stream = (unsigned)(s - p->v)};
	if (s->direction == 0)
		return;
	out->sequential = true;
	out->down = s->direction < 0;
	window = window_of(s, limits);
	/* Not a little at every read: in requests that are worth one. */
	step = MIN(limits->step, MAX(window / 8, limits->align));
	if (!out->down) {
		uint64_t from = missed ? s->hi : MAX(s->frontier, s->hi);
		uint64_t to = size - s->hi > window ? s->hi + window : size;

		if (to < size)
			to -= to % limits->align;
		s->frontier = from;
		if (to <= from || (to - from < step && to < size && from > s->hi))
			return;
		out->off = from;
		out->len = to - from;
		s->frontier = to;
	} else {
		uint64_t to = missed ? s->lo : MIN(s->frontier, s->lo);
		uint64_t from = s->lo > window ? s->lo - window : 0;

		from = ALIGN_UP(from, limits->align);
		s->frontier = to;
		if (to <= from || (to - from < step && from > 0 && to < s->lo))
			return;
		out->off = from;
		out->len = to - from;
		s->frontier = from;
	}
}

void prefetch_trim(struct prefetch *p, const struct prefetch_advice *advice, uint64_t done)
{
	struct prefetch_stream *s = &p->v[advice->stream];

	if (advice->len > 0)
		s->frontier = advice->down ? advice->off + advice->len - done : advice->off + done;
}
