/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making, changing and writing weightfs.json.
 *
 * Every change is made, checked as a whole (manifest.c), and taken back when it does not fit: a
 * publisher, a compaction and a prune cannot write what readers would refuse.  The text has an
 * entry a line, so that a person can read it and a diff of two of them says what happened.
 */
#include "fs/manifest_internal.h"

#include "fs/rfc3339.h"

#include <stdio.h>
#include <stdlib.h>

int manifest_entry_object(struct manifest_entry *e, const char *key, const char *file,
			  uint64_t size)
{
	struct manifest_object *grown, o = {.size = size};

	/* Room for the next power of two. */
	if ((e->object_count & (e->object_count - 1)) == 0) {
		grown = realloc(e->objects,
				(e->object_count ? 2 * e->object_count : 1) * sizeof(*grown));
		if (grown == NULL)
			return -ENOMEM;
		e->objects = grown;
	}
	o.key = strdup(key);
	o.file = file != NULL ? strdup(file) : NULL;
	if (o.key == NULL || (file != NULL && o.file == NULL)) {
		free(o.key);
		free(o.file);
		return -ENOMEM;
	}
	e->objects[e->object_count++] = o;
	return 0;
}

void manifest_entry_release(struct manifest_entry *e)
{
	for (size_t i = 0; i < e->object_count; i++) {
		free(e->objects[i].key);
		free(e->objects[i].file);
	}
	free(e->objects);
	free(e->index);
	*e = (struct manifest_entry){0};
}

static int entry_copy(const struct manifest_entry *e, struct manifest_entry *out)
{
	*out = *e;
	out->objects = NULL;
	out->object_count = 0;
	out->index = e->index != NULL ? strdup(e->index) : NULL;
	if (e->index != NULL && out->index == NULL)
		return -ENOMEM;
	for (size_t i = 0; i < e->object_count; i++)
		if (manifest_entry_object(out, e->objects[i].key, e->objects[i].file,
					  e->objects[i].size) < 0) {
			manifest_entry_release(out);
			return -ENOMEM;
		}
	return 0;
}

void manifest_free(struct manifest *m)
{
	if (m == NULL)
		return;
	for (size_t i = 0; i < m->step_count; i++)
		manifest_entry_release(&m->steps[i]);
	for (size_t i = 0; i < m->span_count; i++)
		manifest_entry_release(&m->spans[i]);
	free(m->steps);
	free(m->spans);
	free(m);
}

int manifest_new(const char *lineage, struct manifest **out)
{
	struct manifest *m;

	if (!manifest_lineage_ok(lineage))
		return -EINVAL;
	m = calloc(1, sizeof(*m));
	if (m == NULL)
		return -ENOMEM;
	snprintf(m->lineage, sizeof(m->lineage), "%s", lineage);
	*out = m;
	return 0;
}

static int copy_list(const struct manifest_entry *v, size_t n, struct manifest_entry **out,
		     size_t *out_count)
{
	*out_count = 0;
	*out = calloc(n + 1, sizeof(**out));
	if (*out == NULL)
		return -ENOMEM;
	for (; *out_count < n; ++*out_count)
		if (entry_copy(&v[*out_count], &(*out)[*out_count]) < 0)
			return -ENOMEM;
	return 0;
}

int manifest_copy(const struct manifest *m, struct manifest **out)
{
	struct manifest *c = calloc(1, sizeof(*c));
	int err;

	if (c == NULL)
		return -ENOMEM;
	*c = *m;
	c->steps = c->spans = NULL;
	c->step_count = c->span_count = 0;
	err = copy_list(m->steps, m->step_count, &c->steps, &c->step_count);
	if (err == 0)
		err = copy_list(m->spans, m->span_count, &c->spans, &c->span_count);
	if (err < 0)
		manifest_free(c);
	else
		*out = c;
	return err;
}

/* The first step that is not below the version. */
static size_t step_at(const struct manifest *m, uint64_t version)
{
	size_t lo = 0, hi = m->step_count;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (m->steps[mid].version < version)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

const struct manifest_entry *manifest_find(const struct manifest *m, uint64_t version,
					   enum manifest_kind kind)
{
	if (kind == MANIFEST_SPAN) {
		for (size_t i = 0; i < m->span_count; i++)
			if (m->spans[i].version == version)
				return &m->spans[i];
		return NULL;
	}
	for (size_t i = step_at(m, version); i < m->step_count && m->steps[i].version == version;
	     i++)
		if (m->steps[i].kind == kind)
			return &m->steps[i];
	return NULL;
}

const uint8_t *manifest_state(const struct manifest *m, uint64_t version)
{
	size_t i = step_at(m, version);

	return i < m->step_count && m->steps[i].version == version ? m->steps[i].state : NULL;
}

static void take_out(struct manifest_entry *v, size_t *count, size_t at)
{
	manifest_entry_release(&v[at]);
	--*count;
	memmove(&v[at], &v[at + 1], (*count - at) * sizeof(*v));
}

/* Where the new entry goes: steps in order with the anchor first, spans behind. */
static size_t place_of(const struct manifest *m, const struct manifest_entry *e)
{
	size_t i;

	if (e->kind == MANIFEST_SPAN)
		return m->span_count;
	i = step_at(m, e->version);
	while (i < m->step_count && m->steps[i].version == e->version && m->steps[i].kind < e->kind)
		i++;
	return i;
}

/* The index of an equal span, or span_count. */
static size_t span_index(const struct manifest *m, uint64_t base, uint64_t version)
{
	size_t i = 0;

	while (i < m->span_count && (m->spans[i].base != base || m->spans[i].version != version))
		i++;
	return i;
}

int manifest_add(struct manifest *m, const struct manifest_entry *e, struct why *why)
{
	const bool span = e->kind == MANIFEST_SPAN;
	struct manifest_entry **v = span ? &m->spans : &m->steps, *grown, copy;
	size_t *count = span ? &m->span_count : &m->step_count, at = place_of(m, e);
	uint64_t newest = m->newest;
	int err;

	if (span ? span_index(m, e->base, e->version) < m->span_count
		 : manifest_find(m, e->version, e->kind) != NULL)
		return why_set(why, EEXIST, "version %llu is there already",
			       (unsigned long long)e->version);
	if (!span && e->version < m->newest)
		return why_set(why, EBADMSG, "version %llu is below the newest, %llu",
			       (unsigned long long)e->version, (unsigned long long)m->newest);
	grown = realloc(*v, (*count + 1) * sizeof(*grown));
	if (grown != NULL)
		*v = grown;
	if (grown == NULL || entry_copy(e, &copy) < 0)
		return why_set(why, ENOMEM, "out of memory");
	memmove(&grown[at + 1], &grown[at], (*count - at) * sizeof(*grown));
	grown[at] = copy;
	++*count;
	if (!span)
		m->newest = e->version;
	err = manifest_check(m, why);
	if (err < 0) {
		/* The check may have sorted spans. */
		take_out(*v, count, span ? span_index(m, e->base, e->version) : at);
		m->newest = newest;
	}
	return err;
}

int manifest_cut(struct manifest *m, uint64_t anchor_version)
{
	size_t n = step_at(m, anchor_version);

	if (manifest_find(m, anchor_version, MANIFEST_ANCHOR) == NULL)
		return -ENOENT;
	for (size_t i = 0; i < n; i++)
		manifest_entry_release(&m->steps[i]);
	m->step_count -= n;
	memmove(m->steps, m->steps + n, m->step_count * sizeof(*m->steps));
	if (m->step_count > 1 && m->steps[1].version == anchor_version)
		take_out(m->steps, &m->step_count, 1);
	for (size_t i = m->span_count; i-- > 0;)
		if (m->spans[i].base < anchor_version)
			take_out(m->spans, &m->span_count, i);
	return 0;
}

int manifest_drop_span(struct manifest *m, uint64_t base, uint64_t version)
{
	size_t i = span_index(m, base, version);

	if (i == m->span_count)
		return -ENOENT;
	take_out(m->spans, &m->span_count, i);
	return 0;
}

/* ---- writing ---- */

static void put_text(struct buf *b, const char *member, const char *text)
{
	buf_addf(b, "\"%s\": ", member);
	buf_addjson(b, text, strlen(text));
}

static void put_time(struct buf *b, int64_t time_ns)
{
	char text[RFC3339_LEN];

	if (time_ns == 0)
		return;
	rfc3339_format(time_ns, text);
	buf_addf(b, ", \"time\": \"%s\"", text);
}

static void put_entry(struct buf *b, const struct manifest_entry *e)
{
	char hex[33];

	buf_addf(b, "{\"version\": %llu", (unsigned long long)e->version);
	if (e->kind != MANIFEST_SPAN)
		buf_addf(b, ", \"kind\": \"%s\"", manifest_kinds[e->kind]);
	if (e->kind != MANIFEST_ANCHOR)
		buf_addf(b, ", \"base\": %llu", (unsigned long long)e->base);
	manifest_hex(e->state, hex);
	buf_addf(b, ", \"state\": \"%s\"", hex);
	put_time(b, e->time_ns);
	buf_addstr(b, ", ");
	put_text(b, "encoding", e->encoding);
	buf_addstr(b, ", \"objects\": [");
	for (size_t i = 0; i < e->object_count; i++) {
		buf_addstr(b, i > 0 ? ", {" : "{");
		put_text(b, "key", e->objects[i].key);
		buf_addf(b, ", \"size\": %llu", (unsigned long long)e->objects[i].size);
		if (e->objects[i].file != NULL) {
			buf_addstr(b, ", ");
			put_text(b, "file", e->objects[i].file);
		}
		buf_addstr(b, "}");
	}
	buf_addstr(b, "]}");
}

static void put_list(struct buf *b, const char *member, const struct manifest_entry *v, size_t n)
{
	buf_addf(b, " \"%s\": [", member);
	for (size_t i = 0; i < n; i++) {
		buf_addstr(b, i > 0 ? ",\n  " : "\n  ");
		put_entry(b, &v[i]);
	}
	buf_addstr(b, "]");
}

int manifest_compose(const struct manifest *m, struct buf *out)
{
	buf_addf(out, "{\"format\": \"weightfs-run\", \"version\": %d,\n", MANIFEST_VERSION);
	buf_addf(out, " \"lineage\": \"%s\",\n", m->lineage);
	if (m->publisher.id[0] != '\0') {
		buf_addf(out, " \"publisher\": {\"id\": \"%s\", ", m->publisher.id);
		put_text(out, "host", m->publisher.host);
		buf_addf(out, ", \"pid\": %lld", (long long)m->publisher.pid);
		put_time(out, m->publisher.time_ns);
		buf_addstr(out, "},\n");
	}
	buf_addf(out, " \"newest\": %llu,\n", (unsigned long long)m->newest);
	put_list(out, "steps", m->steps, m->step_count);
	buf_addstr(out, ",\n");
	put_list(out, "spans", m->spans, m->span_count);
	buf_addstr(out, "}\n");
	return out->failed ? -ENOMEM : 0;
}
