/* SPDX-License-Identifier: Apache-2.0 */
/* What schemes share (files, numbers, patterns), checksums against known answers, and frames. */
#include "codec/buf.h"
#include "codec/checksum.h"
#include "codec/format.h"
#include "codec/frame.h"
#include "codec/scheme.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <jansson.h>
#include <zstd.h>

static void patterns(void **unused)
{
	assert_true(scheme_matches("STABLE", "STABLE"));
	assert_false(scheme_matches("STABLE", "STABLE.tmp"));
	assert_true(scheme_matches("READY-*", "READY-12"));
	assert_true(scheme_matches("READY-*", "READY-"));
	assert_false(scheme_matches("READY-*", "READY-a/b"));
	assert_true(scheme_matches("*.safetensors", "model-00001-of-00002.safetensors"));
	assert_false(scheme_matches("*.safetensors", "FULL/model.safetensors"));
	assert_true(scheme_matches("FULL/*.safetensors", "FULL/model.safetensors"));
	assert_false(scheme_matches("ab*ba", "aba"));
}

static void files(void **unused)
{
	static const char *const bad[] = {"",	     "/etc/passwd", "../x", "a/../b", "a//b", "a/",
					  ".hidden", "a/.b",	    "a\\b", "a\nb",   "\x7f"};
	struct scheme_version v = {0};
	struct why why = {0};
	char name[SCHEME_FILE_MAX + 2];

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_int_equal(scheme_file(&v, bad[i], &why), -EBADMSG);
		assert_non_null(strstr(why.text, "no plain name"));
	}
	memset(name, 'a', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	assert_int_equal(scheme_file(&v, name, &why), -EBADMSG);
	for (int i = 99; i >= 0; i--) {
		snprintf(name, sizeof(name), "b/%02d", i / 2);
		assert_int_equal(scheme_file(&v, name, &why), 0);
	}
	assert_int_equal(scheme_file(&v, "b/07", &why), 0);
	scheme_files_end(&v);
	assert_int_equal(v.file_count, 50);
	for (size_t i = 0; i < v.file_count; i++) {
		snprintf(name, sizeof(name), "b/%02zu", i);
		assert_string_equal(v.files[i], name);
	}
	scheme_version_release(&v);
}

/* A header of tensors of one byte each. */
static struct st_header *header_of(const char *const *tensors, size_t n)
{
	struct buf json = {0};
	struct st_header *header = NULL;
	struct why why = {0};

	buf_addf(&json, "{");
	for (size_t i = 0; i < n; i++)
		buf_addf(&json,
			 "%s\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%zu,%zu]}",
			 i > 0 ? "," : "", tensors[i], i, i + 1);
	buf_addf(&json, "}");
	assert_int_equal(st_parse(buf_str(&json), json.len, 8 + json.len + n, &header, &why), 0);
	buf_release(&json);
	return header;
}

/* An index against a file of two tensors: what is said at once, and why. */
static void agrees(const char *map, bool exact, bool equal, const char *sentence)
{
	static const char *const tensors[] = {"b", "a"};
	struct st_header *header = header_of(tensors, 2);
	struct scheme_version v = {0};
	struct why why = {0};
	char text[200];
	json_t *root;
	int err;

	snprintf(text, sizeof(text), "{\"weight_map\":%s}", map);
	root = json_loads(map, 0, NULL);
	assert_non_null(root);
	assert_int_equal(scheme_file(&v, "y.safetensors", &why), 0);
	assert_int_equal(scheme_file(&v, "x.safetensors", &why), 0);
	scheme_files_end(&v);
	assert_int_equal(scheme_names(&v, root, &why), 0);
	assert_int_equal(scheme_names_equal(&v.names[0], header), equal);
	err = scheme_names_check(text, strlen(text), "x.safetensors", header, exact, &why);
	assert_int_equal(err, sentence != NULL ? -EBADMSG : 0);
	if (sentence != NULL)
		assert_non_null(strstr(why.text, sentence));
	json_decref(root);
	scheme_version_release(&v);
	st_free(header);
}

static void names(void **unused)
{
#define X ":\"x.safetensors\""
#define Y ":\"y.safetensors\""
	agrees("{\"a\"" X ",\"b\"" X ",\"c\"" Y "}", true, true, NULL);
	agrees("{\"a\"" X ",\"b\"" Y "}", true, false, "has a tensor \"b\"");
	agrees("{\"a\"" X ",\"b\"" Y "}", false, false, NULL);
	agrees("{\"a\"" X ",\"b\"" X ",\"c\"" X "}", false, false, "has no tensor \"c\"");
	agrees("{\"a\"" X ",\"c\"" X "}", false, false, "has no tensor \"c\"");
	agrees("{\"a\"" X ",\"b\":5}", true, false, "has a tensor \"b\"");
#undef X
#undef Y
}

static void number(const char *json, const char *prefix, bool ok, uint64_t want)
{
	json_t *value = json_loads(json, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	uint64_t have = 77;

	assert_non_null(value);
	assert_int_equal(scheme_number(value, prefix, &have), ok);
	assert_int_equal(have, ok ? want : 77);
	json_decref(value);
}

static void numbers(void **unused)
{
	number("12", NULL, true, 12);
	number("\"0012\"", NULL, true, 12);
	number("\"v12\"", "v", true, 12);
	number("\"v12\"", NULL, false, 0);
	number("9223372036854775807", NULL, true, INT64_MAX);
	number("\"9223372036854775808\"", NULL, false, 0);
	number("\"99999999999999999999999999\"", NULL, false, 0);
	number("-1", NULL, false, 0);
	number("1.0", NULL, false, 0);
	number("\"\"", NULL, false, 0);
	number("\"v\"", "v", false, 0);
	number("\"1 \"", NULL, false, 0);
	number("\"1\\u0000\"", NULL, false, 0);
	number("null", NULL, false, 0);
}

/* Each registered scheme can be chosen, and finds its own words. */
static void registry(void **unused)
{
	for (size_t i = 0; schemes[i] != NULL; i++) {
		const struct scheme *s = schemes[i];
		size_t n = 0;

		assert_ptr_equal(scheme_find(s->name), s);
		assert_non_null(s->parse);
		assert_non_null(s->words);
		assert_non_null(s->signs);
		while (s->indexes != NULL && s->indexes[n] != NULL)
			n++;
		assert_true(n <= SCHEME_INDEXES);
	}
	assert_null(scheme_find("nonsense"));
}

static int parse(const char *scheme, const char *text, struct scheme_version *out, struct why *why)
{
	*out = (struct scheme_version){0};
	*why = (struct why){0};
	return scheme_find(scheme)->parse("model.safetensors.index.json", 7, text, strlen(text),
					  out, why);
}

static void hfdir(void **unused)
{
	struct scheme_version v;
	struct why why;

	assert_int_equal(
		parse("hfdir",
		      "{\"metadata\": {\"version\": \"000007\", \"base_version\": \"000006\","
		      " \"delta_encoding\": \"xor\", \"compression_format\": \"zstd\"},"
		      " \"weight_map\": {\"b\": \"m-2.safetensors\","
		      " \"a\": \"m-1.safetensors\", \"c\": \"m-2.safetensors\"}}",
		      &v, &why),
		0);
	assert_true(v.delta && v.says_version && !v.side);
	assert_int_equal(v.version, 7);
	assert_int_equal(v.base, 6);
	assert_string_equal(v.encoding, "hfdir-xor");
	assert_string_equal(v.writer, "slime");
	assert_int_equal(v.file_count, 2);
	assert_string_equal(v.files[0], "m-1.safetensors");
	scheme_version_release(&v);

	/* ModelExpress; nothing changed. */
	assert_int_equal(parse("hfdir",
			       "{\"metadata\": {\"version\": \"v7\", \"base_version\": \"v6\","
			       " \"delta_encoding\": \"overwrite\"}, \"weight_map\": {}}",
			       &v, &why),
			 0);
	assert_string_equal(v.encoding, "hfdir-overwrite");
	assert_string_equal(v.writer, "ModelExpress");
	assert_int_equal(v.base, 6);
	assert_int_equal(v.file_count, 0);
	scheme_version_release(&v);

	/* A whole checkpoint, whatever number it says. */
	assert_int_equal(parse("checkpoints",
			       "{\"metadata\": {\"total_size\": 1}, \"weight_map\":"
			       " {\"a\": \"m.safetensors\"}}",
			       &v, &why),
			 0);
	assert_false(v.delta);
	assert_string_equal(v.encoding, "");
	scheme_version_release(&v);
}

static void hfdir_bad(void **unused)
{
	static const struct {
		const char *scheme, *text, *sentence;
		int err;
	} cases[] = {
		{"hfdir", "", "not JSON", EBADMSG},
		{"hfdir", "[1]", "no weight_map", EBADMSG},
		{"hfdir", "{\"weight_map\": {}}", "names no file", EBADMSG},
		{"hfdir", "{\"weight_map\": {\"a\": \"../m.safetensors\"}}", "no plain name",
		 EBADMSG},
		{"hfdir", "{\"weight_map\": {\"a\": \"x/m.safetensors\"}}", "no plain name",
		 EBADMSG},
		{"hfdir", "{\"weight_map\": {\"a\": 7}}", "no plain name", EBADMSG},
		{"hfdir", "{\"weight_map\": {\"a\": \"pytorch_model.bin\"}}", "no plain name",
		 EBADMSG},
		{"hfdir",
		 "{\"metadata\": {\"delta_encoding\": \"add\", \"base_version\": 1}, "
		 "\"weight_map\": {}}",
		 "xor and overwrite are", ENOTSUP},
		{"hfdir",
		 "{\"metadata\": {\"delta_encoding\": \"xor\", \"compression_format\": \"lz4\","
		 " \"base_version\": 1}, \"weight_map\": {}}",
		 "zstd is", ENOTSUP},
		{"hfdir",
		 "{\"metadata\": {\"delta_encoding\": \"xor\", \"base_version\": \"six\"},"
		 " \"weight_map\": {}}",
		 "its base_version is no number", EBADMSG},
		{"checkpoints",
		 "{\"metadata\": {\"delta_encoding\": \"xor\", \"base_version\": 6}, "
		 "\"weight_map\": {}}",
		 "say --format hfdir", ENOTSUP},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct scheme_version v;
		struct why why;

		assert_int_equal(parse(cases[i].scheme, cases[i].text, &v, &why), -cases[i].err);
		assert_int_equal(why.err, cases[i].err);
		if (strstr(why.text, cases[i].sentence) == NULL)
			fail_msg("%zu: %s", i, why.text);
		scheme_version_release(&v);
	}
}

static void sum(enum checksum_kind kind, const char *text, size_t times, const char *want)
{
	struct checksum *c = NULL;
	char hex[CHECKSUM_HEX];

	assert_int_equal(checksum_new(kind, &c), 0);
	for (size_t i = 0; i < times; i++)
		checksum_feed(c, text, strlen(text));
	checksum_hex(c, hex);
	assert_string_equal(hex, want);
	assert_int_equal(strlen(hex), checksum_digits(kind));
	checksum_free(c);
}

static void sums(void **unused)
{
	struct checksum *c = NULL;

	sum(CHECKSUM_ADLER32, "Wikipedia", 1, "11e60398");
	sum(CHECKSUM_ADLER32, "", 1, "00000001");
	/* Beyond what fits before a remainder has to be taken. */
	sum(CHECKSUM_ADLER32, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 1000, "b623eb2b");
	sum(CHECKSUM_SHA256, "abc", 1,
	    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
	sum(CHECKSUM_XXH3_128, "", 1, "99aa06d3014798d86001c324468d497f");
	if (checksum_known(CHECKSUM_BLAKE3))
		sum(CHECKSUM_BLAKE3, "", 1,
		    "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
	else
		assert_int_equal(checksum_new(CHECKSUM_BLAKE3, &c), -ENOTSUP);
	assert_int_equal(checksum_find("adler32"), CHECKSUM_ADLER32);
	assert_int_equal(checksum_find("md5"), CHECKSUM_NONE);
	assert_true(checksum_equal("00AbCd", "00aBcD"));
	assert_false(checksum_equal("00ab", "00abc"));
	assert_false(checksum_equal("00abc", "00abd"));
}

/* A frame of `len` zeros, which a few bytes hold. */
static struct source zeros(size_t len, void *room, size_t cap)
{
	void *bytes = calloc(1, len);
	size_t n;

	assert_non_null(bytes);
	n = ZSTD_compress(room, cap, bytes, len, 1);
	assert_false(ZSTD_isError(n));
	free(bytes);
	return source_memory(room, n);
}

static int unpack(const struct source *src, uint64_t most, uint64_t *out_size, struct why *why)
{
	struct grown g = {0};
	const struct sink sink = sink_grown(&g);
	int err = frame_unpack(src, most, &sink, out_size, why);

	assert_true(g.len <= most);
	if (err == 0)
		assert_int_equal(g.len, *out_size);
	free(g.bytes);
	return err;
}

static void frames(void **unused)
{
	uint8_t room[4096];
	struct source src = zeros(1 << 20, room, sizeof(room));
	struct why why = {0};
	uint64_t size = 0;
	bool is = false;

	assert_int_equal(frame_probe(&src, &is), 0);
	assert_true(is);
	assert_int_equal(unpack(&src, 1 << 20, &size, &why), 0);
	assert_int_equal(size, 1 << 20);
	assert_int_equal(unpack(&src, (1 << 20) - 1, &size, &why), -EFBIG);
	assert_non_null(strstr(why.text, "more than 1048575 bytes"));
	room[src.size++] = 'x';
	assert_int_equal(unpack(&src, 1 << 20, &size, &why), -EBADMSG);
	assert_non_null(strstr(why.text, "behind it"));
	src.size -= 3;
	assert_int_equal(unpack(&src, 1 << 20, &size, &why), -EBADMSG);
	src.size = 3;
	assert_int_equal(frame_probe(&src, &is), 0);
	assert_false(is);
	assert_int_equal(unpack(&src, 1 << 20, &size, &why), -EBADMSG);
}

/* The same without the size: it is only noticed when it comes. */
static void bombs(void **unused)
{
	uint8_t room[4096], piece[4096] = {0};
	ZSTD_CCtx *zstd = ZSTD_createCCtx();
	ZSTD_outBuffer out = {room, sizeof(room), 0};
	struct why why = {0};
	struct source src;
	uint64_t size = 0;

	assert_non_null(zstd);
	for (int i = 0; i < 1024; i++) {
		ZSTD_inBuffer in = {piece, sizeof(piece), 0};

		while (in.pos < in.size)
			assert_false(ZSTD_isError(
				ZSTD_compressStream2(zstd, &out, &in, ZSTD_e_continue)));
	}
	assert_int_equal(ZSTD_compressStream2(zstd, &out, &(ZSTD_inBuffer){NULL, 0, 0}, ZSTD_e_end),
			 0);
	ZSTD_freeCCtx(zstd);
	src = source_memory(room, out.pos);
	assert_int_equal(unpack(&src, 4 << 20, &size, &why), 0);
	assert_int_equal(size, 4 << 20);
	assert_int_equal(unpack(&src, 3 << 20, &size, &why), -EFBIG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(patterns),  cmocka_unit_test(files),	 cmocka_unit_test(names),
		cmocka_unit_test(numbers),   cmocka_unit_test(registry), cmocka_unit_test(sums),
		cmocka_unit_test(frames),    cmocka_unit_test(bombs),	 cmocka_unit_test(hfdir),
		cmocka_unit_test(hfdir_bad),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
