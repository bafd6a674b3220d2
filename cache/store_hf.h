/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bucket of the Hugging Face Hub to write to with nothing but the Hub's token: what is written
 * goes through `hf buckets cp`, the Hub's own command line, a child process per object; what is
 * read goes through another store.
 *
 * The token is in the child's environment, where it is looked for by everyone's rules, and never on
 * its command line.  What it says on stderr goes into the sentence of a failure, without the token.
 *
 * There is no compare-and-swap: a condition is looked at in a new listing just before the upload,
 * so of two writers that begin within the same seconds both may believe that they were alone.
 */
#ifndef CACHE_STORE_HF_H
#define CACHE_STORE_HF_H

#include "cache/store.h"

struct store_hf_options {
	const char *place;	/* "hf://buckets/ns/name" or with "/prefix"; copied */
	const char *token_file; /* NULL: the child finds the token itself; copied */
};

/* Takes `reader` over, also on failure: the same place by the Hub's API.  -ENOENT with a sentence
 * when there is no `hf` in PATH. */
int store_hf_new(const struct store_hf_options *options, struct store *reader, struct store **out,
		 struct why *why) MUST_CHECK;

#endif
