/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of models for `simulate`, the tensors each consists of, and their companion files.
 *
 * Only names and shapes come from the public models; the weights are random (see sim_train.c).
 * Parameter names are those of transformers, since that is what a trainer publishes; a model with
 * tied embeddings has no lm_head.weight, as named_parameters() leaves it out.
 *
 * config.json is what transformers needs to build the architecture, so that from_pretrained() on
 * a mount of the run works.
 */
#include "tools/sim_model.h"

#include "codec/buf.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

static const struct sim_config models[] = {
	{"tiny", "qwen3", 128, 4, 4, 2, 32, 384, 2048, 1e6, true},
	{"tiny-llama", "llama", 128, 4, 4, 2, 32, 384, 2048, 5e5, false},
	{"qwen2.5-0.5b", "qwen2", 896, 24, 14, 2, 64, 4864, 151936, 1e6, true},
	{"qwen3-0.6b", "qwen3", 1024, 28, 16, 8, 128, 3072, 151936, 1e6, true},
	{"qwen3-1.7b", "qwen3", 2048, 28, 16, 8, 128, 6144, 151936, 1e6, true},
	{"qwen3-4b", "qwen3", 2560, 36, 32, 8, 128, 9728, 151936, 1e6, true},
	{"qwen3-8b", "qwen3", 4096, 36, 32, 8, 128, 12288, 151936, 1e6, false},
	{"llama-1b", "llama", 2048, 16, 32, 8, 64, 8192, 128256, 5e5, true},
	{"llama-3b", "llama", 3072, 28, 24, 8, 128, 8192, 128256, 5e5, true},
	{"llama-8b", "llama", 4096, 32, 32, 8, 128, 14336, 128256, 5e5, false},
};

static bool is(const struct sim_config *c, const char *type)
{
	return strcmp(c->type, type) == 0;
}

/* ---- tensors ---- */

static void add_tensor(struct sim_model *m, int layer, const char *name, enum sim_role role,
		       uint64_t rows, uint64_t columns)
{
	struct sim_tensor *t = &m->tensors[m->count++];

	if (layer < 0)
		snprintf(t->name, sizeof(t->name), "%s", name);
	else
		snprintf(t->name, sizeof(t->name), "model.layers.%d.%s", layer, name);
	t->role = (uint8_t)role;
	t->rank = columns > 0 ? 2 : 1;
	t->shape[0] = rows;
	t->shape[1] = columns;
	t->numel = rows * (columns > 0 ? columns : 1);
	m->numel += t->numel;
}

static void add_layer(struct sim_model *m, int layer)
{
	const struct sim_config *c = &m->config;
	uint64_t q = (uint64_t)c->heads * c->head_dim, kv = (uint64_t)c->kv_heads * c->head_dim;

	add_tensor(m, layer, "input_layernorm.weight", SIM_NORM, c->hidden, 0);
	add_tensor(m, layer, "self_attn.q_proj.weight", SIM_LINEAR, q, c->hidden);
	add_tensor(m, layer, "self_attn.k_proj.weight", SIM_LINEAR, kv, c->hidden);
	add_tensor(m, layer, "self_attn.v_proj.weight", SIM_LINEAR, kv, c->hidden);
	add_tensor(m, layer, "self_attn.o_proj.weight", SIM_LINEAR, c->hidden, q);
	if (is(c, "qwen3")) {
		add_tensor(m, layer, "self_attn.q_norm.weight", SIM_NORM, c->head_dim, 0);
		add_tensor(m, layer, "self_attn.k_norm.weight", SIM_NORM, c->head_dim, 0);
	}
	if (is(c, "qwen2")) {
		add_tensor(m, layer, "self_attn.q_proj.bias", SIM_BIAS, q, 0);
		add_tensor(m, layer, "self_attn.k_proj.bias", SIM_BIAS, kv, 0);
		add_tensor(m, layer, "self_attn.v_proj.bias", SIM_BIAS, kv, 0);
	}
	add_tensor(m, layer, "post_attention_layernorm.weight", SIM_NORM, c->hidden, 0);
	add_tensor(m, layer, "mlp.gate_proj.weight", SIM_LINEAR, c->ffn, c->hidden);
	add_tensor(m, layer, "mlp.up_proj.weight", SIM_LINEAR, c->ffn, c->hidden);
	add_tensor(m, layer, "mlp.down_proj.weight", SIM_LINEAR, c->hidden, c->ffn);
}

static int by_name(const void *a, const void *b)
{
	const struct sim_tensor *x = a, *y = b;

	return strcmp(x->name, y->name);
}

static int find_config(const char *spec, struct sim_config *out, unsigned *out_scale,
		       struct why *why)
{
	const char *slash = strchr(spec, '/');
	size_t len = slash ? (size_t)(slash - spec) : strlen(spec);
	struct buf names = {0};
	char *end;

	*out_scale = 1;
	if (slash) {
		unsigned long k = strtoul(slash + 1, &end, 10);

		if (slash[1] < '1' || slash[1] > '9' || *end != '\0' || k > 4096)
			return why_set(why, EINVAL,
				       "model \"%s\": after the '/' goes a number from 1 to 4096",
				       spec);
		*out_scale = (unsigned)k;
	}
	for (size_t i = 0; i < ARRAY_LEN(models); i++) {
		if (strlen(models[i].name) == len && strncmp(models[i].name, spec, len) == 0) {
			*out = models[i];
			buf_release(&names);
			return 0;
		}
		buf_addf(&names, " %s", models[i].name);
	}
	why_set(why, EINVAL, "there is no model \"%.*s\"; there are:%s", (int)len, spec,
		buf_str(&names));
	buf_release(&names);
	return -EINVAL;
}

int sim_model_init(struct sim_model *m, const char *spec, struct why *why)
{
	unsigned scale;
	int err;

	memset(m, 0, sizeof(*m));
	err = find_config(spec, &m->config, &scale, why);
	if (err < 0)
		return err;
	m->config.layers = MAX(m->config.layers / scale, 1u);
	m->config.vocab = MAX(m->config.vocab / scale, 256u);

	m->tensors = calloc((size_t)m->config.layers * 14 + 3, sizeof(*m->tensors));
	if (!m->tensors)
		return why_set(why, ENOMEM, "out of memory");
	add_tensor(m, -1, "model.embed_tokens.weight", SIM_EMBEDDING, m->config.vocab,
		   m->config.hidden);
	for (unsigned layer = 0; layer < m->config.layers; layer++)
		add_layer(m, (int)layer);
	add_tensor(m, -1, "model.norm.weight", SIM_NORM, m->config.hidden, 0);
	if (!m->config.tied)
		add_tensor(m, -1, "lm_head.weight", SIM_LINEAR, m->config.vocab, m->config.hidden);
	qsort(m->tensors, m->count, sizeof(*m->tensors), by_name);
	return 0;
}

void sim_model_release(struct sim_model *m)
{
	free(m->tensors);
	memset(m, 0, sizeof(*m));
}

void sim_model_print_names(void)
{
	struct sim_model m;

	for (size_t i = 0; i < ARRAY_LEN(models); i++) {
		if (sim_model_init(&m, models[i].name, NULL) < 0)
			continue;
		printf("  %-14s %8.1f M parameters, %4zu tensors, %s\n", models[i].name,
		       (double)m.numel / 1e6, m.count, models[i].type);
		sim_model_release(&m);
	}
}

/* ---- companion files ---- */

static int put_json(struct store *store, const char *key, json_t *json, struct why *why)
{
	char *text = json ? json_dumps(json, JSON_INDENT(2)) : NULL;
	struct source src;
	int err;

	json_decref(json);
	if (!text)
		return why_set(why, ENOMEM, "%s: out of memory", key);
	src = source_memory(text, strlen(text));
	err = store_put(store, key, &src, why);
	free(text);
	return err;
}

static json_t *model_config(const struct sim_config *c)
{
	const char *class = is(c, "qwen3")   ? "Qwen3ForCausalLM"
			    : is(c, "qwen2") ? "Qwen2ForCausalLM"
					     : "LlamaForCausalLM";

	return json_pack("{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:f, s:f, s:b, s:b, "
			 "s:f, s:i, s:f, s:i, s:i, s:s, s:b}",
			 "architectures", class, "model_type", c->type, "hidden_size",
			 (int)c->hidden, "num_hidden_layers", (int)c->layers, "num_attention_heads",
			 (int)c->heads, "num_key_value_heads", (int)c->kv_heads, "head_dim",
			 (int)c->head_dim, "intermediate_size", (int)c->ffn, "vocab_size",
			 (int)c->vocab, "hidden_act", "silu", "rms_norm_eps", 1e-6, "rope_theta",
			 c->rope_theta, "tie_word_embeddings", (int)c->tied, "attention_bias",
			 (int)is(c, "qwen2"), "attention_dropout", 0.0, "max_position_embeddings",
			 4096, "initializer_range", 0.02, "bos_token_id", 1, "eos_token_id", 2,
			 "torch_dtype", "bfloat16", "use_cache", 1);
}

/* One token per byte value and a few special ones: enough for a tokenizer that loads and works. */
static json_t *tokenizer(void)
{
	static const char *const special[] = {"<unk>", "<s>", "</s>"};
	json_t *vocab = json_object(), *added = json_array();
	char word[2] = {0};

	for (size_t i = 0; i < ARRAY_LEN(special); i++) {
		json_object_set_new(vocab, special[i], json_integer((json_int_t)i));
		json_array_append_new(added,
				      json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (int)i,
						"content", special[i], "single_word", 0, "lstrip",
						0, "rstrip", 0, "normalized", 0, "special", 1));
	}
	for (char c = '!'; c <= '~'; c++) {
		word[0] = c;
		json_object_set_new(vocab, word, json_integer((json_int_t)json_object_size(vocab)));
	}
	return json_pack("{s:s, s:n, s:n, s:o, s:n, s:{s:s, s:{s:s}, s:s, s:b}, s:n, s:n, "
			 "s:{s:s, s:o, s:s}}",
			 "version", "1.0", "truncation", "padding", "added_tokens", added,
			 "normalizer", "pre_tokenizer", "type", "Split", "pattern", "Regex", ".",
			 "behavior", "Isolated", "invert", 0, "post_processor", "decoder", "model",
			 "type", "WordLevel", "vocab", vocab, "unk_token", "<unk>");
}

int sim_model_put_companions(const struct sim_model *m, struct store *store, bool all,
			     struct why *why)
{
	int err;

	err = put_json(store, "config.json", model_config(&m->config), why);
	if (err < 0 || !all)
		return err;
	err = put_json(store, "generation_config.json",
		       json_pack("{s:i, s:i, s:b, s:f}", "bos_token_id", 1, "eos_token_id", 2,
				 "do_sample", 1, "temperature", 1.0),
		       why);
	if (err < 0)
		return err;
	err = put_json(store, "tokenizer.json", tokenizer(), why);
	if (err < 0)
		return err;
	return put_json(store, "tokenizer_config.json",
			json_pack("{s:s, s:s, s:s, s:s, s:i}", "tokenizer_class",
				  "PreTrainedTokenizerFast", "unk_token", "<unk>", "bos_token",
				  "<s>", "eos_token", "</s>", "model_max_length", 4096),
			why);
}
