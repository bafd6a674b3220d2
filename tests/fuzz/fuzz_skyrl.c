/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: SkyRL.  The input is the text of a manifest, a NUL, and a zstd frame that the
 * payload file has under the key "k", as its only tensor.
 *
 * A manifest is refused with a sentence or names plain files only.  Whatever it says of the payload
 * file, a part is refused or becomes a patch of its tensor that is sound; a frame never gives more
 * bytes than the tensor has.
 */
#include "codec/format.h"
#include "codec/scheme.h"
#include "tests/fuzz/sparse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What a patch's directory may cost us. */
static const uint64_t numel_max = 1 << 22;

static void try_part(const struct delta *d, const struct part *part, const struct source *src)
{
	struct memory space = {0};
	const struct sink sink = {memory_write, &space};
	struct patch patch;
	struct why why = {0};
	uint64_t made = 0;
	int err;

	REQUIRE(part->kind == PART_SPARSE && part->checksum != NULL);
	REQUIRE(strlen(part->checksum) == checksum_digits(part->checksum_kind));
	if (part->numel > numel_max)
		return;
	err = try_encode(d, part, src, &space, &made, &patch);
	if (err == 0)
		REQUIRE(made > 0 && patch.op == PATCH_XOR);
	err = delta_encode(d, part, src, part->dtype, part->numel + 1, &sink, 0, &made, &why);
	REQUIRE(err == -EBADMSG && why.text[0] != '\0');
	free(space.bytes);
}

static void try_file(const char *text, size_t len, const char *name, const struct source *src)
{
	const struct side side = {text, len, name};
	struct delta *d = NULL;
	struct why why = {0};
	int err = delta_open_as(src, "skyrl-xor", &side, &d, &why);

	REQUIRE(err == 0 || (err < 0 && why.err == -err && why.text[0] != '\0'));
	for (size_t i = 0; err == 0 && i < d->count; i++)
		try_part(d, &d->parts[i], src);
	delta_free(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *nul = size > 0 ? memchr(data, '\0', size) : NULL;
	const char *text = (const char *)data;
	const size_t len = nul != NULL ? (size_t)(nul - data) : size;
	struct scheme_version v = {0};
	struct why why = {0};
	int err = scheme_find("skyrl")->parse("manifest.json", 1, text, len, &v, &why);

	REQUIRE(err == 0 || (err < 0 && why.err == -err && why.text[0] != '\0'));
	if (err == 0)
		REQUIRE(v.delta && v.says_version && v.side && v.base < v.version);
	if (err == 0 && nul != NULL) {
		size_t bytes;
		uint8_t *file = file_around(nul + 1, size - len - 1, &bytes);
		const struct source src = source_memory(file, bytes);

		for (size_t i = 0; i < v.file_count; i++)
			try_file(text, len, v.files[i], &src);
		free(file);
	}
	for (size_t i = 0; err == 0 && i < v.file_count; i++) {
		REQUIRE(v.files[i][0] != '.' && v.files[i][0] != '/');
		REQUIRE(strstr(v.files[i], "/.") == NULL && strchr(v.files[i], '\\') == NULL);
		REQUIRE(i == 0 || strcmp(v.files[i - 1], v.files[i]) < 0);
	}
	scheme_version_release(&v);
	return 0;
}
