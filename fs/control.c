/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control file's commands: a table of words, each with a function.  Parsing is strict (a number
 * is a number to its last byte) because a mistyped pin that does nothing would be found out much
 * later.
 *
 * No state here: commands act on history and watch, which have their own locks.
 *
 * Threads: any; refresh and pin wait for the watch thread.
 */
#include "fs/control.h"

#include <stdlib.h>

#include "cache/clock.h"
#include "cache/log.h"

typedef unsigned long long ull;

struct command {
	const char *word;
	const char *arg; /* NULL: none; in brackets: may be left out */
	int (*run)(struct stack *s, const char *arg, struct buf *ok, struct why *why);
};

static int parse_version(const char *arg, uint64_t *out, struct why *why)
{
	char shown[64], *end;
	ull v;

	errno = 0;
	v = strtoull(arg, &end, 10);
	if (*arg < '0' || *arg > '9' || *end || errno)
		return why_set(why, EINVAL, "'%s' is not a version number",
			       printable(shown, sizeof(shown), arg, strlen(arg)));
	*out = v;
	return 0;
}

static int run_refresh(struct stack *s, const char *arg, struct buf *ok, struct why *why)
{
	struct generation *g;
	int ret = watch_refresh(s->watch, true);

	if (ret == -ECANCELED)
		return why_set(why, ECANCELED, "the mount is being taken down");
	if (ret < 0)
		return why_set(why, -ret, "%s cannot be listed: %s", s->store->name,
			       strerrordesc_np(-ret));
	g = history_newest(s->history);
	if (g && g->state)
		buf_addf(ok, "newest is version %llu", (ull)g->version);
	else
		buf_addstr(ok, "no version is whole yet");
	generation_unref(g);
	return 0;
}

static int run_pin(struct stack *s, const char *arg, struct buf *ok, struct why *why)
{
	uint64_t version = 0, pinned = 0;
	int ret = parse_version(arg, &version, why);

	if (ret < 0)
		return ret;
	ret = watch_pin(s->watch, version, &pinned, why);
	if (ret < 0) {
		if (!why->text[0])
			why_set(why, -ret, "version %llu cannot be had: %s", (ull)version,
				strerrordesc_np(-ret));
		return ret;
	}
	buf_addf(ok, "pinned %llu", (ull)pinned);
	if (pinned != version)
		buf_addf(ok, ", since nothing changed from there to %llu", (ull)version);
	return 0;
}

static int run_unpin(struct stack *s, const char *arg, struct buf *ok, struct why *why)
{
	uint64_t version = 0;
	int ret;

	if (!*arg) {
		history_unpin_all(s->history);
		buf_addstr(ok, "unpinned all");
		return 0;
	}
	ret = parse_version(arg, &version, why);
	if (ret < 0)
		return ret;
	ret = history_unpin(s->history, version);
	if (ret < 0)
		return why_set(why, -ret, "version %llu is not pinned", (ull)version);
	buf_addf(ok, "unpinned %llu", (ull)version);
	return 0;
}

static int run_hold(struct stack *s, const char *arg, struct buf *ok, struct why *why)
{
	char shown[64];
	int64_t ns;

	if (parse_duration_ns(arg, &ns) < 0 || ns <= 0)
		return why_set(why, EINVAL, "'%s' is not a time in seconds",
			       printable(shown, sizeof(shown), arg, strlen(arg)));
	history_hold(s->history, ns);
	buf_addf(ok, "held for %s seconds", arg);
	return 0;
}

static int run_release(struct stack *s, const char *arg, struct buf *ok, struct why *why)
{
	history_release(s->history);
	buf_addstr(ok, "released");
	return 0;
}

static int run_prefetch(struct stack *s, const char *arg, struct buf *ok, struct why *why)
{
	struct generation *g;
	uint64_t present, size;

	if (!s->store->remote && (!s->base || !s->base->remote)) {
		buf_addstr(ok, "nothing to prefetch: the bucket is a local directory");
		return 0;
	}
	g = history_newest(s->history);
	if (!g || !g->state) {
		generation_unref(g);
		return why_set(why, ENOENT, "no version is whole yet");
	}
	state_progress(g->state, &present, &size);
	state_pull(g->state);
	buf_addf(ok, "pulling version %llu: %llu of %llu bytes are here", (ull)g->version,
		 (ull)present, (ull)size);
	generation_unref(g);
	return 0;
}

static const struct command commands[] = {
	{"refresh", NULL, run_refresh}, {"pin", "N", run_pin},
	{"unpin", "[N]", run_unpin},	{"hold", "SECONDS", run_hold},
	{"release", NULL, run_release}, {"prefetch", NULL, run_prefetch},
};

static const struct command *find_command(const char *word)
{
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		if (strcmp(commands[i].word, word) == 0)
			return &commands[i];
	return NULL;
}

static int no_command(const char *word, struct why *why)
{
	struct buf known = {0};
	char shown[64];

	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		buf_addf(&known, "%s%s%s%s", i ? ", " : "", commands[i].word,
			 commands[i].arg ? " " : "", commands[i].arg ? commands[i].arg : "");
	why_set(why, EINVAL, "'%s' is no command; there are %s",
		printable(shown, sizeof(shown), word, strlen(word)), buf_str(&known));
	buf_release(&known);
	return -EINVAL;
}

/* At the top of several runs. */
static int run_above(struct roster *r, const struct command *c, struct buf *ok, struct why *why)
{
	int ret;

	if (c->run != run_refresh)
		return why_set(why, EISDIR,
			       "%s is for one run, and several are mounted here: name one, as in "
			       "MOUNTPOINT/RUN",
			       c->word);
	ret = roster_refresh(r, why);
	if (ret == 0)
		roster_line(r, ok);
	return ret;
}

/* Splits "word arg" in place and runs it. */
static int run_line(struct stack *s, struct roster *r, char *line, struct buf *ok, struct why *why)
{
	size_t len = strlen(line), word_len;
	const struct command *c;
	const char *arg;

	while (len && strchr(" \t\r\n", line[len - 1]))
		line[--len] = 0;
	line += strspn(line, " \t");
	word_len = strcspn(line, " \t");
	arg = line + word_len + strspn(line + word_len, " \t");
	line[word_len] = 0;
	c = find_command(line);
	if (!c)
		return no_command(line, why);
	if (*arg && !c->arg)
		return why_set(why, EINVAL, "%s takes nothing after it", c->word);
	if (!*arg && c->arg && *c->arg != '[')
		return why_set(why, EINVAL, "%s wants %s after it", c->word, c->arg);
	return r ? run_above(r, c, ok, why) : c->run(s, arg, ok, why);
}

int control_run(struct stack *s, struct roster *r, const char *command, size_t len,
		struct buf *reply)
{
	char line[CONTROL_MAX + 1];
	struct why why = {0};
	struct buf ok = {0};
	int ret;

	if (len > CONTROL_MAX || memchr(command, 0, len)) {
		ret = why_set(&why, EINVAL, "a command is one line of at most %d bytes",
			      CONTROL_MAX);
	} else {
		memcpy(line, command, len);
		line[len] = 0;
		ret = run_line(s, r, line, &ok, &why);
	}
	if (ret == 0) {
		buf_addf(reply, "ok: %s\n", buf_str(&ok));
		log_info("control: %s", buf_str(&ok));
	} else {
		buf_addf(reply, "error: %s\n", why.text);
	}
	buf_release(&ok);
	return ret;
}
