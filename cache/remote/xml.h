/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small XML documents of cloud services (listings, errors, tokens), walked.  Pure.
 *
 * Input comes from servers and may be anything: a document type declaration (and with it every
 * entity beyond the five predefined ones), more than 16 levels, or a text beyond 64 KiB is refused.
 */
#ifndef CACHE_REMOTE_XML_H
#define CACHE_REMOTE_XML_H

#include "codec/base.h"
#include "codec/buf.h"

/* Called at the end of each element: path is "Root/Child/Leaf" (prefixes of namespaces dropped),
 * text what stands directly in it, NUL-terminated.  0 or -errno, which ends the walk. */
struct xml_reader {
	int (*element)(void *ctx, const char *path, const char *text, size_t len);
	void *ctx;
};

/* -EPROTO with a sentence: not well-formed, or refused; -ENOMEM; what element() returned. */
int xml_walk(const void *bytes, size_t len, const struct xml_reader *reader,
	     struct why *why) MUST_CHECK;
/* The text of the first element with this path, or whose path ends in "/" + path; malloc'ed.  NULL:
 * none, or not XML. */
char *xml_text(const void *bytes, size_t len, const char *path);
/* Appends s as the text of an element. */
void xml_escape(struct buf *out, const char *s);

#endif
