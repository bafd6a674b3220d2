/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program: finds the verb and hands the rest of the command line to it.
 *
 *	weightfs VERB ...	runs a verb; its exit code is ours
 *	weightfs help [VERB]	what there is; the same as weightfs VERB --help
 *	weightfs --version
 *
 * Adding a verb: tools/NAME.c, a line in verbs.h, a line here.
 */
#include "tools/cli.h"

#include <fcntl.h>
#include <unistd.h>

static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *about;
} verbs[] = {
	{"mount", verb_mount, "show a run's weights as a directory of live files"},
	{"umount", verb_umount, "take a mount down, also a dead one"},
	{"status", verb_status, "say what a mount serves, and what is wrong"},
	{"wait", verb_wait, "wait until a version has arrived"},
	{"follow", verb_follow, "bring each new version to inference servers"},
	{"hold", verb_hold, "keep the plain paths at the version they show"},
	{"release", verb_release, "let them move on"},
	{"pin", verb_pin, "bring a version to a mount and keep it there"},
	{"unpin", verb_unpin, "end that"},
	{"log", verb_log, "list the versions of a run, newest first"},
	{"inspect", verb_inspect, "explain and check a safetensors, delta or patch file"},
	{"export", verb_export, "write one version as a plain checkpoint"},
	{"verify", verb_verify, "check every object and every version of a run"},
	{"cache", verb_cache, "show, verify, prune or clear the local cache"},
	{"publish", verb_publish, "publish a checkpoint as the next version of a run"},
	{"compact", verb_compact, "merge deltas of a run into cumulative ones"},
	{"prune", verb_prune, "delete what no version of a run needs any more"},
	{"lease", verb_lease, "keep a version of a run from being pruned for some time"},
	{"simulate", verb_simulate, "write a realistic run, for demos and tests"},
};

static void usage(FILE *to)
{
	fputs("usage: weightfs VERB [ARGUMENTS]\n\n"
	      "Shows a training run (full anchors and sparse deltas in a bucket) as a directory "
	      "of\n"
	      "ordinary, always-current safetensors files.\n\nVerbs:\n",
	      to);
	for (size_t i = 0; i < ARRAY_LEN(verbs); i++)
		fprintf(to, "  %-10s%s\n", verbs[i].name, verbs[i].about);
	fputs("  help      this text, or that of a verb: weightfs help VERB\n\n"
	      "weightfs --version prints the version.  Exit codes: 0 done, 1 failed, 2 wrong\n"
	      "command line, 3 wait timed out.\n",
	      to);
}

static int run_verb(int argc, char **argv)
{
	char shown[100];

	for (size_t i = 0; i < ARRAY_LEN(verbs); i++)
		if (strcmp(verbs[i].name, argv[0]) == 0)
			return verbs[i].run(argc, argv);
	cli_error("\"%s\" is not a verb; weightfs --help lists them",
		  printable(shown, sizeof(shown), argv[0], strlen(argv[0])));
	return EXIT_CODE_USAGE;
}

/* A file that is opened must not become what messages are written to.  What was closed cannot be
 * read or written, as before. */
static void open_standard(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 &&
		    open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
			_exit(EXIT_CODE_FAILURE);
}

int main(int argc, char **argv)
{
	char help_word[] = "--help";
	bool help;

	open_standard();
	if (argc < 2) {
		usage(stderr);
		return EXIT_CODE_USAGE;
	}
	if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "version") == 0) {
		printf("weightfs %s\n", WEIGHTFS_VERSION);
		return cli_done();
	}
	help = strcmp(argv[1], "help") == 0;
	if (help && argc > 2) {
		char *words[] = {argv[2], help_word, NULL};

		return run_verb(2, words);
	}
	if (help || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
		usage(stdout);
		return cli_done();
	}
	return run_verb(argc - 1, argv + 1);
}
