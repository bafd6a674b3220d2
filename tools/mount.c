/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightfs mount SOURCE MOUNTPOINT: reads the command line and hands over to the front.
 *
 * Paths become absolute here, because the process that serves the mount leaves the directory it was
 * started in, and because status and log should name places that others can find.
 */
#include "fs/mount.h"
#include "cache/fileio.h"
#include "tools/cli.h"

#include <stdlib.h>
#include <unistd.h>

static const struct cli cli = {
	.verb = "mount",
	.args = "[options] SOURCE MOUNTPOINT",
	.about = "Shows the training run in the directory SOURCE (anchors/, deltas/) as a "
		 "directory of\n"
		 "ordinary safetensors files that follow the run, version after version.  Returns "
		 "when\n"
		 "the mount can be used.  MOUNTPOINT/.weightfs has the status, all versions kept "
		 "and a\n"
		 "control file.\n",
	.with = CLI_MOUNT,
	.min_args = 2,
	.max_args = 2,
	.examples = "  weightfs mount ./bucket /mnt/policy\n"
		    "  weightfs mount --base ./Qwen3-0.6B --keep 4 ./bucket /mnt/policy\n"
		    "  weightfs mount -f --log-level debug ./bucket /mnt/policy\n"
		    "  /etc/fstab: /srv/bucket /mnt/policy fuse.weightfs "
		    "keep=4,allow_other,_netdev,nofail 0 0\n",
};

/* Makes *path absolute; a place that is not a path (scheme://...) stays. */
static int absolute(char **path, struct why *why)
{
	const char *rest = *path;
	char *cwd, *full;

	if (rest == NULL || rest[0] == '/' || strstr(rest, "://") != NULL)
		return 0;
	while (rest[0] == '.' && rest[1] == '/')
		for (rest += 2; *rest == '/';)
			rest++;
	cwd = getcwd(NULL, 0);
	if (cwd == NULL)
		return why_set(why, errno, "the working directory cannot be found: %s",
			       errno_text(errno));
	full = *rest == '\0' || strcmp(rest, ".") == 0 ? strdup(cwd) : path_join(cwd, rest);
	free(cwd);
	if (full == NULL)
		return why_set(why, ENOMEM, "out of memory");
	free(*path);
	*path = full;
	return 0;
}

static int set_places(struct opts *o, const struct cli_line *line, struct why *why)
{
	char **const paths[] = {&o->source,   &o->mountpoint, &o->base,	  &o->cache_dir,
				&o->log_file, &o->token_file, &o->ca_file};
	size_t len;

	o->source = strdup(line->args[0]);
	o->mountpoint = strdup(line->args[1]);
	if (o->source == NULL || o->mountpoint == NULL)
		return why_set(why, ENOMEM, "out of memory");
	for (size_t i = 0; i < ARRAY_LEN(paths); i++)
		if (absolute(paths[i], why) < 0)
			return -why->err;
	for (len = strlen(o->mountpoint); len > 1 && o->mountpoint[len - 1] == '/'; len--)
		o->mountpoint[len - 1] = '\0';
	return 0;
}

int verb_mount(int argc, char **argv)
{
	struct cli_line line;
	struct why why = {0};
	struct opts o;
	int ret;

	opts_init(&o);
	ret = cli_parse(&cli, argc, argv, &o, &line);
	if (ret < 0) {
		if (line.args[0][0] == '\0' || line.args[1][0] == '\0')
			ret = cli_usage(&cli, "mount: SOURCE and MOUNTPOINT must not be empty");
		else if (set_places(&o, &line, &why) < 0)
			ret = cli_fail(&why);
		else
			ret = mount_run(&o);
	}
	opts_release(&o);
	return ret;
}
