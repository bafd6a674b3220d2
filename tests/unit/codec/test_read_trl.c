/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening TRL's anchors and deltas: every generation, names that look like indices, files with
 * nothing in them, and every refusal with its sentence.
 */
#include "tests/unit/codec/trl_file.h"

/* ---- generations ---- */

static void test_v1_delta(void **state)
{
	struct file f = {0};
	struct opened o;
	const struct part *part;

	trl(&f, "True");
	meta(&f, "model_version", "3");
	meta(&f, "sparsity", "1e-05");
	meta(&f, "changed_params", "[\"b\", \"a\"]");
	I32(&f, "b.indices", 0, 7);
	I32(&f, "a.indices", 2);
	BF(&f, "b.values", 0x1111, 0x2222);
	BF(&f, "a.values", 0x3333);
	open_good(&o, &f);
	assert_string_equal(o.delta->format->name, "trl");
	assert_string_equal(o.delta->generation, "TRL v1");
	assert_int_equal(o.delta->encoding, TRL_RAW);
	assert_false(o.delta->holes_legal);
	assert_int_equal(o.delta->model_version, 3);
	assert_int_equal(o.delta->base_version, -1);
	assert_int_equal(o.delta->count, 2);
	assert_int_equal(o.delta->sparse, 2);
	assert_int_equal(o.delta->full, 0);
	assert_int_equal(o.delta->changed, 3);
	assert_string_equal(o.delta->parts[0].name, "a");
	part = delta_find(o.delta, "b");
	assert_ptr_equal(part, &o.delta->parts[1]);
	assert_int_equal(part->kind, PART_SPARSE);
	assert_int_equal(part->dtype, ST_BF16);
	assert_int_equal(part->changed, 2);
	assert_int_equal(part->bytes, 12);
	assert_null(delta_find(o.delta, "b.indices"));
	assert_null(delta_find(o.delta, "c"));
	EXPECT8(&o, "b", 0x1111, 9, 9, 9, 9, 9, 9, 0x2222);
	EXPECT8(&o, "a", 9, 9, 0x3333, 9, 9, 9, 9, 9);
	close_file(&o);
}

static void test_v10(void **state)
{
	struct file f = {0}, anchor = {0}, empty = {0};
	struct opened o;

	meta(&f, "format", "sparse_weight_patch");
	meta(&f, "model_version", "12");
	meta(&f, "prev_model_version", "11");
	meta(&f, "anchor_step", "10");
	meta(&f, "checksum_sha256", "00");
	I32(&f, "a.indices", 2);
	BF(&f, "a.values", 5);
	open_good(&o, &f);
	assert_string_equal(o.delta->generation, "TRL v1.0");
	assert_int_equal(o.delta->model_version, 12);
	assert_int_equal(o.delta->base_version, 11);
	assert_false(o.delta->holes_legal);
	EXPECT8(&o, "a", 9, 9, 5, 9, 9, 9, 9, 9);
	close_file(&o);

	meta(&anchor, "format", "anchor_checkpoint");
	BF(&anchor, "a", 1, 2, 3);
	open_good(&o, &anchor);
	assert_string_equal(o.delta->format->name, "trl");
	assert_string_equal(o.delta->generation, "TRL v1.0");
	assert_int_equal(o.delta->full, 1);
	assert_int_equal(o.delta->encoding, TRL_NONE);
	close_file(&o);

	meta(&empty, "format", "sparse_weight_patch");
	meta(&empty, "checksum_sha256", "00");
	meta(&empty, "changed_params", "[]");
	I32(&empty, "__empty_delta__", 0);
	open_good(&o, &empty);
	assert_int_equal(o.delta->count, 0);
	assert_int_equal(o.delta->changed, 0);
	assert_null(delta_find(o.delta, "__empty_delta__"));
	close_file(&o);
}

/* v1.1 has neither `format` nor, in a delta, anything else that says what it is. */
static void test_v11(void **state)
{
	struct file f = {0}, full = {0}, bare = {0};
	struct opened o;

	meta(&f, "num_params", "1");
	meta(&f, "sparse", "True");
	I32(&f, "a.indices", 2);
	BF(&f, "a.values", 5);
	open_good(&o, &f);
	assert_string_equal(o.delta->generation, "TRL v1");
	assert_int_equal(o.delta->sparse, 1);
	close_file(&o);

	meta(&full, "num_params", "1");
	meta(&full, "sparse", "False");
	BF(&full, "a", 5);
	open_good(&o, &full);
	assert_string_equal(o.delta->format->name, "trl");
	close_file(&o);

	U16(&bare, "a.idx", 2);
	BF(&bare, "a.val", 5);
	open_good(&o, &bare);
	assert_string_equal(o.delta->format->name, "trl");
	EXPECT8(&o, "a", 9, 9, 5, 9, 9, 9, 9, 9);
	close_file(&o);
}

/* A full file under deltas/, a partial anchor: `sparse` and the place decide nothing. */
static void test_full_and_mixed(void **state)
{
	struct file f = {0};
	struct opened o;
	const struct part *part;

	trl(&f, "False");
	I32(&f, "a.indices", 1);
	tensor(&f, "m", "BF16", "[2,3]", "abcdefABCDEF", 12);
	BF(&f, "a.values", 0x7777);
	tensor(&f, "s", "F32", "[]", "1234", 4);
	open_good(&o, &f);
	assert_string_equal(o.delta->generation, "TRL v1");
	assert_int_equal(o.delta->full, 2);
	assert_int_equal(o.delta->sparse, 1);
	assert_int_equal(o.delta->changed, 6 + 1 + 1);
	part = delta_find(o.delta, "m");
	assert_int_equal(part->kind, PART_FULL);
	assert_int_equal(part->rank, 2);
	assert_int_equal(part->shape[0], 2);
	assert_int_equal(part->shape[1], 3);
	assert_int_equal(part->numel, 6);
	assert_int_equal(part->bytes, 12);
	assert_memory_equal(o.bytes + part->offset, "abcdefABCDEF", 12);
	part = delta_find(o.delta, "s");
	assert_int_equal(part->rank, 0);
	assert_int_equal(part->numel, 1);
	assert_int_equal(part->dtype, ST_F32);
	assert_memory_equal(o.bytes + part->offset, "1234", 4);
	EXPECT8(&o, "a", 9, 0x7777, 9, 9, 9, 9, 9, 9);
	close_file(&o);
}

static void test_gap(void **state)
{
	struct file f = {0};
	struct opened o;
	uint16_t have[3] = {9, 9, 9};

	trl(&f, "True");
	meta(&f, "encoding", "gap_delta");
	U32(&f, "wide.idx", 0, 100000);
	BF(&f, "a.val", 1, 2, 3);
	BF(&f, "wide.val", 4, 5);
	U16(&f, "a.idx", 0, 0, 5);
	open_good(&o, &f);
	assert_string_equal(o.delta->generation, "TRL v2/v3 (gap_delta)");
	assert_int_equal(o.delta->encoding, TRL_GAP);
	assert_true(o.delta->holes_legal);
	EXPECT8(&o, "a", 1, 2, 9, 9, 9, 9, 9, 3);
	apply16(&o, "wide", 100002, 99999, have, 3);
	assert_int_equal(have[0], 9);
	assert_int_equal(have[1], 9);
	assert_int_equal(have[2], 5);
	close_file(&o);
}

static void test_raw(void **state)
{
	struct file f = {0};
	struct opened o;

	trl(&f, "True");
	meta(&f, "encoding", "raw");
	I32(&f, "a.idx", 0, 1, 7);
	BF(&f, "a.val", 1, 2, 3);
	open_good(&o, &f);
	assert_string_equal(o.delta->generation, "TRL v2/v3 (raw)");
	assert_int_equal(o.delta->encoding, TRL_RAW);
	assert_true(o.delta->holes_legal);
	EXPECT8(&o, "a", 1, 2, 9, 9, 9, 9, 9, 3);
	close_file(&o);
}

/* Without the key the dtype says it, per tensor. */
static void test_no_encoding(void **state)
{
	struct file f = {0};
	struct opened o;

	trl(&f, "True");
	I32(&f, "r.idx", 0, 6);
	U16(&f, "g.idx", 0, 6);
	BF(&f, "r.val", 1, 2);
	BF(&f, "g.val", 1, 2);
	open_good(&o, &f);
	assert_string_equal(o.delta->generation, "TRL v2/v3 (mixed)");
	assert_int_equal(o.delta->encoding, TRL_MIXED);
	assert_true(o.delta->holes_legal);
	EXPECT8(&o, "r", 1, 9, 9, 9, 9, 9, 2, 9);
	EXPECT8(&o, "g", 1, 9, 9, 9, 9, 9, 9, 2);
	close_file(&o);
}

/* `encoding` is in anchors too and means nothing there. */
static void test_anchor_encodings(void **state)
{
	static const char *const cases[][2] = {
		{"gap_delta", "TRL v2/v3 (gap_delta)"},
		{"raw", "TRL v2/v3 (raw)"},
		{"nvcomp_cascaded", "TRL v2/v3"},
		{"something new", "TRL v2/v3"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct file f = {0};
		struct opened o;

		trl(&f, "False");
		meta(&f, "encoding", cases[i][0]);
		BF(&f, "a", 1, 2, 3);
		open_good(&o, &f);
		assert_string_equal(o.delta->generation, cases[i][1]);
		assert_int_equal(o.delta->encoding, TRL_NONE);
		assert_true(o.delta->holes_legal);
		assert_int_equal(o.delta->full, 1);
		close_file(&o);
	}
}

static void test_plain_checkpoint(void **state)
{
	struct file f = {0};
	struct opened o;

	meta(&f, "format", "pt");
	BF(&f, "b", 1);
	BF(&f, "a", 1);
	BF(&f, "a.idx", 1);
	BF(&f, "a.val", 1);
	open_good(&o, &f);
	assert_string_equal(o.delta->format->name, "safetensors");
	assert_string_equal(o.delta->generation, "safetensors");
	assert_int_equal(o.delta->full, 4);
	assert_string_equal(o.delta->parts[0].name, "a");
	assert_string_equal(o.delta->parts[3].name, "b");
	assert_int_equal(o.delta->model_version, -1);
	assert_false(o.delta->holes_legal);
	close_file(&o);
}

static void test_versions(void **state)
{
	static const struct {
		const char *text;
		int64_t want;
	} cases[] = {
		{"0", 0},
		{"000007", 7},
		{"1000000", 1000000},
		{"9223372036854775807", INT64_MAX},
		{"9223372036854775808", -1},
		{"99999999999999999999999", -1},
		{"", -1},
		{"-3", -1},
		{"3.0", -1},
		{" 3", -1},
		{"None", -1},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct file f = {0};
		struct opened o;

		trl(&f, "True");
		meta(&f, "model_version", cases[i].text);
		meta(&f, "never_seen", "before");
		open_good(&o, &f);
		assert_true(o.delta->model_version == cases[i].want);
		assert_int_equal(o.delta->count, 0);
		close_file(&o);
	}
}

/* ---- names ---- */

static void test_names_by_pairing(void **state)
{
	struct file f = {0};
	struct opened o;

	trl(&f, "True");
	meta(&f, "encoding", "gap_delta");
	U16(&f, "x.val.idx", 1); /* changes x.val */
	BF(&f, "x.val.val", 0x11);
	BF(&f, "alone.val", 1, 2); /* a parameter */
	BF(&f, "p.idx", 1, 2);	   /* two parameters: an index is no float */
	BF(&f, "p.val", 3);
	tensor(&f, "q.idx", "U16", "[1,1]", "ab", 2); /* two-dimensional: no lone index */
	U16(&f, "y.idx", 2);
	BF(&f, "y.val", 0x22);
	U16(&f, "y.val.idx", 3);
	BF(&f, "y.val.val", 0x33);
	U16(&f, ".idx", 3); /* no name is left: two parameters */
	BF(&f, ".val", 4);
	BF(&f, "y-1", 4); /* before the key y.idx, but after the name y */
	tensor(&f, "__empty_delta__", "I32", "[1]", "\0\0\0\0", 4);
	open_good(&o, &f);
	assert_int_equal(o.delta->count, 10);
	assert_int_equal(o.delta->sparse, 3);
	assert_int_equal(delta_find(o.delta, "x.val")->kind, PART_SPARSE);
	assert_null(delta_find(o.delta, "x"));
	assert_int_equal(delta_find(o.delta, "alone.val")->kind, PART_FULL);
	assert_int_equal(delta_find(o.delta, "p.idx")->kind, PART_FULL);
	assert_int_equal(delta_find(o.delta, "p.val")->kind, PART_FULL);
	assert_int_equal(delta_find(o.delta, "q.idx")->kind, PART_FULL);
	assert_int_equal(delta_find(o.delta, ".idx")->kind, PART_FULL);
	EXPECT8(&o, "x.val", 9, 0x11, 9, 9, 9, 9, 9, 9);
	EXPECT8(&o, "y", 9, 9, 0x22, 9, 9, 9, 9, 9);
	EXPECT8(&o, "y.val", 9, 9, 9, 0x33, 9, 9, 9, 9);
	for (size_t i = 1; i < o.delta->count; i++)
		assert_true(strcmp(o.delta->parts[i - 1].name, o.delta->parts[i].name) < 0);
	close_file(&o);
}

/* Outside a file that says it is sparse a lone integer is a tensor; so are odd shapes of the
 * marker. */
static void test_not_an_index(void **state)
{
	struct file f = {0};
	struct opened o;

	trl(&f, "False");
	I32(&f, "a.indices", 1);
	I32(&f, "__empty_delta__", 1, 2);
	open_good(&o, &f);
	assert_int_equal(delta_find(o.delta, "a.indices")->kind, PART_FULL);
	assert_int_equal(delta_find(o.delta, "__empty_delta__")->kind, PART_FULL);
	close_file(&o);
}

/* ---- nothing to do ---- */

static void test_no_ops(void **state)
{
	static const char *const dtypes[] = {"U16", "I32", "U32"};
	struct buf blob = {0};
	struct file none = {0};
	struct opened o;
	uint64_t len;

	open_good(&o, &none);
	assert_string_equal(o.delta->format->name, "safetensors");
	assert_int_equal(o.delta->count, 0);
	assert_null(delta_find(o.delta, "a"));
	close_file(&o);
	for (size_t i = 0; i < ARRAY_LEN(dtypes); i++) {
		struct file f = {0};

		trl(&f, "True");
		meta(&f, "encoding", "gap_delta");
		tensor(&f, "a.idx", dtypes[i], "[0]", "", 0);
		tensor(&f, "a.val", "BF16", "[0]", "", 0);
		open_good(&o, &f);
		assert_int_equal(o.delta->sparse, 1);
		assert_int_equal(o.delta->changed, 0);
		assert_int_equal(encode(&o, "a", ST_BF16, 8, &blob, &len), 0);
		assert_int_equal(len, 0);
		assert_int_equal(blob.len, 0);
		close_file(&o);
	}
}

/* ---- refusals at open ---- */

enum bad {
	BOTH,
	TWICE,
	LONE_INDICES,
	LONE_IDX,
	INDEX_2D,
	VALUES_2D,
	LENGTHS,
	NVCOMP,
	NVCOMP_U8,
	UNKNOWN,
	RAW_U16,
	GAP_I32,
	INDICES_GAP,
	INDICES_I64,
	INDICES_U16,
	IDX_I64,
	SUB_BYTE,
	BADS
};

static void build_bad(struct file *f, enum bad bad)
{
	const char *encoding = bad == NVCOMP	    ? "nvcomp_cascaded"
			       : bad == UNKNOWN	    ? "rice\n"
			       : bad == RAW_U16	    ? "raw"
			       : bad == GAP_I32	    ? "gap_delta"
			       : bad == INDICES_GAP ? "gap_delta"
						    : NULL;

	trl(f, "True");
	if (encoding != NULL)
		meta(f, "encoding", encoding);
	switch (bad) {
	case BOTH:
		BF(f, "a", 1);
		U16(f, "a.idx", 1);
		BF(f, "a.val", 1);
		return;
	case TWICE:
		I32(f, "a.indices", 1);
		BF(f, "a.values", 1);
		U16(f, "a.idx", 1);
		BF(f, "a.val", 1);
		return;
	case LONE_INDICES: I32(f, "a.indices", 1); return;
	case LONE_IDX: U16(f, "a.idx", 1); return;
	case INDEX_2D:
		tensor(f, "a.idx", "U16", "[1,1]", "ab", 2);
		BF(f, "a.val", 1);
		return;
	case VALUES_2D:
		U16(f, "a.idx", 1);
		tensor(f, "a.val", "BF16", "[1,1]", "ab", 2);
		return;
	case LENGTHS:
		U16(f, "a.idx", 1, 2);
		BF(f, "a.val", 1, 2, 3);
		return;
	case NVCOMP:
	case NVCOMP_U8:
		tensor(f, "a.idx", "U8", "[3]", "xyz", 3);
		BF(f, "a.val", 1);
		return;
	case INDICES_I64:
	case IDX_I64:
		list(f, bad == IDX_I64 ? "a.idx" : "a.indices", "I64", 8, V(1), 1);
		BF(f, bad == IDX_I64 ? "a.val" : "a.values", 1);
		return;
	case INDICES_U16:
		U16(f, "a.indices", 1);
		BF(f, "a.values", 1);
		return;
	case INDICES_GAP:
		I32(f, "a.indices", 1);
		BF(f, "a.values", 1);
		return;
	case GAP_I32:
		I32(f, "a.idx", 1);
		BF(f, "a.val", 1);
		return;
	case SUB_BYTE:
		U16(f, "a.idx", 1, 1);
		tensor(f, "a.val", "F4", "[2]", "x", 1);
		return;
	default:
		U16(f, "a.idx", 1);
		BF(f, "a.val", 1);
		return;
	}
}

static void test_refusals(void **state)
{
	static const struct {
		int err;
		const char *text;
	} want[BADS] = {
		[BOTH] = {EBADMSG, "tensor \"a\" is given both full and sparse"},
		[TWICE] = {EBADMSG, "tensor \"a\" is given twice"},
		[LONE_INDICES] = {EBADMSG, "index \"a.indices\" has no values (\".values\")"},
		[LONE_IDX] = {EBADMSG, "index \"a.idx\" has no values (\".val\")"},
		[INDEX_2D] = {EBADMSG, "tensor \"a\": its index has 2 dimensions"},
		[VALUES_2D] = {EBADMSG, "tensor \"a\": its new values have 2 dimensions"},
		[LENGTHS] = {EBADMSG, "tensor \"a\": 2 indices but 3 values"},
		[NVCOMP] = {ENOTSUP, "set weight_sync_encoding=\"gap_delta\" (or \"raw\")"},
		[NVCOMP_U8] = {ENOTSUP, "bitstream has no public CPU decoder"},
		[UNKNOWN] = {ENOTSUP, "in the encoding \"rice\\x0a\", which is not known"},
		[RAW_U16] = {EBADMSG, "its raw index is U16, but must be I32"},
		[GAP_I32] = {EBADMSG, "its gap_delta index is I32, but must be U16 or U32"},
		[INDICES_GAP] = {EBADMSG, ".indices pairs hold positions and not gaps"},
		[INDICES_I64] = {EBADMSG, "its .indices index is I64, but must be I32"},
		[INDICES_U16] = {EBADMSG, "its .indices index is U16, but must be I32"},
		[IDX_I64] = {EBADMSG, "its .idx index is I64, but must be I32, U16 or U32"},
		[SUB_BYTE] = {ENOTSUP, "single values of F4 cannot be replaced"},
	};

	for (enum bad bad = 0; bad < BADS; bad++) {
		struct file f = {0};
		struct opened o;

		build_bad(&f, bad);
		open_file(&o, &f);
		if (o.err != -want[bad].err || strstr(o.why.text, want[bad].text) == NULL)
			fail_msg("case %d: error %d, \"%s\", not \"%s\"", bad, o.err, o.why.text,
				 want[bad].text);
		assert_int_equal(o.why.err, want[bad].err);
		assert_null(o.delta);
		close_file(&o);
	}
}

static void test_not_safetensors(void **state)
{
	const struct source src = source_memory("hello", 5);
	struct delta *delta = NULL;
	struct why why = {0};

	assert_int_equal(delta_open(&src, &delta, &why), -EBADMSG);
	assert_null(delta);
	assert_true(strlen(why.text) > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_v1_delta),
		cmocka_unit_test(test_v10),
		cmocka_unit_test(test_v11),
		cmocka_unit_test(test_full_and_mixed),
		cmocka_unit_test(test_gap),
		cmocka_unit_test(test_raw),
		cmocka_unit_test(test_no_encoding),
		cmocka_unit_test(test_anchor_encodings),
		cmocka_unit_test(test_plain_checkpoint),
		cmocka_unit_test(test_versions),
		cmocka_unit_test(test_names_by_pairing),
		cmocka_unit_test(test_not_an_index),
		cmocka_unit_test(test_no_ops),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_not_safetensors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
