/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: HF-directory deltas.  Behind a byte that says what it is, the input is a zstd frame
 * of an xor (0) or an overwrite (1), or the text of an index (2).
 *
 * A frame either is refused with a sentence or becomes a patch that is sound; it never gives more
 * bytes than its tensor has.  An index is refused with a sentence or names plain files only.
 */
#include "codec/format.h"
#include "codec/scheme.h"
#include "tests/fuzz/sparse.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_index(const char *text, size_t len)
{
	struct scheme_version x = {0};
	struct why why = {0};
	int err =
		scheme_find("hfdir")->parse("model.safetensors.index.json", 1, text, len, &x, &why);

	REQUIRE(err == 0 || (err < 0 && why.err == -err && why.text[0] != '\0'));
	for (size_t i = 0; err == 0 && i < x.file_count; i++) {
		REQUIRE(strchr(x.files[i], '/') == NULL && x.files[i][0] != '.');
		REQUIRE(i == 0 || strcmp(x.files[i - 1], x.files[i]) < 0);
	}
	scheme_version_release(&x);
}

static void try_frame(uint8_t kind, const uint8_t *frame, size_t len)
{
	static const enum st_dtype dtypes[] = {ST_U8, ST_BF16, ST_F32, ST_F64};
	const enum st_dtype dtype = dtypes[kind >> 1 & 3];
	const uint64_t numel = (kind >> 3) * (kind >> 3) * 97U;
	struct grown space = {0};
	const struct sink sink = sink_grown(&space);
	struct delta *d = NULL;
	struct patch patch;
	struct why why = {0};
	uint64_t made = 0;
	size_t size;
	uint8_t *file = file_around(frame, len, &size);
	const struct source src = source_memory(file, size);
	int err = delta_open_as(&src, kind & 1 ? "hfdir-overwrite" : "hfdir-xor", NULL, &d, &why);

	REQUIRE((err == 0) == (len > 0));
	if (err == 0)
		err = delta_encode(d, &d->parts[0], &src, dtype, numel, &sink, 0, &made, &why);
	REQUIRE(err == 0 || (why.err == -err && why.text[0] != '\0'));
	if (err == 0) {
		REQUIRE(patch_open(space.bytes, made, &patch, &why) == 0);
		REQUIRE(patch_check(&patch, &why) == 0);
		REQUIRE(patch.op == (kind & 1 ? PATCH_SET : PATCH_XOR));
		REQUIRE(patch.numel * patch.width == numel * st_dtype_width(dtype));
	}
	delta_free(d);
	free(space.bytes);
	free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	if (data[0] == 2)
		try_index((const char *)data + 1, size - 1);
	else
		try_frame(data[0], data + 1, size - 1);
	return 0;
}
