/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prime-rl's manifests and patches, newer and older: versions, parts and their changes; the hash
 * of every kind of number; each disagreement is refused by a sentence.
 */
#include "codec/schemes.h"
#include "tests/unit/codec/trl_file.h"

#define PATCH "sparse_update_patch.safetensors"

/* What PyTorch 2.13's hash_tensor() gives for positions 1, 4, 7 and the values of a test. */
static const char update[] =
	"{\"base_step\":4,\"compute_dtype\":\"bfloat16\",\"compressed\":false,"
	"\"format\":\"prime-rl-sparse-update\",\"patch_file\":\"" PATCH "\","
	"\"stats\":{\"sparsity\":0.625,\"total_numel\":8},\"step\":6,\"tensors\":["
	"{\"changed_numel\":3,\"checksum\":17843296908013993986,\"dtype\":\"bfloat16\","
	"\"indices\":\"tensor_0.indices\",\"name\":\"w\",\"numel\":8,\"shape\":[2,4],"
	"\"values\":\"tensor_0.values\"}],\"version\":1}";

static const char old[] =
	"{\"base_step\":1,\"format\":\"prime_rl_sparse_filesystem_v1\",\"patch_files\":["
	"{\"file\":\"delta-00001-of-00002.safetensors\",\"tensors\":[{\"dtype\":\"torch.bfloat16\","
	"\"indices_key\":\"w.indices\",\"name\":\"w\",\"num_changed\":2,\"numel\":8,"
	"\"shape\":[8],\"values_key\":\"w.values\"}]},"
	"{\"tensors\":[],\"file\":\"delta-00002-of-00002.safetensors\"}],"
	"\"step\":2,\"type\":\"delta\"}";

static char text[2000];

static const char *edited(const char *json, const char *from, const char *to)
{
	const char *at = strstr(json, from);

	assert_non_null(at);
	snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - json), json, to, at + strlen(from));
	return text;
}

static int parse(const char *index, const char *json, struct scheme_version *v, struct why *why)
{
	*v = (struct scheme_version){0};
	*why = (struct why){0};
	return scheme_primerl.parse(index, 6, json, strlen(json), v, why);
}

static void test_parse(void **state)
{
	struct scheme_version v;
	struct why why;

	assert_int_equal(parse("sparse_update_manifest.json", update, &v, &why), 0);
	assert_true(v.delta && v.says_version && v.side);
	assert_int_equal(v.version, 6);
	assert_int_equal(v.base, 4);
	assert_string_equal(v.encoding, "prime-rl-sparse");
	assert_int_equal(v.file_count, 1);
	assert_string_equal(v.files[0], PATCH);
	scheme_version_release(&v);

	assert_int_equal(parse("sparse_manifest.json", old, &v, &why), 0);
	assert_true(v.delta);
	assert_string_equal(v.encoding, "prime-rl-sparse-v1");
	assert_int_equal(v.file_count, 2);
	assert_string_equal(v.files[1], "delta-00002-of-00002.safetensors");
	scheme_version_release(&v);

	assert_int_equal(parse("sparse_manifest.json",
			       "{\"format\":\"prime_rl_sparse_filesystem_v1\",\"step\":0,"
			       "\"total_size\":1,\"type\":\"full\"}",
			       &v, &why),
			 0);
	assert_false(v.delta);
	assert_int_equal(v.file_count, 0);
	scheme_version_release(&v);

	assert_int_equal(parse("sparse_update_manifest.json",
			       "{\"base_step\":4,\"format\":\"prime-rl-sparse-update\","
			       "\"patch_file\":null,\"step\":6,\"tensors\":[],\"version\":1}",
			       &v, &why),
			 0);
	assert_true(v.delta);
	assert_int_equal(v.file_count, 0);
	scheme_version_release(&v);

	assert_int_equal(parse("model.safetensors.index.json",
			       "{\"metadata\":{\"total_size\":1},\"weight_map\":"
			       "{\"a\":\"model-00001-of-00001.safetensors\"}}",
			       &v, &why),
			 0);
	assert_false(v.delta);
	assert_int_equal(v.file_count, 1);
	scheme_version_release(&v);
}

static void test_parse_refused(void **state)
{
	static const struct {
		const char *json, *from, *to, *sentence;
	} bad[] = {
		{update, "sparse-update", "dense-update", "not known here"},
		{update, "\"version\":1", "\"version\":2", "not known here"},
		{update, "\"base_step\":4", "\"base_step\":6", "not before it"},
		{update, "\"base_step\":4", "\"base_step\":-1", "negative"},
		{update, "\"" PATCH "\"", "null", "no patch_file"},
		{update, PATCH, "../step_5/" PATCH, "no plain name"},
		{update, "\"numel\":8", "\"numel\":9", "than its shape"},
		{update, "\"changed_numel\":3", "\"changed_numel\":9", "more elements than it has"},
		{update, "bfloat16\",\"indices", "float8_e4m3fn\",\"indices", "checksum"},
		{update, "bfloat16\",\"indices", "bf16\",\"indices", "not known here"},
		{update, "17843296908013993986", "178432969080139939869", "2^64"},
		{update, "\"values\":\"tensor_0.values\"", "\"x\":1", "\"values\" is missing"},
		{update, "}],\"version\"", "},[]],\"version\"", "tensor 1 of its list"},
		{old, "\"type\":\"delta\"", "\"type\":\"half\"", "full and delta are"},
		{old, "\"type\":\"delta\"", "\"type\":\"full\"", "lists changes"},
		{old, "\"base_step\":1,", "", "no base_step"},
		{old, "delta-00002", "x/../delta-00002", "no plain name"},
		{old, "filesystem_v1", "filesystem_v2", "not known here"},
		{old, "[],\"file\"", "[],\"tensors\"", "\"tensors\""},
	};
	struct scheme_version v;
	struct why why;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		const char *index =
			bad[i].json == old ? "sparse_manifest.json" : "sparse_update_manifest.json";
		const int err = parse(index, edited(bad[i].json, bad[i].from, bad[i].to), &v, &why);

		assert_true(err == -EBADMSG || err == -ENOTSUP);
		if (strstr(why.text, bad[i].sentence) == NULL)
			fail_msg("%s: %s", bad[i].to, why.text);
		scheme_version_release(&v);
	}
}

/* Positions 1, 4, 7 and -1.5, 2^-133 (a subnormal bf16), a signalling NaN. */
static void open_update(struct opened *o, const char *json, const char *dtype, uint64_t second)
{
	const unsigned width = strcmp(dtype, "I64") == 0 ? 8 : 4;
	struct file f = {0};

	list(&f, "tensor_0.indices", dtype, width, V(1, second, 7), 3);
	BF(&f, "tensor_0.values", 0xbfc0, 0x0001, 0x7f81);
	open_as(o, &f, "prime-rl-sparse", json, PATCH);
}

static void test_open(void **state)
{
	struct file f = {0};
	struct opened o;

	for (int wide = 0; wide < 2; wide++) {
		open_update(&o, update, wide ? "I64" : "I32", 4);
		if (o.err != 0)
			fail_msg("refused: %s", o.why.text);
		assert_int_equal(o.delta->sparse, 1);
		assert_int_equal(o.delta->changed, 3);
		EXPECT8(&o, "w", 9, 0xbfc0, 9, 9, 0x0001, 9, 9, 0x7f81);
		close_file(&o);
	}
	list(&f, "w.indices", "I64", 8, V(0, 5), 2);
	BF(&f, "w.values", 3, 4);
	open_as(&o, &f, "prime-rl-sparse-v1", old, "delta-00001-of-00002.safetensors");
	assert_int_equal(o.err, 0);
	EXPECT8(&o, "w", 3, 9, 9, 9, 9, 4, 9, 9);
	close_file(&o);
	open_as(&o, &f, "prime-rl-sparse-v1", old, "delta-00002-of-00002.safetensors");
	assert_int_equal(o.err, 0);
	assert_int_equal(o.delta->count, 0);
	close_file(&o);
}

static void expect_refusal(struct opened *o, uint64_t numel, const char *sentence)
{
	struct buf blob = {0};
	uint64_t len;

	assert_int_equal(o->err, 0);
	assert_int_equal(encode(o, "w", ST_BF16, numel, &blob, &len), -EBADMSG);
	if (strstr(o->why.text, sentence) == NULL)
		fail_msg("%s", o->why.text);
	buf_release(&blob);
	close_file(o);
}

static void test_encode_refused(void **state)
{
	struct opened o;

	open_update(&o, update, "I32", 3);
	expect_refusal(&o, 8, "checksum");
	open_update(&o, update, "I64", UINT64_MAX - 2); /* -3 */
	expect_refusal(&o, 8, "beyond the tensor");
	open_update(&o, update, "I32", (uint32_t)-3);
	expect_refusal(&o, 8, "beyond the tensor");
	open_update(&o, update, "I32", 1);
	expect_refusal(&o, 8, "ascend");
	open_update(&o, update, "I32", 0);
	expect_refusal(&o, 8, "ascend");
	open_update(&o, update, "I32", 4);
	expect_refusal(&o, 9, "another checkpoint");
}

static void test_open_refused(void **state)
{
	static const struct {
		const char *from, *to, *sentence;
	} bad[] = {
		{"tensor_0.values", "tensor_1.values", "is not in this file"},
		{"tensor_0.values", "tensor_0.indices", "named twice"},
		{"\"changed_numel\":3", "\"changed_numel\":4", "has 3 elements, and 4"},
		{"bfloat16\",\"indices", "float16\",\"indices", "another dtype"},
		{"\"tensors\":[", "\"tensors\":[],\"x\":[", "holds \"tensor_0.indices\""},
	};
	struct file f = {0};
	struct opened o;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		open_update(&o, edited(update, bad[i].from, bad[i].to), "I32", 4);
		assert_int_equal(o.err, -EBADMSG);
		if (strstr(o.why.text, bad[i].sentence) == NULL)
			fail_msg("%s: %s", bad[i].to, o.why.text);
		close_file(&o);
	}
	U32(&f, "tensor_0.indices", 1, 4, 7);
	BF(&f, "tensor_0.values", 1, 2, 3);
	open_as(&o, &f, "prime-rl-sparse", update, PATCH);
	assert_int_equal(o.err, -EBADMSG);
	assert_non_null(strstr(o.why.text, "neither I32 nor I64"));
	close_file(&o);
	open_as(&o, &f, "prime-rl-sparse", NULL, NULL);
	assert_int_equal(o.err, -EBADMSG);
	close_file(&o);
}

/* One value of each dtype at position 3; what the hash of it is says PyTorch. */
static void test_hashes(void **state)
{
	static const struct {
		const char *torch, *dtype;
		uint64_t bits;
		const char *hash;
		unsigned width;
	} of[] = {
		{"bfloat16", "BF16", UINT64_C(0x3f81), "4607217603172106243", 2},
		{"bfloat16", "BF16", UINT64_C(0x8000), "9223372036854775811", 2},
		{"bfloat16", "BF16", UINT64_C(0x1), "4008203668359741443", 2},
		{"bfloat16", "BF16", UINT64_C(0x807f), "13263030533861933059", 2},
		{"bfloat16", "BF16", UINT64_C(0x7f80), "9218868437227405315", 2},
		{"bfloat16", "BF16", UINT64_C(0xff81), "18444527458267955203", 2},
		{"bfloat16", "BF16", UINT64_C(0x7fc1), "9221155421413179395", 2},
		{"float16", "F16", UINT64_C(0x3c01), "4607186816846528515", 2},
		{"float16", "F16", UINT64_C(0x1), "4499096027743125507", 2},
		{"float16", "F16", UINT64_C(0x83ff), "13767495264778584067", 2},
		{"float16", "F16", UINT64_C(0xfc00), "18442240474082181123", 2},
		{"float16", "F16", UINT64_C(0x7c01), "9221124635087601667", 2},
		{"float16", "F16", UINT64_C(0xfe01), "18444496671942377475", 2},
		{"float32", "F32", UINT64_C(0x3f800001), "4607182419336888323", 4},
		{"float32", "F32", UINT64_C(0x80000001), "13159518111176589315", 4},
		{"float32", "F32", UINT64_C(0x7fffff), "4039728864677593091", 4},
		{"float32", "F32", UINT64_C(0x7f800000), "9218868437227405315", 4},
		{"float32", "F32", UINT64_C(0x7f800001), "9221120237577961475", 4},
		{"float64", "F64", UINT64_C(0x3ff0000000000001), "4607182418800017410", 8},
		{"float64", "F64", UINT64_C(0x1), "2", 8},
		{"float64", "F64", UINT64_C(0x7ff0000000000000), "9218868437227405315", 8},
		{"float64", "F64", UINT64_C(0x7ff0000000000001), "9218868437227405314", 8},
		{"int8", "I8", UINT64_C(0xfe), "18446744073709551613", 1},
		{"uint8", "U8", UINT64_C(0xfe), "253", 1},
		{"int16", "I16", UINT64_C(0xfffe), "18446744073709551613", 2},
		{"int32", "I32", UINT64_C(0xfffffffe), "18446744073709551613", 4},
		{"int64", "I64", UINT64_C(0xfffffffffffffffe), "18446744073709551613", 8},
		{"bool", "BOOL", UINT64_C(0x1), "2", 1},
	};

	for (size_t i = 0; i < ARRAY_LEN(of); i++) {
		struct buf json = {0}, blob = {0};
		struct file f = {0};
		struct opened o;
		uint64_t len;

		for (int wrong = 0; wrong < 2; wrong++) {
			buf_addf(&json,
				 "{\"base_step\":0,\"format\":\"prime-rl-sparse-update\","
				 "\"patch_file\":\"p\",\"step\":1,\"version\":1,\"tensors\":["
				 "{\"changed_numel\":1,\"checksum\":%s,\"dtype\":\"%s\","
				 "\"indices\":\"i\",\"name\":\"w\",\"numel\":8,\"shape\":[8],"
				 "\"values\":\"v\"}]}",
				 wrong ? "12345" : of[i].hash, of[i].torch);
			I32(&f, "i", 3);
			list(&f, "v", of[i].dtype, of[i].width, &of[i].bits, 1);
			open_as(&o, &f, "prime-rl-sparse", buf_str(&json), "p");
			if (o.err != 0)
				fail_msg("%s: %s", of[i].torch, o.why.text);
			if (encode(&o, "w", (enum st_dtype)o.delta->parts[0].dtype, 8, &blob,
				   &len) != (wrong ? -EBADMSG : 0))
				fail_msg("%s %zu: %s", of[i].torch, i, o.why.text);
			close_file(&o);
			buf_release(&json);
			buf_release(&blob);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parse),	     cmocka_unit_test(test_parse_refused),
		cmocka_unit_test(test_open),	     cmocka_unit_test(test_encode_refused),
		cmocka_unit_test(test_open_refused), cmocka_unit_test(test_hashes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
