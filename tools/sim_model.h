/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models that `weightfs simulate` can pretend to train: shapes and names of public architectures,
 * whole or scaled down, and the companion files that belong to them.
 */
#ifndef TOOLS_SIM_MODEL_H
#define TOOLS_SIM_MODEL_H

#include "cache/store.h"
#include "codec/safetensors.h"

enum sim_role { SIM_EMBEDDING, SIM_LINEAR, SIM_NORM, SIM_BIAS };

struct sim_tensor {
	char name[96];
	uint64_t shape[2];
	uint64_t numel;
	uint8_t rank;
	uint8_t role; /* enum sim_role */
};

struct sim_config {
	const char *name;
	const char *type; /* config.json's model_type: qwen3, qwen2 or llama */
	unsigned hidden, layers, heads, kv_heads, head_dim, ffn, vocab;
	double rope_theta;
	bool tied;
};

struct sim_model {
	struct sim_config config;   /* after scaling */
	struct sim_tensor *tensors; /* by name, as strcmp orders them; count of them */
	size_t count;
	uint64_t numel; /* of all tensors */
};

/* NAME, or NAME/K for about a K-th of its parameters (vocabulary and layers divided by K).
 * -EINVAL with a sentence that lists the names. */
int sim_model_init(struct sim_model *m, const char *spec, struct why *why) MUST_CHECK;
void sim_model_release(struct sim_model *m);

/* Puts config.json; with `all` also generation_config.json and a small tokenizer. */
int sim_model_put_companions(const struct sim_model *m, struct store *store, bool all,
			     struct why *why) MUST_CHECK;

/* The names with their sizes, one per line, for --help. */
void sim_model_print_names(void);

#endif
