/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightfs hold, release, pin, unpin: one line each to .weightfs/control, and its reply.
 *
 * The mount decides and words the answer; what the verbs add is that it lands on stdout or stderr
 * with the right exit code, and a sentence when the directory is no mount of ours.
 */
#include "cache/clock.h"
#include "tools/cli.h"
#include "tools/place.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static const char ok_word[] = "ok: ", error_word[] = "error: ";

static const char *after_word(const char *text, const char *word)
{
	size_t len = strlen(word);

	return strncmp(text, word, len) == 0 ? text + len : NULL;
}

/* Writes the command, prints the reply; the exit code. */
static int send_command(const char *mountpoint, const char *command)
{
	char reply[4096] = "";
	struct why why = {0};
	int dir, fd, err = 0;
	const char *said;
	ssize_t n = 0;

	if (place_open_run(mountpoint, &dir, &why) < 0)
		return cli_fail(&why);
	fd = openat(dir, "control", O_RDWR | O_CLOEXEC);
	err = fd < 0 ? errno : 0;
	close(dir);
	if (fd < 0)
		return cli_error("%s: .weightfs/control cannot be opened: %s%s", SHOWN(mountpoint),
				 errno_text(err),
				 err == EACCES ? " (it is for the user who mounted)" : "");
	if (write(fd, command, strlen(command)) < 0)
		err = errno;
	n = pread(fd, reply, sizeof(reply) - 1, 0);
	close(fd);
	reply[n > 0 ? n : 0] = '\0';
	reply[strcspn(reply, "\n")] = '\0';
	said = after_word(reply, ok_word);
	if (err == 0 && said != NULL) {
		printf("%s\n", said);
		return cli_done();
	}
	said = after_word(reply, error_word);
	if (said != NULL)
		return cli_error("%s: %s", SHOWN(mountpoint), said);
	return cli_error("%s: %s", SHOWN(mountpoint), err != 0 ? errno_text(err) : "no reply");
}

/* ---- hold and release ---- */

enum { OPT_FOR };

static const struct cli_opt hold_own[] = {
	[OPT_FOR] = {"for", 0, "SECONDS", "for at most that long (default 600)"},
	{NULL, 0, NULL, NULL},
};

static const struct cli hold_cli = {
	.verb = "hold",
	.args = "[--for SECONDS] MOUNTPOINT",
	.about =
		"Keeps the plain paths at the version that they show, whoever loads or not, until\n"
		"weightfs release or the time is over.  Another hold takes the place of the "
		"first.\n",
	.own = hold_own,
	.min_args = 1,
	.max_args = 1,
	.examples = "  weightfs hold /mnt/policy\n"
		    "  weightfs hold /mnt/policy --for 120 && evaluate /mnt/policy\n",
};

int verb_hold(int argc, char **argv)
{
	const char *seconds = "600";
	struct cli_line line;
	char command[64];
	int64_t ns;
	int ret = cli_parse(&hold_cli, argc, argv, NULL, &line);

	if (ret >= 0)
		return ret;
	if (line.value[OPT_FOR] != NULL)
		seconds = line.value[OPT_FOR];
	if (parse_duration_ns(seconds, &ns) < 0 || ns == 0 || strlen(seconds) > 40)
		return cli_usage(&hold_cli,
				 "hold: --for: \"%.40s\" is not a time above 0 (such as 60 or 2m)",
				 SHOWN(seconds));
	snprintf(command, sizeof(command), "hold %s", seconds);
	return send_command(line.args[0], command);
}

static const struct cli release_cli = {
	.verb = "release",
	.args = "MOUNTPOINT",
	.about = "Lets the plain paths move on to the newest version: ends a hold, and what loads\n"
		 "under way hold (each of them goes on seeing the version that it began with).\n",
	.min_args = 1,
	.max_args = 1,
	.examples = "  weightfs release /mnt/policy\n"
		    "  weightfs release /mnt/policy && weightfs status --line /mnt/policy\n",
};

int verb_release(int argc, char **argv)
{
	struct cli_line line;
	int ret = cli_parse(&release_cli, argc, argv, NULL, &line);

	return ret >= 0 ? ret : send_command(line.args[0], "release");
}

/* ---- pin and unpin ---- */

static const struct cli pin_cli = {
	.verb = "pin",
	.args = "MOUNTPOINT N",
	.about = "Brings version N under .weightfs/versions, if it is not there, and keeps it "
		 "there\n"
		 "until weightfs unpin.\n",
	.min_args = 2,
	.max_args = 2,
	.examples = "  weightfs pin /mnt/policy 40\n"
		    "  weightfs pin /mnt/policy 40 && ls /mnt/policy/.weightfs/versions/40\n",
};

static const struct cli unpin_cli = {
	.verb = "unpin",
	.args = "MOUNTPOINT [N]",
	.about = "Ends the pin of version N, or all pins.\n",
	.min_args = 1,
	.max_args = 2,
	.examples = "  weightfs unpin /mnt/policy 40\n"
		    "  weightfs unpin /mnt/policy\n",
};

static int pin_or_unpin(const struct cli *cli, int argc, char **argv)
{
	struct cli_line line;
	char command[64];
	uint64_t version;
	int ret = cli_parse(cli, argc, argv, NULL, &line);

	if (ret >= 0)
		return ret;
	snprintf(command, sizeof(command), "%s", cli->verb);
	if (line.count > 1) {
		if (parse_u64(line.args[1], &version) < 0)
			return cli_usage(cli, "%s: \"%.40s\" is not a version number", cli->verb,
					 SHOWN(line.args[1]));
		snprintf(command, sizeof(command), "%s %llu", cli->verb,
			 (unsigned long long)version);
	}
	return send_command(line.args[0], command);
}

int verb_pin(int argc, char **argv)
{
	return pin_or_unpin(&pin_cli, argc, argv);
}

int verb_unpin(int argc, char **argv)
{
	return pin_or_unpin(&unpin_cli, argc, argv);
}
