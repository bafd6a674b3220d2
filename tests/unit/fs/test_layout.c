/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts: kept to the byte, or invented; names, aliases, the index.
 */
#include "tests/unit/fs/bucket.h"

#include "fs/layout.h"

#include <jansson.h>

struct file {
	char *text;
	size_t len;
	struct st_header *header;
};

static struct layout_input parsed(struct file *f, struct obj *o, const char *name)
{
	struct why why = {0};

	f->text = obj_bytes(o, &f->len);
	assert_int_equal(st_parse(f->text + 8, load_le64(f->text), f->len, &f->header, &why), 0);
	return (struct layout_input){name, f->header, f->text + 8};
}

static void release(struct file *f)
{
	st_free(f->header);
	free(f->text);
}

static const uint8_t zeros[1 << 16];

/* Three tensors in an order of their own, one without elements. */
static void three(struct obj *o)
{
	obj_tensor(o, "z", ST_BF16, 2, 10, zeros);
	obj_tensor(o, "a", ST_F32, 0, 4, zeros);
	obj_tensor(o, "m", ST_U8, 0, 0, zeros);
}

static void kept_as_it_is(void **state)
{
	struct why why = {0};
	struct layout *l;
	struct obj o = {0};
	struct file f;

	three(&o);
	obj_meta(&o, "format", "pt");
	obj_meta(&o, "note", "mine");
	struct layout_input in = parsed(&f, &o, "weights.safetensors");

	assert_int_equal(layout_keep(&in, 1, &l, &why), 0);
	assert_int_equal(l->file_count, 1);
	assert_int_equal(l->tensor_count, 3);
	assert_string_equal(l->files[0].name, "weights.safetensors");
	assert_int_equal(l->files[0].size, f.len);
	assert_int_equal(l->files[0].head_len, 8 + load_le64(f.text));
	assert_memory_equal(l->files[0].head, f.text, l->files[0].head_len);
	assert_null(l->index);
	release(&f); /* the layout has copies of all */
	assert_int_equal(layout_find(l, "a"), 1);
	assert_int_equal(layout_find(l, "z"), 0);
	assert_int_equal(layout_find(l, "m"), 2);
	assert_int_equal(layout_find(l, "b"), LAYOUT_NONE);
	assert_int_equal(layout_find(l, ""), LAYOUT_NONE);
	assert_int_equal(l->tensors[0].begin, l->files[0].head_len);
	assert_int_equal(l->tensors[1].begin, l->files[0].head_len + 20);
	assert_int_equal(l->tensors[1].end, l->files[0].head_len + 36);
	assert_int_equal(l->tensors[2].begin, l->tensors[2].end);
	assert_int_equal(l->tensors[0].rank, 2);
	assert_int_equal(l->tensors[0].shape[1], 5);
	assert_ptr_equal(layout_ref(l), l);
	layout_unref(l);
	layout_unref(l);
}

/* Metadata of a delta format goes, the length stays, and it parses to the same tensors. */
static void metadata_is_replaced(void **state)
{
	static const struct {
		const char *key, *value, *key2, *value2;
		bool replaced;
	} cases[] = {
		{"format", "sparse_weight_patch", "version", "1", true},
		{"format", "anchor_checkpoint", "version", "1", true},
		{"num_params", "3", "sparse", "False", true},
		{"format", "pt", "sparse", "False", false},
		{"format", "something", "version", "1", false},
		{"note", "format", "sparse", "x", false},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct why why = {0};
		struct st_header *h;
		struct layout *l;
		struct obj o = {0};
		struct file f;

		three(&o);
		obj_meta(&o, cases[i].key, cases[i].value);
		obj_meta(&o, cases[i].key2, cases[i].value2);
		struct layout_input in = parsed(&f, &o, "x");

		assert_int_equal(layout_keep(&in, 1, &l, &why), 0);
		assert_int_equal(l->files[0].head_len, f.header->data);
		assert_int_equal(memcmp(l->files[0].head, f.text, f.header->data) != 0,
				 cases[i].replaced);
		assert_int_equal(st_parse(l->files[0].head + 8, f.header->length, f.len, &h, &why),
				 0);
		if (cases[i].replaced) {
			assert_int_equal(h->meta_count, 1);
			assert_string_equal(st_meta(h, "format"), "pt");
		}
		assert_int_equal(h->count, 3);
		for (size_t t = 0; t < 3; t++)
			assert_int_equal(h->tensors[t].begin, f.header->tensors[t].begin);
		st_free(h);
		release(&f);
		layout_unref(l);
	}
}

static void name_in_two_files(void **state)
{
	struct layout_input in[2];
	struct why why = {0};
	struct layout *l = NULL;
	struct obj o = {0};
	struct file f[2];

	three(&o);
	in[0] = parsed(&f[0], &o, "one");
	obj_tensor(&o, "other", ST_U8, 0, 1, zeros);
	obj_tensor(&o, "a", ST_U8, 0, 1, zeros);
	in[1] = parsed(&f[1], &o, "two");
	assert_int_equal(layout_keep(in, 2, &l, &why), -EBADMSG);
	assert_non_null(strstr(why.text, "\"a\""));
	assert_non_null(strstr(why.text, "one"));
	assert_non_null(strstr(why.text, "two"));
	assert_int_equal(layout_shard(in, 2, 1000, &l, &why), -EBADMSG);
	assert_null(l);
	release(&f[0]);
	release(&f[1]);
}

/* Names and sizes are those that a hand has worked out. */
static void shards(void **state)
{
	struct layout_input in[2];
	struct why why = {0};
	struct layout *l;
	struct obj o = {0};
	struct file f[2];
	json_error_t error;

	/* In order: F64 d (80), F32 b (40), F32 c (60), BF16 a (20), BF16 e (0), U8 f (7). */
	obj_tensor(&o, "a", ST_BF16, 0, 10, zeros);
	obj_tensor(&o, "e", ST_BF16, 0, 0, zeros);
	obj_tensor(&o, "c", ST_F32, 0, 15, zeros);
	obj_meta(&o, "format", "sparse_weight_patch");
	in[0] = parsed(&f[0], &o, "one");
	obj_tensor(&o, "f", ST_U8, 0, 7, zeros);
	obj_tensor(&o, "d", ST_F64, 0, 10, zeros);
	obj_tensor(&o, "b", ST_F32, 0, 10, zeros);
	in[1] = parsed(&f[1], &o, "two");
	/* 100: [d] [b c] [a e f]: b + c is 100 exactly; d alone since 80 + 40 is more. */
	assert_int_equal(layout_shard(in, 2, 100, &l, &why), 0);
	assert_int_equal(l->file_count, 3);
	static const char *const names[] = {"model-00001-of-00003.safetensors",
					    "model-00002-of-00003.safetensors",
					    "model-00003-of-00003.safetensors"};
	static const uint32_t counts[] = {1, 2, 3};
	static const uint64_t sizes[] = {80, 100, 27};
	static const char *const order = "dbcaef";

	for (uint32_t i = 0; i < 3; i++) {
		const struct layout_file *x = &l->files[i];
		struct st_header *h;

		assert_string_equal(x->name, names[i]);
		assert_int_equal(x->count, counts[i]);
		assert_int_equal(x->head_len % 4096, 0);
		assert_int_equal(x->size - x->head_len, sizes[i]);
		assert_int_equal(st_parse(x->head + 8, load_le64(x->head), x->size, &h, &why), 0);
		assert_string_equal(st_meta(h, "format"), "pt");
		assert_int_equal(h->count, counts[i]);
		st_free(h);
	}
	for (uint32_t t = 0; t < 6; t++)
		assert_int_equal(l->tensors[t].name[0], order[t]);
	json_t *index = json_loadb(l->index, l->index_len, JSON_REJECT_DUPLICATES, &error);

	assert_non_null(index);
	assert_int_equal(json_integer_value(
				 json_object_get(json_object_get(index, "metadata"), "total_size")),
			 207);
	json_t *map = json_object_get(index, "weight_map");

	assert_int_equal(json_object_size(map), 6);
	for (uint32_t t = 0; t < 6; t++)
		assert_string_equal(json_string_value(json_object_get(map, l->tensors[t].name)),
				    l->files[l->tensors[t].file].name);
	json_decref(index);
	layout_unref(l);
	/* One shard has neither number nor index; a limit of a byte gives each tensor its own. */
	assert_int_equal(layout_shard(in, 2, 207, &l, &why), 0);
	assert_int_equal(l->file_count, 1);
	assert_string_equal(l->files[0].name, "model.safetensors");
	assert_null(l->index);
	layout_unref(l);
	assert_int_equal(layout_shard(in, 2, 1, &l, &why), 0);
	assert_int_equal(l->file_count, 5 + 1);
	layout_unref(l);
	release(&f[0]);
	release(&f[1]);
}

static void no_tensors(void **state)
{
	struct st_header none = {.length = 2, .data = 10, .file_size = 10};
	struct layout_input in = {"x", &none, "{}"};
	struct why why = {0};
	struct layout *l;

	assert_int_equal(layout_keep(&in, 1, &l, &why), 0);
	assert_int_equal(l->files[0].size, 10);
	layout_unref(l);
	assert_int_equal(layout_shard(&in, 1, 100, &l, &why), 0);
	assert_int_equal(l->file_count, 1);
	assert_string_equal(l->files[0].name, "model.safetensors");
	assert_int_equal(l->files[0].size, 4096);
	layout_unref(l);
	layout_unref(NULL);
}

static void aliases(void **state)
{
	struct why why = {0};
	struct layout *l;
	struct obj o = {0};
	struct file f;

	obj_tensor(&o, "a", ST_BF16, 2, 10, zeros);
	obj_tensor(&o, "b", ST_BF16, 2, 10, zeros);
	obj_tensor(&o, "c", ST_BF16, 5, 10, zeros);
	obj_tensor(&o, "d", ST_F16, 2, 10, zeros);
	obj_tensor(&o, "e", ST_BF16, 0, 10, zeros);
	struct layout_input in = parsed(&f, &o, "x");

	assert_int_equal(layout_keep(&in, 1, &l, &why), 0);
	for (uint32_t t = 0; t < 5; t++)
		assert_int_equal(l->tensors[t].alias, t);
	assert_int_equal(layout_alias(l, 1, 0), 0);
	assert_int_equal(l->tensors[1].alias, 0);
	for (uint32_t t = 2; t < 5; t++) {
		assert_int_equal(layout_alias(l, t, 0), -EINVAL);
		assert_int_equal(l->tensors[t].alias, t);
	}
	layout_unref(l);
	release(&f);
}

static void same_tensors(void **state)
{
	struct why why = {0};
	struct layout *l;
	struct obj o = {0};
	struct file f, g;

	three(&o);
	struct layout_input in = parsed(&f, &o, "x");

	assert_int_equal(layout_keep(&in, 1, &l, &why), 0);
	assert_true(layout_same_tensors(l, &(struct layout_input){.header = f.header}, 1));
	/* Another order and other metadata are the same tensors. */
	obj_tensor(&o, "m", ST_U8, 0, 0, zeros);
	obj_tensor(&o, "a", ST_F32, 0, 4, zeros);
	obj_tensor(&o, "z", ST_BF16, 2, 10, zeros);
	obj_meta(&o, "k", "v");
	parsed(&g, &o, "y");
	assert_true(layout_same_tensors(l, &(struct layout_input){.header = g.header}, 1));
	release(&g);
	for (int what = 0; what < 5; what++) {
		obj_tensor(&o, what == 0 ? "n" : "m", ST_U8, 0, 0, zeros);
		obj_tensor(&o, "a", what == 1 ? ST_I32 : ST_F32, 0, what == 2 ? 5 : 4, zeros);
		obj_tensor(&o, "z", ST_BF16, what == 3 ? 5 : 2, 10, zeros);
		if (what == 4)
			obj_tensor(&o, "zz", ST_U8, 0, 1, zeros);
		parsed(&g, &o, "y");
		assert_false(layout_same_tensors(l, &(struct layout_input){.header = g.header}, 1));
		release(&g);
	}
	layout_unref(l);
	release(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(kept_as_it_is),     cmocka_unit_test(metadata_is_replaced),
		cmocka_unit_test(name_in_two_files), cmocka_unit_test(shards),
		cmocka_unit_test(no_tensors),	     cmocka_unit_test(aliases),
		cmocka_unit_test(same_tensors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
