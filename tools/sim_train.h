/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pretended trainer: fp32 master weights, AdamW, and the bf16 cast that is published.
 *
 * Memory: 14 bytes a parameter.  Deterministic: the same model, seed and learning rate give the
 * same bits at every step, whatever the number of threads.
 */
#ifndef TOOLS_SIM_TRAIN_H
#define TOOLS_SIM_TRAIN_H

#include "tools/sim_model.h"

/* One tensor's bf16 state and what the last step changed in it. */
struct sim_state {
	uint16_t *bits;	     /* numel bf16 patterns */
	uint64_t *positions; /* changed of them, ascending: where a step changed the bits */
	uint64_t changed, capacity;
	float *master, *mean, *variance;
};

struct sim_train {
	const struct sim_model *model; /* borrowed */
	struct sim_state *states;      /* one for each of the model's tensors */
	uint64_t seed, step;	       /* step: optimizer steps done */
	double lr;
	unsigned threads;
};

/* Makes the starting policy; every tensor starts at values that bf16 can hold. -ENOMEM. */
int sim_train_init(struct sim_train *t, const struct sim_model *model, uint64_t seed, double lr,
		   struct why *why) MUST_CHECK;
void sim_train_release(struct sim_train *t);

/* One optimizer step.  Afterwards states[i].positions say where the bits differ from before.
 * With `still` the gradients are as good as none and no bit changes: a sync with nothing to say. */
int sim_train_step(struct sim_train *t, bool still, struct why *why) MUST_CHECK;

/* Elements changed by the last step, over all tensors. */
uint64_t sim_train_changed(const struct sim_train *t);

#endif
