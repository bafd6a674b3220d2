/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the verbs share on the command line: help texts from one description, parsing of a verb's
 * own options beside those of fs/opts.h, and errors as one line on stderr.
 */
#ifndef TOOLS_CLI_H
#define TOOLS_CLI_H

#include "codec/base.h"
#include "fs/opts.h"
#include "tools/verbs.h"

#include <stdio.h>

struct cli_opt {
	const char *name; /* long name */
	char letter;	  /* or 0 */
	const char *arg;  /* NULL for a switch */
	const char *help;
	bool many; /* may be given several times: line.many has all of them */
};

enum cli_opts {
	CLI_OWN,
	CLI_PLACE, /* those for a place to write to: credentials, network, log */
	CLI_SOURCE,
	CLI_MOUNT
}; /* which of fs/opts.h's options the verb has, too */

struct cli {
	const char *verb;
	const char *args;  /* "[options] SOURCE MOUNTPOINT" */
	const char *about; /* a paragraph, lines of at most 80 columns, ends with a newline */
	const struct cli_opt *own; /* ends with name NULL; NULL: none */
	enum cli_opts with;
	size_t min_args, max_args;
	const char *examples; /* lines, two blanks in front */
	const char *exits;    /* more exit codes than 0, 1 and 2: a line, or NULL */
};

enum { CLI_ARGS_MAX = 4, CLI_OWN_MAX = 24, CLI_MANY_MAX = 64 };

struct cli_line {			/* a parsed command line */
	const char *value[CLI_OWN_MAX]; /* per own option: its value ("" for a switch), NULL when
					   not given; the last one counts */
	const char *args[CLI_ARGS_MAX];
	size_t count;
	const char
		*many[CLI_MANY_MAX]; /* the values of the option that may be repeated, in order */
	size_t many_count;
};

/* Parses argv (argv[0] is the verb).  `o` may be NULL when the verb has own options only.  Returns
 * -1 to go on, or the exit code: help was printed, or the line was wrong and stderr says so. */
int cli_parse(const struct cli *cli, int argc, char **argv, struct opts *o, struct cli_line *out);
void cli_help(const struct cli *cli, FILE *to);

/* "weightfs: <sentence>" on stderr; returns EXIT_CODE_FAILURE. */
int cli_fail(const struct why *why);
int cli_error(const char *fmt, ...) PRINTF(1, 2);
/* The same with a pointer to --help; returns EXIT_CODE_USAGE. */
int cli_usage(const struct cli *cli, const char *fmt, ...) PRINTF(2, 3);
/* Flushes stdout: EXIT_CODE_OK, or a failure when what was printed did not get there. */
int cli_done(void);
/* What an errno means, in words; never NULL. */
const char *errno_text(int err);

/* A plain decimal number; -EINVAL. */
int parse_u64(const char *text, uint64_t *out) MUST_CHECK;

#endif
