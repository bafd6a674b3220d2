/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading weightfs.json, and the rules that every manifest keeps, whoever made it.
 *
 * Two steps.  The JSON becomes entries, each member with its type, its range and a sentence of its
 * own when it is wrong; what is not known is left out.  Then manifest_check() looks at the whole:
 * order, bases, and that no key is named twice.  Changes (manifest_edit.c) end in the same check,
 * so what is composed can be parsed.
 *
 * The text comes from a bucket and may be anything.  Depth and size are bounded (jansson's own
 * limit of nesting; MANIFEST_MAX), numbers are whole and fit 63 bits, and a key never leads out of
 * the run.
 */
#include "fs/manifest_internal.h"

#include "cache/fileio.h"
#include "fs/rfc3339.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

const char *const manifest_kinds[] = {"anchor", "delta", "span"};

/* An entry in words: 'step 41 (delta)'. */
static const char *entry_name(const struct manifest_entry *e, char out[80])
{
	if (e->kind == MANIFEST_SPAN)
		snprintf(out, 80, "the span from %llu to %llu", (unsigned long long)e->base,
			 (unsigned long long)e->version);
	else
		snprintf(out, 80, "step %llu (%s)", (unsigned long long)e->version,
			 manifest_kinds[e->kind]);
	return out;
}

#define NAMED(e) entry_name((e), (char[80]){0})

void manifest_hex(const uint8_t bytes[16], char out[33])
{
	for (int i = 0; i < 16; i++)
		snprintf(out + 2 * (size_t)i, 3, "%02x", bytes[i]);
}

static int digit_of(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int manifest_unhex(const char *text, uint8_t out[16])
{
	uint8_t bytes[16];

	if (strlen(text) != 32)
		return -EINVAL;
	for (size_t i = 0; i < 16; i++) {
		int high = digit_of(text[2 * i]), low = digit_of(text[2 * i + 1]);

		if (high < 0 || low < 0)
			return -EINVAL;
		bytes[i] = (uint8_t)(high << 4 | low);
	}
	memcpy(out, bytes, sizeof(bytes));
	return 0;
}

bool manifest_lineage_ok(const char *text)
{
	return strlen(text) == 8 && strspn(text, "0123456789abcdef") == 8;
}

/* ---- keys ---- */

/* Printable, and no part begins with a dot: a listing leaves such names out. */
static bool is_plain(const char *path)
{
	for (const char *s = path; *s != '\0'; s++)
		if ((unsigned char)*s < 0x20 || *s == 0x7f || *s == '\\' ||
		    (*s == '.' && (s == path || s[-1] == '/')))
			return false;
	return path_is_safe(path);
}

bool manifest_key_ok(const char *key, const char *encoding)
{
	static const char *const ours[] = {"anchors/", "deltas/", "compact/"};
	static const char *const encodings[] = {"safetensors", "packed", "wfp1",
						"wfp1x",       "trl-v1", "trl-v3"};
	const char *slash = strchr(key, '/');

	if (strlen(key) > MANIFEST_KEY_MAX || !is_plain(key) || slash == NULL)
		return false;
	for (size_t i = 0; i < ARRAY_LEN(ours); i++)
		if (strncmp(key, ours[i], strlen(ours[i])) == 0)
			return true;
	for (size_t i = 0; i < ARRAY_LEN(encodings); i++)
		if (strcmp(encoding, encodings[i]) == 0)
			return false;
	return strncmp(key, "leases/", strlen("leases/")) != 0;
}

static bool file_ok(const char *file)
{
	return strlen(file) <= MANIFEST_FILE_MAX && strchr(file, '/') == NULL && is_plain(file);
}

static bool encoding_ok(const char *s)
{
	size_t len = strlen(s);

	return len > 0 && len < sizeof(((struct manifest_entry *)NULL)->encoding) &&
	       strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789._-") == len;
}

/* ---- members ---- */

static int bad(struct why *why, const char *where, const char *what)
{
	return why_set(why, EBADMSG, "%s: %s", where, what);
}

/* A member that must be text. */
static int take_text(const json_t *o, const char *member, const char *where, const char **out,
		     struct why *why)
{
	const json_t *v = json_object_get(o, member);

	if (v == NULL)
		return why_set(why, EBADMSG, "%s has no \"%s\"", where, member);
	if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
		return why_set(why, EBADMSG, "\"%s\" of %s is not text", member, where);
	*out = json_string_value(v);
	return 0;
}

static int take_number(const json_t *o, const char *member, const char *where, uint64_t *out,
		       struct why *why)
{
	const json_t *v = json_object_get(o, member);

	if (v == NULL)
		return why_set(why, EBADMSG, "%s has no \"%s\"", where, member);
	if (!json_is_integer(v) || json_integer_value(v) < 0)
		return why_set(why, EBADMSG, "\"%s\" of %s is not a whole number of 0 or more",
			       member, where);
	*out = (uint64_t)json_integer_value(v);
	return 0;
}

/* A time that may be missing. */
static int take_time(const json_t *o, const char *where, int64_t *out, struct why *why)
{
	const char *text = NULL;
	int err;

	*out = 0;
	if (json_object_get(o, "time") == NULL)
		return 0;
	err = take_text(o, "time", where, &text, why);
	if (err == 0 && rfc3339_parse(text, out) < 0)
		err = why_set(why, EBADMSG, "\"time\" of %s is no time: \"%s\"", where,
			      SHOWN(text));
	return err;
}

static int take_state(const json_t *o, const char *where, uint8_t out[16], struct why *why)
{
	const char *text = NULL;
	int err = take_text(o, "state", where, &text, why);

	if (err == 0 && manifest_unhex(text, out) < 0)
		err = why_set(why, EBADMSG, "\"state\" of %s is not 32 hex digits", where);
	return err;
}

static int take_object(const json_t *o, struct manifest_entry *e, const char *where,
		       struct why *why)
{
	const char *key = NULL, *file = NULL;
	uint64_t size = 0;
	int err;

	if (!json_is_object(o))
		return bad(why, where, "an object is not given as {\"key\", \"size\"}");
	err = take_text(o, "key", where, &key, why);
	if (err == 0)
		err = take_number(o, "size", where, &size, why);
	if (err == 0 && json_object_get(o, "file") != NULL)
		err = take_text(o, "file", where, &file, why);
	if (err < 0)
		return err;
	err = manifest_entry_object(e, key, file, size);
	return err < 0 ? why_set(why, -err, "out of memory") : 0;
}

static int take_objects(const json_t *o, struct manifest_entry *e, const char *where,
			struct why *why)
{
	const json_t *list = json_object_get(o, "objects");
	int err = 0;

	if (!json_is_array(list))
		return bad(why, where, "\"objects\" is missing or not a list");
	for (size_t i = 0; i < json_array_size(list) && err == 0; i++)
		err = take_object(json_array_get(list, i), e, where, why);
	return err;
}

static int take_entry(const json_t *o, bool span, size_t index, struct manifest_entry *e,
		      struct why *why)
{
	const char *kind = "span", *encoding = NULL;
	char where[60];
	int err = 0;

	snprintf(where, sizeof(where), "%s %zu", span ? "span" : "step", index);
	if (!json_is_object(o))
		return bad(why, where, "is not a JSON object");
	if (!span)
		err = take_text(o, "kind", where, &kind, why);
	if (err < 0)
		return err;
	for (e->kind = MANIFEST_ANCHOR; e->kind < MANIFEST_SPAN; e->kind++)
		if (strcmp(kind, manifest_kinds[e->kind]) == 0)
			break;
	if (e->kind == MANIFEST_SPAN && !span)
		return why_set(why, EBADMSG,
			       "step %zu is of kind \"%s\"; known are anchor and delta", index,
			       SHOWN(kind));
	err = take_number(o, "version", where, &e->version, why);
	if (err == 0 && e->kind != MANIFEST_ANCHOR)
		err = take_number(o, "base", where, &e->base, why);
	if (err == 0)
		err = take_state(o, where, e->state, why);
	if (err == 0)
		err = take_time(o, where, &e->time_ns, why);
	if (err == 0)
		err = take_text(o, "encoding", where, &encoding, why);
	if (err < 0)
		return err;
	if (!encoding_ok(encoding))
		return why_set(why, EBADMSG, "\"encoding\" of %s is no name: \"%s\"", where,
			       SHOWN(encoding));
	snprintf(e->encoding, sizeof(e->encoding), "%s", encoding);
	return take_objects(o, e, where, why);
}

static int take_list(const json_t *root, const char *member, bool span, struct manifest_entry **out,
		     size_t *out_count, struct why *why)
{
	const json_t *list = json_object_get(root, member);
	size_t n = json_array_size(list);

	if (list == NULL && span)
		return 0;
	if (!json_is_array(list))
		return why_set(why, EBADMSG, "\"%s\" is missing or not a list", member);
	*out = calloc(n + 1, sizeof(**out));
	if (*out == NULL)
		return why_set(why, ENOMEM, "out of memory");
	for (size_t i = 0; i < n; i++) {
		int err;

		++*out_count;
		err = take_entry(json_array_get(list, i), span, i, &(*out)[i], why);
		if (err < 0)
			return err;
	}
	return 0;
}

/* Who wrote it: for people, so nothing of it has to be there. */
/* Printable, and the same however often the text is read and written again: what was escaped has
 * no backslash that would be escaped the next time. */
static void take_host(const char *text, char *out, size_t cap)
{
	printable(out, cap, text, strlen(text));
	for (char *c = strchr(out, '\\'); c != NULL; c = strchr(c, '\\'))
		*c = '?';
}

static int take_publisher(const json_t *root, struct manifest *m, struct why *why)
{
	const json_t *p = json_object_get(root, "publisher"), *v;
	const char *text;

	if (p == NULL)
		return 0;
	if (!json_is_object(p))
		return why_set(why, EBADMSG, "\"publisher\" is not a JSON object");
	text = json_string_value(json_object_get(p, "id"));
	if (text != NULL) {
		uint8_t id[16];

		if (manifest_unhex(text, id) < 0)
			return why_set(why, EBADMSG, "the publisher's \"id\" is not 32 hex digits");
		snprintf(m->publisher.id, sizeof(m->publisher.id), "%s", text);
	}
	text = json_string_value(json_object_get(p, "host"));
	if (text != NULL)
		take_host(text, m->publisher.host, sizeof(m->publisher.host));
	v = json_object_get(p, "pid");
	m->publisher.pid = json_is_integer(v) ? json_integer_value(v) : 0;
	return take_time(p, "the publisher", &m->publisher.time_ns, why);
}

/* ---- the whole ---- */

static int check_objects(const struct manifest_entry *e, struct why *why)
{
	if (e->object_count == 0 && e->kind != MANIFEST_DELTA)
		return why_set(why, EBADMSG, "%s has no objects", NAMED(e));
	for (size_t i = 0; i < e->object_count; i++) {
		const struct manifest_object *o = &e->objects[i];

		if (!manifest_key_ok(o->key, e->encoding))
			return why_set(why, EBADMSG,
				       "%s has an object \"%s\", which is no plain path below "
				       "anchors/, deltas/ or compact/",
				       NAMED(e), SHOWN(o->key));
		if (o->size > INT64_MAX)
			return why_set(why, EBADMSG, "%s has an object of an impossible size",
				       NAMED(e));
		if (o->file != NULL && !file_ok(o->file))
			return why_set(why, EBADMSG,
				       "%s has an object whose file \"%s\" is no "
				       "plain name",
				       NAMED(e), SHOWN(o->file));
		if (o->file == NULL && e->kind == MANIFEST_ANCHOR && e->object_count > 1)
			return why_set(why, EBADMSG,
				       "%s has several objects, and \"%s\" does not say which file "
				       "it is",
				       NAMED(e), SHOWN(o->key));
		for (size_t k = 0; o->file != NULL && k < i && e->object_count <= 4096; k++)
			if (e->objects[k].file != NULL && strcmp(e->objects[k].file, o->file) == 0)
				return why_set(why, EBADMSG, "%s has the file \"%s\" twice",
					       NAMED(e), SHOWN(o->file));
	}
	return 0;
}

/* One step after the one before (NULL: it is the first).  *io_below: the version before `prev`'s.
 */
static int check_step(const struct manifest_entry *e, const struct manifest_entry *prev,
		      uint64_t *io_below, struct why *why)
{
	bool twin = prev != NULL && prev->version == e->version;
	uint64_t below = prev == NULL ? 0 : twin ? *io_below : prev->version;

	if (e->version == 0 || e->version > INT64_MAX)
		return why_set(why, EBADMSG, "a step has the version %llu; they begin at 1",
			       (unsigned long long)e->version);
	if (prev == NULL && e->kind != MANIFEST_ANCHOR)
		return why_set(why, EBADMSG, "the first step, %llu, is no anchor",
			       (unsigned long long)e->version);
	if (prev != NULL && e->version < prev->version)
		return why_set(why, EBADMSG, "step %llu comes after step %llu",
			       (unsigned long long)e->version, (unsigned long long)prev->version);
	if (twin && (e->kind != MANIFEST_DELTA || prev->kind != MANIFEST_ANCHOR))
		return why_set(why, EBADMSG,
			       "version %llu is there twice; only a delta may follow, once, an "
			       "anchor of its number",
			       (unsigned long long)e->version);
	if (twin && memcmp(e->state, prev->state, sizeof(e->state)) != 0)
		return why_set(why, EBADMSG, "the anchor and the delta %llu have different states",
			       (unsigned long long)e->version);
	if (e->kind == MANIFEST_DELTA && (below == 0 || e->base != below))
		return why_set(why, EBADMSG,
			       "step %llu applies to %llu, which is not the version before it",
			       (unsigned long long)e->version, (unsigned long long)e->base);
	*io_below = below;
	return check_objects(e, why);
}

static int check_span(const struct manifest *m, const struct manifest_entry *e,
		      const struct manifest_entry *prev, struct why *why)
{
	const uint8_t *state = manifest_state(m, e->version);

	if (e->base >= e->version || state == NULL || manifest_state(m, e->base) == NULL)
		return why_set(why, EBADMSG, "%s does not join two steps", NAMED(e));
	if (memcmp(state, e->state, sizeof(e->state)) != 0)
		return why_set(why, EBADMSG, "%s has another state than step %llu", NAMED(e),
			       (unsigned long long)e->version);
	if (prev != NULL && prev->base == e->base && prev->version == e->version)
		return why_set(why, EBADMSG, "%s is there twice", NAMED(e));
	return check_objects(e, why);
}

static int compare_texts(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static size_t add_keys(const struct manifest_entry *v, size_t n, const char **keys, size_t at)
{
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < v[i].object_count; k++, at++)
			if (keys != NULL)
				keys[at] = v[i].objects[k].key;
	return at;
}

static int check_keys(const struct manifest *m, struct why *why)
{
	size_t n = add_keys(m->steps, m->step_count, NULL, 0);
	const char **keys;
	int err = 0;

	n = add_keys(m->spans, m->span_count, NULL, n);
	keys = calloc(n + 1, sizeof(*keys));
	if (keys == NULL)
		return why_set(why, ENOMEM, "out of memory");
	add_keys(m->spans, m->span_count, keys, add_keys(m->steps, m->step_count, keys, 0));
	qsort(keys, n, sizeof(*keys), compare_texts);
	for (size_t i = 1; i < n && err == 0; i++)
		if (strcmp(keys[i - 1], keys[i]) == 0)
			err = why_set(why, EBADMSG, "the object \"%s\" is named twice",
				      SHOWN(keys[i]));
	free(keys);
	return err;
}

static int compare_spans(const void *a, const void *b)
{
	const struct manifest_entry *x = a, *y = b;

	if (x->base != y->base)
		return x->base < y->base ? -1 : 1;
	return (x->version > y->version) - (x->version < y->version);
}

int manifest_check(struct manifest *m, struct why *why)
{
	uint64_t last = m->step_count > 0 ? m->steps[m->step_count - 1].version : 0, below = 0;
	int err = 0;

	for (size_t i = 0; i < m->step_count && err == 0; i++)
		err = check_step(&m->steps[i], i > 0 ? &m->steps[i - 1] : NULL, &below, why);
	if (err == 0 && m->newest != last)
		err = why_set(why, EBADMSG, "\"newest\" is %llu and the last step %llu",
			      (unsigned long long)m->newest, (unsigned long long)last);
	if (err < 0)
		return err;
	if (m->span_count > 0)
		qsort(m->spans, m->span_count, sizeof(*m->spans), compare_spans);
	for (size_t i = 0; i < m->span_count && err == 0; i++)
		err = check_span(m, &m->spans[i], i > 0 ? &m->spans[i - 1] : NULL, why);
	return err == 0 ? check_keys(m, why) : err;
}

/* Is it ours, and of a version that we know? */
static int check_format(const json_t *root, struct why *why)
{
	const char *format = json_string_value(json_object_get(root, "format"));
	uint64_t version = 0;
	int err;

	if (format == NULL || strcmp(format, "weightfs-run") != 0)
		return why_set(why, EBADMSG,
			       "is no description of a run: \"format\" is not "
			       "\"weightfs-run\"");
	err = take_number(root, "version", "it", &version, why);
	if (err == 0 && version != MANIFEST_VERSION)
		err = why_set(why, ENOTSUP,
			      "is of version %llu; this weightfs knows version %d: a newer "
			      "weightfs reads it",
			      (unsigned long long)version, MANIFEST_VERSION);
	return err;
}

static int take_root(const json_t *root, struct manifest *m, struct why *why)
{
	const char *lineage = NULL;
	int err = take_text(root, "lineage", "it", &lineage, why);

	if (err == 0 && !manifest_lineage_ok(lineage))
		err = why_set(why, EBADMSG, "\"lineage\" is not 8 hex digits: \"%s\"",
			      SHOWN(lineage));
	if (err < 0)
		return err;
	snprintf(m->lineage, sizeof(m->lineage), "%s", lineage);
	err = take_publisher(root, m, why);
	if (err == 0)
		err = take_number(root, "newest", "it", &m->newest, why);
	if (err == 0)
		err = take_list(root, "steps", false, &m->steps, &m->step_count, why);
	if (err == 0)
		err = take_list(root, "spans", true, &m->spans, &m->span_count, why);
	return err == 0 ? manifest_check(m, why) : err;
}

int manifest_parse(const char *text, size_t len, struct manifest **out, struct why *why)
{
	struct manifest *m = NULL;
	json_error_t error;
	json_t *root;
	int err;

	if (len > MANIFEST_MAX)
		return why_set(why, EFBIG, "has %zu bytes; at most %d are read", len, MANIFEST_MAX);
	root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
	if (root == NULL)
		return why_set(why, EBADMSG, "is not JSON: %s (line %d)", SHOWN(error.text),
			       error.line);
	m = calloc(1, sizeof(*m));
	if (m == NULL)
		err = why_set(why, ENOMEM, "out of memory");
	else if (!json_is_object(root))
		err = why_set(why, EBADMSG, "is not a JSON object");
	else
		err = check_format(root, why);
	if (err == 0)
		err = take_root(root, m, why);
	json_decref(root);
	if (err < 0)
		manifest_free(m);
	else
		*out = m;
	return err;
}
