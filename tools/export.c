/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightfs export SOURCE|MOUNTPOINT -o DIR: one version as a plain checkpoint.
 *
 * The files and how they appear are tools/export_tree.c's.  With --force an existing checkpoint is
 * exchanged with the new one in one step and then removed; a directory that does not look like a
 * checkpoint is never replaced.  SIGINT and SIGTERM end it with nothing left.
 *
 * One thread.
 */
#include "cache/log.h"
#include "tools/cli.h"
#include "tools/export_tree.h"
#include "tools/place.h"

#include <inttypes.h>
#include <signal.h>
enum { OPT_OUT, OPT_VERSION, OPT_FORCE, OPT_QUIET };

static const struct cli_opt own[] = {
	[OPT_OUT] = {"output", 'o', "DIR", "where the checkpoint goes (required)"},
	[OPT_VERSION] = {"version", 0, "N", "which version (default: the newest whole one)"},
	[OPT_FORCE] = {"force", 0, NULL, "replace a checkpoint that is there already"},
	[OPT_QUIET] = {"quiet", 'q', NULL, "no progress and no summary"},
	{NULL, 0, NULL, NULL},
};

static const struct cli cli = {
	.verb = "export",
	.args = "[options] -o DIR SOURCE|MOUNTPOINT",
	.about = "Writes one version of a run as an ordinary checkpoint: weights, index and "
		 "companion\n"
		 "files, byte for byte as a mount shows them.  DIR appears when it is complete.  "
		 "The\n"
		 "number exported goes to standard output.\n",
	.own = own,
	.with = CLI_SOURCE,
	.min_args = 1,
	.max_args = 1,
	.examples =
		"  weightfs export ./bucket -o ./step-42 --version 42\n"
		"  weightfs export /mnt/policy -o ./newest --force\n"
		"  weightfs export ./bucket -o ./release --base ./Qwen3-0.6B --shard-size 5GB\n",
};

static volatile bool interrupted;

static void on_signal(int signal)
{
	(void)signal;
	interrupted = true;
}

static void catch_signals(void)
{
	struct sigaction act = {.sa_handler = on_signal};

	sigemptyset(&act.sa_mask);
	sigaction(SIGINT, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	sigaction(SIGHUP, &act, NULL);
}

/* version: NULL for the newest */
static int run_export(struct opts *o, const struct cli_line *line, const uint64_t *version)
{
	const struct export_options options = {.force = line->value[OPT_FORCE] != NULL,
					       .quiet = line->value[OPT_QUIET] != NULL,
					       .stop = &interrupted};
	struct stack *stack = NULL;
	struct why why = {0};
	uint64_t number;
	int ret;

	if (place_source(line->args[0], o, &why) < 0 || stack_new(o, false, &stack, &why) < 0 ||
	    export_version(stack, version, line->value[OPT_OUT], &options, &number, &why) < 0) {
		ret = cli_fail(&why);
	} else {
		printf("%" PRIu64 "\n", number);
		ret = cli_done();
	}
	stack_free(stack);
	return ret;
}

int verb_export(int argc, char **argv)
{
	struct cli_line line;
	uint64_t number;
	struct opts o;
	int ret;

	opts_init(&o);
	o.log_level = LOG_LEVEL_ERROR;
	o.hole_grace_ns = 0;
	ret = cli_parse(&cli, argc, argv, &o, &line);
	if (ret < 0 && (line.value[OPT_OUT] == NULL || line.value[OPT_OUT][0] == '\0'))
		ret = cli_usage(&cli, "export: -o DIR is missing");
	if (ret < 0 && line.value[OPT_VERSION] != NULL &&
	    parse_u64(line.value[OPT_VERSION], &number) < 0)
		ret = cli_usage(&cli, "export: --version: \"%.40s\" is not a version number",
				line.value[OPT_VERSION]);
	if (ret < 0) {
		log_set_level(o.log_level);
		catch_signals();
		ret = run_export(&o, &line, line.value[OPT_VERSION] != NULL ? &number : NULL);
	}
	opts_release(&o);
	return ret;
}
