/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warming a version.
 *
 * The kernel keeps pages of inodes that it knows, and it knows those that somebody has looked up:
 * so each file is looked up by its name under versions/, and what comes back is kept for as long as
 * the name is in the kernel's cache.  Then its bytes go in, a chunk at a time.
 *
 * It gives way: to its budget, when memory gets short (looked at every few chunks), when a read
 * fails (the version becomes current nevertheless: what is missing is read on demand) and when the
 * mount ends.  Whatever it has done by then stays useful.
 */
#include "fs/warm.h"

#include <stdio.h>
#include <stdlib.h>

#include "fs/apart.h"
#include "fs/memory.h"

enum { CHUNK = 1 << 20, LOOK_EVERY = 64 };

struct warming {
	const struct warm_config *config;
	struct warm_result *result;
	uint64_t budget, chunks;
	uint8_t *chunk;
};

/* True when it is time to end; says why. */
static bool must_end(struct warming *w)
{
	struct warm_result *r = w->result;

	if (r->why == NULL && w->config->stopped(w->config->ctx))
		r->why = "the mount ends";
	else if (r->why == NULL && r->done >= w->budget)
		r->why = "that is all that --warm-budget allows";
	else if (r->why == NULL && w->chunks++ % LOOK_EVERY == 0 && memory_short())
		r->why = "memory is short";
	return r->why != NULL;
}

/* Has the kernel know a file under its number. */
static int introduce(const struct warm_config *c, const struct generation *g, const char *name,
		     const struct node *n)
{
	char path[8192];
	struct stat st;
	int ret, len = snprintf(path, sizeof(path), "%s/.weightfs/versions/%llu/%s", c->mountpoint,
				(unsigned long long)g->version, name);

	if (len < 0 || (size_t)len >= sizeof(path))
		return -ENAMETOOLONG;
	ret = apart_stat(path, &st);
	if (ret < 0)
		return ret;
	/* Another run's version of the same number would have other numbers of inodes. */
	return st.st_ino == n->ino ? 0 : -ESTALE;
}

static int push_file(struct warming *w, struct node *n)
{
	for (uint64_t at = 0; at < n->size && !must_end(w); at += CHUNK) {
		size_t len = (size_t)MIN(n->size - at, (uint64_t)CHUNK);
		int ret = node_read(n, at, w->chunk, len);

		if (ret == 0)
			ret = w->config->push(w->config->push_ctx, n->ino, at, w->chunk, len);
		if (ret < 0)
			return ret;
		w->result->done += len;
	}
	return 0;
}

/* File i of the version when it is to be warmed, or NULL. */
static struct node *cold_file(const struct generation *g, uint32_t i)
{
	struct node *n = node_walk(g->root, g->state->layout->files[i].name);

	return n != NULL && n->kind == NODE_WEIGHTS && !node_is_whole(n) ? n : NULL;
}

static void warm_files(struct warming *w, const struct generation *g)
{
	const struct layout *l = g->state->layout;

	for (uint32_t i = 0; i < l->file_count && !must_end(w); i++) {
		struct node *n = cold_file(g, i);
		int ret = n != NULL ? introduce(w->config, g, l->files[i].name, n) : 0;

		if (n != NULL && ret == 0)
			ret = push_file(w, n);
		if (ret == -ENOTCONN || ret == -ECANCELED)
			w->result->ends = true;
		if (ret < 0 && w->result->why == NULL)
			w->result->why = w->result->ends ? "the mount ends" : strerrordesc_np(-ret);
	}
}

void warm_version(const struct warm_config *config, const struct generation *g,
		  struct warm_result *out)
{
	struct warming w = {config, out, config->budget, 0, aligned_alloc(4096, CHUNK)};
	const struct node *n;

	*out = (struct warm_result){0};
	for (uint32_t i = 0; i < g->state->layout->file_count; i++)
		if ((n = cold_file(g, i)) != NULL)
			out->total += n->size;
	if (w.budget == 0) {
		uint64_t left = memory_available();

		w.budget = left == UINT64_MAX ? left : left / 2;
	}
	if (w.chunk == NULL)
		out->why = "out of memory";
	else
		warm_files(&w, g);
	free(w.chunk);
	if (out->done == out->total)
		out->why = NULL;
}
