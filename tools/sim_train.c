/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pretended trainer of `simulate`: what matters is which bits of the bf16 weights change.
 *
 * That is decided by the optimizer (AdamW with .9/.999, eps 1e-8, no decay, fp32 masters) and by
 * how large the weights are; the gradients only have to be plausible: noise plus a small direction
 * that stays, scaled by a swing of each row and each step.  An embedding gets gradients for a few
 * of its rows in a step, as the tokens of a batch do.
 *
 * Randomness is a hash of (seed, step, tensor, element), not a stream, so tensors can be computed
 * in any order and by any number of threads.  Each thread takes tensors off a shared counter; a
 * tensor's state is touched by one thread only, and sim_train_step() returns when all are done.
 */
#include "tools/sim_train.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum {
	SPAN = 4096,	/* elements worked on at a time */
	THREADS = 8,	/* at most */
	EQUAL_STEP = 8, /* elements compared at once */
	EMBED_ONE = 8,	/* one embedding row in so many has a gradient in a step */
};

static const float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;

/* What a span of elements needs to know about its step. */
struct span {
	float *master, *mean, *variance;
	uint32_t noise, drift; /* hash keys: of this step and row, and of the row for ever */
	uint32_t first;	       /* index of the first element */
	float swing;	       /* of the gradient; 0: no gradient */
	float rate, scale2;    /* learning rate and bias corrections: rate * m / (sqrt(v * scale2) +
				  eps) */
};

/* ---- randomness ---- */

static uint64_t mix64(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

static uint32_t key(uint64_t seed, uint64_t a, uint64_t b, uint64_t c)
{
	return (uint32_t)(mix64(mix64(mix64(seed + a) + b) + c) >> 32);
}

static inline uint32_t mix32(uint32_t x)
{
	x = (x ^ x >> 16) * 0x7feb352du;
	x = (x ^ x >> 15) * 0x846ca68bu;
	return x ^ x >> 16;
}

/* About a standard normal: the sum of four bytes. */
static inline float normal(uint32_t hash)
{
	int sum = (int)(hash & 255) + (int)(hash >> 8 & 255) + (int)(hash >> 16 & 255) +
		  (int)(hash >> 24);

	return (float)(sum - 510) * (1.0f / 147.8f);
}

/* ---- bf16 ---- */

static inline uint16_t to_bf16(float value)
{
	uint32_t u;

	memcpy(&u, &value, sizeof(u));
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16); /* to nearest, ties to even */
}

static inline float from_bf16(uint16_t bits)
{
	uint32_t u = (uint32_t)bits << 16;
	float value;

	memcpy(&value, &u, sizeof(value));
	return value;
}

/* ---- a step ---- */

/* The loop that costs the time: kept free of branches and calls, so that it becomes SIMD. */
static void adam_span(const struct span *s, uint16_t *restrict out, size_t count)
{
	float *restrict master = s->master, *restrict mean = s->mean;
	float *restrict variance = s->variance;

	for (size_t i = 0; i < count; i++) {
		uint32_t at = (s->first + (uint32_t)i) * 0x9e3779b9u;
		float g = s->swing *
			  (normal(mix32(at ^ s->noise)) + 0.1f * normal(mix32(at ^ s->drift)));
		float m = beta1 * mean[i] + (1 - beta1) * g;
		float v = beta2 * variance[i] + (1 - beta2) * (g * g);

		mean[i] = m;
		variance[i] = v;
		master[i] -= s->rate * m / (sqrtf(v * s->scale2) + epsilon);
		out[i] = to_bf16(master[i]);
	}
}

static int note_changes(struct sim_state *state, uint64_t first, const uint16_t *now, size_t count)
{
	uint16_t *bits = state->bits + first;

	if (state->capacity - state->changed < count + 1) {
		uint64_t want = MAX(state->capacity * 2, state->changed + count + 1);
		uint64_t *grown = realloc(state->positions, want * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		state->positions = grown;
		state->capacity = want;
	}
	for (size_t i = 0; i < count;) {
		if (count - i >= EQUAL_STEP && !memcmp(bits + i, now + i, EQUAL_STEP * 2)) {
			i += EQUAL_STEP; /* nearly always */
			continue;
		}
		for (size_t end = MIN(i + EQUAL_STEP, count); i < end; i++) {
			state->positions[state->changed] = first + i;
			state->changed += bits[i] != now[i];
		}
	}
	memcpy(bits, now, count * sizeof(*bits));
	return 0;
}

static int step_tensor(struct sim_train *t, size_t index)
{
	const struct sim_tensor *tensor = &t->model->tensors[index];
	struct sim_state *state = &t->states[index];
	uint64_t columns = tensor->rank == 2 ? tensor->shape[1] : tensor->numel;
	double correct1 = 1 - pow((double)beta1, (double)t->step);
	double correct2 = 1 - pow((double)beta2, (double)t->step);
	uint16_t now[SPAN];
	struct span s = {.rate = (float)(t->lr / correct1), .scale2 = (float)(1 / correct2)};

	for (uint64_t row = 0; row < tensor->numel / columns; row++) {
		s.noise = key(t->seed, t->step, index, row);
		s.drift = key(t->seed, UINT64_MAX, index, row);
		s.swing = 1e-3f * (1.0f + 0.5f * normal(mix32(s.noise)));
		if (tensor->role == SIM_EMBEDDING && s.noise % EMBED_ONE != 0)
			s.swing = 0;
		for (uint64_t column = 0; column < columns; column += SPAN) {
			uint64_t at = row * columns + column;
			size_t count = MIN((uint64_t)SPAN, columns - column);
			int err;

			s.master = state->master + at;
			s.mean = state->mean + at;
			s.variance = state->variance + at;
			s.first = (uint32_t)column;
			adam_span(&s, now, count);
			err = note_changes(state, at, now, count);
			if (err < 0)
				return err;
		}
	}
	return 0;
}

/* ---- the start ---- */

/* How large weights of a kind are; a linear layer's shrink as it gets wider. */
static int start_tensor(struct sim_train *t, size_t index)
{
	const struct sim_tensor *tensor = &t->model->tensors[index];
	struct sim_state *state = &t->states[index];
	uint32_t seed = key(t->seed, 0, index, 0);
	float around = tensor->role == SIM_NORM ? 1.0f : 0.0f, spread = 0.02f;

	if (tensor->role == SIM_LINEAR)
		spread = MIN(0.8f / sqrtf((float)tensor->shape[1]), 0.05f);
	for (uint64_t i = 0; i < tensor->numel; i++) {
		uint32_t hash = mix32(mix32((uint32_t)i ^ seed) + (uint32_t)(i >> 32));

		state->bits[i] = to_bf16(around + spread * normal(hash));
		state->master[i] = from_bf16(state->bits[i]);
	}
	return 0;
}

/* ---- threads ---- */

struct team {
	struct sim_train *train;
	int (*run)(struct sim_train *t, size_t tensor);
	atomic_size_t next;
	atomic_int err;
};

static void *work(void *arg)
{
	struct team *team = arg;

	for (;;) {
		size_t index = atomic_fetch_add(&team->next, 1);
		int err;

		if (index >= team->train->model->count)
			return NULL;
		err = team->run(team->train, index);
		if (err < 0)
			atomic_store(&team->err, err);
	}
}

/* Runs a function on every tensor; 0 or the error of one of them. */
static int on_all_tensors(struct sim_train *t, int (*run)(struct sim_train *t, size_t tensor))
{
	struct team team = {.train = t, .run = run};
	pthread_t threads[THREADS];
	unsigned started = 0;

	while (started + 1 < t->threads &&
	       pthread_create(&threads[started], NULL, work, &team) == 0)
		started++;
	work(&team); /* this thread too, so that no other thread at all is fine as well */
	for (unsigned i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	return atomic_load(&team.err);
}

/* ---- the trainer ---- */

int sim_train_init(struct sim_train *t, const struct sim_model *model, uint64_t seed, double lr,
		   struct why *why)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);

	memset(t, 0, sizeof(*t));
	t->model = model;
	t->seed = mix64(seed);
	t->lr = lr;
	t->threads = (unsigned)MIN(MAX(cores, 1L), (long)THREADS);
	t->states = calloc(model->count, sizeof(*t->states));
	if (!t->states)
		goto out;
	for (size_t i = 0; i < model->count; i++) {
		struct sim_state *state = &t->states[i];
		uint64_t numel = model->tensors[i].numel;

		state->bits = malloc(numel * sizeof(*state->bits));
		state->master = malloc(numel * sizeof(*state->master));
		state->mean = calloc(numel, sizeof(*state->mean));
		state->variance = calloc(numel, sizeof(*state->variance));
		if (!state->bits || !state->master || !state->mean || !state->variance)
			goto out;
	}
	return on_all_tensors(t, start_tensor);
out:
	sim_train_release(t);
	return why_set(why, ENOMEM, "out of memory: %s needs about %.1f GB", model->config.name,
		       (double)model->numel * 14.5 / 1e9);
}

void sim_train_release(struct sim_train *t)
{
	for (size_t i = 0; t->states && i < t->model->count; i++) {
		free(t->states[i].bits);
		free(t->states[i].positions);
		free(t->states[i].master);
		free(t->states[i].mean);
		free(t->states[i].variance);
	}
	free(t->states);
	memset(t, 0, sizeof(*t));
}

int sim_train_step(struct sim_train *t, bool still, struct why *why)
{
	int err = 0;

	for (size_t i = 0; i < t->model->count; i++)
		t->states[i].changed = 0;
	if (!still) {
		t->step++;
		err = on_all_tensors(t, step_tensor);
	}
	return err < 0 ? why_set(why, -err, "out of memory during step %llu",
				 (unsigned long long)t->step)
		       : 0;
}

uint64_t sim_train_changed(const struct sim_train *t)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < t->model->count; i++)
		sum += t->states[i].changed;
	return sum;
}
