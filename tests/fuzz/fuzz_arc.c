/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: Fireworks' snapshots.  Behind a byte that says what it is, the input is a delta file
 * (0), read with a dtype and a size that the byte's other bits choose, or the text of a request
 * (1).
 *
 * A file either is refused with a sentence or becomes patches that are sound; a request is refused
 * with a sentence or says which version it applies to.
 */
#include "codec/format.h"
#include "codec/schemes.h"
#include "tests/fuzz/require.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_request(const char *text, size_t len)
{
	struct scheme_version v = {0};
	struct why why = {0};
	int err = scheme_arc.parse("incremental_snapshot_metadata.json", 1, text, len, &v, &why);

	REQUIRE(err == 0 || (err < 0 && why.err == -err && why.text[0] != '\0'));
	REQUIRE(err < 0 || (v.delta && v.base <= INT64_MAX));
	scheme_version_release(&v);
}

static void try_part(const struct delta *d, const struct part *part, const struct source *src,
		     uint8_t kind)
{
	static const enum st_dtype dtypes[] = {ST_U8, ST_BF16, ST_F32, ST_F64};
	const enum st_dtype dtype = dtypes[kind >> 1 & 3];
	const uint64_t numel = (kind >> 3) * (kind >> 3) * 97U;
	struct grown space = {0};
	const struct sink sink = sink_grown(&space);
	struct patch patch;
	struct why why = {0};
	uint64_t made = 0;
	int err = delta_encode(d, part, src, dtype, numel, &sink, 0, &made, &why);

	REQUIRE(part->checksum != NULL && strlen(part->checksum) == 8);
	REQUIRE(err == 0 || (why.err == -err && why.text[0] != '\0'));
	if (err == 0) {
		REQUIRE(patch_open(space.bytes, made, &patch, &why) == 0);
		REQUIRE(patch_check(&patch, &why) == 0);
		REQUIRE(patch.op == PATCH_XOR && patch.numel == numel);
	}
	free(space.bytes);
}

static void try_file(uint8_t kind, const uint8_t *bytes, size_t len)
{
	const struct source src = source_memory(bytes, len);
	struct delta *d = NULL;
	struct why why = {0};
	int err = delta_open_as(&src, "arc-v2", NULL, &d, &why);

	REQUIRE(err == 0 || (why.err == -err && why.text[0] != '\0'));
	for (size_t i = 0; err == 0 && i < d->count && i < 16; i++)
		try_part(d, &d->parts[i], &src, kind);
	delta_free(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	if (data[0] & 1)
		try_request((const char *)data + 1, size - 1);
	else
		try_file(data[0], data + 1, size - 1);
	return 0;
}
