/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightfs prune DEST: deletes what no version needs that is kept.
 *
 * A published run: leases are read, weightfs.json is replaced by one that begins at the cut, and
 * only then objects are deleted.  Interrupted before that nothing has happened; after it the rest
 * are orphans, which a later prune finds.  A run without weightfs.json (TRL's own): what lies below
 * the cut is deleted, highest number first, so that what is left is always a run that begins later
 * and never one with a hole.
 *
 * One thread.
 */
#include "tools/prune.h"

#include "cache/clock.h"
#include "cache/log.h"
#include "fs/human.h"
#include "fs/stack.h"
#include "tools/cli.h"
#include "tools/place.h"
#include "tools/pointer.h"
#include "tools/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { OPT_KEEP, OPT_ORPHANS, OPT_DRY_RUN, OPT_QUIET };

#define DAY_NS (24 * 3600 * NSEC_PER_SEC)

static const struct cli_opt own[] = {
	[OPT_KEEP] = {"keep-versions", 0, "N", "keep the newest N versions, at least"},
	[OPT_ORPHANS] = {"orphans-after", 0, "SECONDS",
			 "delete what is not part of the run when it is older (default: a day)"},
	[OPT_DRY_RUN] = {"dry-run", 0, NULL, "say what would be deleted"},
	[OPT_QUIET] = {"quiet", 'q', NULL, "do not list what is deleted, no summary"},
	{NULL, 0, NULL, NULL},
};

static const struct cli cli = {
	.verb = "prune",
	.args = "[options] DEST",
	.about = "Deletes objects of a run that no version needs which is kept.  Kept are the "
		 "newest two\n"
		 "complete anchors and everything after the older one, --keep-versions, and what a "
		 "lease\n"
		 "names (see weightfs lease).  Uploads that were never finished go when they are a "
		 "day old.\n"
		 "Mounts that have an older version open go on with what they hold of it.\n",
	.own = own,
	.with = CLI_PLACE,
	.min_args = 1,
	.max_args = 1,
	.examples = "  weightfs prune --dry-run s3://bucket/run\n"
		    "  weightfs prune --keep-versions 100 ./bucket\n",
};

struct prune {
	struct store *store;
	struct opts *opts;
	const char *dest;
	struct prune_rules rules;
	struct listing listing;
	struct leases leases;
	struct prune_plan plan;
	bool dry_run, quiet;
	uint64_t deleted, bytes, cut;
};

static int look(struct prune *p, struct why *why)
{
	int ret;

	listing_release(&p->listing);
	ret = store_list(p->store, "", &p->listing, why);
	if (ret == 0) {
		leases_release(&p->leases);
		ret = leases_read(p->store, &p->listing, &p->leases, why);
	}
	p->rules.leases = &p->leases;
	p->rules.now_ns = clock_real_ns();
	return ret;
}

static void say(const struct prune *p, const struct doomed *d, struct progress *progress)
{
	progress_hide(progress);
	printf("%s%s: %s\n", p->dry_run ? "would delete " : "", SHOWN(d->object->key), d->why);
	if (progress->terminal) {
		fflush(stdout);
		progress_add(progress, 0);
	}
}

/* Deletes what the plan says.  What has gone or changed meanwhile is somebody else's work. */
static int delete_all(struct prune *p, struct why *why)
{
	struct progress progress = {0};
	int ret = 0;

	if (!p->quiet && !p->dry_run && p->plan.count > 0)
		progress_begin_count(&progress, "prune", "objects", p->plan.count);
	for (size_t i = 0; ret == 0 && i < p->plan.count; i++) {
		const struct doomed *d = &p->plan.v[i];

		if (!p->quiet)
			say(p, d, &progress);
		if (!p->dry_run)
			ret = store_remove(p->store, d->object->key, &d->object->id, why);
		progress_add(&progress, 1);
		if (ret == 0) {
			p->deleted++;
			p->bytes += d->object->size;
		} else if (ret == -ENOENT || ret == -ESTALE) {
			ret = 0;
		}
	}
	progress_clear(&progress);
	return ret;
}

/* ---- a run with weightfs.json ---- */

static int cut(struct manifest *m, void *ctx, struct why *why)
{
	struct prune *p = ctx;
	uint64_t at = prune_cut(m, &p->listing, &p->rules);

	p->plan.cut = at;
	if (at == 0 || m->steps[0].version == at)
		return 0;
	return manifest_cut(m, at) == 0 ? 1 : why_set(why, ENOENT, "the anchor is gone");
}

/* The store's time: that of the pointer that was just written, or else this machine's. */
static int64_t store_now(const struct prune *p, bool written)
{
	const struct object *o = listing_find(&p->listing, MANIFEST_KEY);

	return written && o != NULL ? o->mtime_ns : p->rules.now_ns;
}

static int prune_run(struct prune *p, struct pointer *was, struct why *why)
{
	struct manifest *now = NULL;
	bool written = false;
	int ret;

	if (p->dry_run) {
		ret = manifest_copy(was->manifest, &now);
		if (ret == 0)
			ret = cut(now, p, why);
	} else {
		ret = upkeep_pointer(p->store, cut, p, &now, why);
		written = ret == 1;
	}
	/* What was named is gone from the pointer by now: the listing may be read again. */
	if (ret == 1 && written)
		ret = look(p, why);
	if (ret >= 0) {
		ret = prune_declared(&p->listing, was->manifest, now, &p->rules,
				     store_now(p, written), &p->plan);
		if (ret < 0)
			why_set(why, -ret, "out of memory");
	}
	if (ret >= 0)
		ret = delete_all(p, why);
	if (ret == 0 && written) {
		struct buf text = {0};

		if (manifest_compose(now, &text) == 0)
			ret = upkeep_index(p->store, now, NULL, text.len, why);
		buf_release(&text);
	}
	manifest_free(now);
	return ret;
}

/* ---- a run by TRL's rules ---- */

/* Ascending lists of complete anchors and of versions, from a report. */
static int find_cut(struct prune *p, const struct run_report *r, struct why *why)
{
	uint64_t *anchors = calloc(r->version_count + 1, sizeof(*anchors));
	uint64_t *versions = calloc(r->version_count + 1, sizeof(*versions));
	size_t a = 0, n = 0;
	int ret = 0;

	if (anchors == NULL || versions == NULL)
		ret = why_set(why, ENOMEM, "out of memory");
	for (size_t i = 0; ret == 0 && i < r->version_count; i++) {
		const struct version_info *v = &r->versions[i];

		if (v->state == VERSION_SUPERSEDED)
			continue;
		if (v->state == VERSION_OK && v->kind == VERSION_ANCHOR &&
		    (a == 0 || anchors[a - 1] != v->number))
			anchors[a++] = v->number;
		if (n == 0 || versions[n - 1] != v->number)
			versions[n++] = v->number;
	}
	if (ret == 0)
		p->plan.cut = prune_cut_at(anchors, a, versions, n, &p->rules);
	free(anchors);
	free(versions);
	return ret;
}

static int plan_plain(struct prune *p, const struct run_report *r, struct why *why)
{
	int ret = find_cut(p, r, why);

	for (size_t i = r->version_count; ret == 0 && i-- > 0;) {
		const struct version_info *v = &r->versions[i];
		const struct object *o = listing_find(&p->listing, v->key);

		if (v->state == VERSION_SUPERSEDED || v->number >= p->plan.cut || o == NULL)
			continue;
		if (prune_add(&p->plan, o, "no version that is kept needs it") < 0)
			ret = why_set(why, ENOMEM, "out of memory");
	}
	return ret;
}

static int prune_plain(struct prune *p, struct why *why)
{
	struct stack *stack = NULL;
	struct run_report *report = NULL;
	int ret = place_source(p->dest, p->opts, why);

	p->opts->deep = true;
	p->opts->hole_grace_ns = 0;
	if (ret == 0)
		ret = stack_new(p->opts, false, &stack, why);
	if (ret == 0)
		ret = run_scan(stack->run, why);
	report = ret == 0 ? run_report(stack->run) : NULL;
	if (ret == 0 && report == NULL)
		ret = why_set(why, ENOMEM, "out of memory");
	if (ret == 0 && report->version_count == 0)
		ret = why_set(why, ENOENT, "%s has no anchors or deltas", p->store->name);
	if (ret == 0)
		ret = plan_plain(p, report, why);
	if (ret == 0)
		ret = delete_all(p, why);
	run_report_unref(report);
	stack_free(stack);
	return ret;
}

/* ---- the verb ---- */

static void summary(const struct prune *p)
{
	struct buf b = {0};

	human_bytes(&b, p->bytes);
	fprintf(stderr, "prune: %" PRIu64 " object%s, %s %s", p->deleted,
		p->deleted == 1 ? "" : "s", buf_str(&b),
		p->dry_run ? "would be deleted" : "deleted");
	if (p->cut > 0)
		fprintf(stderr, "; the run begins at version %" PRIu64 "\n", p->cut);
	else
		fprintf(stderr, "; fewer than two complete anchors, or all are needed\n");
	buf_release(&b);
}

static int prune(struct prune *p, struct why *why)
{
	struct stack *stack = NULL;
	struct pointer was = {0};
	struct progress progress = {0};
	int ret = stack_new_writable(p->opts, p->dest, false, &stack, why);

	if (ret == 0) {
		p->store = stack->store;
		if (!p->quiet)
			progress_begin_count(&progress, "prune: listing", "objects",
					     PROGRESS_UNKNOWN);
		ret = look(p, why);
		progress_clear(&progress);
	}
	/* What is named now: the change may meet a later one, which names that as well or has
	 * pruned it itself. */
	if (ret == 0)
		ret = pointer_read(p->store, &was, why);
	if (ret == 0)
		ret = was.manifest != NULL ? prune_run(p, &was, why) : prune_plain(p, why);
	pointer_release(&was);
	p->cut = p->plan.cut;
	prune_release(&p->plan);
	leases_release(&p->leases);
	listing_release(&p->listing);
	stack_free(stack);
	return ret;
}

int verb_prune(int argc, char **argv)
{
	struct prune p = {.rules.orphans_ns = DAY_NS};
	struct why why = {0};
	struct cli_line line;
	struct opts o;
	int ret;

	opts_init(&o);
	o.log_level = LOG_LEVEL_WARNING;
	ret = cli_parse(&cli, argc, argv, &o, &line);
	if (ret < 0 && line.value[OPT_KEEP] != NULL &&
	    parse_count(line.value[OPT_KEEP], 1, INT64_MAX, &p.rules.keep_versions) < 0)
		ret = cli_usage(&cli, "prune: --keep-versions: \"%.40s\" is not a number",
				line.value[OPT_KEEP]);
	if (ret < 0 && line.value[OPT_ORPHANS] != NULL &&
	    parse_duration_ns(line.value[OPT_ORPHANS], &p.rules.orphans_ns) < 0)
		ret = cli_usage(&cli, "prune: --orphans-after: \"%.40s\" is not a time",
				line.value[OPT_ORPHANS]);
	if (ret < 0) {
		log_set_level(o.log_level);
		p.opts = &o;
		p.dest = line.args[0];
		p.dry_run = line.value[OPT_DRY_RUN] != NULL;
		p.quiet = line.value[OPT_QUIET] != NULL;
		if (prune(&p, &why) < 0) {
			ret = cli_fail(&why);
		} else {
			if (!p.quiet)
				summary(&p);
			ret = cli_done();
		}
	}
	opts_release(&o);
	return ret;
}
