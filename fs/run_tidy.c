/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a round: what no version needs that is shown or will be is let go of.
 *
 * In memory: parsed headers, exams of objects that nobody asked for, links that folds stand for,
 * layouts.  In the cache directory: patch files of versions below the newest anchor.  Nothing of it
 * changes what is served.  The run's thread.
 */
#include "fs/run_internal.h"

#include "cache/log.h"

#include <malloc.h>

struct kept {
	struct run *r;
	struct table *names;
};

static bool keep_file(const char *name, void *ctx)
{
	const struct kept *k = ctx;

	return table_get_str(k->names, name) != NULL || notes_sweep(k->r, name);
}

static void keep_link(void *value, void *ctx)
{
	struct exam *e = value;

	if (e->link != NULL && e->link->name != NULL && table_put_str(ctx, e->link->name, e) < 0)
		log_debug("out of memory while sweeping the cache directory");
}

/* Removes patch files that no version at or above the newest anchor needs.  Not for a tool, which
 * shares the directory with mounts. */
static void sweep_cache(struct run *r)
{
	struct table *names = r->config.history != NULL ? table_new() : NULL;
	int err = 0;

	if (names == NULL)
		return;
	table_each(r->exams, keep_link, names);
	for (size_t i = 0; i < r->fold_count && err == 0; i++)
		if (r->folds[i].link != NULL && r->folds[i].link->name != NULL)
			err = table_put_str(names, r->folds[i].link->name, &r->folds[i]);
	if (err == 0)
		cachedir_sweep(r->config.cache, keep_file, &(struct kept){r, names});
	table_free(names);
}

void run_tidy(struct run *r, const struct generation *before)
{
	opened_drop(r);
	spans_keep_bad(r);
	exams_sweep(r, false);
	if (r->backfill == 0) {
		folds_release(r, true);
		fold_trim(r);
	}
	layouts_sweep(r);
	if (r->newest != NULL && (before == NULL || before->state != r->newest->state)) {
		sweep_cache(r);
		malloc_trim(0); /* parsed headers are large and gone */
	}
}
