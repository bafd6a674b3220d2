/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Server-sent events, by the rules of the HTML standard: lines end in LF, CR or CRLF; "field:
 * value" with one blank taken off; several data lines are joined by LF; a line that begins with a
 * colon is a comment (the server's ping); an empty line ends the event; a byte order mark at the
 * start is skipped.  What is not ended by an empty line when the stream ends is not an event.
 *
 * Memory is bounded: beyond SSE_EVENT_MAX an event is cut and marked so.  The fields id and retry
 * mean nothing here: the Hub's feed has its cursor in the data.
 *
 * Pure, no state but the caller's.
 */
#include "cache/remote/sse.h"

static void add(struct sse *s, struct buf *b, const char *bytes, size_t len)
{
	size_t room = b->len < SSE_EVENT_MAX ? SSE_EVENT_MAX - b->len : 0;

	if (len > room) {
		s->cut = true;
		len = room;
	}
	buf_add(b, bytes, len);
	s->cut |= b->failed;
}

static void end_event(struct sse *s)
{
	if (s->data.len > 0 || s->cut) {
		/* Every data line left an LF; the last one is none. */
		if (s->data.len > 0 && s->data.data[s->data.len - 1] == '\n')
			s->data.len--;
		s->event(s->ctx, s->name.len > 0 ? buf_str(&s->name) : "message", buf_str(&s->data),
			 s->cut);
	}
	buf_release(&s->name);
	buf_release(&s->data);
	s->cut = false;
}

static void end_line(struct sse *s)
{
	const char *line = s->line.data, *colon, *value;
	size_t len = s->line.len, name;

	if (!s->begun && len >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) {
		line += 3;
		len -= 3;
	}
	s->begun = true;
	if (len == 0) {
		end_event(s);
		s->line.len = 0;
		return;
	}
	colon = memchr(line, ':', len);
	name = colon != NULL ? (size_t)(colon - line) : len;
	value = colon != NULL ? colon + 1 : line + len;
	if (value < line + len && *value == ' ')
		value++;
	len -= (size_t)(value - line);
	if (name == 4 && memcmp(line, "data", 4) == 0) {
		add(s, &s->data, value, len);
		add(s, &s->data, "\n", 1);
	} else if (name == 5 && memcmp(line, "event", 5) == 0) {
		s->name.len = 0;
		add(s, &s->name, value, MIN(len, 64));
	}
	s->line.len = 0;
}

void sse_feed(struct sse *s, const void *bytes, size_t len)
{
	const char *p = bytes, *end = p + len;

	while (p < end) {
		const char *stop = p;

		if (s->after_cr && *p == '\n') {
			s->after_cr = false;
			p++;
			continue;
		}
		s->after_cr = false;
		while (stop < end && *stop != '\n' && *stop != '\r')
			stop++;
		add(s, &s->line, p, (size_t)(stop - p));
		if (stop < end) {
			s->after_cr = *stop == '\r';
			end_line(s);
			stop++;
		}
		p = stop;
	}
}

void sse_release(struct sse *s)
{
	buf_release(&s->line);
	buf_release(&s->name);
	buf_release(&s->data);
}
