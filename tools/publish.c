/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightfs publish CHECKPOINT DEST: a checkpoint becomes the next version of a run; with --watch,
 * each one that a trainer finishes.
 *
 * Only the command line is here; what is done is in tools/pub_flow.c.
 *
 * SIGINT, SIGTERM and SIGHUP end it soon and leave a valid run; a second signal ends it at once,
 * which does as little harm.
 */
#include "tools/publisher.h"

#include "cache/clock.h"
#include "cache/log.h"
#include "tools/cli.h"
#include "tools/pub_watch.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>

enum {
	OPT_VERSION,
	OPT_ENCODING,
	OPT_ANCHOR_ENCODING,
	OPT_COMPRESS_ANCHORS,
	OPT_ANCHOR,
	OPT_ANCHOR_EVERY,
	OPT_STATE_DIR,
	OPT_NO_STATE,
	OPT_AGAINST,
	OPT_TAKE_OVER,
	OPT_NEW_RUN,
	OPT_DRY_RUN,
	OPT_JOBS,
	OPT_JSON,
	OPT_QUIET,
	OPT_UPLOADER,
	OPT_WATCH,
	OPT_VERSION_FROM,
	OPT_SETTLE,
	OPT_LATEST_ONLY,
	OPT_ONCE,
};

static const struct cli_opt own[] = {
	[OPT_VERSION] = {"version", 0, "N", "its number (default: the newest plus one)"},
	[OPT_ENCODING] = {"encoding", 0, "NAME",
			  "how deltas are written: wfp1 (default), or see below"},
	[OPT_ANCHOR_ENCODING] = {"anchor-encoding", 0, "NAME",
				 "how anchors are written (default: as the encoding has it)"},
	[OPT_COMPRESS_ANCHORS] = {"compress-anchors", 0, NULL,
				  "short for --anchor-encoding packed: about a third smaller"},
	[OPT_ANCHOR] = {"anchor", 0, NULL, "write an anchor, whatever else would be done"},
	[OPT_ANCHOR_EVERY] = {"anchor-every", 0, "N",
			      "an anchor every N versions (default: when the deltas since the "
			      "last one are half its size)"},
	[OPT_STATE_DIR] = {"state-dir", 0, "DIR",
			   "where the last published state is kept (default: "
			   "~/.local/state/weightfs)"},
	[OPT_NO_STATE] = {"no-state", 0, NULL, "keep no copy: anchors only, unless --against"},
	[OPT_AGAINST] = {"against", 0, "PLACE",
			 "the last published state: a checkpoint, a version's directory of a "
			 "mount, or a source that has the run"},
	[OPT_TAKE_OVER] = {"take-over", 0, NULL, "go on with another publisher's run"},
	[OPT_NEW_RUN] = {"new-run", 0, NULL, "begin a new run in the same place"},
	[OPT_DRY_RUN] = {"dry-run", 0, NULL, "compare and encode, but upload nothing"},
	[OPT_JOBS] = {"jobs", 'j', "N", "threads (default: all cores)"},
	[OPT_JSON] = {"json", 0, NULL, "one JSON object instead of a line for people"},
	[OPT_QUIET] = {"quiet", 'q', NULL, "no progress and no summary"},
	[OPT_UPLOADER] = {"uploader", 0, "s3|hf",
			  "into a bucket of the Hub: its S3 gateway, or its command line hf "
			  "(default: hf where there is a token and no key of the gateway)"},
	[OPT_WATCH] = {"watch", 0, "DIR",
		       "publish each checkpoint that is finished below DIR, or DIR itself"},
	[OPT_VERSION_FROM] = {"version-from", 0, "name|count",
			      "--watch: the number is that of the directory's name "
			      "(default), or the next"},
	[OPT_SETTLE] = {"settle", 0, "SECONDS",
			"--watch: a checkpoint is finished when nothing in it has changed for so "
			"long (5)"},
	[OPT_LATEST_ONLY] = {"latest-only", 0, NULL, "--watch: when behind, go on with the newest"},
	[OPT_ONCE] = {"once", 0, NULL, "--watch: publish what is there, and end"},
	{NULL, 0, NULL, NULL},
};

static const struct cli cli = {
	.verb = "publish",
	.args = "[options] CHECKPOINT DEST | --watch DIR [options] DEST",
	.about = "Publishes a checkpoint as the next version of a run: what changed since the last "
		 "one,\n"
		 "in about ten bits for each changed weight, or all of it as an anchor.  "
		 "CHECKPOINT is a\n"
		 "directory (model.safetensors, or shards with their index), one .safetensors "
		 "file, or -\n"
		 "for a safetensors stream on standard input.  DEST is a directory, s3://..., or\n"
		 "hf://buckets/....  Readers see the version when it is complete, or never.\n\n"
		 "Encodings: wfp1, wfp1x (smaller; readers need the state before), trl-v1 and\n"
		 "trl-v3 (for TRL's receivers), xor-zstd (for slime's and SGLang's).\n",
	.own = own,
	.with = CLI_PLACE,
	.min_args = 1,
	.max_args = 2,
	.examples = "  weightfs publish ./checkpoint-42 s3://bucket/run --version 42\n"
		    "  weightfs publish ./model.safetensors ./bucket --anchor-every 50\n"
		    "  save_stream | weightfs publish - hf://buckets/me/run --json\n"
		    "  weightfs publish --watch ./output hf://buckets/me/run\n",
};

static struct publisher *volatile publisher;

static void on_signal(int signal)
{
	(void)signal;
	if (publisher != NULL)
		pub_stop(publisher);
}

static void catch_signals(void)
{
	struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_RESETHAND};

	sigemptyset(&act.sa_mask);
	sigaction(SIGINT, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	sigaction(SIGHUP, &act, NULL);
}

static bool is_set(const struct cli_line *line, int option)
{
	return line->value[option] != NULL;
}

static int take_number(const struct cli_line *line, int option, uint64_t min, uint64_t max,
		       uint64_t *out)
{
	const char *text = line->value[option];

	if (text == NULL || parse_count(text, min, max, out) == 0)
		return -1;
	return cli_usage(&cli, "publish: --%s: \"%.40s\" is not a number from %" PRIu64 " on",
			 own[option].name, text, min);
}

static int take_options(const struct cli_line *line, struct pub_options *p, uint64_t *version)
{
	uint64_t jobs = 0;
	struct why why = {0};
	int ret = take_number(line, OPT_VERSION, 1, INT64_MAX, version);

	if (ret < 0)
		ret = take_number(line, OPT_ANCHOR_EVERY, 1, INT64_MAX, &p->anchor_every);
	if (ret < 0)
		ret = take_number(line, OPT_JOBS, 1, 1024, &jobs);
	p->dest = line->args[line->count - 1];
	p->state_dir = line->value[OPT_STATE_DIR];
	p->against = line->value[OPT_AGAINST];
	p->encoding = line->value[OPT_ENCODING];
	p->anchor_encoding = line->value[OPT_ANCHOR_ENCODING];
	if (p->anchor_encoding == NULL && is_set(line, OPT_COMPRESS_ANCHORS))
		p->anchor_encoding = "packed";
	p->jobs = (unsigned)jobs;
	p->anchor = is_set(line, OPT_ANCHOR);
	p->no_state = is_set(line, OPT_NO_STATE);
	p->take_over = is_set(line, OPT_TAKE_OVER);
	p->new_run = is_set(line, OPT_NEW_RUN);
	p->dry_run = is_set(line, OPT_DRY_RUN);
	p->quiet = is_set(line, OPT_QUIET);
	if (ret < 0 && p->take_over && p->new_run)
		ret = cli_usage(&cli, "publish: --take-over and --new-run exclude each other");
	if (ret < 0 &&
	    ((p->encoding != NULL && pub_encoding_find(p->encoding, &why) == NULL) ||
	     (p->anchor_encoding != NULL && pub_encoding_find(p->anchor_encoding, &why) == NULL)))
		ret = cli_usage(&cli, "publish: %s", why.text);
	return ret;
}

static int take_watch(const struct cli_line *line, struct pub_watch_options *w)
{
	static const int only[] = {OPT_VERSION_FROM, OPT_SETTLE, OPT_LATEST_ONLY, OPT_ONCE};
	const char *from = line->value[OPT_VERSION_FROM], *settle = line->value[OPT_SETTLE];

	*w = (struct pub_watch_options){
		.dir = line->value[OPT_WATCH],
		.dest = line->args[line->count - 1],
		.settle_ns = 5 * NSEC_PER_SEC,
		.count_versions = from != NULL && strcmp(from, "count") == 0,
		.latest_only = is_set(line, OPT_LATEST_ONLY),
		.once = is_set(line, OPT_ONCE),
		.new_run = is_set(line, OPT_NEW_RUN),
		.json = is_set(line, OPT_JSON),
		.quiet = is_set(line, OPT_QUIET),
	};
	for (size_t i = 0; w->dir == NULL && i < ARRAY_LEN(only); i++)
		if (is_set(line, only[i]))
			return cli_usage(&cli, "publish: --%s goes with --watch",
					 own[only[i]].name);
	if (w->dir == NULL && line->count != 2)
		return cli_usage(&cli, "publish needs a checkpoint and a destination");
	if (w->dir != NULL && line->count != 1)
		return cli_usage(&cli, "publish: --watch DIR takes the place of the checkpoint");
	if (w->dir != NULL && is_set(line, OPT_VERSION))
		return cli_usage(&cli, "publish: --watch takes versions from --version-from");
	if (from != NULL && strcmp(from, "name") != 0 && !w->count_versions)
		return cli_usage(&cli, "publish: --version-from is name or count");
	if (settle != NULL && parse_duration_ns(settle, &w->settle_ns) < 0)
		return cli_usage(&cli, "publish: --settle: \"%.40s\" is not a time", settle);
	return -1;
}

static int take_uploader(const struct cli_line *line, struct opts *o)
{
	const char *uploader = line->value[OPT_UPLOADER];

	if (uploader != NULL && strcmp(uploader, "hf") != 0 && strcmp(uploader, "s3") != 0)
		return cli_usage(&cli, "publish: --uploader is s3 or hf");
	o->uploader = uploader;
	return -1;
}

static int publish_many(const struct pub_options *p, const struct pub_watch_options *w)
{
	struct publisher *open = NULL;
	struct why why = {0};
	int ret = pub_open(p, &open, &why);

	if (ret == 0)
		ret = pub_watch(open, w, &why);
	pub_close(open);
	return ret < 0 ? cli_fail(&why) : cli_done();
}

static int publish_one(const struct pub_options *p, const struct cli_line *line,
		       const uint64_t *version)
{
	struct publisher *open = NULL;
	struct pub_report report;
	struct why why = {0};
	int ret = pub_open(p, &open, &why);

	publisher = open;
	if (ret == 0)
		ret = pub_publish(open, line->args[0], version, &report, &why);
	publisher = NULL;
	pub_close(open);
	if (ret < 0)
		return cli_fail(&why);
	if (report.note[0] != '\0')
		log_warning("%s", report.note);
	if (is_set(line, OPT_JSON))
		pub_report_json(&report, p->dest);
	else if (!p->quiet)
		pub_report_print(&report, p->dest);
	return cli_done();
}

int verb_publish(int argc, char **argv)
{
	struct pub_options p = {0};
	struct pub_watch_options watch;
	struct cli_line line;
	uint64_t version = 0;
	struct opts o;
	int ret;

	opts_init(&o);
	o.log_level = LOG_LEVEL_WARNING;
	ret = cli_parse(&cli, argc, argv, &o, &line);
	if (ret < 0)
		ret = take_options(&line, &p, &version);
	if (ret < 0)
		ret = take_watch(&line, &watch);
	if (ret < 0)
		ret = take_uploader(&line, &o);
	if (ret < 0) {
		p.source = &o;
		log_set_level(o.log_level);
	}
	if (ret < 0 && watch.dir != NULL) {
		ret = publish_many(&p, &watch);
	} else if (ret < 0) {
		catch_signals();
		ret = publish_one(&p, &line, version != 0 ? &version : NULL);
	}
	opts_release(&o);
	return ret;
}
