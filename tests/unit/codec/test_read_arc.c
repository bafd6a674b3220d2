/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fireworks' delta files and requests: what is read gives the patch and the checksums it should;
 * their other formats, and compressed changes of which nothing says what they are, are refused.
 */
#include "codec/format.h"
#include "codec/schemes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include <zstd.h>

struct file {
	uint8_t bytes[4096];
	size_t len;
};

/* One tensor "t" of these bytes, with this checksum. */
static struct source file_of(struct file *f, const char *dtype, const char *sum, const void *bytes,
			     size_t len)
{
	char head[256];
	int n = snprintf(head, sizeof(head),
			 "{\"__metadata__\":{\"t\":\"%s\"},\"t\":{\"dtype\":\"%s\",\"shape\":[%zu],"
			 "\"data_offsets\":[0,%zu]}}",
			 sum, dtype, len, len);

	assert_true(n > 0 && 8 + (size_t)n + len <= sizeof(f->bytes));
	store_le64(f->bytes, (uint64_t)n);
	memcpy(f->bytes + 8, head, (size_t)n);
	memcpy(f->bytes + 8 + n, bytes, len);
	f->len = 8 + (size_t)n + len;
	return source_memory(f->bytes, f->len);
}

static size_t pack(const void *bytes, size_t len, uint8_t out[256])
{
	size_t n = ZSTD_compress(out, 256, bytes, len, 3);

	assert_false(ZSTD_isError(n));
	return n;
}

static void test_a_delta(void **state)
{
	const uint8_t change[8] = {0, 0, 1, 0, 0, 0, 0xff, 0x80};
	uint8_t values[8] = {1, 2, 3, 4, 5, 6, 7, 8}, frame[256];
	struct grown space = {0};
	const struct sink sink = sink_grown(&space);
	struct delta *d = NULL;
	struct patch patch;
	struct why why = {0};
	struct file f;
	uint64_t made;
	const struct source src =
		file_of(&f, "U8", "1781536611", frame, pack(change, sizeof(change), frame));

	assert_int_equal(delta_open_as(&src, "arc-v2", NULL, &d, &why), 0);
	assert_int_equal(d->count, 1);
	assert_int_equal(d->parts[0].checksum_kind, CHECKSUM_ADLER32);
	assert_string_equal(d->parts[0].checksum, "6a301763");
	assert_int_equal(delta_encode(d, &d->parts[0], &src, ST_BF16, 4, &sink, 0, &made, &why), 0);
	assert_int_equal(patch_open(space.bytes, made, &patch, &why), 0);
	assert_int_equal(patch_check(&patch, &why), 0);
	assert_int_equal(patch.changed, 2);
	assert_int_equal(patch_apply(&patch, 0, values, sizeof(values)), 0);
	for (size_t i = 0; i < sizeof(values); i++)
		assert_int_equal(values[i], (i + 1) ^ change[i]);
	/* Another size than the tensor's. */
	assert_int_equal(delta_encode(d, &d->parts[0], &src, ST_BF16, 3, &sink, 0, &made, &why),
			 -EBADMSG);
	assert_int_equal(delta_encode(d, &d->parts[0], &src, ST_BF16, 5, &sink, 0, &made, &why),
			 -EBADMSG);
	delta_free(d);
	free(space.bytes);
}

/* A tensor without elements has a frame, too. */
static void test_nothing(void **state)
{
	uint8_t frame[256];
	struct grown space = {0};
	const struct sink sink = sink_grown(&space);
	struct delta *d = NULL;
	struct why why = {0};
	struct file f;
	uint64_t made = 0;
	const struct source src = file_of(&f, "U8", "1", frame, pack("", 0, frame));

	assert_int_equal(delta_open_as(&src, "arc-v2", NULL, &d, &why), 0);
	assert_int_equal(delta_encode(d, &d->parts[0], &src, ST_F32, 0, &sink, 0, &made, &why), 0);
	delta_free(d);
	free(space.bytes);
}

static void refused(const char *dtype, const char *sum, const char *bytes, size_t len, int want,
		    const char *sentence)
{
	struct grown space = {0};
	const struct sink sink = sink_grown(&space);
	struct delta *d = NULL;
	struct why why = {0};
	struct file f;
	uint64_t made;
	const struct source src = file_of(&f, dtype, sum, bytes, len);
	int err = delta_open_as(&src, "arc-v2", NULL, &d, &why);

	if (err == 0)
		err = delta_encode(d, &d->parts[0], &src, ST_U8, 100, &sink, 0, &made, &why);
	assert_int_equal(err, want);
	assert_non_null(strstr(why.text, sentence));
	delta_free(d);
	free(space.bytes);
}

static void test_refused(void **state)
{
	static const char nested[] = "\x80\0\0\0\0\0\0\0{\"__metadata__\"";

	refused("U8", "1", "x\x9c\x03\0\0\0\0\1", 8, -ENOTSUP, "arc_v1");
	refused("U8", "1", "ARC3_ENVELOPE\0\x80\x05", 16, -ENOTSUP, "arc_v3");
	refused("U8", "1", nested, sizeof(nested), -ENOTSUP, "arc_v3");
	refused("U8", "1", "\x28\xb5", 2, -EBADMSG, "zstd frame");
	refused("U8", "1", "z", 1, -EBADMSG, "zstd frame");
	refused("U8", "", "", 0, -EBADMSG, "no compressed change");
	refused("I8", "1", "abc", 3, -EBADMSG, "no compressed change");
	refused("U8", "00a0", "abc", 3, -EBADMSG, "checksum");
	refused("U8", "", "abc", 3, -EBADMSG, "checksum");
	refused("U8", "4294967296", "abc", 3, -EBADMSG, "checksum");
	refused("U8", "99999999999999999999999", "abc", 3, -EBADMSG, "checksum");
}

/* Frames are not weights, though a file of them is a fine checkpoint to look at. */
static void test_said_by_nobody(void **state)
{
	struct delta *d = NULL;
	struct why why = {0};
	struct file f;
	struct source src = file_of(&f, "U8", "12", "abc", 3);

	assert_int_equal(delta_open(&src, &d, &why), -ENOTSUP);
	assert_non_null(strstr(why.text, "incremental_snapshot_metadata.json"));
	/* Bytes that are weights: a checksum alone does not make them changes. */
	src = file_of(&f, "I8", "12", "abc", 3);
	assert_int_equal(delta_open(&src, &d, &why), 0);
	assert_string_equal(d->format->name, "safetensors");
	delta_free(d);
}

static int parse(const char *text, struct scheme_version *v, struct why *why)
{
	*v = (struct scheme_version){0};
	*why = (struct why){0};
	return scheme_arc.parse("incremental_snapshot_metadata.json", 7, text, strlen(text), v,
				why);
}

static void test_request(void **state)
{
	static const struct {
		const char *text, *sentence;
		int err;
	} bad[] = {
		{"{", "not JSON", -EBADMSG},
		{"[]", "compression_format", -ENOTSUP},
		{"{\"compression_format\":\"arc_v3\"}", "arc_v2", -ENOTSUP},
		{"{\"compression_format\":7}", "arc_v2", -ENOTSUP},
		{"{\"compression_format\":\"arc_v2\"}", "previous_snapshot_identity", -EBADMSG},
		{"{\"compression_format\":\"arc_v2\",\"checksum_format\":\"md5\"}", "md5",
		 -ENOTSUP},
		{"{\"compression_format\":\"arc_v2\",\"checksum_format\":3}", "alder32", -ENOTSUP},
		{"{\"compression_format\":\"arc_v2\",\"previous_snapshot_identity\":\"base\"}",
		 "step_000041", -EBADMSG},
		{"{\"compression_format\":\"arc_v2\",\"previous_snapshot_identity\":\"step_\"}",
		 "step_000041", -EBADMSG},
		{"{\"compression_format\":\"arc_v2\",\"previous_snapshot_identity\":\"a/\"}",
		 "step_000041", -EBADMSG},
		{"{\"compression_format\":\"arc_v2\","
		 "\"previous_snapshot_identity\":\"step_9999999999999999999999\"}",
		 "step_000041", -EBADMSG},
	};
	struct scheme_version v;
	struct why why;

	assert_int_equal(parse("{\"previous_snapshot_identity\":\"org/run/step_000006\","
			       "\"compression_format\":\"ARC_v2\",\"checksum_format\":\"alder32\"}",
			       &v, &why),
			 0);
	assert_true(v.delta && v.all && !v.says_version);
	assert_int_equal(v.base, 6);
	assert_string_equal(v.encoding, "arc-v2");
	assert_int_equal(parse("{\"identity\":\"snap-8\",\"incremental_snapshot_metadata\":{"
			       "\"previous_snapshot_identity\":\"snap-6\","
			       "\"compression_format\":\"xor_one_to_one_zstd\"}}",
			       &v, &why),
			 0);
	assert_true(v.says_version);
	assert_int_equal(v.version, 8);
	assert_int_equal(v.base, 6);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_int_equal(parse(bad[i].text, &v, &why), bad[i].err);
		assert_non_null(strstr(why.text, bad[i].sentence));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_delta), cmocka_unit_test(test_nothing),
		cmocka_unit_test(test_refused), cmocka_unit_test(test_said_by_nobody),
		cmocka_unit_test(test_request),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
