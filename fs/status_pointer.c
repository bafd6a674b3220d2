/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status of a run that weightfs.json describes: who published it last, which versions it has, and
 * its cumulative deltas.
 *
 * Nothing where there is no such file.  Any thread; a report is a snapshot.
 */
#include "fs/status_private.h"

#include "cache/clock.h"
#include "fs/human.h"

typedef unsigned long long ull;

void status_pointer_text(const struct run_report *r, struct buf *out)
{
	const struct pointer_info *p = r != NULL ? &r->pointer : NULL;

	if (p == NULL || p->lineage[0] == '\0')
		return;
	buf_addf(out, "published: versions %llu to %llu", (ull)p->oldest, (ull)p->newest);
	if (p->publisher[0] != '\0')
		buf_addf(out, " by %.8s on %s (process %lld)", p->publisher,
			 p->host[0] != '\0' ? p->host : "an unknown host", (long long)p->pid);
	if (p->time_ns != 0) {
		buf_addstr(out, ", ");
		human_time(out, clock_real_ns() - p->time_ns);
		buf_addstr(out, " ago");
	}
	buf_addstr(out, "\n");
	for (size_t i = 0; i < r->span_count; i++) {
		const struct span_info *s = &r->spans[i];

		buf_addf(out, "  versions %llu to %llu in one, ", (ull)s->base, (ull)s->version);
		human_bytes(out, s->bytes);
		buf_addf(out, ", %s\n", version_state_name(s->state));
	}
}

json_t *status_pointer_json(const struct run_report *r)
{
	const struct pointer_info *p = r != NULL ? &r->pointer : NULL;

	if (p == NULL || p->lineage[0] == '\0')
		return json_null();
	return json_pack("{s:s, s:I, s:I, s:s?, s:s?, s:I, s:f}", "lineage", p->lineage, "oldest",
			 (json_int_t)p->oldest, "newest", (json_int_t)p->newest, "publisher",
			 p->publisher[0] != '\0' ? p->publisher : NULL, "host",
			 p->host[0] != '\0' ? p->host : NULL, "pid", (json_int_t)p->pid, "time",
			 (double)p->time_ns / NSEC_PER_SEC);
}

json_t *status_spans_json(const struct run_report *r)
{
	json_t *list = json_array();

	for (size_t i = 0; r != NULL && i < r->span_count; i++) {
		const struct span_info *s = &r->spans[i];

		json_array_append_new(list,
				      json_pack("{s:I, s:I, s:I, s:s}", "base", (json_int_t)s->base,
						"version", (json_int_t)s->version, "bytes",
						(json_int_t)s->bytes, "state",
						version_state_name(s->state)));
	}
	return list;
}
