/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs of the program.  Each is `weightfs VERB ARGS...`, lives in tools/VERB.c (those that
 * write to a mount's control file in tools/control.c), gets argv from its own name on (argv[0] is
 * the verb), writes what was asked for to stdout and errors as one line to stderr, and returns the
 * exit code.
 */
#ifndef TOOLS_VERBS_H
#define TOOLS_VERBS_H

enum {
	EXIT_CODE_OK = 0,
	EXIT_CODE_FAILURE = 1, /* one line on stderr says what and why */
	EXIT_CODE_USAGE = 2,   /* the command line was wrong */
	EXIT_CODE_TIMEOUT = 3, /* wait: the version did not come in time */
};

int verb_mount(int argc, char **argv);
int verb_umount(int argc, char **argv);
int verb_status(int argc, char **argv);
int verb_wait(int argc, char **argv);
int verb_follow(int argc, char **argv);
int verb_hold(int argc, char **argv);
int verb_release(int argc, char **argv);
int verb_pin(int argc, char **argv);
int verb_unpin(int argc, char **argv);
int verb_log(int argc, char **argv);
int verb_inspect(int argc, char **argv);
int verb_export(int argc, char **argv);
int verb_verify(int argc, char **argv);
int verb_cache(int argc, char **argv);
int verb_publish(int argc, char **argv);
int verb_compact(int argc, char **argv);
int verb_prune(int argc, char **argv);
int verb_lease(int argc, char **argv);
int verb_simulate(int argc, char **argv);

#endif
