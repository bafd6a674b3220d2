/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Versions in many files: what each of them needs is done for several at once.
 *
 * A delta in hundreds of shards costs as many waits, one after the other: for its header from the
 * network, and for the disk that has to have its patch.  So the headers' first bytes are asked for
 * all at once before the exams begin, and the patches of one step are made from several threads.
 * What an exam is and what is known of it stays with the run's thread: a job looks at its exam
 * alone and writes nothing but its link.
 *
 * This only prepares.  Whatever is not done here, for want of memory or threads or by an error, is
 * done or said by who asks for it one by one.
 */
#include "fs/run_internal.h"

#include "cache/blob.h"
#include "fs/parallel.h"

#include <stdlib.h>

enum {
	FEW = 4,	   /* so many are not worth it */
	JOBS = 16,	   /* they wait for the disk or the network most of the time */
	HEAD = 64 * 1024,  /* bytes of an object that a header mostly fits into */
	HEADS_MOST = 4096, /* objects at once */
};

struct job {
	struct exam *exam;
	const struct object *object;
	struct why why;
	int err;
};

struct jobs {
	struct run *r;
	struct job *v;
	size_t count;
	uint64_t number;
	const struct target *target;
};

/* ---- headers ---- */

static void read_head(void *ctx, size_t i)
{
	const struct jobs *jobs = ctx;
	const struct object *o = jobs->v[i].object;
	struct blob *blob = NULL;
	char *bytes = malloc(HEAD);

	/* Errors are met again by the exam. */
	if (bytes != NULL && o->err == 0 &&
	    blob_open(jobs->r->config.store, o, false, &blob, NULL) == 0)
		jobs->v[i].err = blob_read(blob, 0, bytes, (size_t)MIN(o->size, (uint64_t)HEAD));
	blob_unref(blob);
	free(bytes);
}

void many_heads(struct run *r, const struct pieces *p)
{
	struct jobs jobs = {.r = r};

	if (!r->config.store->remote || p->count <= FEW || p->count > HEADS_MOST)
		return;
	jobs.v = calloc(p->count, sizeof(*jobs.v));
	if (jobs.v == NULL)
		return;
	for (size_t i = 0; i < p->count; i++) {
		const struct object *o = p->v[i].object;
		const struct exam *e = table_get_str(r->exams, o->key);

		if (e == NULL || !identity_equal(&e->id, &o->id))
			jobs.v[jobs.count++] = (struct job){.object = o};
	}
	if (jobs.count > FEW)
		parallel_for(JOBS, jobs.count, read_head, &jobs);
	free(jobs.v);
}

/* ---- patches ---- */

static void make_one(void *ctx, size_t i)
{
	const struct jobs *jobs = ctx;
	struct job *job = &jobs->v[i];

	job->err =
		exam_link(jobs->r, job->exam, job->object, jobs->number, jobs->target, &job->why);
}

/* Matches one; true when it has a link that is still to be made, and may be by a job. */
static bool is_due(struct run *r, struct exam *e, const struct object *o, uint64_t number,
		   const struct target *target)
{
	return e != NULL && e->state == EXAM_OK && !e->given_base && e->link == NULL &&
	       exam_match(r, e, o, number, target, false) == 0 && e->patches > 0 && e->link == NULL;
}

void many_links(struct run *r, const struct pieces *p, uint64_t number, const struct target *target)
{
	struct jobs jobs = {.r = r, .number = number, .target = target};

	if (p->count <= FEW)
		return;
	jobs.v = calloc(p->count, sizeof(*jobs.v));
	if (jobs.v == NULL)
		return;
	for (size_t i = 0; i < p->count; i++) {
		struct exam *e = exam_get(r, p->v[i].object);

		if (is_due(r, e, p->v[i].object, number, target))
			jobs.v[jobs.count++] = (struct job){.exam = e, .object = p->v[i].object};
	}
	parallel_for(JOBS, jobs.count, make_one, &jobs);
	for (size_t i = 0; i < jobs.count; i++)
		if (jobs.v[i].err < 0)
			exam_unlinked(r, jobs.v[i].exam, jobs.v[i].err, &jobs.v[i].why);
	free(jobs.v);
}
