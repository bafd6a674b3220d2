/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of the verbs: one description (struct cli) gives the help text and drives the
 * parser.
 *
 * A verb's own options are taken out first; the rest of the words go in order to opts_parse(),
 * which knows the options of sources and mounts.  The value of one of those is never looked at as
 * an option of the verb.
 *
 * Errors are one line on stderr, "weightfs: ...", and the exit code says which kind.  One thread.
 */
#include "tools/cli.h"

#include <stdarg.h>
#include <stdlib.h>

enum { HELP_COLUMN = 26 };

const char *errno_text(int err)
{
	const char *text = strerrordesc_np(err < 0 ? -err : err);

	return text != NULL ? text : "unknown error";
}

static void say(const char *fmt, va_list args)
{
	fputs("weightfs: ", stderr);
	vfprintf(stderr, fmt, args);
	fputs("\n", stderr);
}

int cli_error(const char *fmt, ...)
{
	va_list args;

	fflush(stdout);
	va_start(args, fmt);
	say(fmt, args);
	va_end(args);
	return EXIT_CODE_FAILURE;
}

int cli_fail(const struct why *why)
{
	return cli_error("%s", why->text[0] != '\0' ? why->text : errno_text(why->err));
}

int cli_usage(const struct cli *cli, const char *fmt, ...)
{
	char text[600];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	cli_error("%s; weightfs %s --help says more", text, cli->verb);
	return EXIT_CODE_USAGE;
}

int cli_done(void)
{
	if (fflush(stdout) != 0 || ferror(stdout))
		return cli_error("cannot write to standard output: %s", errno_text(errno));
	return EXIT_CODE_OK;
}

int parse_u64(const char *text, uint64_t *out)
{
	uint64_t v = 0;

	if (*text == '\0')
		return -EINVAL;
	for (; *text != '\0'; text++)
		if (*text < '0' || *text > '9' || mul_overflows(v, 10, &v) ||
		    add_overflows(v, (uint64_t)(*text - '0'), &v))
			return -EINVAL;
	*out = v;
	return 0;
}

/* ---- help ---- */

static void help_option(FILE *to, const char *name, char letter, const char *arg, const char *help)
{
	int width;

	if (letter != 0)
		width = fprintf(to, "  -%c, --%s", letter, name);
	else
		width = fprintf(to, "  --%s", name);
	if (arg != NULL)
		width += fprintf(to, " %s", arg);
	if (width >= HELP_COLUMN) {
		fputs("\n", to);
		width = 0;
	}
	fprintf(to, "%*s%s\n", HELP_COLUMN - width, "", help);
}

/* Has the verb this one of fs/opts.h's options? */
static bool offers(const struct cli *cli, const struct opt_def *d)
{
	static const char *const place[] = {"timeout", "token-file", "ca-file",	  "endpoint-url",
					    "region",  "profile",    "log-level", "log-file"};

	if (cli->with == CLI_MOUNT)
		return true;
	if (cli->with == CLI_SOURCE)
		return !d->mount_only;
	for (size_t i = 0; cli->with == CLI_PLACE && i < ARRAY_LEN(place); i++)
		if (strcmp(place[i], d->name) == 0)
			return true;
	return false;
}

void cli_help(const struct cli *cli, FILE *to)
{
	fprintf(to, "usage: weightfs %s %s\n\n%s\nOptions:\n", cli->verb, cli->args, cli->about);
	for (const struct cli_opt *own = cli->own; own != NULL && own->name != NULL; own++)
		help_option(to, own->name, own->letter, own->arg, own->help);
	for (const struct opt_def *d = opt_defs; d->name != NULL; d++)
		if (offers(cli, d))
			help_option(to, d->name, d->letter, d->arg, d->help);
	help_option(to, "help", 'h', NULL, "this text");
	fprintf(to, "\nExamples:\n%s\nExit codes:\n", cli->examples);
	fputs("  0  done\n"
	      "  1  failed; one line on stderr says what and why\n"
	      "  2  the command line was wrong\n",
	      to);
	if (cli->exits != NULL)
		fprintf(to, "  %s\n", cli->exits);
}

/* ---- parsing ---- */

struct split {
	const struct cli *cli;
	struct cli_line *line;
	char **argv; /* of the verb */
	int argc, at;
	char **rest; /* the words that are not ours */
	int rest_count;
};

static const struct cli_opt *own_long(const struct cli *cli, const char *name, size_t len)
{
	for (const struct cli_opt *own = cli->own; own != NULL && own->name != NULL; own++)
		if (strncmp(own->name, name, len) == 0 && own->name[len] == '\0')
			return own;
	return NULL;
}

static const struct cli_opt *own_letter(const struct cli *cli, char letter)
{
	for (const struct cli_opt *own = cli->own; own != NULL && own->name != NULL; own++)
		if (own->letter == letter && letter != '\0')
			return own;
	return NULL;
}

/* Must the word after this one stay with it, because it is the value of an option that is not ours?
 */
static bool foreign_takes_value(const struct cli *cli, const char *word)
{
	if (strchr(word, '=') != NULL)
		return false;
	for (const struct opt_def *d = opt_defs; d->name != NULL; d++)
		if (offers(cli, d) && d->arg != NULL && strcmp(word + 2, d->name) == 0)
			return true;
	return false;
}

static int take_own(struct split *s, const struct cli_opt *own, const char *value)
{
	size_t i = (size_t)(own - s->cli->own);

	if (own->arg == NULL && value != NULL)
		return cli_usage(s->cli, "--%s takes no value", own->name);
	if (own->arg != NULL && value == NULL) {
		if (s->at >= s->argc)
			return cli_usage(s->cli, "--%s needs a value (%s)", own->name, own->arg);
		value = s->argv[s->at++];
	}
	s->line->value[i] = value != NULL ? value : "";
	if (own->many) {
		if (s->line->many_count == CLI_MANY_MAX)
			return cli_usage(s->cli, "more than %d times --%s", CLI_MANY_MAX,
					 own->name);
		s->line->many[s->line->many_count++] = value;
	}
	return -1;
}

/* One word: ours, or kept for opts_parse(). */
static int take_word(struct split *s, char *word)
{
	const struct cli_opt *own;

	if (word[0] == '-' && word[1] == '-' && word[2] != '\0') {
		char *equals = strchr(word, '=');
		size_t len = equals != NULL ? (size_t)(equals - word) - 2 : strlen(word) - 2;

		own = own_long(s->cli, word + 2, len);
		if (own != NULL)
			return take_own(s, own, equals != NULL ? equals + 1 : NULL);
		for (const struct opt_def *d = opt_defs; d->name != NULL; d++)
			if (s->cli->with == CLI_PLACE && !offers(s->cli, d) &&
			    strncmp(d->name, word + 2, len) == 0 && d->name[len] == '\0')
				return cli_usage(s->cli, "%s has no option --%s", s->cli->verb,
						 d->name);
		s->rest[s->rest_count++] = word;
		if (foreign_takes_value(s->cli, word) && s->at < s->argc)
			s->rest[s->rest_count++] = s->argv[s->at++];
		return -1;
	}
	if (word[0] == '-' && word[1] != '\0' && word[1] != '-') {
		own = own_letter(s->cli, word[1]);
		if (own != NULL && own->arg == NULL && word[2] != '\0')
			return cli_usage(s->cli, "-%c takes no value", own->letter);
		if (own != NULL)
			return take_own(s, own, word[2] != '\0' ? word + 2 : NULL);
	}
	s->rest[s->rest_count++] = word;
	return -1;
}

static int parse_rest(const struct cli *cli, int count, char **rest, struct opts *o,
		      struct cli_line *out)
{
	struct opts none;
	struct why why = {0};
	bool help = false;
	int ret;

	if (o == NULL) {
		/* No option of a source is offered then: --help is all that is left to find. */
		for (int i = 0; i < count && strcmp(rest[i], "--") != 0; i++) {
			if (rest[i][0] == '-' && rest[i][1] != '\0' &&
			    strcmp(rest[i], "--help") != 0 && strcmp(rest[i], "-h") != 0)
				return cli_usage(cli, "unknown option %.200s", rest[i]);
		}
	}
	opts_init(&none);
	ret = opts_parse(o != NULL ? o : &none, count, rest, cli->with == CLI_MOUNT, out->args,
			 cli->max_args, &out->count, &help, &why);
	opts_release(&none);
	if (help) {
		cli_help(cli, stdout);
		return cli_done();
	}
	if (ret < 0)
		return cli_usage(cli, "%s: %s", cli->verb, why.text);
	if (out->count < cli->min_args)
		return cli_usage(cli, "%s needs %s", cli->verb, cli->args);
	return -1;
}

int cli_parse(const struct cli *cli, int argc, char **argv, struct opts *o, struct cli_line *out)
{
	struct split s = {cli, out, argv, argc, 1, NULL, 0};
	int ret = -1;

	*out = (struct cli_line){0};
	s.rest = calloc((size_t)argc + 1, sizeof(*s.rest));
	if (s.rest == NULL)
		return cli_error("out of memory");
	while (ret < 0 && s.at < argc) {
		char *word = argv[s.at++];

		if (strcmp(word, "--") == 0) {
			s.rest[s.rest_count++] = word;
			while (s.at < argc)
				s.rest[s.rest_count++] = argv[s.at++];
			break;
		}
		ret = take_word(&s, word);
	}
	if (ret < 0)
		ret = parse_rest(cli, s.rest_count, s.rest, o, out);
	free(s.rest);
	return ret;
}
