/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: what servers say is there, and what they say has changed.
 *
 * The first byte chooses the reader: index.json, nginx's JSON, HTML, server-sent events, or the
 * name of a place on the Hub.  What is taken must keep the promises of the headers; abort() marks a
 * broken one.
 */
#include "cache/remote/autoindex.h"
#include "cache/remote/hub_url.h"
#include "cache/remote/keys.h"
#include "cache/remote/sse.h"

#include <stdlib.h>

#include "cache/fileio.h"
#include "tests/fuzz/require.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_entries(struct autoindex *x, bool segments)
{
	struct keys keys = {0};
	struct listing l;
	struct identity id = {{0}};

	for (size_t i = 0; i < x->count; i++) {
		const struct autoindex_entry *e = &x->v[i];

		REQUIRE(e->name != NULL && e->size >= -1);
		REQUIRE(!segments || strchr(e->name, '/') == NULL);
		keys_add(&keys, e->name, e->size < 0 ? 0 : (uint64_t)e->size, e->mtime_ns, &id);
	}
	REQUIRE(keys_finish(&keys, &l) == 0);
	for (size_t i = 0; i < l.count; i++) {
		REQUIRE(path_is_safe(l.v[i].key) && keys_usable(l.v[i].key));
		REQUIRE(i == 0 || strcmp(l.v[i - 1].key, l.v[i].key) < 0);
	}
	listing_release(&l);
	autoindex_release(x);
}

static void on_event(void *ctx, const char *name, const char *text, bool cut)
{
	buf_addf(ctx, "%s\n%s\n%d\n", name, text, cut);
}

/* Whole and byte by byte give the same events. */
static void check_events(const uint8_t *data, size_t size)
{
	struct buf a = {0}, b = {0};
	struct sse whole = {.event = on_event, .ctx = &a}, pieces = {.event = on_event, .ctx = &b};

	sse_feed(&whole, data, size);
	for (size_t i = 0; i < size; i++)
		sse_feed(&pieces, data + i, 1);
	REQUIRE(a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0));
	sse_release(&whole);
	sse_release(&pieces);
	buf_release(&a);
	buf_release(&b);
}

static void check_place(const char *text)
{
	struct hub_place p = {0}, again = {0};
	struct why why = {0};
	struct buf url = {0};

	if (hub_place_parse(text, NULL, &p, &why) < 0) {
		REQUIRE(why.text[0] != '\0');
		return;
	}
	REQUIRE((p.kind == HUB_BUCKET) == (p.revision == NULL));
	REQUIRE(p.prefix[0] == '\0' || path_is_safe(p.prefix));
	hub_url_tree(&p, p.revision != NULL ? "0" : NULL, &url);
	for (const char *c = buf_str(&url); *c != '\0'; c++)
		REQUIRE(*c > 0x20 && *c < 0x7f);
	url.len = 0;
	/* Its own name means the same place. */
	hub_place_uri(p.kind, p.id, &url);
	if (p.kind != HUB_MODEL || strchr(p.id, '/') != NULL) {
		REQUIRE(hub_place_parse(buf_str(&url), NULL, &again, NULL) == 0);
		REQUIRE(again.kind == p.kind && strcmp(again.id, p.id) == 0);
		hub_place_release(&again);
	}
	buf_release(&url);
	hub_place_release(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct autoindex x = {0};
	struct why why = {0};
	char *text;

	if (size == 0)
		return 0;
	size = strnlen((const char *)data + 1, size - 1);
	text = malloc(size + 1);
	REQUIRE(text != NULL);
	memcpy(text, data + 1, size);
	text[size] = '\0';
	switch (data[0] & 7) {
	case 0:
		if (autoindex_objects(text, size, &x, &why) == 0)
			check_entries(&x, false);
		break;
	case 1:
		if (autoindex_json(text, size, &x) == 0)
			check_entries(&x, false);
		break;
	case 2:
		if (autoindex_html(text, size, "http://h/a%20b/", &x) == 0)
			check_entries(&x, true);
		break;
	case 3: check_events((const uint8_t *)text, size); break;
	default: check_place(text); break;
	}
	free(text);
	return 0;
}
