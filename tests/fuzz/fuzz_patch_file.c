/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: the input is a patch file.
 *
 * Opening it never reads outside; a file that opens has as many patches as tensors, each of which
 * can be checked and applied; and with the hash and all payloads checked, applying succeeds.
 */
#include "codec/patch_file.h"
#include "tests/fuzz/require.h"

#include <stdlib.h>

enum { WINDOW = 4096, TENSORS = 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct patch_file *file, bool full)
{
	uint8_t *dst = calloc(1, WINDOW);

	REQUIRE(dst != NULL && file->count == file->header->count);
	for (size_t i = 0; i < MIN(file->count, (size_t)TENSORS); i++) {
		const struct patch *p = &file->patches[i];
		uint64_t total = p->numel * p->width;
		uint64_t off = total > WINDOW ? (total - WINDOW) / 8 * 8 : 0;
		bool valid = patch_check(p, NULL) == 0;
		int ret = patch_apply(p, off, dst, (size_t)MIN(total - off, (uint64_t)WINDOW));

		REQUIRE(!full || valid);
		REQUIRE(!valid || ret == 0);
	}
	free(dst);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *bytes = malloc(size > 0 ? size : 1);

	REQUIRE(bytes != NULL);
	if (size > 0)
		memcpy(bytes, data, size);
	for (int full = 0; full < 3; full++) { /* 2: as one of wfp1x */
		struct patch_file *file = NULL;
		struct why why = {0};
		int ret = full < 2 ? patch_file_open(bytes, size, full, &file, &why)
				   : patch_file_open_x(bytes, size, &file, &why);

		if (ret < 0) {
			REQUIRE(why.err == -ret && why.text[0] != '\0' && file == NULL);
			continue;
		}
		if (full < 2)
			use(file, full);
		else
			REQUIRE(file->patches == NULL && patch_file_check(file, &why) == 0);
		patch_file_free(file);
	}
	free(bytes);
	return 0;
}
