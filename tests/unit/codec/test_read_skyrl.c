/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SkyRL's manifests and payload files: what they say becomes a version and parts; each way in which
 * the two disagree, or the manifest with itself, is refused by a sentence.
 */
#include "codec/schemes.h"
#include "tests/unit/codec/trl_file.h"

#include <zstd.h>

#define FILE0 "delta-rank00000-file000000.safetensors"
#define FILE1 "delta-rank00001-file000000.safetensors"
#define XXH   "00112233445566778899aabbccddeeff"
#define SHA   XXH XXH

/* Of "a" (4 x BF16, packed bytes in FILE0), and "b" (3 x F32, 5 bytes in FILE1). */
static const char manifest[] =
	"{\"version\":3,\"base_version\":2,\"tensors\":["
	"{\"name\":\"b\",\"dtype\":\"float32\",\"shape\":[3],\"uncompressed_num_bytes\":12,"
	"\"compressed_num_bytes\":5,\"payload_file\":\"" FILE1 "\",\"payload_key\":\"b\","
	"\"sha256\":\"" SHA "\"},"
	"{\"name\":\"a\",\"dtype\":\"bfloat16\",\"shape\":[2,2],\"uncompressed_num_bytes\":8,"
	"\"compressed_num_bytes\":@,\"payload_file\":\"" FILE0 "\",\"payload_key\":\"key.a\","
	"\"checksum\":\"" XXH "\",\"checksum_algorithm\":\"xxh3-128\"}],"
	"\"total_uncompressed_num_bytes\":20,\"total_compressed_num_bytes\":0,"
	"\"payload_files\":[\"" FILE1 "\",\"" FILE0 "\"]}";

static const uint16_t change[4] = {0, 0x0100, 0, 0x8001};
static char text[2000];
static uint8_t frame[64];
static size_t frame_len;

/* The manifest with the frame's size, and `from` replaced by `to`. */
static const char *edited(const char *from, const char *to)
{
	char whole[1500], *at;
	const char *mark = strchr(manifest, '@');

	frame_len = ZSTD_compress(frame, sizeof(frame), change, sizeof(change), 3);
	snprintf(whole, sizeof(whole), "%.*s%zu%s", (int)(mark - manifest), manifest, frame_len,
		 mark + 1);
	at = strstr(whole, from);
	assert_non_null(at);
	snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - whole), whole, to, at + strlen(from));
	return text;
}

static int parse(const char *from, const char *to, struct scheme_version *v, struct why *why)
{
	const char *json = edited(from, to);

	*v = (struct scheme_version){0};
	*why = (struct why){0};
	return scheme_skyrl.parse("manifest.json", 3, json, strlen(json), v, why);
}

static void test_parse(void **state)
{
	struct scheme_version v;
	struct why why;

	assert_int_equal(parse("", "", &v, &why), 0);
	assert_true(v.delta && v.says_version && v.side);
	assert_int_equal(v.version, 3);
	assert_int_equal(v.base, 2);
	assert_string_equal(v.encoding, "skyrl-xor");
	assert_int_equal(v.file_count, 2);
	assert_string_equal(v.files[0], FILE0);
	assert_string_equal(v.files[1], FILE1);
	scheme_version_release(&v);
	assert_ptr_equal(scheme_find("skyrl"), &scheme_skyrl);
}

static void test_parse_refused(void **state)
{
	static const struct {
		const char *from, *to, *sentence;
	} bad[] = {
		{"\"name\":\"b\"", "\"name\":\"a\"", "listed twice"},
		{"[\"" FILE1 "\",", "[", "not one of the payload_files"},
		{FILE0 "\"]", "../x\"]", "not one of the payload_files"},
		{"[\"" FILE1 "\",", "[\"" FILE1 "\",\"../../etc/x\",", "no plain name"},
		{"[\"" FILE1 "\",", "[\"" FILE1 "\",\"/abs\",", "no plain name"},
		{"[\"" FILE1 "\",", "[\"" FILE1 "\",\"a/../b\",", "no plain name"},
		{"[\"" FILE1 "\",", "[\"" FILE1 "\",7,", "payload_files"},
		{"bytes\":12", "bytes\":13", "another number of bytes"},
		{"[2,2]", "[2,9223372036854775807]", "another number of bytes"},
		{"float32", "float33", "not known here"},
		{"xxh3-128", "crc32", "xxh3-128 and sha256"},
		{"\"" XXH "\"", "\"0011\"", "checksum that is none"},
		{"\"" XXH "\"", "\"00112233445566778899aabbccddeefg\"", "checksum that is none"},
		{"\"sha256\"", "\"sha255\"", "has no checksum"},
		{"total_uncompressed_num_bytes\":20", "total_uncompressed_num_bytes\":21",
		 "its totals"},
		{"\"base_version\":2", "\"base_version\":3", "not before it"},
		{"\"base_version\":2,", "", "\"base_version\" is missing"},
		{"\"version\":3", "\"version\":\"3\"", "\"version\""},
		{"\"version\":3", "\"version\":3,\"version\":3", "there twice"},
		{"_bytes\":5,", "_bytes\":0,", "no bytes"},
		{"]}", "]", "found its end"},
	};
	struct scheme_version v;
	struct why why;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		const int err = parse(bad[i].from, bad[i].to, &v, &why);

		assert_true(err == -EBADMSG || err == -ENOTSUP);
		if (strstr(why.text, bad[i].sentence) == NULL)
			fail_msg("%s: %s", bad[i].to, why.text);
		scheme_version_release(&v);
	}
}

/* FILE0 opened under a manifest; `extra`: a tensor that is not in it. */
static void open_payload(struct opened *o, const char *json, const char *key, bool extra)
{
	struct file f = {0};
	char shape[32];

	snprintf(shape, sizeof(shape), "[%zu]", frame_len);
	tensor(&f, key, "U8", shape, frame, frame_len);
	if (extra)
		tensor(&f, "z", "U8", "[1]", "x", 1);
	open_as(o, &f, "skyrl-xor", json, FILE0);
}

static void test_open(void **state)
{
	uint16_t have[4] = {1, 1, 1, 1};
	struct buf blob = {0};
	struct patch patch;
	struct opened o;
	uint64_t len;

	open_payload(&o, edited("", ""), "key.a", false);
	assert_int_equal(o.err, 0);
	assert_int_equal(o.delta->count, 1);
	assert_string_equal(o.delta->parts[0].name, "a");
	assert_int_equal(o.delta->parts[0].checksum_kind, CHECKSUM_XXH3_128);
	assert_string_equal(o.delta->parts[0].checksum, XXH);
	assert_int_equal(encode(&o, "a", ST_BF16, 4, &blob, &len), 0);
	assert_int_equal(patch_open(blob.data, len, &patch, &o.why), 0);
	assert_int_equal(patch.op, PATCH_XOR);
	assert_int_equal(patch.changed, 2);
	assert_int_equal(patch_apply(&patch, 0, have, sizeof(have)), 0);
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(have[i], 1 ^ change[i]);
	assert_int_equal(encode(&o, "a", ST_BF16, 5, &blob, &len), -EBADMSG);
	assert_non_null(strstr(o.why.text, "another checkpoint than --base"));
	buf_release(&blob);
	close_file(&o);
}

static void test_open_refused(void **state)
{
	static const struct {
		const char *from, *to, *key, *sentence;
		bool extra;
	} bad[] = {
		{"", "", "a", "is not in this file", false},
		{"", "", "key.a", "holds \"z\"", true},
		{"\"payload_key\":\"key.a\"", "\"payload_key\":\"z\"", "key.a", "another size",
		 true},
		{"\"payload_key\":\"b\"", "\"payload_key\":\"b\",\"x\":1", "key.b",
		 "is not in this file", false},
	};
	struct file f = {0};
	struct opened o;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		open_payload(&o, edited(bad[i].from, bad[i].to), bad[i].key, bad[i].extra);
		assert_int_equal(o.err, -EBADMSG);
		if (strstr(o.why.text, bad[i].sentence) == NULL)
			fail_msg("%zu: %s", i, o.why.text);
		close_file(&o);
	}
	BF(&f, "key.a", 1, 2);
	open_as(&o, &f, "skyrl-xor", edited("", ""), FILE0);
	assert_int_equal(o.err, -EBADMSG);
	assert_non_null(strstr(o.why.text, "not U8"));
	close_file(&o);
	BF(&f, "key.a", 1, 2);
	open_as(&o, &f, "skyrl-xor", NULL, NULL);
	assert_int_equal(o.err, -EBADMSG);
	assert_non_null(strstr(o.why.text, "without its manifest"));
	close_file(&o);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parse),
		cmocka_unit_test(test_parse_refused),
		cmocka_unit_test(test_open),
		cmocka_unit_test(test_open_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
