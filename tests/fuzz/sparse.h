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

/* A part is refused with a sentence, or becomes a sound patch, made of *made bytes in `space`,
 * which the caller frees.  The error; where it is 0 and bytes were made, *patch is open. */
static inline int try_encode(const struct delta *d, const struct part *part,
			     const struct source *src, struct memory *space, uint64_t *made,
			     struct patch *patch)
{
	const struct sink sink = {memory_write, space};
	struct why why = {0};
	int err = delta_encode(d, part, src, part->dtype, part->numel, &sink, 0, made, &why);

	REQUIRE(err == 0 || (why.err == -err && why.text[0] != '\0'));
	if (err == 0 && *made > 0) {
		REQUIRE(patch_open(space->bytes, *made, patch, &why) == 0);
		REQUIRE(patch_check(patch, &why) == 0);
		REQUIRE(patch->numel == part->numel);
	}
	return err;
}

/* A part whose count of changes is known is refused with a sentence, or becomes a sound patch of
 * absolute values with as many, or nothing where there are none.  Parts of more than numel_max
 * elements are passed over: what a patch's directory may cost us.  The error. */
static inline int try_set(const struct delta *d, const struct part *part, const struct source *src,
			  uint64_t numel_max)
{
	struct memory space = {0};
	struct patch patch;
	uint64_t made = 0;
	int err;

	REQUIRE(part->kind == PART_SPARSE && part->changed <= part->numel);
	if (part->numel > numel_max)
		return 0;
	err = try_encode(d, part, src, &space, &made, &patch);
	if (err == 0 && part->changed == 0)
		REQUIRE(made == 0);
	else if (err == 0)
		REQUIRE(made > 0 && patch.op == PATCH_SET && patch.changed == part->changed);
	free(space.bytes);
	return err;
}

#endif
