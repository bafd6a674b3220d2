/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightfs wait MOUNTPOINT: sleeps in poll(2) on .weightfs/newest (or version) until a number is
 * there, prints it and ends.  A mount that goes away ends the wait with a sentence.
 *
 * How it sleeps is tools/newest.c's.  One thread, and one that ends it should the other get stuck.
 */
#include "cache/clock.h"
#include "tools/cli.h"
#include "tools/newest.h"
#include "tools/place.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { OPT_AFTER, OPT_VERSION, OPT_TIMEOUT, OPT_CURRENT };

static const struct cli_opt own[] = {
	[OPT_AFTER] = {"after", 0, "N", "wait for a version above N"},
	[OPT_VERSION] = {"version", 0, "N", "wait for version N or a later one"},
	[OPT_TIMEOUT] = {"timeout", 0, "SECONDS", "give up after that long (default: never)"},
	[OPT_CURRENT] = {"current", 0, NULL,
			 "what the plain paths show, which a hold may keep behind the newest"},
	{NULL, 0, NULL, NULL},
};

static const struct cli cli = {
	.verb = "wait",
	.args = "[options] MOUNTPOINT",
	.about =
		"Waits until a version is whole and can be opened, and prints its number.  "
		"Without\n"
		"--after and --version any version will do.  --after also ends when the run begins "
		"again\n"
		"meanwhile, with the number that is there then.\n",
	.own = own,
	.min_args = 1,
	.max_args = 1,
	.examples = "  weightfs wait /mnt/policy --version 10 --timeout 60\n"
		    "  v=$(weightfs wait /mnt/policy --after \"$v\") && reload "
		    "/mnt/policy/.weightfs/versions/$v\n",
	.exits = "3  the version did not come in time",
};

/* 1: there, *out has it; 0: timed out; -errno.  `next`: a smaller number than the one that was
 * there will do, too: a run has begun again, or was set back. */
static int wait_for(int fd, const char *at, uint64_t least, bool next, int64_t until,
		    atomic_bool *out_answered, uint64_t *out)
{
	uint64_t before = 0;

	for (;;) {
		bool any = false;
		int ret = newest_read(fd, at, &any, out);

		if (ret < 0)
			return ret;
		atomic_store(out_answered, true);
		if (any && (*out >= least || (next && *out < before)))
			return 1;
		before = any ? *out : before;
		if (clock_mono_ns() >= until)
			return 0;
		newest_sleep(fd, -1, until);
	}
}

/* The smallest number that will do, and when to give up. */
static int parse_goal(const struct cli_line *line, uint64_t *least, int64_t *until)
{
	const char *after = line->value[OPT_AFTER], *version = line->value[OPT_VERSION];
	int64_t timeout;

	*least = 0;
	*until = INT64_MAX;
	if (after != NULL && version != NULL)
		return cli_usage(&cli, "wait: --after and --version exclude each other");
	if (after != NULL && (parse_u64(after, least) < 0 || add_overflows(*least, 1, least)))
		return cli_usage(&cli, "wait: --after: \"%.40s\" is not a version number", after);
	if (version != NULL && parse_u64(version, least) < 0)
		return cli_usage(&cli, "wait: --version: \"%.40s\" is not a version number",
				 version);
	if (line->value[OPT_TIMEOUT] == NULL)
		return -1;
	if (parse_duration_ns(line->value[OPT_TIMEOUT], &timeout) < 0)
		return cli_usage(&cli, "wait: --timeout: \"%.40s\" is not a time (such as 5 or 2m)",
				 line->value[OPT_TIMEOUT]);
	if (timeout < INT64_MAX - clock_mono_ns())
		*until = clock_mono_ns() + timeout;
	return -1;
}

static void say_late(const char *place, uint64_t least)
{
	if (least > 0)
		cli_error("%s: version %" PRIu64 " did not come in time", place, least);
	else
		cli_error("%s: no version came in time", place);
}

/* What the thread that ends the wait has to know. */
struct late {
	int64_t left;
	const char *place;
	uint64_t least;
	atomic_bool answered; /* the mount has said a number, or that there is none */
};

static void *too_late(void *arg)
{
	struct late *late = arg;
	struct timespec ts = clock_timespec(late->left);

	while (nanosleep(&ts, &ts) < 0)
		;
	/* From here on it is this thread that says how it ended. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	if (atomic_load(&late->answered))
		say_late(late->place, late->least);
	else
		cli_error("the mount does not answer");
	_exit(EXIT_CODE_TIMEOUT);
}

/* A mount whose process is stopped answers no request, and whoever waits for the answer does not
 * look at the time. */
static bool end_at(int64_t until, struct late *late, pthread_t *thread)
{
	if (until == INT64_MAX)
		return false;
	late->left = MAX(until - clock_mono_ns(), 0) + NSEC_PER_SEC;
	/* Without it all is as it was. */
	return pthread_create(thread, NULL, too_late, late) == 0;
}

/* All that asks the mount something.  Returns as wait_for() does; 2 when *why says what is wrong.
 */
static int ask(const struct cli_line *line, struct late *late, int64_t until, uint64_t *out,
	       struct why *why)
{
	int dir, fd, ret;

	if (place_open_run(line->args[0], &dir, why) < 0)
		return 2;
	fd = openat(dir, line->value[OPT_CURRENT] != NULL ? "version" : "newest",
		    O_RDONLY | O_CLOEXEC);
	ret = fd < 0 ? -errno : 0;
	close(dir);
	if (fd < 0)
		return ret;
	ret = wait_for(fd, line->args[0], late->least, line->value[OPT_AFTER] != NULL, until,
		       &late->answered, out);
	close(fd);
	return ret;
}

int verb_wait(int argc, char **argv)
{
	struct cli_line line;
	struct late late = {.answered = false};
	struct why why = {0};
	uint64_t version;
	int64_t until;
	pthread_t watch;
	bool watched;
	int ret = cli_parse(&cli, argc, argv, NULL, &line);

	if (ret < 0)
		ret = parse_goal(&line, &late.least, &until);
	if (ret >= 0)
		return ret;
	late.place = line.args[0];
	watched = end_at(until, &late, &watch);
	ret = ask(&line, &late, until, &version, &why);
	/* Whichever of the two was first has the word; the other is silent. */
	if (watched) {
		pthread_cancel(watch);
		pthread_join(watch, NULL);
	}
	if (ret == 2)
		return cli_fail(&why);
	if (ret == -ESTALE)
		return cli_error(
			"%s: it turned out to hold several runs, or this one is gone: name "
			"one, as in MOUNTPOINT/RUN",
			line.args[0]);
	if (ret < 0)
		return cli_error("%s: the mount went away while waiting: %s", line.args[0],
				 errno_text(ret));
	if (ret == 0) {
		say_late(late.place, late.least);
		return EXIT_CODE_TIMEOUT;
	}
	printf("%" PRIu64 "\n", version);
	return cli_done();
}
