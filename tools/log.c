/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightfs log SOURCE|MOUNTPOINT: the versions of a run, newest first, one line each.
 *
 * Reads the source itself, with the same eyes as a mount (run_scan() without a history), so it also
 * works where nothing is mounted; of a mount it takes the source and how to read it.  Numbers that
 * were skipped count as settled at once: a tool looks once and has nothing to wait for.
 *
 * Columns are as wide as their widest entry; colours only on a terminal.  One thread.
 */
#include "cache/clock.h"
#include "cache/log.h"
#include "fs/human.h"
#include "fs/stack.h"
#include "tools/cli.h"
#include "tools/place.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

enum { OPT_JSON, OPT_LIMIT };

static const struct cli_opt own[] = {
	[OPT_JSON] = {"json", 0, NULL, "as a JSON array, for scripts"},
	[OPT_LIMIT] = {"limit", 'n', "N", "the newest N only"},
	{NULL, 0, NULL, NULL},
};

static const struct cli cli = {
	.verb = "log",
	.args = "[options] SOURCE|MOUNTPOINT",
	.about =
		"Lists the versions of a run, newest first: number, kind (anchor, partial, delta,\n"
		"empty), elements changed and their share of the model, bytes, age, lineage, "
		"state,\n"
		"and what is wrong, if anything is.  States: ok, waiting (being written), broken,\n"
		"blocked (builds on something broken or missing), superseded (an earlier run's),\n"
		"unread (older than the newest anchor; not looked into).\n",
	.own = own,
	.with = CLI_SOURCE,
	.min_args = 1,
	.max_args = 1,
	.examples = "  weightfs log ./bucket\n"
		    "  weightfs log -n 5 /mnt/policy\n"
		    "  weightfs log --json ./bucket | jq '.[] | select(.state == \"broken\")'\n",
};

/* ---- lines ---- */

enum column { NUMBER, KIND, CHANGED, DENSITY, BYTES, ENCODING, AGE, LINEAGE, STATE, COLUMNS };

struct row {
	struct buf cell[COLUMNS];
	const struct version_info *info;
};

static const bool to_the_right[COLUMNS] = {
	[NUMBER] = true, [CHANGED] = true, [DENSITY] = true, [BYTES] = true, [AGE] = true,
};

static const char *colour_of(enum column column, enum version_state state)
{
	switch (column) {
	case NUMBER: return "\033[33m";
	case LINEAGE: return "\033[2m";
	case STATE:
		switch (state) {
		case VERSION_OK: return "\033[32m";
		case VERSION_BROKEN: return "\033[31m";
		case VERSION_BLOCKED: return "\033[31m";
		case VERSION_WAITING: return "\033[33m";
		default: return "\033[2m";
		}
	default: return NULL;
	}
}

static void fill_row(struct row *row, const struct version_info *info, int64_t now)
{
	row->info = info;
	buf_addf(&row->cell[NUMBER], "%" PRIu64, info->number);
	buf_addstr(&row->cell[KIND], version_kind_name(info->kind));
	if (info->changed > 0 || info->kind == VERSION_EMPTY)
		human_count(&row->cell[CHANGED], info->changed);
	else
		buf_addstr(&row->cell[CHANGED], "-");
	if (info->elements > 0 && (info->changed > 0 || info->kind == VERSION_EMPTY))
		buf_addf(&row->cell[DENSITY], "%.3g%%",
			 100.0 * (double)info->changed / (double)info->elements);
	else
		buf_addstr(&row->cell[DENSITY], "-");
	human_bytes(&row->cell[BYTES], info->bytes);
	buf_addstr(&row->cell[ENCODING], info->encoding);
	if (info->writer[0] != '\0')
		buf_addf(&row->cell[ENCODING], " (%s)", info->writer);
	if (info->mtime_ns > 0)
		human_time(&row->cell[AGE], now - info->mtime_ns);
	else
		buf_addstr(&row->cell[AGE], "-");
	buf_addstr(&row->cell[LINEAGE], info->lineage[0] != '\0' ? info->lineage : "-");
	buf_addstr(&row->cell[STATE], version_state_name(info->state));
}

static void print_row(struct row *row, const size_t width[COLUMNS], bool colours)
{
	for (int c = 0; c < COLUMNS; c++) {
		const char *colour = colours ? colour_of(c, row->info->state) : NULL;
		const char *text = buf_str(&row->cell[c]);
		int pad = (int)(width[c] - row->cell[c].len);
		bool last = c == COLUMNS - 1 && row->info->problem == NULL;

		if (width[c] == 0)
			continue; /* no object says its encoding */

		printf("%s%*s%s%s%s%*s", c > 0 ? "  " : "", to_the_right[c] ? pad : 0, "",
		       colour != NULL ? colour : "", text, colour != NULL ? "\033[m" : "",
		       to_the_right[c] || last ? 0 : pad, "");
	}
	if (row->info->problem != NULL)
		printf("  %s", row->info->problem);
	printf("\n");
}

static int print_rows(const struct run_report *report, size_t limit)
{
	size_t count = MIN(limit, report->version_count), width[COLUMNS] = {0};
	struct row *rows = calloc(count + 1, sizeof(*rows));
	int64_t now = clock_real_ns();

	if (rows == NULL)
		return cli_error("out of memory");
	for (size_t i = 0; i < count; i++) {
		fill_row(&rows[i], &report->versions[report->version_count - 1 - i], now);
		for (int c = 0; c < COLUMNS; c++)
			width[c] = MAX(width[c], rows[i].cell[c].len);
	}
	for (size_t i = 0; i < count; i++)
		print_row(&rows[i], width, isatty(STDOUT_FILENO) == 1);
	for (size_t i = 0; i < count; i++)
		for (int c = 0; c < COLUMNS; c++)
			buf_release(&rows[i].cell[c]);
	free(rows);
	return EXIT_CODE_OK;
}

/* ---- JSON ---- */

static json_t *number_or_null(uint64_t n)
{
	return n > 0 ? json_integer((json_int_t)n) : json_null();
}

static json_t *version_json(const struct version_info *info)
{
	bool counted = info->changed > 0 || info->kind == VERSION_EMPTY;
	bool density = counted && info->elements > 0;

	return json_pack(
		"{s:I, s:s, s:s, s:s, s:o, s:o, s:o, s:I, s:f, s:s?, s:s?, s:s?, s:s?, s:s?, s:I}",
		"version", (json_int_t)info->number, "object", info->key, "kind",
		version_kind_name(info->kind), "state", version_state_name(info->state), "changed",
		counted ? json_integer((json_int_t)info->changed) : json_null(), "elements",
		number_or_null(info->elements), "density",
		density ? json_real((double)info->changed / (double)info->elements) : json_null(),
		"bytes", (json_int_t)info->bytes, "mtime", (double)info->mtime_ns / NSEC_PER_SEC,
		"lineage", info->lineage[0] != '\0' ? info->lineage : NULL, "format",
		info->format[0] != '\0' ? info->format : NULL, "problem", info->problem, "encoding",
		info->encoding[0] != '\0' ? info->encoding : NULL, "writer",
		info->writer[0] != '\0' ? info->writer : NULL, "objects",
		(json_int_t)info->objects);
}

static int print_json(const struct run_report *report, size_t limit)
{
	size_t count = MIN(limit, report->version_count);
	json_t *list = json_array();
	int ret = EXIT_CODE_OK;

	for (size_t i = 0; i < count && ret == EXIT_CODE_OK; i++) {
		const struct version_info *info = &report->versions[report->version_count - 1 - i];

		if (json_array_append_new(list, version_json(info)) < 0)
			ret = cli_error("%s cannot be written as JSON", info->key);
	}
	if (ret == EXIT_CODE_OK &&
	    json_dumpf(list, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) == 0)
		printf("\n");
	json_decref(list);
	return ret;
}

/* Says that there is nothing to be listed, and why if something is in the way. */
static void nothing(const struct stack *stack, const struct run_report *report)
{
	struct buf why = {0};

	run_report_because(report, &why);
	cli_error("%s has no version yet%s", stack->store->name, buf_str(&why));
	buf_release(&why);
}

/* ---- the verb ---- */

static int run_log(struct opts *o, const struct cli_line *line, size_t limit)
{
	struct run_report *report = NULL;
	struct stack *stack = NULL;
	struct why why = {0};
	int ret;

	if (place_source(line->args[0], o, &why) < 0 || stack_new(o, false, &stack, &why) < 0 ||
	    run_scan(stack->run, &why) < 0) {
		ret = cli_fail(&why);
		goto out;
	}
	report = run_report(stack->run);
	if (report == NULL) {
		ret = cli_error("out of memory");
		goto out;
	}
	if (line->value[OPT_JSON] != NULL)
		ret = print_json(report, limit);
	else
		ret = print_rows(report, limit);
	if (ret == EXIT_CODE_OK)
		ret = cli_done();
	if (ret == EXIT_CODE_OK && report->version_count == 0)
		nothing(stack, report);
out:
	run_report_unref(report);
	stack_free(stack);
	return ret;
}

int verb_log(int argc, char **argv)
{
	struct cli_line line;
	struct opts o;
	uint64_t limit = SIZE_MAX;
	int ret;

	opts_init(&o);
	o.log_level = LOG_LEVEL_ERROR;
	o.hole_grace_ns = 0;
	o.deep = true;
	ret = cli_parse(&cli, argc, argv, &o, &line);
	if (ret < 0 && line.value[OPT_LIMIT] != NULL &&
	    parse_u64(line.value[OPT_LIMIT], &limit) < 0)
		ret = cli_usage(&cli, "log: -n: \"%.40s\" is not a number", line.value[OPT_LIMIT]);
	if (ret < 0) {
		log_set_level(o.log_level);
		ret = run_log(&o, &line, limit);
	}
	opts_release(&o);
	return ret;
}
