/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: prime-rl.  Behind a byte that says what it is, the input is the text of an update's
 * manifest (0) or of the older one (1), a NUL, and a patch file: as it is, or one zstd frame.
 *
 * A manifest is refused with a sentence or names plain files only, and one with changes is never
 * taken for a whole checkpoint.  Whatever it says of the patch, a part is refused or becomes a
 * patch of its tensor that is sound and changes as much as it says.
 */
#include "codec/format.h"
#include "codec/frame.h"
#include "codec/scheme.h"
#include "tests/fuzz/sparse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What a patch's directory may cost us. */
static const uint64_t numel_max = 1 << 22;

static void try_patch(bool old, const struct side *side, const struct source *src)
{
	struct delta *d = NULL;
	struct why why = {0};
	int err =
		delta_open_as(src, old ? "prime-rl-sparse-v1" : "prime-rl-sparse", side, &d, &why);

	REQUIRE(err == 0 || (err < 0 && why.err == -err && why.text[0] != '\0'));
	for (size_t i = 0; err == 0 && i < d->count; i++)
		try_set(d, &d->parts[i], src, numel_max);
	delta_free(d);
}

/* Unpacked first, where it is packed. */
static void try_object(bool old, const struct side *side, const uint8_t *bytes, size_t len)
{
	const struct source src = source_memory(bytes, len);
	const uint64_t most = 1 << 20;
	struct memory space = {0};
	const struct sink sink = {memory_write, &space};
	struct source unpacked;
	struct why why = {0};
	bool framed = false;
	uint64_t made = 0;
	int err = old ? 0 : frame_probe(&src, &framed);

	REQUIRE(err == 0);
	if (!framed) {
		try_patch(old, side, &src);
		return;
	}
	err = frame_unpack(&src, most, &sink, &made, &why);
	REQUIRE(err == 0 || (why.err == -err && why.text[0] != '\0'));
	REQUIRE(space.len <= most);
	if (err == 0) {
		unpacked = source_memory(space.bytes, space.len);
		try_patch(old, side, &unpacked);
	}
	free(space.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const bool old = size > 0 && data[0] == 1;
	struct scheme_version v = {0};
	struct why why = {0};
	const uint8_t *nul;
	struct side side;
	int err;

	if (size == 0)
		return 0;
	nul = memchr(data + 1, '\0', size - 1);
	side = (struct side){.text = (const char *)data + 1,
			     .len = nul != NULL ? (size_t)(nul - data) - 1 : size - 1};
	err = scheme_find("prime-rl")
		      ->parse(old ? "sparse_manifest.json" : "sparse_update_manifest.json", 1,
			      side.text, side.len, &v, &why);
	REQUIRE(err == 0 || (err < 0 && why.err == -err && why.text[0] != '\0'));
	REQUIRE(v.delta || (old && v.file_count == 0));
	if (err == 0 && v.delta)
		REQUIRE(v.says_version && v.side && v.base < v.version);
	for (size_t i = 0; err == 0 && i < v.file_count; i++) {
		REQUIRE(v.files[i][0] != '.' && v.files[i][0] != '/');
		REQUIRE(strstr(v.files[i], "/.") == NULL && strchr(v.files[i], '\\') == NULL);
		REQUIRE(i == 0 || strcmp(v.files[i - 1], v.files[i]) < 0);
		side.file = v.files[i];
		if (nul != NULL)
			try_object(old, &side, nul + 1, (size_t)(data + size - nul) - 1);
	}
	scheme_version_release(&v);
	return 0;
}
