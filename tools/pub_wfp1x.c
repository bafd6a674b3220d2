/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The encoding for slow links: the patches of wfp1, sorted by what the old weights are like
 * (codec/patchx.h).  A third smaller, and who reads it reads its base version for it.
 *
 * The reference is the state that the patch applies to, which is mapped here.  Going through it
 * takes longer than anything else of a publication, so tensors are coded by several threads, some
 * at a time: the results wait in memory and are written in order.
 */
#include "tools/pub_encode.h"

#include "codec/patch_file.h"
#include "codec/patchx.h"
#include "fs/kernel.h"
#include "fs/parallel.h"

#include <stdlib.h>

enum { THREADS_MAX = 64, ROUND = 4 /* tensors of a round for each thread */ };

struct coded {
	const struct pub_tensor *tensor;
	struct grown out;
	int err;
	struct why why;
};

struct round {
	struct coded v[THREADS_MAX * ROUND];
	size_t count;
};

static void code(struct coded *c)
{
	const struct pub_tensor *t = c->tensor;
	const struct source old = source_memory(t->old, t->bytes);
	const struct sink sink = sink_grown(&c->out);
	struct patch patch = *t->patch;
	uint64_t len = 0;

	patch.kernel = kernel_chosen();
	c->err = patchx_encode(&patch, t->dtype, &old, &sink, 0, &len, &c->why);
	if (c->err < 0)
		why_prefix(&c->why, "\"%s\"", SHOWN(t->name));
}

static void code_one(void *ctx, size_t i)
{
	struct round *r = ctx;

	code(&r->v[i]);
}

static int put_round(const struct pub_input *in, struct round *r, struct patch_file_writer *w,
		     size_t *index, struct why *why)
{
	int ret = 0;

	for (size_t i = 0; i < r->count; i++) {
		struct coded *c = &r->v[i];

		if (ret == 0 && c->err < 0) {
			*why = c->why;
			ret = c->err;
		}
		if (ret == 0)
			ret = pub_patch_put(in, w, (*index)++, c->out.bytes, c->out.len, why);
		free(c->out.bytes);
	}
	r->count = 0;
	return ret;
}

static int code_blobs(const struct pub_input *in, struct patch_file_writer *w, struct why *why)
{
	const unsigned jobs = MIN(MAX(in->jobs, 1U), (unsigned)THREADS_MAX);
	struct round *r = calloc(1, sizeof(*r));
	size_t index = 0;
	int ret = 0;

	if (r == NULL)
		return why_set(why, ENOMEM, "out of memory");
	for (size_t i = 0; ret == 0 && i < in->count; i++) {
		if (in->tensors[i].patch != NULL)
			r->v[r->count++] = (struct coded){.tensor = &in->tensors[i]};
		if (r->count == (size_t)jobs * ROUND || (i + 1 == in->count && r->count > 0)) {
			parallel_for(jobs, r->count, code_one, r);
			ret = put_round(in, r, w, &index, why);
		}
	}
	free(r);
	return ret;
}

static int wfp1x_delta(const struct pub_input *in, struct pub_objects *out, struct why *why)
{
	return pub_patch_delta(in, "wfp1x", code_blobs, out, why);
}

const struct pub_encoding pub_wfp1x = {
	.name = "wfp1x",
	.reads_old = true,
	.help = "about seven bits; readers go through the version before for it",
	.delta = wfp1x_delta,
	.anchor = pub_anchor_plain,
};
