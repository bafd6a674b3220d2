/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightfs umount MOUNTPOINT: takes a mount down, as its owner or as root.
 *
 * What that needs (umount(2) or the setuid helper, a dead mount, a busy one) is the front's to
 * know.
 */
#include "fs/mountpoint.h"
#include "tools/cli.h"

enum { OPT_LAZY };

static const struct cli_opt own[] = {
	[OPT_LAZY] = {"lazy", 'l', NULL, "detach now, end when the last file is closed"},
	{NULL, 0, NULL, NULL},
};

static const struct cli cli = {
	.verb = "umount",
	.args = "[--lazy] MOUNTPOINT",
	.about = "Takes a mount down and ends its process.  A mount whose process has died is "
		 "cleaned\n"
		 "up the same way.  While files are open in it, the mount is busy; --lazy detaches "
		 "it\n"
		 "at once and lets the readers finish.\n",
	.own = own,
	.min_args = 1,
	.max_args = 1,
	.examples = "  weightfs umount /mnt/policy\n"
		    "  weightfs umount --lazy /mnt/policy\n",
};

int verb_umount(int argc, char **argv)
{
	struct cli_line line;
	struct why why = {0};
	int ret = cli_parse(&cli, argc, argv, NULL, &line);

	if (ret >= 0)
		return ret;
	if (mountpoint_umount(line.args[0], line.value[OPT_LAZY] != NULL, &why) < 0)
		return cli_fail(&why);
	return EXIT_CODE_OK;
}
