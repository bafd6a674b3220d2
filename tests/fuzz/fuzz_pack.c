/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: the input is a packed block, behind a byte that says width and length; or, where
 * that byte is 0, a header of a packed file.
 *
 * Decoding stays inside buffers that are exactly as long as they have to be.  A header that is
 * taken describes an original whose own header parses, with as many tensors that have bytes.
 */
#include "codec/pack.h"
#include "tests/fuzz/require.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_block(uint8_t kind, const uint8_t *packed, size_t len)
{
	const unsigned width = 1U << (kind & 3);
	const uint32_t bytes = (1U + (kind >> 2) * (kind >> 2) * 16U) * width;
	uint8_t *dst = malloc(bytes), *scratch = malloc(bytes), *exact = malloc(len + 1);

	REQUIRE(dst != NULL && scratch != NULL && exact != NULL);
	memcpy(exact, packed, len);
	/* the hash cannot be guessed: only whether it gets that far */
	REQUIRE(pack_decode(exact, len, width, 0, dst, bytes, scratch) == -EBADMSG);
	free(dst);
	free(scratch);
	free(exact);
}

static void try_header(const char *json, size_t len)
{
	struct st_header *packed = NULL, *original = NULL;
	struct why why = {0};
	char *text = NULL;
	size_t with_bytes = 0;

	/* as large as its last offset says, which is where most of them agree */
	if (st_parse(json, len, 8 + len + 40, &packed, &why) < 0)
		return;
	if (pack_is(packed) && pack_header(packed, &original, &text, &why) == 0) {
		REQUIRE(strlen(text) == original->length);
		for (size_t i = 0; i < original->count; i++)
			with_bytes += original->tensors[i].begin < original->tensors[i].end;
		REQUIRE(with_bytes == packed->count);
	}
	st_free(original);
	st_free(packed);
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	if (data[0] == 0)
		try_header((const char *)data + 1, size - 1);
	else
		try_block(data[0], data + 1, size - 1);
	return 0;
}
