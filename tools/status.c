/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightfs status MOUNTPOINT: what the mount itself says in .weightfs/status or status.json.
 *
 * Nothing is computed here, so the output is the same as that of `cat`; what the verb adds is a
 * sentence when the directory is no mount of ours or its process has gone.
 */
#include "tools/cli.h"
#include "tools/place.h"

#include <stdlib.h>
#include <unistd.h>

enum { OPT_JSON, OPT_LINE };

static const struct cli_opt own[] = {
	[OPT_JSON] = {"json", 0, NULL, "as JSON, for scripts"},
	[OPT_LINE] = {"line", 0, NULL, "the first line only"},
	{NULL, 0, NULL, NULL},
};

static const struct cli cli = {
	.verb = "status",
	.args = "[--json | --line] MOUNTPOINT",
	.about = "Says what a mount shows: the version and what it is made of, the versions kept,\n"
		 "objects that cannot be used and why, and counters.\n",
	.own = own,
	.min_args = 1,
	.max_args = 1,
	.examples = "  weightfs status /mnt/policy\n"
		    "  weightfs status --json /mnt/policy | jq .version\n"
		    "  watch -n 1 weightfs status --line /mnt/policy\n",
};

int verb_status(int argc, char **argv)
{
	struct cli_line line;
	struct why why = {0};
	char *text = NULL;
	int fd, ret = cli_parse(&cli, argc, argv, NULL, &line);

	if (ret >= 0)
		return ret;
	if (line.value[OPT_JSON] != NULL && line.value[OPT_LINE] != NULL)
		return cli_usage(&cli, "status: --json and --line exclude each other");
	if (place_open(line.args[0], &fd, &why) < 0)
		return cli_fail(&why);
	ret = place_read(fd, line.args[0], line.value[OPT_JSON] != NULL ? "status.json" : "status",
			 &text, &why);
	close(fd);
	if (ret < 0)
		return cli_fail(&why);
	if (line.value[OPT_LINE] != NULL)
		printf("%.*s\n", (int)strcspn(text, "\n"), text);
	else
		fputs(text, stdout);
	free(text);
	return cli_done();
}
