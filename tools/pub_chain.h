/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Patches on top of a copy of weights: the last published state, without writing all of it down at
 * each version.
 *
 * A chain is opened by one thread and then only read, by any number.
 */
#ifndef TOOLS_PUB_CHAIN_H
#define TOOLS_PUB_CHAIN_H

#include "tools/pub_checkpoint.h"

#include <jansson.h>

enum {
	PUB_CHAIN_MAX = 16,  /* patches; then the weights are copied again */
	PUB_CHAIN_SHARE = 4, /* or when they are a quarter of the weights' bytes */
};

/* Zero-initialise. */
struct pub_chain {
	size_t count; /* files, oldest first */
	uint64_t bytes;
	/* private */
	struct mapping *maps[PUB_CHAIN_MAX];
	struct patch_file *files[PUB_CHAIN_MAX];
	const struct patch **patches; /* for each tensor `count` of them, NULL where none */
};

/* The files of `names` (an array of strings, NULL: none) in `dir`, for the tensors of `base`.
 * -EBADMSG and others with a sentence.  Release it in any case. */
int pub_chain_open(const char *dir, const json_t *names, const struct pub_checkpoint *base,
		   struct pub_chain *out, struct why *why) MUST_CHECK;
void pub_chain_release(struct pub_chain *c);

/* Turns bytes [at, at + len) of the base's tensor of that index, which begin and end at elements,
 * into those of the state.  -EBADMSG. */
int pub_chain_apply(const struct pub_chain *c, size_t tensor, uint64_t at, void *bytes,
		    size_t len) MUST_CHECK;

/* Writes the patches of the tensors into a new file. */
int pub_chain_save(const char *path, const struct pub_tensor *tensors, size_t count,
		   struct why *why) MUST_CHECK;

#endif
