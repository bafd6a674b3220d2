/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: grail.  Behind a byte that says what it is, the input is the metadata.json of a FULL
 * (0) or DELTA (1) directory, a delta as it is unpacked (2), or the frame that it comes in (3).
 *
 * A metadata.json is refused with a sentence or names plain files of its own directory only.  A
 * frame never gives more than it may.  A delta is refused with a sentence, or each of its tensors
 * either is or becomes a patch that is sound, with as many elements as were told.
 */
#include "codec/format.h"
#include "codec/frame.h"
#include "codec/scheme.h"
#include "tests/fuzz/sparse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What a patch's directory may cost us. */
static const uint64_t numel_max = 1 << 24;

static void try_index(bool delta, const char *text, size_t len)
{
	const char *const part = delta ? "DELTA/" : "FULL/";
	struct scheme_version v = {0};
	struct why why = {0};
	char index[40];
	int err;

	snprintf(index, sizeof(index), "%smetadata.json", part);
	err = scheme_find("grail")->parse(index, 1, text, len, &v, &why);
	REQUIRE(err == 0 || (err < 0 && why.err == -err && why.text[0] != '\0'));
	if (err == 0)
		REQUIRE(v.delta == delta && v.says_version && v.file_count > 0);
	for (size_t i = 0; err == 0 && i < v.file_count; i++) {
		REQUIRE(strncmp(v.files[i], part, strlen(part)) == 0);
		REQUIRE(strchr(v.files[i] + strlen(part), '/') == NULL);
		REQUIRE(v.files[i][strlen(part)] != '.');
		REQUIRE(i == 0 || strcmp(v.files[i - 1], v.files[i]) < 0);
	}
	for (size_t i = 0; err == 0 && i < v.sum_count; i++)
		REQUIRE(strlen(v.sums[i].hex) == 64);
	scheme_version_release(&v);
}

static void try_delta(const uint8_t *bytes, size_t len)
{
	const struct source src = source_memory(bytes, len);
	struct delta *d = NULL;
	struct why why = {0};
	int err = delta_open_as(&src, "grail", NULL, &d, &why);

	REQUIRE(err == 0 || (err < 0 && why.err == -err && why.text[0] != '\0'));
	for (size_t i = 0; err == 0 && i < d->count; i++) {
		int made = try_set(d, &d->parts[i], &src, numel_max);

		REQUIRE(d->parts[i].coding != NULL);
		REQUIRE(made == -ENOSPC || made == -EBADMSG || made == 0);
	}
	delta_free(d);
}

static void try_frame(const uint8_t *bytes, size_t len)
{
	const struct source src = source_memory(bytes, len);
	const uint64_t most = 1 << 20;
	struct memory space = {0};
	const struct sink sink = {memory_write, &space};
	struct why why = {0};
	uint64_t size = 0;
	int err = frame_unpack(&src, most, &sink, &size, &why);

	REQUIRE(space.len <= most);
	REQUIRE(err == 0 || (err < 0 && why.err == -err && why.text[0] != '\0'));
	if (err == 0) {
		REQUIRE(size == space.len);
		try_delta(space.bytes, size);
	}
	free(space.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	switch (data[0]) {
	case 0:
	case 1: try_index(data[0] == 1, (const char *)data + 1, size - 1); break;
	case 2: try_delta(data + 1, size - 1); break;
	case 3: try_frame(data + 1, size - 1); break;
	default: break;
	}
	return 0;
}
