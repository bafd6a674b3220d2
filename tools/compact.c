/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightfs compact DEST: cumulative deltas, so that who joins late fetches few objects.
 *
 * For each span: fetch, merge, upload under a fresh name, and only then name it in weightfs.json,
 * by compare-and-swap; a publisher that is faster makes it look again.  Interrupted before that,
 * the upload is an orphan that a later prune removes.
 */
#include "tools/compact_merge.h"
#include "tools/upkeep.h"

#include "cache/clock.h"
#include "cache/fileio.h"
#include "cache/log.h"
#include "fs/human.h"
#include "fs/stack.h"
#include "tools/cli.h"
#include "tools/pointer.h"
#include "tools/pub_state.h"
#include "tools/sending.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { OPT_EVERY, OPT_FROM, OPT_TO, OPT_DRY_RUN, OPT_QUIET };

static const struct cli_opt own[] = {
	[OPT_EVERY] = {"every", 0, "N",
		       "one for each N versions after the newest anchor (default: one for all)"},
	[OPT_FROM] = {"from", 0, "V", "with --to: exactly the changes from version V ..."},
	[OPT_TO] = {"to", 0, "V", "... to version V"},
	[OPT_DRY_RUN] = {"dry-run", 0, NULL, "say what would be merged"},
	[OPT_QUIET] = {"quiet", 'q', NULL, "no progress and no summary"},
	{NULL, 0, NULL, NULL},
};

static const struct cli cli = {
	.verb = "compact",
	.args = "[options] DEST",
	.about = "Merges deltas of a published run into cumulative ones, which mounts that join "
		 "late\n"
		 "prefer.  Without options all versions from the newest anchor on become one.  "
		 "Only wfp1\n"
		 "deltas can be merged.  Nothing is deleted.\n",
	.own = own,
	.with = CLI_PLACE,
	.min_args = 1,
	.max_args = 1,
	.examples = "  weightfs compact s3://bucket/run\n"
		    "  weightfs compact --every 16 ./bucket\n"
		    "  weightfs compact --from 40 --to 48 ./bucket\n",
};

struct compact {
	struct store *store;
	uint64_t every, from, to;
	bool dry_run, quiet;
	struct manifest_entry entry; /* of the span in hand */
	const char *lineage;
	uint8_t base_state[16];
	unsigned made;
};

/* Adds the span, unless the run has become another one. */
static int name_it(struct manifest *m, void *ctx, struct why *why)
{
	const struct compact *c = ctx;
	const uint8_t *from = manifest_state(m, c->entry.base);
	const uint8_t *to = manifest_state(m, c->entry.version);
	int ret;

	if (strcmp(m->lineage, c->lineage) != 0 || from == NULL || to == NULL ||
	    memcmp(from, c->base_state, sizeof(c->base_state)) != 0 ||
	    memcmp(to, c->entry.state, sizeof(c->entry.state)) != 0)
		return why_set(why, ESRCH,
			       "version %" PRIu64 " or %" PRIu64
			       " is not in the run any more; nothing was changed",
			       c->entry.base, c->entry.version);
	ret = manifest_add(m, &c->entry, why);
	if (ret == -EEXIST)
		return 0; /* somebody else has made it */
	return ret < 0 ? ret : 1;
}

static bool names(const struct manifest *m, const char *key)
{
	for (size_t i = 0; i < m->span_count; i++)
		for (size_t k = 0; k < m->spans[i].object_count; k++)
			if (strcmp(m->spans[i].objects[k].key, key) == 0)
				return true;
	return false;
}

static int upload(struct compact *c, const struct manifest *m, int fd, uint64_t size,
		  struct why *why)
{
	struct progress progress = {0}, *shown = c->quiet ? NULL : &progress;
	struct sending s = {.fd = fd, .progress = shown, .size = size};
	const struct source src = sending_source(&s);
	char random[9], key[80];
	struct manifest *now = NULL;
	struct why ignored = {0};
	int ret = pub_random(random, 4);

	if (ret < 0)
		return why_set(why, -ret, "%s", errno_text(ret));
	snprintf(key, sizeof(key), "compact/step_%06" PRIu64 "-%06" PRIu64 "-%s.safetensors",
		 c->entry.base, c->entry.version, random);
	if (shown != NULL)
		progress_begin(shown, "upload", size);
	ret = store_put(c->store, key, &src, why);
	progress_clear(&progress);
	if (ret == 0 && manifest_entry_object(&c->entry, key, NULL, size) < 0)
		ret = why_set(why, ENOMEM, "out of memory");
	if (ret < 0)
		return ret;
	memcpy(c->base_state, manifest_state(m, c->entry.base), sizeof(c->base_state));
	c->lineage = m->lineage;
	ret = upkeep_pointer(c->store, name_it, c, &now, why);
	/* Not named for certain: somebody else made it meanwhile, or the versions are gone. */
	if (ret == -ESRCH || (ret == 0 && !names(now, key)))
		(void)!store_remove(c->store, key, NULL, &ignored);
	manifest_free(now);
	return ret < 0 ? ret : 0;
}

static void say(const struct compact *c, uint64_t base, uint64_t version, uint64_t before,
		uint64_t after)
{
	struct buf b = {0};

	if (c->quiet)
		return;
	human_bytes(&b, before);
	if (after > 0) {
		buf_addstr(&b, " became ");
		human_bytes(&b, after);
	}
	printf("versions %" PRIu64 " to %" PRIu64 ": %s%s\n", base, version, buf_str(&b),
	       c->dry_run ? " would be merged" : "");
	buf_release(&b);
}

static int one_span(struct compact *c, const struct manifest *m, uint64_t base, uint64_t version,
		    struct why *why)
{
	uint64_t before = compact_bytes(m, base, version), size = 0;
	struct progress progress, *shown = c->quiet ? NULL : &progress;
	int fd = -1, ret = compact_check(m, base, version, why);

	if (ret < 0)
		return ret;
	c->made++;
	if (c->dry_run) {
		say(c, base, version, before, 0);
		return 0;
	}
	if (shown != NULL)
		progress_begin(shown, "compact", before);
	ret = compact_merge(c->store, m, base, version, shown, &fd, &size, why);
	if (shown != NULL)
		progress_clear(shown);
	if (ret < 0)
		return ret;
	c->entry = (struct manifest_entry){.kind = MANIFEST_SPAN,
					   .base = base,
					   .version = version,
					   .time_ns = clock_real_ns(),
					   .encoding = "wfp1"};
	memcpy(c->entry.state, manifest_state(m, version), sizeof(c->entry.state));
	ret = upload(c, m, fd, size, why);
	manifest_entry_release(&c->entry);
	close(fd);
	if (ret == 0)
		say(c, base, version, before, size);
	return ret;
}

static bool has_span(const struct manifest *m, uint64_t base, uint64_t version)
{
	for (size_t i = 0; i < m->span_count; i++)
		if (m->spans[i].base == base && m->spans[i].version == version)
			return true;
	return false;
}

/* All spans of `every` steps above the newest anchor; 0: one of all. */
static int spans(struct compact *c, const struct manifest *m, struct why *why)
{
	uint64_t base = 0, last = 0, n = 0;
	int ret = 0;

	for (size_t i = 0; i < m->step_count; i++)
		if (m->steps[i].kind == MANIFEST_ANCHOR)
			base = m->steps[i].version;
	for (size_t i = 0; ret == 0 && i < m->step_count; i++) {
		const struct manifest_entry *e = &m->steps[i];

		if (e->version <= base || e->kind != MANIFEST_DELTA || e->version == last)
			continue;
		if (e->object_count > 0 && strcmp(e->encoding, "wfp1") != 0) {
			/* Not to be merged: what is before it may be. */
			if (n > 1 && c->every == 0 && !has_span(m, base, last))
				ret = one_span(c, m, base, last, why);
			base = last = e->version;
			n = 0;
			continue;
		}
		last = e->version;
		n++;
		if (n < 2 || (c->every > 0 ? n < c->every : last != m->newest))
			continue;
		if (!has_span(m, base, last))
			ret = one_span(c, m, base, last, why);
		base = last;
		n = 0;
	}
	return ret;
}

static int compact(struct compact *c, struct why *why)
{
	struct pointer now = {0};
	int ret = pointer_read(c->store, &now, why);

	if (ret == 0 && now.manifest == NULL)
		ret = why_set(why, ENOENT,
			      "%s has no " MANIFEST_KEY
			      ": only runs that weightfs publishes can be compacted",
			      c->store->name);
	if (ret == 0 && c->to > 0)
		ret = has_span(now.manifest, c->from, c->to)
			      ? 0
			      : one_span(c, now.manifest, c->from, c->to, why);
	else if (ret == 0)
		ret = spans(c, now.manifest, why);
	if (ret == 0 && c->made == 0 && !c->quiet)
		printf("nothing to merge\n");
	pointer_release(&now);
	return ret;
}

static int take_number(const struct cli_line *line, int option, uint64_t least, uint64_t *out)
{
	const char *text = line->value[option];

	if (text == NULL || parse_count(text, least, INT64_MAX, out) == 0)
		return -1;
	return cli_usage(&cli, "compact: --%s: \"%.40s\" is not a number from %" PRIu64 " on",
			 own[option].name, text, least);
}

int verb_compact(int argc, char **argv)
{
	struct compact c = {0};
	struct stack *stack = NULL;
	struct why why = {0};
	struct cli_line line;
	struct opts o;
	int ret;

	opts_init(&o);
	o.log_level = LOG_LEVEL_WARNING;
	ret = cli_parse(&cli, argc, argv, &o, &line);
	if (ret < 0)
		ret = take_number(&line, OPT_EVERY, 2, &c.every);
	if (ret < 0)
		ret = take_number(&line, OPT_FROM, 1, &c.from);
	if (ret < 0)
		ret = take_number(&line, OPT_TO, 1, &c.to);
	if (ret < 0 && ((c.from > 0) != (c.to > 0) || (c.to > 0 && c.every > 0)))
		ret = cli_usage(&cli, "compact: --from and --to go together, without --every");
	if (ret < 0) {
		log_set_level(o.log_level);
		c.dry_run = line.value[OPT_DRY_RUN] != NULL;
		c.quiet = line.value[OPT_QUIET] != NULL;
		ret = stack_new_writable(&o, line.args[0], false, &stack, &why);
		if (ret == 0) {
			c.store = stack->store;
			ret = compact(&c, &why);
		}
		ret = ret < 0 ? cli_fail(&why) : cli_done();
	}
	stack_free(stack);
	opts_release(&o);
	return ret;
}
