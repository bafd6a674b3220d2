/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the targets of formats of deltas share: a file around their input, and what has to come of a
 * sparse part.
 */
#ifndef TESTS_FUZZ_SPARSE_H
#define TESTS_FUZZ_SPARSE_H

#include "codec/format.h"
#include "tests/fuzz/exact.h"

/* A safetensors file with these bytes as its only tensor, U8; the caller frees it. */
static inline uint8_t *file_around(const uint8_t *bytes, size_t len, size_t *out_size)
{
	char head[160];
	uint8_t *file;
	size_t n;

	snprintf(head, sizeof(head),
		 "{\"t\":{\"dtype\":\"U8\",\"shape\":[%zu],\"data_offsets\":[0,%zu]}}", len, len);
	n = strlen(head);
	file = malloc(8 + n + len);
	REQUIRE(file != NULL);
	store_le64(file, n);
	memcpy(file + 8, head, n);
	memcpy(file + 8 + n, bytes, len);
	*out_size = 8 + n + len;
	return file;
}

/* A part whose count of changes is known is refused with a sentence, or becomes a sound patch of
 * absolute values with as many, or nothing where there are none.  Parts of more than numel_max
 * elements are passed over: what a patch's directory may cost us.  The error. */
static inline int try_set(const struct delta *d, const struct part *part, const struct source *src,
			  uint64_t numel_max)
{
	struct memory space = {0};
	const struct sink sink = {memory_write, &space};
	struct patch patch;
	struct why why = {0};
	uint64_t made = 0;
	int err;

	REQUIRE(part->kind == PART_SPARSE && part->changed <= part->numel);
	if (part->numel > numel_max)
		return 0;
	err = delta_encode(d, part, src, part->dtype, part->numel, &sink, 0, &made, &why);
	REQUIRE(err == 0 || (why.err == -err && why.text[0] != '\0'));
	if (err == 0 && part->changed == 0) {
		REQUIRE(made == 0);
	} else if (err == 0) {
		REQUIRE(patch_open(space.bytes, made, &patch, &why) == 0);
		REQUIRE(patch_check(&patch, &why) == 0);
		REQUIRE(patch.op == PATCH_SET && patch.changed == part->changed);
		REQUIRE(patch.numel == part->numel);
	}
	free(space.bytes);
	return err;
}

#endif
