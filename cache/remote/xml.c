/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XML over expat, with everything switched off that a listing does not need.
 *
 * A document type declaration ends the walk: without one there are no entities but the five
 * predefined, so nothing can be expanded, and nothing external exists.
 *
 * The path of the element at hand is one string that grows and shrinks by "/name"; the text
 * collected is that since the last tag, which is all there is for the leaves that callers want.
 *
 * No state beyond a call; any thread.
 */
#include "cache/remote/xml.h"

#include <expat.h>
#include <stdlib.h>

enum { DEPTH_MAX = 16, TEXT_MAX = 64 << 10, PATH_CAP = 600, NAME_CAP = 64 };

struct walk {
	XML_Parser parser;
	const struct xml_reader *reader;
	char path[PATH_CAP];
	size_t len[DEPTH_MAX + 1]; /* of path, at each level */
	unsigned depth;
	struct buf text;
	int err;
	const char *refused;
};

static void stop(struct walk *w, int err, const char *refused)
{
	if (w->err == 0) {
		w->err = err;
		w->refused = refused;
	}
	XML_StopParser(w->parser, XML_FALSE);
}

static void XMLCALL on_start(void *user, const XML_Char *name, const XML_Char **attributes)
{
	const char *colon = strchr(name, ':');
	struct walk *w = user;
	size_t at = w->len[w->depth], n;

	if (colon != NULL)
		name = colon + 1;
	n = strlen(name);
	if (w->depth == DEPTH_MAX || n >= NAME_CAP || at + n + 2 > sizeof(w->path)) {
		stop(w, -EPROTO, "it is nested too deeply");
		return;
	}
	if (at > 0)
		w->path[at++] = '/';
	memcpy(w->path + at, name, n + 1);
	w->len[++w->depth] = at + n;
	w->text.len = 0;
}

static void XMLCALL on_text(void *user, const XML_Char *s, int len)
{
	struct walk *w = user;

	if (w->text.len + (size_t)len > TEXT_MAX)
		stop(w, -EPROTO, "an element is too long");
	else
		buf_add(&w->text, s, (size_t)len);
}

static void XMLCALL on_end(void *user, const XML_Char *name)
{
	struct walk *w = user;
	size_t len = w->text.len;
	const char *text;
	int rc;

	if (w->err != 0)
		return;
	text = buf_str(&w->text);
	if (w->text.failed) {
		stop(w, -ENOMEM, NULL);
		return;
	}
	rc = w->reader->element(w->reader->ctx, w->path, text, len);
	if (rc < 0)
		stop(w, rc, NULL);
	w->path[w->len[--w->depth]] = '\0';
	w->text.len = 0;
}

static void XMLCALL on_doctype(void *user, const XML_Char *name, const XML_Char *system,
			       const XML_Char *public, int internal)
{
	stop(user, -EPROTO, "it has a document type declaration");
}

static int feed(struct walk *w, const char *bytes, size_t len)
{
	while (len > 0 && w->err == 0) {
		size_t n = MIN(len, (size_t)1 << 20);

		if (XML_Parse(w->parser, bytes, (int)n, n == len) != XML_STATUS_OK && w->err == 0)
			return -EPROTO;
		bytes += n;
		len -= n;
	}
	return w->err;
}

int xml_walk(const void *bytes, size_t len, const struct xml_reader *reader, struct why *why)
{
	struct walk w = {.reader = reader};
	int rc;

	if (len == 0)
		return why_set(why, EPROTO, "the answer is empty where XML was expected");
	w.parser = XML_ParserCreate(NULL);
	if (w.parser == NULL)
		return why_set(why, ENOMEM, "out of memory");
	XML_SetUserData(w.parser, &w);
	XML_SetElementHandler(w.parser, on_start, on_end);
	XML_SetCharacterDataHandler(w.parser, on_text);
	XML_SetStartDoctypeDeclHandler(w.parser, on_doctype);
	rc = feed(&w, bytes, len);
	if (rc == -ENOMEM)
		why_set(why, ENOMEM, "out of memory");
	else if (rc < 0 && w.refused != NULL)
		why_set(why, -rc, "the answer's XML is refused: %s", w.refused);
	else if (rc < 0 && w.err == 0)
		why_set(why, -rc, "the answer is not XML: %s",
			XML_ErrorString(XML_GetErrorCode(w.parser)));
	XML_ParserFree(w.parser);
	buf_release(&w.text);
	return rc;
}

struct search {
	const char *path;
	char *found;
};

static int compare(void *ctx, const char *path, const char *text, size_t len)
{
	struct search *s = ctx;
	size_t n = strlen(path), want = strlen(s->path);

	if (n < want || strcmp(path + n - want, s->path) != 0 ||
	    (n > want && path[n - want - 1] != '/'))
		return 0;
	s->found = strdup(text);
	return s->found != NULL ? -EEXIST : -ENOMEM; /* either way it ends here */
}

char *xml_text(const void *bytes, size_t len, const char *path)
{
	struct search s = {.path = path};
	struct xml_reader reader = {.element = compare, .ctx = &s};

	if (xml_walk(bytes, len, &reader, NULL) != -EEXIST) {
		free(s.found);
		return NULL;
	}
	return s.found;
}

void xml_escape(struct buf *out, const char *s)
{
	for (; *s != '\0'; s++) {
		switch (*s) {
		case '&': buf_addstr(out, "&amp;"); break;
		case '<': buf_addstr(out, "&lt;"); break;
		case '>': buf_addstr(out, "&gt;"); break;
		case '"': buf_addstr(out, "&quot;"); break;
		default: buf_add(out, s, 1);
		}
	}
}
