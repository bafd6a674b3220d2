/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: weightfs.json.
 *
 * What is taken keeps the promises of the header, composes to a text that is taken again and says
 * the same, and can be cut at its last anchor; what is refused has a sentence.  abort() marks a
 * broken promise.
 */
#include "fs/manifest.h"

#include "cache/fileio.h"
#include "tests/fuzz/require.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_entry(const struct manifest_entry *e)
{
	REQUIRE(e->version > 0 && (e->kind == MANIFEST_ANCHOR || e->base < e->version));
	REQUIRE(e->object_count > 0 || e->kind == MANIFEST_DELTA);
	for (size_t i = 0; i < e->object_count; i++) {
		REQUIRE(path_is_safe(e->objects[i].key));
		REQUIRE(manifest_key_ok(e->objects[i].key, e->encoding));
		REQUIRE(e->objects[i].file == NULL || path_is_safe(e->objects[i].file));
	}
}

static uint64_t check(const struct manifest *m)
{
	uint64_t anchor = 0;

	for (size_t i = 0; i < m->step_count; i++) {
		const struct manifest_entry *e = &m->steps[i];

		check_entry(e);
		REQUIRE(i > 0 ? m->steps[i - 1].version <= e->version : e->kind == MANIFEST_ANCHOR);
		REQUIRE(manifest_find(m, e->version, e->kind) == e);
		if (e->kind == MANIFEST_ANCHOR)
			anchor = e->version;
	}
	for (size_t i = 0; i < m->span_count; i++)
		check_entry(&m->spans[i]);
	REQUIRE(m->newest == (m->step_count > 0 ? m->steps[m->step_count - 1].version : 0));
	return anchor;
}

static void check_text(const struct manifest *m)
{
	struct manifest *again = NULL;
	struct buf first = {0}, second = {0};

	REQUIRE(manifest_compose(m, &first) == 0);
	REQUIRE(manifest_parse(first.data, first.len, &again, NULL) == 0);
	REQUIRE(manifest_compose(again, &second) == 0);
	REQUIRE(first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
	manifest_free(again);
	buf_release(&first);
	buf_release(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct manifest *m = NULL;
	struct why why = {0};
	uint64_t anchor;

	if (manifest_parse((const char *)data, size, &m, &why) < 0) {
		REQUIRE(m == NULL && why.text[0] != '\0' && why.err != 0);
		return 0;
	}
	anchor = check(m);
	check_text(m);
	if (anchor > 0) {
		REQUIRE(manifest_cut(m, anchor) == 0);
		REQUIRE(check(m) == anchor);
		check_text(m);
	}
	manifest_free(m);
	return 0;
}
