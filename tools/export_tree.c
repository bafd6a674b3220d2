/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One version of a source as the files of a checkpoint.
 *
 * Builds the generation exactly as a mount would (stack without history, run_scan(), run_build())
 * and copies the files of its tree, so that the directory is byte for byte what the mount shows.
 *
 * The directory appears whole or not at all: the files go to DIR.tmp.PID beside it, are synced, and
 * the directory is renamed.  A failure, or being told to stop, removes what was written.
 *
 * One thread.
 */
#include "tools/export_tree.h"

#include "cache/clock.h"
#include "cache/fileio.h"
#include "fs/manifest.h"
#include "fs/state_hash.h"
#include "tools/cli.h"
#include "tools/object_sums.h"
#include "tools/progress.h"
#include "tools/replace.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 4 << 20 };

/* ---- copying ---- */

struct copy {
	struct progress progress;
	uint8_t *piece; /* PIECE bytes */
	bool quiet;
	const volatile bool *stop;
	struct state_hash *hash; /* of the weights that pass, or NULL */
	struct why *why;
};

static uint64_t tree_bytes(const struct node *n)
{
	uint64_t sum = 0;

	if (n->kind != NODE_DIR)
		return n->size;
	for (size_t i = 0; i < n->entry_count; i++)
		sum += tree_bytes(n->entries[i].node);
	return sum;
}

static int copy_bytes(struct copy *c, struct node *file, int fd, const char *path)
{
	for (uint64_t at = 0; at < file->size;) {
		size_t len = (size_t)MIN(file->size - at, (uint64_t)PIECE);
		int ret;

		if (*c->stop)
			return why_set(c->why, EINTR, "interrupted; nothing was written");
		ret = node_read(file, at, c->piece, len);
		if (ret < 0)
			return why_set(c->why, -ret, "%s cannot be read at byte %" PRIu64 ": %s",
				       path, at, errno_text(ret));
		if (c->hash != NULL && file->kind == NODE_WEIGHTS)
			state_hash_feed(c->hash, file->file, c->piece, len);
		ret = file_pwrite(fd, c->piece, len, at);
		if (ret < 0)
			return why_set(c->why, -ret, "%s cannot be written: %s", path,
				       errno_text(ret));
		at += len;
		if (!c->quiet)
			progress_add(&c->progress, len);
	}
	return 0;
}

static int copy_file(struct copy *c, struct node *file, const char *path)
{
	struct timespec times[2] = {clock_timespec(file->mtime_ns), clock_timespec(file->mtime_ns)};
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
	int ret;

	if (fd < 0)
		return why_set(c->why, errno, "%s cannot be made: %s", path, errno_text(errno));
	ret = copy_bytes(c, file, fd, path);
	if (ret == 0 && (futimens(fd, times) < 0 || fsync(fd) < 0))
		ret = why_set(c->why, errno, "%s cannot be written: %s", path, errno_text(errno));
	if (close(fd) < 0 && ret == 0)
		ret = why_set(c->why, errno, "%s cannot be written: %s", path, errno_text(errno));
	return ret;
}

static int sync_dir(const char *path, struct why *why)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), ret = 0;

	if (fd < 0 || fsync(fd) < 0)
		ret = why_set(why, errno, "%s cannot be written: %s", path, errno_text(errno));
	if (fd >= 0)
		close(fd);
	return ret;
}

/* Trees are as deep as a source's directories, which a listing bounds. */
static int copy_dir(struct copy *c, struct node *dir, const char *path)
{
	if (mkdir(path, 0777) < 0)
		return why_set(c->why, errno, "%s cannot be made: %s", path, errno_text(errno));
	for (size_t i = 0; i < dir->entry_count; i++) {
		struct node *n = dir->entries[i].node;
		char *child = path_join(path, dir->entries[i].name);
		int ret;

		if (child == NULL)
			return why_set(c->why, ENOMEM, "out of memory");
		ret = n->kind == NODE_DIR ? copy_dir(c, n, child) : copy_file(c, n, child);
		free(child);
		if (ret < 0)
			return ret;
	}
	return sync_dir(path, c->why);
}

/* ---- which version ---- */

/* The newest that can be shown; -ENOENT when there is none. */
static int newest_version(struct stack *s, uint64_t *out, struct why *why)
{
	struct run_report *report = run_report(s->run);
	const struct version_info *best = NULL, *bad = NULL;
	int ret = 0;

	for (size_t i = 0; report != NULL && i < report->version_count; i++) {
		if (report->versions[i].state == VERSION_OK)
			best = &report->versions[i];
		else if (report->versions[i].problem != NULL && bad == NULL)
			bad = &report->versions[i];
	}
	if (best != NULL)
		*out = best->number;
	else if (s->base != NULL)
		*out = 0;
	else {
		struct buf because = {0};

		if (bad != NULL)
			buf_addf(&because, ": %s", bad->problem);
		else if (report != NULL)
			run_report_because(report, &because);
		ret = why_set(why, ENOENT, "%s has no version that is whole%s", s->store->name,
			      buf_str(&because));
		buf_release(&because);
	}
	run_report_unref(report);
	return ret;
}

static int build(struct stack *s, const uint64_t *version, struct generation **out, struct why *why)
{
	uint64_t number = 0;
	int ret = run_scan(s->run, why);

	if (ret == 0 && version == NULL)
		ret = newest_version(s, &number, why);
	else if (ret == 0)
		number = *version;
	return ret < 0 ? ret : run_build(s->run, number, out, why);
}

/* ---- the files ---- */

/* The state that was recorded for the version, if any: with a --base it is not that of the files.
 */
static bool recorded_state(struct stack *s, uint64_t version, uint8_t out[16])
{
	struct run_report *report = s->base == NULL ? run_report(s->run) : NULL;
	bool found = false;

	for (size_t i = 0; report != NULL && i < report->version_count && !found; i++) {
		const struct version_info *v = &report->versions[i];

		found = v->number == version && v->has_state && v->state != VERSION_SUPERSEDED;
		if (found)
			memcpy(out, v->state_hash, sizeof(v->state_hash));
	}
	run_report_unref(report);
	return found;
}

/* What was written is what was published, or it is not kept. */
static int check_state(const struct copy *c, const uint8_t want[16], uint64_t version)
{
	uint8_t have[16];
	char hex[2][33];

	if (state_hash_end(c->hash, have) < 0 || memcmp(have, want, sizeof(have)) == 0)
		return 0;
	manifest_hex(have, hex[0]);
	manifest_hex(want, hex[1]);
	return why_set(c->why, EBADMSG,
		       "version %" PRIu64
		       " has the state %s, and %s was published; weightfs verify "
		       "says more",
		       version, hex[0], hex[1]);
}

static int write_out(struct stack *s, struct generation *g, const char *dir,
		     const struct export_options *options, struct why *why)
{
	struct copy c = {
		.piece = malloc(PIECE), .quiet = options->quiet, .stop = options->stop, .why = why};
	const bool force = options->force, quiet = options->quiet;
	uint8_t state[16];
	char *temp = NULL;
	int ret = replace_begin(dir, force, &temp, why);

	if (ret == 0 &&
	    (c.piece == NULL || (g->state != NULL && recorded_state(s, g->version, state) &&
				 state_hash_new(g->state->layout, &c.hash) < 0)))
		ret = why_set(why, ENOMEM, "out of memory");
	if (ret == 0) {
		if (!quiet)
			progress_begin(&c.progress, "export", tree_bytes(g->root));
		ret = copy_dir(&c, g->root, temp);
		if (ret == 0 && c.hash != NULL)
			ret = check_state(&c, state, g->version);
		if (ret == 0)
			ret = replace_end(dir, force, temp, why);
		if (ret < 0)
			replace_abort(temp);
		if (!quiet && ret < 0)
			progress_clear(&c.progress);
		else if (!quiet)
			progress_end(&c.progress, "version %" PRIu64 " written to %s", g->version,
				     dir);
	}
	state_hash_free(c.hash);
	free(temp);
	free(c.piece);
	return ret;
}

/* Are its tensors what the writers of its objects recorded? */
static int check_sums(struct stack *s, const struct generation *g, const volatile bool *stop,
		      struct why *why)
{
	struct check_result sums;
	int ret = 0;

	if (g->state == NULL || s->opts->verify == VERIFY_OFF)
		return 0;
	ret = run_check(s->run, g->state, false, stop, &sums, why);
	if (ret == -ECANCELED)
		return why_set(why, EINTR, "interrupted; nothing was written");
	if (ret == 0 && sums.right == 0)
		ret = object_sums_check(s->run, g->state, stop, why);
	if (ret == -EBADMSG)
		return why_prefix(why, "version %" PRIu64 " is not exported (--verify off does)",
				  g->version);
	return ret;
}

int export_version(struct stack *s, const uint64_t *version, const char *dir,
		   const struct export_options *options, uint64_t *out_version, struct why *why)
{
	struct generation *g = NULL;
	int ret = build(s, version, &g, why);

	if (ret == 0)
		ret = check_sums(s, g, options->stop, why);
	if (ret == 0) {
		ret = write_out(s, g, dir, options, why);
		*out_version = g->version;
	}
	generation_unref(g);
	return ret;
}
