/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metadata.json of grail: what it says of FULL/ and of DELTA/, the sums of all files, and what is
 * refused: other types, windows that are none, links that go forwards, hashes and names that are
 * none.
 */
#include "codec/schemes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#define SUM	    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789ABCDEF"
#define FILES(name) "\"file_manifest\":{\"" name "\":\"" SUM "\"}"
#define DELTA(more) "{\"window\":90,\"prev_window\":60,\"checkpoint_type\":\"DELTA\"," more "}"

static int parse(const char *index, const char *text, struct scheme_version *out, struct why *why)
{
	memset(out, 0, sizeof(*out));
	memset(why, 0, sizeof(*why));
	return scheme_find("grail")->parse(index, 90, text, strlen(text), out, why);
}

static void test_full(void **state)
{
	struct scheme_version v;
	struct why why;

	assert_int_equal(parse("FULL/metadata.json",
			       "{\"window\":90,\"prev_window\":null,\"weights_hash\":null,"
			       "\"created_at\":1.5,"
			       "\"file_manifest\":{\"model-00002-of-00002.safetensors\":\"" SUM
			       "\",\"tokenizer.json\":\"" SUM
			       "\",\"adapter_model.safetensors\":\"" SUM
			       "\",\"model-00001-of-00002.safetensors\":\"" SUM
			       "\",\".hidden\":\"" SUM "\"}}",
			       &v, &why),
			 0);
	assert_false(v.delta);
	assert_true(v.says_version);
	assert_int_equal(v.version, 90);
	assert_string_equal(v.encoding, "");
	assert_int_equal(v.state.kind, CHECKSUM_NONE);
	assert_int_equal(v.file_count, 2);
	assert_string_equal(v.files[0], "FULL/model-00001-of-00002.safetensors");
	assert_string_equal(v.files[1], "FULL/model-00002-of-00002.safetensors");
	assert_int_equal(v.sum_count, 4);
	assert_string_equal(v.sums[0].path, "FULL/adapter_model.safetensors");
	assert_string_equal(v.sums[0].hex, SUM);
	assert_int_equal(v.sums[3].kind, CHECKSUM_SHA256);
	scheme_version_release(&v);
}

static void test_delta(void **state)
{
	static const char hash[] = "00112233445566778899aabbccddeeff";
	struct scheme_version v;
	struct why why;

	assert_int_equal(parse("DELTA/metadata.json",
			       DELTA("\"weights_hash\":\"00112233445566778899aabbccddeeff\"," FILES(
				       "delta_sparse.bin.zst")),
			       &v, &why),
			 0);
	assert_true(v.delta);
	assert_int_equal(v.base, 60);
	assert_string_equal(v.encoding, "grail");
	assert_int_equal(v.state.kind, CHECKSUM_XXH3_128);
	assert_string_equal(v.state.hex, hash);
	assert_int_equal(v.file_count, 1);
	assert_string_equal(v.files[0], "DELTA/delta_sparse.bin.zst");
	scheme_version_release(&v);
	/* The hash of older trainers. */
	assert_int_equal(parse("DELTA/metadata.json",
			       DELTA("\"weights_hash\":\"" SUM "\"," FILES("delta_sparse.bin.zst")),
			       &v, &why),
			 0);
	assert_int_equal(v.state.kind, CHECKSUM_TORCH);
	assert_string_equal(v.state.hex, SUM);
	scheme_version_release(&v);
}

static void test_refused(void **state)
{
	static const struct {
		const char *index, *text, *says;
	} cases[] = {
		{"FULL", "[1", "is not JSON"},
		{"FULL", "[]", "does not say its window"},
		{"FULL", "{\"window\":-90}", "does not say its window"},
		{"FULL", "{\"window\":90.5}", "does not say its window"},
		{"FULL", "{\"window\":90}", "has no file_manifest"},
		{"FULL", "{\"window\":90,\"file_manifest\":[]}", "has no file_manifest"},
		{"FULL", "{\"window\":90,\"file_manifest\":{}}", "does not list a safetensors"},
		{"FULL", "{\"window\":90," FILES("adapter_model.safetensors") "}",
		 "does not list a safetensors"},
		{"FULL", DELTA(FILES("model.safetensors")),
		 "lies in FULL, and its checkpoint_type is \"DELTA\""},
		{"FULL", "{\"window\":90,\"file_manifest\":{\"model.safetensors\":\"00\"}}",
		 "its file_manifest: \"FULL/model.safetensors\" has no sha256 in hex"},
		{"FULL", "{\"window\":90,\"file_manifest\":{\"model.safetensors\":7}}",
		 "has no sha256 in hex"},
		{"FULL", "{\"window\":90,\"window\":60}", "is not JSON"},
		{"DELTA", "{\"window\":90}", "its prev_window is no number"},
		{"DELTA", "{\"window\":90,\"prev_window\":null}", "its prev_window is no number"},
		{"DELTA", "{\"window\":90,\"prev_window\":90}",
		 "is of window 90 and applies to window 90, which is not before it"},
		{"DELTA", "{\"window\":90,\"prev_window\":120}", "which is not before it"},
		{"DELTA", DELTA(FILES("../delta_sparse.bin.zst")),
		 "does not list delta_sparse.bin.zst"},
		{"DELTA", DELTA(FILES("model.safetensors")), "does not list delta_sparse.bin.zst"},
		{"DELTA", DELTA("\"weights_hash\":5"), "its weights_hash is not 32 hex digits"},
		{"DELTA", DELTA("\"weights_hash\":\"zz112233445566778899aabbccddeeff\""),
		 "its weights_hash is not 32 hex digits"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct scheme_version v;
		struct why why;
		char index[40];

		snprintf(index, sizeof(index), "%s/metadata.json", cases[i].index);
		if (parse(index, cases[i].text, &v, &why) != -EBADMSG || why.err != EBADMSG ||
		    strstr(why.text, cases[i].says) == NULL)
			fail_msg("case %zu says: %s", i, why.text);
		scheme_version_release(&v);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_delta),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
