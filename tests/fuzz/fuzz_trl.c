/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzing anchors and deltas: the input is a whole object as a trainer would have uploaded it.
 *
 * Whatever the bytes are, delta_open() must either refuse them with a sentence or describe parts
 * that lie inside the object; and delta_encode() of a sparse part must either refuse with a
 * sentence or write, within patch_bound() bytes, a patch that patch_check() accepts and that has as
 * many elements as the part.  The size of the target comes from the input's last byte, so that
 * positions fall on both sides of it.
 */
#include "codec/format.h"
#include "tests/fuzz/require.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PARTS_MAX = 4, SHIFT_MAX = 34 };

struct bounded {
	uint8_t *bytes;
	uint64_t cap;
};

static int bounded_write(void *ctx, uint64_t off, const void *src, size_t len)
{
	struct bounded *b = ctx;

	REQUIRE(off <= b->cap && len <= b->cap - off);
	if (len > 0)
		memcpy(b->bytes + off, src, len);
	return 0;
}

static void refused(int err, const struct why *why)
{
	REQUIRE(err == -EBADMSG || err == -ENOTSUP);
	REQUIRE(why->err == -err && why->text[0] != '\0');
}

static void encode(const struct delta *delta, const struct part *part, const struct source *src,
		   uint64_t numel)
{
	struct bounded space = {
		.cap = patch_bound(st_dtype_width(part->dtype), numel, part->changed)};
	const struct sink sink = {bounded_write, &space};
	struct why why = {0};
	struct patch patch;
	uint64_t len = UINT64_MAX;
	int err;

	space.bytes = malloc(space.cap);
	REQUIRE(space.bytes != NULL);
	err = delta_encode(delta, part, src, part->dtype, numel, &sink, 0, &len, &why);
	if (err != 0) {
		refused(err, &why);
		REQUIRE(len == UINT64_MAX);
	} else if (len == 0) {
		REQUIRE(part->changed == 0);
	} else {
		REQUIRE(patch_open(space.bytes, len, &patch, &why) == 0);
		REQUIRE(patch_check(&patch, &why) == 0);
		REQUIRE(patch.changed == part->changed && patch.numel == numel);
	}
	free(space.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct source src = source_memory(data, size);
	struct delta *delta = NULL;
	struct why why = {0};
	uint64_t numel, changed = 0;
	int err;

	err = delta_open(&src, &delta, &why);
	if (err != 0) {
		refused(err, &why);
		REQUIRE(delta == NULL);
		return 0;
	}
	/* A valid file is never empty. */
	numel = (1ULL << data[size - 1] % (SHIFT_MAX + 1)) + data[size - 1] / 64;
	for (size_t i = 0, tried = 0; i < delta->count; i++) {
		const struct part *part = &delta->parts[i];

		REQUIRE(delta_find(delta, part->name) == part);
		REQUIRE(i == 0 || strcmp(part[-1].name, part->name) < 0);
		changed += part->changed;
		/* A native part is a blob as it is: nothing to encode. */
		if (part->kind == PART_FULL || delta->format->native)
			REQUIRE(part->offset <= size && part->bytes <= size - part->offset);
		else if (tried++ < PARTS_MAX)
			encode(delta, part, &src, numel);
	}
	REQUIRE(changed == delta->changed && delta->full + delta->sparse == delta->count);
	delta_free(delta);
	return 0;
}
