/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs with --base: version 0 to the byte, widening, shards and their index, tensors that are never
 * uploaded, tied embeddings, what is wrong with a base, and --shard-size.
 */
#include "tests/unit/fs/world.h"

enum { ROWS = 4, WIDTH = 10 * ROWS };

struct base_spec {
	enum st_dtype dtype; /* of embedding, head and norm: BF16 or F32 */
	bool head, tied, sharded, other_head;
};

static uint16_t embed[WIDTH], head[WIDTH], norm[6];
static const uint64_t ids[3] = {7, 8, 9};

static void fresh(struct world *w, uint16_t *v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		v[i] = (uint16_t)rnd(&w->seed);
}

static void wide_tensor(struct obj *o, const char *name, enum st_dtype dtype, uint64_t rows,
			uint64_t n, const uint16_t *v)
{
	uint8_t bytes[WIDTH * 4];

	for (uint64_t i = 0; i < n; i++)
		store_le32(bytes + 4 * i, (uint32_t)v[i] << 16);
	obj_tensor(o, name, dtype, rows, n, dtype == ST_F32 ? (const void *)bytes : v);
}

static void make_base(struct world *w, const struct base_spec *b)
{
	const char *config = b->tied ? "{\"tie_word_embeddings\":true}" : "{}";
	struct obj o = {0};
	char index[600];

	fresh(w, embed, WIDTH);
	fresh(w, head, WIDTH);
	fresh(w, norm, 6);
	put_bytes(w->base_dir, "config.json", config, strlen(config), 0);
	obj_meta(&o, "format", "pt");
	if (b->head)
		wide_tensor(&o, "lm_head.weight", b->dtype, ROWS, WIDTH,
			    b->other_head ? head : embed);
	wide_tensor(&o, "model.embed_tokens.weight", b->dtype, ROWS, WIDTH, embed);
	if (b->sharded) {
		put_obj(w->base_dir, "model-1.safetensors", &o, 0);
		obj_meta(&o, "format", "pt");
	}
	wide_tensor(&o, "model.norm.weight", b->dtype, 0, 6, norm);
	obj_tensor(&o, "position_ids", ST_I64, 0, 3, ids);
	put_obj(w->base_dir, b->sharded ? "model-2.safetensors" : "model.safetensors", &o, 0);
	if (!b->sharded)
		return;
	snprintf(index, sizeof(index),
		 "{\"weight_map\":{%s\"model.embed_tokens.weight\":\"model-1.safetensors\","
		 "\"model.norm.weight\":\"model-2.safetensors\","
		 "\"position_ids\":\"model-2.safetensors\"}}",
		 b->head ? "\"lm_head.weight\":\"model-1.safetensors\"," : "");
	put_bytes(w->base_dir, LAYOUT_INDEX_NAME, index, strlen(index), 0);
}

/* Number 1: the policy before training, as TRL uploads it (tied: without the head). */
static void put_first(struct world *w, bool with_head)
{
	struct obj o = {0};

	obj_meta(&o, "format", "sparse_weight_patch");
	obj_meta(&o, "encoding", "gap_delta");
	obj_tensor(&o, "model.embed_tokens.weight", ST_BF16, ROWS, WIDTH, embed);
	obj_tensor(&o, "model.norm.weight", ST_BF16, 0, 6, norm);
	if (with_head)
		obj_tensor(&o, "lm_head.weight", ST_BF16, ROWS, WIDTH, head);
	put_obj(w->bucket, "anchors/step_000001.safetensors", &o, w->time++);
}

/* A delta of one element of one tensor. */
static void put_change(struct world *w, int number, const char *name, uint64_t pos, uint16_t value)
{
	struct obj o = {0};
	char key[64];

	snprintf(key, sizeof(key), "deltas/step_%06d.safetensors", number);
	obj_meta(&o, "format", "sparse_weight_patch");
	obj_meta(&o, "encoding", "gap_delta");
	obj_gaps(&o, name, ST_BF16, &pos, &value, 1);
	put_obj(w->bucket, key, &o, w->time++);
}

static struct generation *newest(struct world *w, uint64_t version)
{
	struct generation *g;

	scan_all(w);
	g = history_newest(w->config.history);
	assert_int_equal(g->version, version);
	return g;
}

/* Every file of the base that has `name` as its prefix, byte for byte. */
static void check_as_base(struct world *w, struct generation *g)
{
	for (size_t i = 0; i < g->root->entry_count; i++) {
		const struct node_entry *e = &g->root->entries[i];
		char path[300], *want, *have = read_node(e->node);
		int fd;

		snprintf(path, sizeof(path), "%s/%s", w->base_dir, e->name);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		assert_true(fd >= 0);
		want = malloc(e->node->size + 1);
		assert_int_equal(pread(fd, want, e->node->size + 1, 0), e->node->size);
		assert_memory_equal(have, want, e->node->size);
		close(fd);
		free(want);
		free(have);
	}
}

/* The tensor as the generation's files show it. */
static void check_tensor(struct generation *g, const char *name, const uint16_t *want, uint64_t n)
{
	const struct layout *l = g->state->layout;
	uint32_t t = layout_find(l, name);
	uint8_t have[WIDTH * 4];
	struct node *node;

	assert_true(t != LAYOUT_NONE);
	assert_int_equal(l->tensors[t].numel, n);
	node = node_child(g->root, l->files[l->tensors[t].file].name);
	assert_non_null(node);
	assert_int_equal(
		node_read(node, l->tensors[t].begin, have, l->tensors[t].end - l->tensors[t].begin),
		0);
	for (uint64_t i = 0; i < n; i++) {
		if (l->tensors[t].dtype == ST_F32)
			assert_int_equal(load_le32(have + 4 * i), (uint32_t)want[i] << 16);
		else
			assert_int_equal(load_le16(have + 2 * i), want[i]);
	}
}

static void follows_the_run(const struct base_spec *b, uint64_t seed)
{
	struct world *w = world_new(WRITE_V3, seed);
	struct generation *g;
	uint64_t size;

	make_base(w, b);
	put_bytes(w->bucket, "config.json", "not this", 8, 0);
	world_open(w, true, false);
	g = newest(w, 0);
	assert_string_equal(g->lineage, "");
	check_as_base(w, g);
	assert_int_equal(g->root->entry_count, b->sharded ? 4 : 2);
	size = node_child(g->root, b->sharded ? "model-2.safetensors" : "model.safetensors")->size;
	generation_unref(g);
	fresh(w, embed, WIDTH);
	fresh(w, norm, 6);
	fresh(w, head, WIDTH);
	put_first(w, b->head && !b->tied);
	generation_unref(newest(w, 1));
	put_change(w, 2, "model.embed_tokens.weight", 39, 0x1234);
	put_change(w, 4, "model.norm.weight", 0, 0x7f81);
	embed[39] = 0x1234;
	norm[0] = 0x7f81;
	g = newest(w, 4);
	check_tensor(g, "model.embed_tokens.weight", embed, WIDTH);
	check_tensor(g, "model.norm.weight", norm, 6);
	if (b->head)
		check_tensor(g, "lm_head.weight", b->tied ? embed : head, WIDTH);
	assert_int_equal(
		node_child(g->root, b->sharded ? "model-2.safetensors" : "model.safetensors")->size,
		size);
	char *bytes = read_node(
		node_child(g->root, b->sharded ? "model-2.safetensors" : "model.safetensors"));
	assert_memory_equal(bytes + size - sizeof(ids), ids, sizeof(ids));
	free(bytes);
	assert_int_equal(has_note(w, "stored in 16 bits and shown as F32"), b->dtype == ST_F32);
	assert_int_equal(problem_count(w), 0);
	generation_unref(g);
	struct why why = {0};
	assert_int_equal(run_build(w->run, 0, &g, &why), 0);
	check_as_base(w, g);
	generation_unref(g);
	world_free(w);
}

static void all_bases(void **state)
{
	uint64_t seed = 100;

	for (int bits = 0; bits < 32; bits++) {
		const struct base_spec b = {
			.dtype = bits & 1 ? ST_F32 : ST_BF16,
			.sharded = bits & 2,
			.head = bits & 4,
			.tied = bits & 8,
			.other_head = bits & 16,
		};

		follows_the_run(&b, seed++);
	}
}

/* The base keeps the matrix under one name, the trainer uploads it under the other. */
static void other_half_of_a_tie(void **state)
{
	const struct base_spec b = {.dtype = ST_BF16, .tied = true};
	struct world *w = world_new(WRITE_V3, 140);
	struct generation *g;
	struct obj o = {0};

	make_base(w, &b);
	world_open(w, true, false);
	fresh(w, head, WIDTH);
	obj_meta(&o, "format", "sparse_weight_patch");
	obj_tensor(&o, "lm_head.weight", ST_BF16, ROWS, WIDTH, head);
	obj_tensor(&o, "model.norm.weight", ST_BF16, 0, 6, norm);
	put_obj(w->bucket, "anchors/step_000001.safetensors", &o, w->time++);
	g = newest(w, 1);
	check_tensor(g, "model.embed_tokens.weight", head, WIDTH);
	generation_unref(g);
	put_change(w, 2, "lm_head.weight", 5, 0x4321);
	head[5] = 0x4321;
	g = newest(w, 2);
	check_tensor(g, "model.embed_tokens.weight", head, WIDTH);
	generation_unref(g);
	assert_int_equal(problem_count(w), 0);
	world_free(w);
}

/* Number 1 is gone: the base says what is complete, and gives what an anchor never had. */
static void pruned(void **state)
{
	const struct base_spec b = {.dtype = ST_BF16};
	struct world *w = world_new(WRITE_V3, 141);
	struct generation *g;
	struct obj o = {0};

	make_base(w, &b);
	world_open(w, true, false);
	obj_meta(&o, "format", "sparse_weight_patch");
	obj_tensor(&o, "model.norm.weight", ST_BF16, 0, 6, norm);
	put_obj(w->bucket, "anchors/step_000010.safetensors", &o, w->time++);
	put_change(w, 11, "model.norm.weight", 3, 1);
	generation_unref(newest(w, 0));
	assert_true(has_problem(w, "", "none covers every tensor of --base"));
	fresh(w, embed, WIDTH);
	obj_meta(&o, "format", "sparse_weight_patch");
	obj_tensor(&o, "model.norm.weight", ST_BF16, 0, 6, norm);
	obj_tensor(&o, "model.embed_tokens.weight", ST_BF16, ROWS, WIDTH, embed);
	put_obj(w->bucket, "anchors/step_000012.safetensors", &o, w->time++);
	put_change(w, 13, "model.norm.weight", 3, 99);
	norm[3] = 99;
	g = newest(w, 13);
	check_tensor(g, "model.embed_tokens.weight", embed, WIDTH);
	check_tensor(g, "model.norm.weight", norm, 6);
	generation_unref(g);
	world_free(w);
}

/* A run of another model: said by name, and the base stays. */
static void does_not_fit(void **state)
{
	const struct base_spec b = {.dtype = ST_BF16};
	struct world *w = world_new(WRITE_V3, 142);
	struct generation *g;
	struct obj o = {0};

	make_base(w, &b);
	world_open(w, true, false);
	static const struct {
		const char *name;
		enum st_dtype dtype;
		uint64_t rows, n;
		const char *says;
	} cases[] = {
		{"model.norm.weight", ST_BF16, 0, 5, "shape [5] here and [6] in the model"},
		{"model.norm.weight", ST_BF16, 2, 6, "shape [2, 3] here and [6] in the model"},
		{"model.norm.weight", ST_F16, 0, 6, "is F16 here and BF16"},
		{"model.norm.weight", ST_U8, 0, 6, "is U8 here and BF16"},
		{"model.extra", ST_BF16, 0, 6, "\"model.extra\" is unknown: --base"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		obj_meta(&o, "format", "sparse_weight_patch");
		obj_tensor(&o, "model.embed_tokens.weight", ST_BF16, ROWS, WIDTH, embed);
		obj_tensor(&o, cases[i].name, cases[i].dtype, cases[i].rows, cases[i].n, embed);
		put_obj(w->bucket, "anchors/step_000001.safetensors", &o, w->time++);
		g = newest(w, 0);
		check_as_base(w, g);
		generation_unref(g);
		assert_true(has_problem(w, "anchors/step_000001.safetensors", cases[i].says));
	}
	world_free(w);
}

/* A base that was changed in place between two mounts: patches made for the old one are not used.
 */
static void changed_base(void **state)
{
	struct base_spec b = {.dtype = ST_BF16, .head = true, .tied = true};
	struct world *w = world_new(WRITE_V3, 143);
	struct generation *g;
	struct obj o = {0};

	make_base(w, &b);
	world_open(w, true, true);
	memcpy(head, embed, sizeof(head));
	put_first(w, true);
	/* Of a tied pair the head's changes are dropped ... */
	obj_meta(&o, "format", "sparse_weight_patch");
	obj_gaps(&o, "lm_head.weight", ST_BF16, (uint64_t[]){7}, (uint16_t[]){0x0777}, 1);
	obj_gaps(&o, "model.embed_tokens.weight", ST_BF16, (uint64_t[]){8}, (uint16_t[]){0x0888},
		 1);
	put_obj(w->bucket, "deltas/step_000002.safetensors", &o, w->time++);
	embed[8] = 0x0888;
	g = newest(w, 2);
	check_tensor(g, "lm_head.weight", embed, WIDTH);
	generation_unref(g);
	world_close(w);
	/* ... and of two tensors they are not. */
	put_bytes(w->base_dir, "config.json", "{}", 2, 0);
	world_open(w, true, true);
	g = newest(w, 2);
	head[7] = 0x0777;
	check_tensor(g, "lm_head.weight", head, WIDTH);
	check_tensor(g, "model.embed_tokens.weight", embed, WIDTH);
	generation_unref(g);
	world_free(w);
}

/* The anchor's dtype changes under a delta that stays: what fitted once does not fit now. */
static void changed_dtype(void **state)
{
	const struct base_spec b = {.dtype = ST_F32};
	struct world *w = world_new(WRITE_V3, 146);
	struct generation *g;
	struct obj o = {0};

	make_base(w, &b);
	w->config.ignore_times = true;
	world_open(w, true, false);
	put_first(w, false);
	generation_unref(newest(w, 1));
	obj_meta(&o, "format", "sparse_weight_patch");
	obj_tensor(&o, "model.embed_tokens.weight", ST_BF16, ROWS, WIDTH, embed);
	obj_tensor(&o, "model.norm.weight", ST_BF16, 0, 6, norm);
	put_obj(w->bucket, "anchors/step_000005.safetensors", &o, w->time++);
	put_change(w, 6, "model.norm.weight", 3, 0x3f80);
	generation_unref(newest(w, 6));
	obj_meta(&o, "format", "sparse_weight_patch");
	obj_tensor(&o, "model.embed_tokens.weight", ST_F16, ROWS, WIDTH, embed);
	obj_tensor(&o, "model.norm.weight", ST_F16, 0, 6, norm);
	put_obj(w->bucket, "anchors/step_000005.safetensors", &o, w->time++);
	/* Version 6 stays, and cannot be made any more. */
	g = newest(w, 6);
	generation_unref(g);
	check_no_build(w, 6);
	assert_true(
		has_problem(w, "deltas/step_000006.safetensors", "are BF16, the tensor is F16"));
	world_free(w);
}

static void sharded(bool with_base)
{
	const struct base_spec b = {.dtype = ST_F32};
	struct world *w = world_new(WRITE_V3, 144 + with_base);
	struct generation *g;

	make_base(w, &b);
	w->config.shard_size = 90;
	world_open(w, with_base, false);
	put_first(w, false);
	put_change(w, 2, "model.embed_tokens.weight", 0, 0x5555);
	embed[0] = 0x5555;
	g = newest(w, 2);
	/* F32: embedding 160; ids 24 before it; norm 24.  BF16: embedding 80, norm 12. */
	assert_int_equal(g->state->layout->file_count, with_base ? 3 : 2);
	assert_non_null(node_child(g->root, LAYOUT_INDEX_NAME));
	assert_non_null(node_child(g->root, with_base ? "model-00003-of-00003.safetensors"
						      : "model-00002-of-00002.safetensors"));
	check_tensor(g, "model.embed_tokens.weight", embed, WIDTH);
	check_tensor(g, "model.norm.weight", norm, 6);
	generation_unref(g);
	world_free(w);
}

static void shard_size(void **state)
{
	sharded(false);
	sharded(true);
}

/* Errors of a base are errors of the start, each with its own sentence. */
static void bad_bases(void **state)
{
	static const struct {
		const char *index, *config, *says;
	} cases[] = {
		{"{", NULL, "not a JSON object"},
		{"[]", NULL, "not a JSON object"},
		{"{}", NULL, "no weight_map"},
		{"{\"weight_map\":[]}", NULL, "a weight_map that is not an object"},
		{"{\"weight_map\":{}}", NULL, "an empty weight_map"},
		{"{\"weight_map\":{\"a\":1}}", NULL, "in something that is not a file name"},
		{"{\"weight_map\":{\"a\":\"../x\"}}", NULL, "not a file beside it"},
		{"{\"weight_map\":{\"a\":\"sub/x\"}}", NULL, "in a directory"},
		{"{\"weight_map\":{\"a\":\"missing\"}}", NULL, "which is missing"},
		{"{\"weight_map\":{\"a\":\"model.safetensors\"}}", NULL,
		 "but no file has such a tensor"},
		{"{\"weight_map\":{\"model.norm.weight\":\"model.safetensors\"}}", NULL,
		 "is not in model.safetensors.index.json"},
		{NULL, "{\"a\":1,\"a\":2}", "config.json is not a JSON object"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct base_spec b = {.dtype = ST_BF16};
		struct world *w = world_new(WRITE_V3, 150);
		struct why why = {0};

		make_base(w, &b);
		if (cases[i].index != NULL)
			put_bytes(w->base_dir, LAYOUT_INDEX_NAME, cases[i].index,
				  strlen(cases[i].index), 0);
		if (cases[i].config != NULL)
			put_bytes(w->base_dir, "config.json", cases[i].config,
				  strlen(cases[i].config), 0);
		assert_int_equal(store_dir_new(w->base_dir, true, &w->config.base, &why), 0);
		assert_true(run_new(&w->config, &w->run, &why) < 0);
		if (strstr(why.text, cases[i].says) == NULL)
			fail_msg("\"%s\" does not say \"%s\"", why.text, cases[i].says);
		assert_non_null(strstr(why.text, "--base"));
		store_free(w->config.base);
		world_free(w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_bases),	cmocka_unit_test(other_half_of_a_tie),
		cmocka_unit_test(pruned),	cmocka_unit_test(does_not_fit),
		cmocka_unit_test(changed_base), cmocka_unit_test(changed_dtype),
		cmocka_unit_test(shard_size),	cmocka_unit_test(bad_bases),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
